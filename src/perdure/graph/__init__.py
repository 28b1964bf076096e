"""What there is to run: executors, edges, checks."""
