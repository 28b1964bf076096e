"""Store runs in a directory of readable files."""
