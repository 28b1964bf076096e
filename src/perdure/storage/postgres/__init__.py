"""The PostgreSQL store, for processes on any number of machines. Its driver is imported when a store is made."""

from perdure.storage.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
