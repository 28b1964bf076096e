"""The file store."""
