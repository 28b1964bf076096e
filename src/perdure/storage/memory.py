"""A store in memory, for tests and for runs that need not outlive the process: the SQL store on SQLite in memory."""

from __future__ import annotations

import itertools
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from perdure.clock import SystemClock
from perdure.records import Retention
from perdure.storage.owners import this_process
from perdure.storage.sql.backend import SqlBackend
from perdure.storage.sqlite.database import SqliteDatabase
from perdure.storage.store import HostBackedStore
from perdure.storage.worker import InlineWorker

if TYPE_CHECKING:
    from perdure.clock import Clock
    from perdure.records import Owner

_numbers = itertools.count(1)


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

    def enter(self) -> Owner:
        return this_process()

    def is_replaceable(self, owner: Owner) -> bool:
        del owner
        return True

    def is_dead(self, owner: Owner) -> bool:
        del owner
        return False
