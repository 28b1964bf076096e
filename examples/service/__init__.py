"""A service for expense claims: workflow runs behind HTTP that survive the process that serves them."""
