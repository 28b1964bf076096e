"""The named points at which a life can kill itself, and which windows they lie in."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import signal
import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast

from perdure.storage import Disk, FileStore, SqliteDatabase, SqliteStore, StoreStorage
from perdure.testing.resume import effects

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from perdure.records import Claim, Command, Commit, JournalRecord
    from perdure.storage import Store, Sync

Moment: TypeAlias = Literal["before", "after"]

WINDOWS: Final = {
    "activation": "inside an activation",
    "intent": "between a step's intent and its result",
    "step": "after a step's effect, before its record",
    "record": "while a record is written",
    "finished": "after an activation's record, before the commit",
    "commit": "inside the commit",
    "told": "between the commit and its telling",
    "recovery": "during recovery",
    "post": "while an answer or a message is recorded",
    "answer": "while an answer or a message is recorded",
    "sleep": "at suspension and wake",
    "inherited": "while work of an earlier life is pending",
}
"""By the first word of a point's name where it lies."""


@dataclass(slots=True)
class Fate:
    """What is to happen to one life: which point kills it, at which of the times that it comes there.

    With `instead` this is done there, and it lives on. `seen` counts the points that it came by.
    """

    target: str | None = None
    occurrence: int = 1
    hits: Path | None = None
    is_resuming: bool = False
    instead: Callable[[], None] | None = None
    seen: Counter[str] = field(default_factory=Counter[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def meet(self, name: str) -> None:
        """Come by a point."""
        with self._lock:
            self.seen[name] += 1
            is_met = name == self.target and self.seen[name] == self.occurrence
            if is_met and self.instead is None:
                self._die(name)
        if is_met and self.instead is not None:
            self.instead()

    def _die(self, name: str) -> None:
        if self.hits is not None:
            append(self.hits, name)
        os.kill(os.getpid(), signal.SIGKILL)
        # Another thread may take the signal: nothing may be done until it has.
        threading.Event().wait()


_fate: Fate | None = None


def live_under(fate: Fate) -> None:
    """Let this process live under a fate, to its end."""
    global _fate  # noqa: PLW0603 - a process lives once
    _fate = fate


def reach(name: str) -> None:
    """Come by a point. Outside of the suite nothing happens."""
    if _fate is not None:
        _fate.meet(name)


def is_resuming() -> bool:
    """Whether this life goes on with what an earlier one has left."""
    return _fate is not None and _fate.is_resuming


def window_of(name: str) -> str:
    """Where a point lies."""
    return WINDOWS[name.partition(" ")[0]]


def append(path: Path, line: str) -> None:
    """Add a line by one write, which a crash of this process does not undo and which other writers don't tear."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[str]:
    """The lines of such a file; none if it was never written."""
    return path.read_text("utf-8").splitlines() if path.exists() else []


class Writing:
    """Which writes are under way in this process, so that an operation knows what it is part of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: Counter[str] = Counter()

    @contextmanager
    def of(self, kind: str) -> Generator[None]:
        """A write of this kind is under way."""
        with self._lock:
            self._kinds[kind] += 1
        try:
            yield
        finally:
            with self._lock:
                self._kinds[kind] -= 1

    @contextmanager
    def operation(self, name: str) -> Generator[None]:
        """An operation, with a point before and one after it if it is part of a write."""
        self.point(f"before {name}")
        yield
        self.point(f"after {name}")

    def point(self, name: str) -> None:
        """A point, if it is part of a write."""
        kind = self._kind()
        if kind is not None:
            reach(f"{kind} {name}")

    def _kind(self) -> str | None:
        with self._lock:
            return next((kind for kind in ("commit", "post", "record") if self._kinds[kind]), None)


writing: Final = Writing()
"""Those of this process."""

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


_TRIES_MAX = 4
_OCCURRENCE_MAX = 5
_LEAVES_RECORDS = "record after all"
_INHERITED = ("inherited before commit", "inherited after commit")


@dataclass(frozen=True, slots=True)
class Aim:
    """A point, the time that it comes by, and the aims of the lives before: some points are for heirs only."""

    name: str
    occurrence: int = 1
    after: tuple[Aim, ...] = ()


THROUGH: Final = Aim("")
"""A life that is let through: some points are for those who find nothing left to do."""


@dataclass(slots=True)
class Aims:
    """The points that are known, in an order of chance, and those that have killed.

    With `per_window` only so many points of each window are aimed at.
    """

    chance: Chance
    per_window: int | None = None
    hit: set[str] = field(default_factory=set[str])
    tried: Counter[str] = field(default_factory=Counter[str])
    _left: deque[Aim] = field(default_factory=deque[Aim])
    _taken: Counter[str] = field(default_factory=Counter[str])

    def learn(self, seen: Mapping[str, int], after: tuple[Aim, ...]) -> None:
        """Take up the points that a life came by which nobody has aimed at."""
        for name in self.chance.shuffled(sorted(set(seen) - set(self.tried))):
            window = window_of(name)
            if self.per_window is None or self._taken[window] < self.per_window:
                self._taken[window] += 1
                self.tried[name] = 0
                first = 1 + self.chance.below(min(_OCCURRENCE_MAX, seen[name]))
                self._left.append(Aim(name, 1 if after else first, after))

    def learn_inheritance(self, seen: Mapping[str, int]) -> None:
        """Take up what only an heir comes by: the commit of what an earlier life has recorded."""
        if seen.get(_LEAVES_RECORDS):
            self.tried.update(dict.fromkeys(_INHERITED, 0))
            self._left.extend(Aim(name, after=(Aim(_LEAVES_RECORDS),)) for name in _INHERITED)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to aim at."""
        return not self._left

    def next_run(self) -> deque[Aim]:
        """The aims of the lives of a new run: the ones that lead to the next point, and that."""
        aim = self._left.popleft()
        return deque([*aim.after, aim])

    def next_life(self) -> Aim | None:
        """A further aim for a run that has died already; None if the next one has missed and needs a run of its own."""
        return self._left.popleft() if self._left and not self.tried[self._left[0].name] else None

    def settle(self, aim: Aim, *, was_hit: bool) -> None:
        """Note how it went. What was missed is tried again at its first coming by, in a run of its own."""
        if was_hit:
            self.hit.add(aim.name)
            return
        self.tried[aim.name] += 1
        if aim.name not in self.hit and self.tried[aim.name] < _TRIES_MAX:
            self._left.append(Aim(aim.name, 1, aim.after))

    def missed(self) -> str | None:
        """What never killed, though lives come by; None if there is none."""
        names = sorted(set(self.tried) - self.hit)
        return f"never hit, though lives come by: {', '.join(names)}" if names else None


T = TypeVar("T")


class Chance:
    """Draws. The same seed gives the same ones, on every machine."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._draws = itertools.count()

    def below(self, limit: int) -> int:
        """A whole number from 0 on."""
        text = f"{self._seed} {next(self._draws)}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % limit

    def one_of(self, things: Sequence[T]) -> T:
        """One of them."""
        return things[self.below(len(things))]

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """All of them, in some order."""
        left, order = list(things), list[T]()
        while left:
            order.append(left.pop(self.below(len(left))))
        return order

    def seconds(self, longest: float) -> float:
        """A time up to the longest."""
        return longest * self.below(10_000) / 10_000
