"""`Kind`: a kind of storage that the suite runs on. The shipped kinds have kill points inside their writes."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from perdure.storage import Disk, FileStore, SqliteDatabase, SqliteStore, Store, StoreStorage, Sync
from perdure.testing.crash import WrappedStore
from perdure.testing.resume.kill_points import (
    Chance,
    find_finished,
    is_resuming,
    mark_committed,
    mark_recorded,
    reach,
    writes,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from perdure.records import Command, Commit, JournalRecord, Lease

_OPEN_INTENT = b'"open"'


class KillingDisk(Disk):
    """The file system of this machine, with kill points around each change."""


def _with_kill_points(name: str) -> Callable[..., None]:
    change = getattr(Disk, name)

    def change_with_points(*args: Any, **kwargs: Any) -> None:
        with writes.operation(name):
            change(*args, **kwargs)

    return change_with_points


for _name in ("make_directory", "write_new", "write_at", "link", "rename", "remove", "sync_directory"):
    setattr(KillingDisk, _name, _with_kill_points(_name))


class DatabaseKillPoints:
    """Kill points around each statement of a transaction and around its commit, for the class of a database."""

    # Each thread has its own transaction.
    _writing = threading.local()

    def execute(self, name: str, /, **values: object) -> Any:
        parent: Any = super()
        if not getattr(self._writing, "is_on", False):
            return parent.execute(name, **values)
        with writes.operation(name):
            return parent.execute(name, **values)

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        parent: Any = super()
        with writes.operation(name):
            parent.execute_many(name, rows)

    def execute_each(self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /) -> Any:
        parent: Any = super()
        with writes.operation(names[0]):
            return parent.execute_each(names, rows)

    @contextmanager
    def transaction(self, sync: Sync = "as chosen", **how: bool) -> Generator[None]:
        parent: Any = super()
        with writes.operation("transaction"), parent.transaction(sync, **how):
            self._writing.is_on = True
            try:
                yield
            finally:
                self._writing.is_on = False
            # All statements are done, and nothing is committed.
            writes.point("before COMMIT")


class KillingDatabase(DatabaseKillPoints, SqliteDatabase):
    """A connection to SQLite with kill points."""


class KillingStore(WrappedStore):
    """Wraps a store, with kill points around its calls."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, self._call_with_points)
        self._has_committed = False
        self._is_asleep = False
        self._has_old_records = False

    async def _call_with_points(self, name: str, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        if not is_resuming() or self._has_committed:
            return await call(*args, **kwargs)
        reach(f"recovery before {name}")
        outcome = await call(*args, **kwargs)
        reach(f"recovery after {name}")
        return outcome

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """Read the journal. Records in it come from an earlier process."""
        found = await self.around("journal", self.inner.journal, run_id)
        self._has_old_records = bool(found)
        return found

    async def post(self, run_id: str, command: Command) -> Command:
        """Post a command from outside."""
        reach("post before all")
        with writes.track("post"):
            standing = await self.inner.post(run_id, command)
        reach("post after all")
        return standing

    async def record(
        self, lease: Lease, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """Record finished work, or an intent."""
        is_intent = any(_OPEN_INTENT in record.data for record in records)
        finished = find_finished(records)
        reach("record before all")
        with writes.track("record"):
            await self.inner.record(lease, head=head, records=records, durable=durable)
        reach("record after all")
        mark_recorded(finished)
        if is_intent:
            reach("intent after all")

    async def commit(self, lease: Lease, commit: Commit) -> int:
        """Commit. Afterwards no effect of the superstep may start again."""
        kinds = self._kinds(commit)
        for kind in kinds:
            reach(f"{kind} before commit")
        with writes.track("commit"):
            newest = await self.inner.commit(lease, commit)
        mark_committed()
        for kind in (*kinds, "emit"):
            reach(f"{kind} after commit")
        self._has_committed, self._has_old_records = True, False
        return newest

    def _kinds(self, commit: Commit) -> tuple[str, ...]:
        was_asleep, self._is_asleep = self._is_asleep, commit.status == "sleeping"
        return (
            "commit",
            *(("answer",) if commit.taken else ()),
            *(("sleep",) if self._is_asleep or was_asleep else ()),
            *(("inherited",) if self._has_old_records else ()),
            *(("recovery",) if is_resuming() and not self._has_committed else ()),
        )


OpenStorage: TypeAlias = "Callable[[Path], StoreStorage | str]"
"""Function that opens the storage of a directory, or returns its URL."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of storage with data outside its directory. Each function is called in its own process.

    `open` opens the storage of a directory, or returns its URL. `copy(source, target)` is called after a directory was
    copied, and copies the data outside it, so that both storages are independent. `spoil(directory, chance)` damages
    one random place of the checkpoint data and describes it; it returns None if there is none. Without it, the suite
    flips a byte in the files. `clear(directory)` removes the data outside the directory at the end.
    """

    open: OpenStorage
    copy: Callable[[Path, Path], None] | None = None
    spoil: Callable[[Path, Chance], str | None] | None = None
    clear: Callable[[Path], None] | None = None


Storages: TypeAlias = "Mapping[str, Kind | OpenStorage]"

SHIPPED: Final[Storages] = {
    "file": lambda directory: StoreStorage(FileStore(directory / "runs", disk=KillingDisk())),
    "sqlite": lambda directory: StoreStorage(SqliteStore(directory / "runs.db", database=KillingDatabase)),
}


def postgres_kind(dsn: str) -> Kind:
    """Return a kind with a PostgreSQL schema per run, in the database of a connection string. The suite drops them.

    Needs `pip install 'perdure[postgres]'` and a role that may create schemas. The file `schema` in a directory holds
    the name of its schema.
    """
    # Forked children inherit this import.
    from perdure.testing.resume import postgres_schemas as schemas  # noqa: PLC0415 - the driver comes with an extra

    return Kind(
        partial(schemas.open_storage, dsn),
        copy=partial(schemas.copy_schema, dsn),
        spoil=partial(schemas.damage, dsn),
        clear=partial(schemas.drop_schema, dsn),
    )
