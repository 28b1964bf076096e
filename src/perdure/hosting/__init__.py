"""Many runs in one process, and many processes on one store."""
