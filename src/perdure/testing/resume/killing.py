"""Stores with points to die at: around each call, and inside of a write before and after each operation."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from perdure.storage import Disk, FileStore, SqliteDatabase, SqliteStore, StoreStorage
from perdure.testing.resume import effects
from perdure.testing.resume.operations import writing
from perdure.testing.resume.points import is_resuming, reach

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from perdure.records import Claim, Command, Commit, JournalRecord
    from perdure.storage import Store, Sync

_OPEN_INTENT = b'"open"'


class KillingDisk(Disk):
    """This machine's file system, with points around whatever changes it."""

    def make_directory(self, path: Path) -> None:
        with writing.operation("make_directory"):
            super().make_directory(path)

    def write_new(self, path: Path, data: bytes) -> None:
        with writing.operation("write_new"):
            super().write_new(path, data)

    def write_at(self, path: Path, offset: int, data: bytes, *, sync: bool) -> None:
        with writing.operation("write_at"):
            super().write_at(path, offset, data, sync=sync)

    def link(self, source: Path, target: Path) -> None:
        with writing.operation("link"):
            super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        with writing.operation("rename"):
            super().rename(source, target)

    def remove(self, path: Path) -> None:
        with writing.operation("remove"):
            super().remove(path)

    def sync_directory(self, path: Path) -> None:
        with writing.operation("sync_directory"):
            super().sync_directory(path)


class KillingDatabase(SqliteDatabase):
    """A connection with points around each statement of a transaction, and around its end."""

    _is_writing = False

    def execute(self, name: str, /, **parameters: object) -> sqlite3.Cursor:
        if not self._is_writing:
            return super().execute(name, **parameters)
        with writing.operation(name):
            return super().execute(name, **parameters)

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        if rows:
            with writing.operation(name):
                super().execute_many(name, rows)

    def execute_each(
        self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /
    ) -> Sequence[sqlite3.Row | None]:
        if not names:
            return []
        with writing.operation(names[0]):
            return super().execute_each(names, rows)

    @contextmanager
    def transaction(self, sync: Sync = "as chosen", *, alone: bool = False) -> Generator[None]:
        with writing.operation("transaction"), super().transaction(sync, alone=alone):
            self._is_writing = True
            try:
                yield
            finally:
                self._is_writing = False
            # All statements are done, and none of them counts yet.
            writing.point("before COMMIT")


class KillingStore:
    """A store with points around its calls, otherwise the one that it wraps."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._has_committed = False
        self._is_asleep = False
        self._has_inherited = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._guarded(name, found) if inspect.iscoroutinefunction(found) else found

    def _guarded(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            if not is_resuming() or self._has_committed:
                return await call(*args, **kwargs)
            reach(f"recovery before {name}")
            outcome = await call(*args, **kwargs)
            reach(f"recovery after {name}")
            return outcome

        return guarded

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """Reading it tells whether an earlier life has left something."""
        found = await self._guarded("journal", self._inner.journal)(run_id)
        self._has_inherited = bool(found)
        return found

    async def post(self, run_id: str, command: Command) -> Command:
        """A command from outside."""
        reach("post before all")
        with writing.of("post"):
            standing = await self._inner.post(run_id, command)
        reach("post after all")
        return standing

    async def record(
        self, claim: Claim, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """What an activation has finished, or is about to begin."""
        is_intent = any(_OPEN_INTENT in record.data for record in records)
        finished = effects.about_to_record(records)
        reach("record before all")
        with writing.of("record"):
            await self._inner.record(claim, head=head, records=records, durable=durable)
        reach("record after all")
        effects.recorded(finished)
        if is_intent:
            reach("intent after all")

    async def commit(self, claim: Claim, commit: Commit) -> int:
        """One commit. Once it is done, nothing of its superstep may be done again."""
        kinds = self._kinds(commit)
        for kind in kinds:
            reach(f"{kind} before commit")
        with writing.of("commit"):
            newest = await self._inner.commit(claim, commit)
        effects.committed()
        for kind in (*kinds, "told"):
            reach(f"{kind} after commit")
        self._has_committed, self._has_inherited = True, False
        return newest

    def _kinds(self, commit: Commit) -> tuple[str, ...]:
        was_asleep, self._is_asleep = self._is_asleep, commit.status == "sleeping"
        return (
            "commit",
            *(("answer",) if commit.taken else ()),
            *(("sleep",) if self._is_asleep or was_asleep else ()),
            *(("inherited",) if self._has_inherited else ()),
            *(("recovery",) if is_resuming() and not self._has_committed else ()),
        )


def with_points(storage: StoreStorage) -> StoreStorage:
    """The same storage, with points around the calls of its store."""
    storage.store = cast("Store", KillingStore(storage.store))
    return storage


def file_storage(directory: Path) -> StoreStorage:
    """Files, with points at every operation."""
    return StoreStorage(FileStore(directory / "runs", disk=KillingDisk()))


def sqlite_storage(directory: Path) -> StoreStorage:
    """A SQLite file, with points at every statement."""
    return StoreStorage(SqliteStore(directory / "runs.db", database=KillingDatabase))
