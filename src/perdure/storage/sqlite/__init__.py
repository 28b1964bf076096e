"""Stores on SQLite: in one file for all processes of a machine, or in memory."""

from perdure.storage.sqlite.store import MemoryStore, SqliteStore

__all__ = ["MemoryStore", "SqliteStore"]
