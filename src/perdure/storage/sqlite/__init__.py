"""The SQLite store: one file for all processes of a machine."""

from perdure.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
