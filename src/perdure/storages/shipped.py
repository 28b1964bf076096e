"""The storages that ship with perdure: a store each, and above it the six methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.records import Retention
from perdure.storages.base import StoreStorage
from perdure.stores.file import FileStore
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from perdure.clock import Clock


class InMemoryCheckpointStorage(StoreStorage):
    """For tests. It goes through the same codec as the others: what works here works on disk."""

    def __init__(
        self,
        *,
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(
            MemoryStore(retention=retention or Retention(), clock=clock or SystemClock()),
            allowed_checkpoint_types=allowed_checkpoint_types,
            allow_pickle=allow_pickle,
            clock=clock,
        )


class FileCheckpointStorage(StoreStorage):
    """A directory of readable files, for one machine.

    A process that runs on another machine with the same directory has died, as far as can be known, when it has not
    been heard of for `lease_seconds`.
    """

    def __init__(
        self,
        storage_path: str | os.PathLike[str],
        *,
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
        allow_pickle: bool = False,
        lease_seconds: float = 30.0,
    ) -> None:
        store = FileStore(
            storage_path,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            lease_seconds=lease_seconds,
        )
        super().__init__(
            store, allowed_checkpoint_types=allowed_checkpoint_types, allow_pickle=allow_pickle, clock=clock
        )
        self.storage_path: Path = store.directory


class SqliteCheckpointStorage(StoreStorage):
    """One SQLite file, for one machine and any number of its processes: the embedded default."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
        allow_pickle: bool = False,
        lease_seconds: float = 30.0,
    ) -> None:
        store = SqliteStore(
            path, retention=retention or Retention(), clock=clock or SystemClock(), lease_seconds=lease_seconds
        )
        super().__init__(
            store, allowed_checkpoint_types=allowed_checkpoint_types, allow_pickle=allow_pickle, clock=clock
        )
        self.path: Path = store.path


class PostgresCheckpointStorage(StoreStorage):
    """A PostgreSQL database, for several machines. It needs the extra `perdure[postgres]`.

    All that is perdure's is in one `schema`, which is made when it is first needed. `pool_size` is how many connections
    a process opens at most.
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
        lease_seconds: float = 30.0,
        pool_size: int = 4,
    ) -> None:
        store = PostgresStore(
            dsn,
            schema=schema,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            lease_seconds=lease_seconds,
            pool_size=pool_size,
        )
        super().__init__(
            store, allowed_checkpoint_types=allowed_checkpoint_types, allow_pickle=allow_pickle, clock=clock
        )
