"""Stores on SQLite: in one file for all processes of a machine, or in memory."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from perdure.clock import Clock, SystemClock
from perdure.errors import WorkflowCheckpointException
from perdure.records import Owner, Retention
from perdure.storage.notifications import Pause, real_pause
from perdure.storage.owners import LEASE_SECONDS, Owners, this_process
from perdure.storage.port import Durability, require_durability
from perdure.storage.sql.backend import SqlBackend
from perdure.storage.sqlite.database import SqliteDatabase
from perdure.storage.store import HostBackedStore
from perdure.storage.worker import InlineWorker, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from datetime import datetime


_numbers = itertools.count(1)


class SqliteStore(HostBackedStore[SqlBackend]):
    """Runs in a SQLite file, which is opened when it is first needed.

    Args:
        path: The file.
        retention: Which data is removed.
        clock: The clock of the runs.
        pause: Waits between two looks for changes by other processes.
        database: Opens a connection.
        lease_seconds: How long others wait for this process when they can't see whether it is alive.
        durability: With "os", writes survive the process, but perhaps not a power cut.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        clock: Clock | None = None,
        pause: Pause = real_pause,
        database: Callable[[Path], SqliteDatabase] = SqliteDatabase,
        lease_seconds: float = LEASE_SECONDS,
        durability: Durability = "commit",
    ) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise WorkflowCheckpointException("runs are kept in a file; give its path, or use the in-memory storage")
        self.path = Path(path).absolute()
        open_backend = functools.partial(
            sqlite_backend,
            self.path,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            database=database,
            lease_seconds=lease_seconds,
            durability=require_durability(durability),
        )
        worker = Worker(f"perdure {self.path.name}", open_backend)
        # Its own connection lets the collector read while others write.
        collector = Worker(f"perdure {self.path.name} collector", open_backend)
        super().__init__(f"sqlite:{os.path.realpath(self.path)}", worker, collector=collector, pause=pause)


def sqlite_backend(
    path: Path,
    *,
    retention: Retention,
    clock: Clock,
    database: Callable[[Path], SqliteDatabase] = SqliteDatabase,
    lease_seconds: float = LEASE_SECONDS,
    durability: Durability = "commit",
) -> SqlBackend:
    """Open a file."""
    owners = Owners(path.with_name(f"{path.name}-owners"), lease_seconds=lease_seconds)
    opened = database(path)
    opened.durability = durability
    return SqlBackend(opened, owners, retention=retention, clock=clock)


class MemoryStore(HostBackedStore[SqlBackend]):
    """Runs in memory, gone with the process."""

    def __init__(self, *, retention: Retention | None = None, clock: Clock | None = None) -> None:
        backend = SqlBackend(
            MemoryDatabase.new(), OnlyProcess(), retention=retention or Retention(), clock=clock or SystemClock()
        )
        super().__init__(f"memory:{next(_numbers)}", InlineWorker(backend), pause=None)


class MemoryDatabase(SqliteDatabase):
    """A database that lives as long as this object. One thread at a time may use it."""

    _empty: ClassVar[MemoryDatabase | None] = None
    """An empty database with all tables. Copying it takes less than a hundredth of the time of the migrations."""
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        super().__init__(Path(":memory:"), one_thread=False)
        # Nothing is synced, so no transaction has to choose.
        self.durability = "os"
        weakref.finalize(self, self._connection.close)

    @override
    def _set_up(self) -> None:
        with self._lock:
            if self._empty is not None:
                self._empty._connection.backup(self._connection)
        super()._set_up()

    @classmethod
    def new(cls) -> MemoryDatabase:
        """Return a database without runs."""
        if cls._empty is None:
            cls._empty = cls()
        return cls()


class OnlyProcess:
    """The owners of runs that no other process can see."""

    def enter(self, lease: Hashable = None) -> Owner:
        del lease
        return this_process()

    def leave(self, lease: Hashable) -> None:
        """Do nothing: no other process looks."""

    def close(self) -> None:
        """Do nothing: no other process looks."""

    def is_replaceable(self, owner: Owner) -> bool:
        del owner
        return True

    def is_dead(self, owner: Owner) -> bool:
        del owner
        return False

    def last_heartbeat(self, owner: Owner) -> datetime:
        del owner
        return SystemClock().now()
