"""The `perdure` command on stores made by real runs."""
