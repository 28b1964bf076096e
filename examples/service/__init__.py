"""A service for expense claims: runs of a workflow behind HTTP, which outlive the process that serves them."""
