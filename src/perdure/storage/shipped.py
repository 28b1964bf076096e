"""The storages that ship with perdure: a store each, and above it the six methods.

A store is imported when a storage is made of it: a program has one or two, and each is as much to load as the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.codec import DEFAULT_SIZE_LIMITS
from perdure.records import Retention
from perdure.storage.base import StoreStorage

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.codec import SizeLimits
    from perdure.storage.port import Durability


class InMemoryCheckpointStorage(StoreStorage):
    """For tests. It goes through the same codec as the others: what works here works on disk."""

    def __init__(
        self,
        *,
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
        allow_pickle: bool = False,
        size_limits: SizeLimits | None = DEFAULT_SIZE_LIMITS,
    ) -> None:
        from perdure.storage.memory import MemoryStore  # noqa: PLC0415

        super().__init__(
            MemoryStore(retention=retention or Retention(), clock=clock or SystemClock()),
            allowed_checkpoint_types=allowed_checkpoint_types,
            allow_pickle=allow_pickle,
            clock=clock,
            size_limits=size_limits,
        )


class FileCheckpointStorage(StoreStorage):
    """A directory of readable files, for one machine.

    A process that runs on another machine with the same directory has died, as far as can be known, when it has not
    been heard of for `lease_seconds`. What is committed outlasts a power cut with durability "commit", and with "os" a
    killed process only.
    """

    def __init__(
        self,
        storage_path: str | os.PathLike[str],
        *,
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
        allow_pickle: bool = False,
        size_limits: SizeLimits | None = DEFAULT_SIZE_LIMITS,
        lease_seconds: float = 30.0,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage.file.store import FileStore  # noqa: PLC0415

        store = FileStore(
            storage_path,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            lease_seconds=lease_seconds,
            durability=durability,
        )
        super().__init__(
            store,
            allowed_checkpoint_types=allowed_checkpoint_types,
            allow_pickle=allow_pickle,
            clock=clock,
            size_limits=size_limits,
        )
        self.storage_path: Path = store.directory


class SqliteCheckpointStorage(StoreStorage):
    """One SQLite file, for one machine and any number of its processes: the embedded default.

    What is committed outlasts a power cut with durability "commit", and with "os" a killed process only.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
        allow_pickle: bool = False,
        size_limits: SizeLimits | None = DEFAULT_SIZE_LIMITS,
        lease_seconds: float = 30.0,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage.sqlite.store import SqliteStore  # noqa: PLC0415

        store = SqliteStore(
            path,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            lease_seconds=lease_seconds,
            durability=durability,
        )
        super().__init__(
            store,
            allowed_checkpoint_types=allowed_checkpoint_types,
            allow_pickle=allow_pickle,
            clock=clock,
            size_limits=size_limits,
        )
        self.path: Path = store.path


class PostgresCheckpointStorage(StoreStorage):
    """A PostgreSQL database, for several machines. It needs the extra `perdure[postgres]`.

    All that is perdure's is in one `schema`, which is made when it is first needed. `pool_size` is how many connections
    a process opens at most. With durability "os" the server tells of commits before it has synced them: they outlast
    every process of ours, and a crash of the server may take the newest.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "perdure",
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
        allow_pickle: bool = False,
        size_limits: SizeLimits | None = DEFAULT_SIZE_LIMITS,
        lease_seconds: float = 30.0,
        pool_size: int = 4,
        durability: Durability = "commit",
    ) -> None:
        from perdure.storage.postgres.store import PostgresStore  # noqa: PLC0415

        store = PostgresStore(
            dsn,
            schema=schema,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            lease_seconds=lease_seconds,
            pool_size=pool_size,
            durability=durability,
        )
        super().__init__(
            store,
            allowed_checkpoint_types=allowed_checkpoint_types,
            allow_pickle=allow_pickle,
            clock=clock,
            size_limits=size_limits,
        )
