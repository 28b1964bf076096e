"""The session stores that ship with perdure: a store each, and above it the threads.

A store is imported when a session store is made of it: a program has one or two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.records import LatestOnly, Retention
from perdure.threads.store import SessionStore

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.storage import Durability

_RETENTION = Retention(checkpoints=LatestOnly())
"""A checkpoint of a thread is only where it stands; what was said are its events, and all of them stay."""


class InMemorySessionStore(SessionStore):
    """For tests, and for conversations that need not outlive the process."""

    def __init__(self, *, tenant: str | None = None, clock: Clock | None = None) -> None:
        from perdure.storage import MemoryStore  # noqa: PLC0415

        clock = clock or SystemClock()
        super().__init__(MemoryStore(retention=_RETENTION, clock=clock), tenant=tenant, clock=clock)


class FileSessionStore(SessionStore):
    """A directory of readable files, for one machine.

    What is appended outlasts a power cut with durability "commit", and with "os" a killed process only.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        tenant: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage import FileStore  # noqa: PLC0415

        clock = clock or SystemClock()
        store = FileStore(
            directory, retention=_RETENTION, clock=clock, lease_seconds=lease_seconds, durability=durability
        )
        super().__init__(store, tenant=tenant, clock=clock)
        self.directory: Path = store.directory


class SqliteSessionStore(SessionStore):
    """One SQLite file, for one machine and any number of its processes.

    What is appended outlasts a power cut with durability "commit", and with "os" a killed process only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tenant: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage import SqliteStore  # noqa: PLC0415

        clock = clock or SystemClock()
        store = SqliteStore(path, retention=_RETENTION, clock=clock, lease_seconds=lease_seconds, durability=durability)
        super().__init__(store, tenant=tenant, clock=clock)
        self.path: Path = store.path


class PostgresSessionStore(SessionStore):
    """A PostgreSQL database, for several machines. It needs the extra `perdure[postgres]`.

    All that is perdure's is in one `schema`, which is made when it is first needed. `pool_size` is how many connections
    a process opens at most. With durability "os" the server tells of appends before it has synced them.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "perdure",
        tenant: str | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 30.0,
        pool_size: int = 4,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage import PostgresStore  # noqa: PLC0415

        clock = clock or SystemClock()
        store = PostgresStore(
            dsn,
            schema=schema,
            retention=_RETENTION,
            clock=clock,
            lease_seconds=lease_seconds,
            pool_size=pool_size,
            durability=durability,
        )
        super().__init__(store, tenant=tenant, clock=clock)
