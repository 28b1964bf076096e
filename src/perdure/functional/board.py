"""The state as the steps of a function set it. Who has the last word is the same in every life.

Steps that run side by side see what others set at once, as in any Python program. If two of them set one key and the
second did not look at what the first had set, the one that was called later has the last word. Which one that is, does
not depend on who was faster: of tasks that work side by side it is decided by where they were begun.

A step that is done sees all that is on record, whether this entry of the function has come to it or not: it was done
before, or side by side. The function itself sees what it has come to, as it did when it was entered first. A step that
others have built on before it could be recorded is done again beneath them: it sees what it saw then. The same holds if
it is tried again in the same life.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from perdure.functional.past import StepOutcome
from perdure.graph import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from perdure.functional.past import Rank, Recorded

_NOT_YET = float("inf")


class Store(Protocol):
    """Where the values are."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        ...

    def set(self, key: str, value: Any) -> None:
        """Keep a value."""
        ...

    def delete(self, key: str) -> None:
        """Forget a key."""
        ...


class OwnStore:
    """Values that are needed as long as a function runs, and no longer."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self._values.get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Keep a value."""
        self._values[key] = value

    def delete(self, key: str) -> None:
        """Forget a key."""
        del self._values[key]


@dataclass(slots=True, eq=False)
class Writer:
    """One call of a step, as far as it sets state."""

    board: Board
    name: str
    order: str
    """Where it was called: the same in every life, and larger for what was called later in the same task."""
    began: int
    outer: Writer | None = None
    place: str = ""
    """Where its record is, or is to be. That names it to others: it is the same in every life, and in forks."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """By task: how many steps were called inside of it."""
    seen: dict[str, int] = field(default_factory=dict[str, int])
    """By key: when it looked at it last."""
    sets: Counter[str] = field(default_factory=Counter[str])
    """By key: how often it has set it itself."""
    is_recorded: bool = False
    has_ended: bool = False
    conflicts: list[str] = field(default_factory=list[str])
    """What there is to warn of."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or a step around it has."""
        return self.has_ended or (self.outer is not None and self.outer.is_over)

    def is_within(self, other: Writer) -> bool:
        """Whether it is that call, or a step inside of it."""
        return self is other or (self.outer is not None and self.outer.is_within(other))

    def is_kin(self, other: Writer) -> bool:
        """Whether one of the two is inside of the other."""
        return self.is_within(other) or other.is_within(self)

    def is_around(self, place: str) -> bool:
        """Whether what is recorded at some place is inside of it."""
        return bool(self.place) and place.startswith(f"{self.place}/")

    def lineage(self) -> Iterator[Writer]:
        """It, and the steps around it."""
        yield self
        if self.outer is not None:
            yield from self.outer.lineage()


@dataclass(slots=True, eq=False)
class _Entry:
    """What a step has set."""

    rank: Rank
    give: Callable[[], Any]
    writer: Writer
    shown: float
    """Since when steps see it."""
    come: float
    """Since when the function sees it."""
    rests_on: Mapping[str, int] = field(default_factory=dict[str, int])
    """By the places of steps that were not on record when it was set: how often they had set it before."""
    is_past: bool = False
    """Whether another entry of the function has recorded it."""

    def is_to_come_in(self, writer: Writer) -> bool:
        """Whether it is recorded inside of a step that is done again, which has not come to it."""
        return self.come == _NOT_YET and writer.is_around(self.writer.place)

    def holds_down(self, key: str, writer: Writer) -> bool:
        """Whether it was built on what a step had set that is done again, and has not set it again so far."""
        return any(each.sets[key] < self.rests_on.get(each.place, 0) for each in writer.lineage())


class Board:
    """The state of one entry of a function, which begins with what others have recorded. It may be used in threads."""

    def __init__(self, store: Store, past: Iterable[Recorded] = ()) -> None:
        self._store = store
        self._entries: dict[str, list[_Entry]] = {}
        """By key: what the function has come to, the last word last."""
        self._ahead: dict[str, list[_Entry]] = {}
        """By key: what is on record, and the function has not come to."""
        self._floors: dict[str, Any] = {}
        """By key that steps have set: what it was before."""
        self._done: set[str] = set()
        """The places of steps that are on record."""
        self._lock = threading.RLock()
        self._time = 0
        self._calls: Counter[str] = Counter()
        for each in past:
            self._go_ahead(each.key, each.name, each.place, each)
            self._done.add(each.rank[-1])

    def _go_ahead(self, key: str, name: str, place: str, recorded: Recorded | _Entry) -> None:
        """Something is on record, and the function has to come to it, for the first time or again."""
        writer = Writer(self, name, "", 0, place=place, is_recorded=True, has_ended=True)
        entry = _Entry(recorded.rank, recorded.give, writer, 0, _NOT_YET, recorded.rests_on, is_past=True)
        self._ahead.setdefault(key, []).append(entry)

    def called(self, name: str, branch: str) -> Writer:
        """A step is called, in a task of the function that is known by its path."""
        with self._lock:
            outer = self._writing()
            calls, around = (self._calls, "") if outer is None else (outer.calls, f"{outer.order}/")
            number = calls[branch]
            calls[branch] += 1
            return Writer(self, name, f"{around}{_sortable(branch)}#{number:08}", self._tick(), outer)

    def get(self, key: str, default: Any) -> Any:
        """The value of a key."""
        with self._lock:
            writer = self._writing()
            if writer is None:
                return self._store.get(key, default)
            writer.seen[key] = self._tick()
            top = self._top(key, writer)
            if top is not None and top is not self._last(key):
                return top.give()
            if top is None and self._last(key) is not None:
                floor = self._floors[key]
                return default if floor is ABSENT else floor
            return self._store.get(key, default)

    def _last(self, key: str) -> _Entry | None:
        """Who has the last word, as the function sees it."""
        entries = self._entries.get(key)
        return entries[-1] if entries else None

    def _top(self, key: str, writer: Writer) -> _Entry | None:
        """Who has the last word, as a step sees it that is being done."""
        every = [*self._entries.get(key, ()), *self._ahead.get(key, ())]
        limit = min((each.rank for each in every if each.holds_down(key, writer)), default=None)
        seen = (each for each in every if limit is None or each.rank < limit or each.writer.is_kin(writer))
        return max((each for each in seen if not each.is_to_come_in(writer)), key=_rank, default=None)

    def set(self, key: str, value: Any) -> None:
        """Keep a value. Raises RuntimeError in what a step has left running."""
        with self._lock:
            writer = self._writing()
            if writer is None:
                self._entries.pop(key, None)
                self._store.set(key, value)
                return
            if writer.is_over:
                raise RuntimeError(
                    f"step {writer.name!r} has ended: the state {key!r} that it sets now would be lost; await every "
                    "task that the step begins inside of it"
                )
            self._put(key, value, writer)

    def _put(self, key: str, value: Any, writer: Writer) -> None:
        top, rests_on = self._top(key, writer), dict[str, int]()
        if top is None:
            rank = (1, writer.order, writer.place)
        elif top.writer is writer:
            rank, rests_on = top.rank, dict(top.rests_on)
        elif not _is_blind(key, writer, top):
            rank, rests_on = (top.rank[0] + 1, writer.order, writer.place), self._beneath(key, top)
        else:
            rank = (top.rank[0], writer.order, writer.place)
            writer.conflicts.append(
                f"steps {top.writer.name!r} and {writer.name!r} run side by side and both set the state {key!r}: what "
                f"{(writer if rank > top.rank else top.writer).name!r} sets stands; let one of them set it, or read it "
                "before it is set"
            )
        writer.sets[key] += 1
        entries = self._begun(key)
        entries[:] = [entry for entry in entries if entry.writer is not writer]
        now = self._tick()
        self._insert(key, _Entry(rank, lambda: value, writer, now, now, rests_on))

    def _beneath(self, key: str, top: _Entry) -> dict[str, int]:
        """What would be done again if the process died now, of all that somebody builds on; and how often it is set."""
        unrecorded = {each.place: each.sets[key] for each in top.writer.lineage() if not each.is_recorded}
        return {each: count for each, count in {**top.rests_on, **unrecorded}.items() if each not in self._done}

    def _begun(self, key: str) -> list[_Entry]:
        if key not in self._entries:
            self._floors[key] = self._store.get(key, ABSENT)
        return self._entries.setdefault(key, [])

    def _insert(self, key: str, entry: _Entry) -> None:
        insort(self._entries[key], entry, key=_rank)
        self._show(key)

    def _show(self, key: str) -> None:
        """Let the value be what the last word is now."""
        last, floor = self._last(key), self._floors[key]
        if last is not None or floor is not ABSENT:
            self._store.set(key, floor if last is None else last.give())
        else:
            self._store.delete(key)

    def retreat(self, writer: Writer) -> None:
        """A try at a step has failed, and another may follow, which comes to what is on record inside of it."""
        with self._lock:
            writer.has_ended = True
            for key, entry in self._take_out(writer):
                if entry.writer.is_recorded:
                    self._go_ahead(key, entry.writer.name, entry.writer.place, entry)

    def withdraw(self, writer: Writer) -> list[str]:
        """A step has failed: what it has set is not kept, by no life. What there is to warn of is returned."""
        with self._lock:
            writer.has_ended = True
            self._drop_ahead_inside(writer)
            self._take_out(writer)
            return [
                f"step {entry.writer.name!r} has set the state {key!r} when it had seen what step {writer.name!r} had "
                "set there, which has failed: it is not taken back; let one of them end before the other begins"
                for key, entries in self._entries.items()
                for entry in entries
                if entry.rests_on.get(writer.place)
            ]

    def _take_out(self, writer: Writer) -> list[tuple[str, _Entry]]:
        """What a step and those inside of it have set stands no more. It is returned, by key."""
        found = [
            (key, entry)
            for key, entries in self._entries.items()
            for entry in entries
            if entry.writer.is_within(writer)
        ]
        for key, entry in found:
            self._entries[key].remove(entry)
        for key in dict.fromkeys(key for key, _ in found):
            self._show(key)
        return found

    def settled(self, writer: Writer, result: Any) -> StepOutcome:
        """What a step gave, with what it and those in it have set. It has ended well."""
        with self._lock:
            writer.has_ended = True
            found = {
                key: entry
                for key, entries in self._entries.items()
                for entry in entries
                if entry.writer.is_within(writer)
            }
            return _outcome(result, found)

    def found(self, writer: Writer, result: Any) -> StepOutcome:
        """What a step gave that was interrupted and is not done again.

        It comes with what the steps on record in it have set, and who has found out what became of it.
        """
        with self._lock:
            writer.has_ended = True
            every = {
                key: [
                    *(each for each in self._entries.get(key, ()) if each.writer.is_within(writer)),
                    *(each for each in self._ahead.get(key, ()) if writer.is_around(each.writer.place)),
                ]
                for key in {**self._entries, **self._ahead}
            }
            return _outcome(result, {key: max(entries, key=_rank) for key, entries in every.items() if entries})

    def restore(self, writer: Writer, outcome: StepOutcome) -> None:
        """A step was done, in this life or another: what it has set is set, as it was recorded."""
        with self._lock:
            writer.is_recorded = True
            self._done.add(writer.place)
            self._drop_ahead_inside(writer)
            for key, value in outcome.state.items():
                entries, rank = self._begun(key), outcome.rank(key)
                own = [entry for entry in entries if entry.writer.is_within(writer)]
                entries[:] = [entry for entry in entries if entry not in own]
                is_past = self._is_taken_from_ahead(key, rank)
                # Who has looked at it since it was set knows of it.
                come = max((entry.come for entry in own), default=0) or self._tick()
                shown, rests_on = 0 if is_past else come, outcome.rests_on.get(key, {})
                self._insert(key, _Entry(rank, lambda value=value: value, writer, shown, come, rests_on, is_past))

    def _is_taken_from_ahead(self, key: str, rank: Rank) -> bool:
        """Whether the function has now come to something that is on record."""
        ahead = self._ahead.get(key, [])
        left = [each for each in ahead if each.rank != rank]
        is_taken = len(left) < len(ahead)
        ahead[:] = left
        return is_taken

    def _drop_ahead_inside(self, writer: Writer) -> None:
        """A step has ended without coming to what is on record inside of it."""
        for ahead in self._ahead.values():
            ahead[:] = [each for each in ahead if not writer.is_around(each.writer.place)]

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _writing(self) -> Writer | None:
        """The step of this function that is running here. That of another one around it sets its own."""
        writer = _writer.get()
        return writer if writer is not None and writer.board is self else None


def _sortable(branch: str) -> str:
    """The path of a task in an order: of those of one name, the later one comes later, also after the ninth."""
    return ".".join(f"{number:0>8}:{name}" for name, _, number in (each.rpartition(":") for each in branch.split(".")))


def _outcome(result: Any, entries: Mapping[str, _Entry]) -> StepOutcome:
    return StepOutcome(
        result,
        {key: entry.give() for key, entry in entries.items()},
        {key: entry.rank for key, entry in entries.items()},
        {key: dict(entry.rests_on) for key, entry in entries.items() if entry.rests_on},
    )


def _rank(entry: _Entry) -> Rank:
    return entry.rank


def _is_blind(key: str, writer: Writer, top: _Entry) -> bool:
    """Whether somebody overwrites what they can't have known of."""
    knew = writer.began > top.come or writer.seen.get(key, 0) > top.shown
    return not (knew or writer.is_kin(top.writer))


_writer: ContextVar[Writer | None] = ContextVar("perdure_step_writer", default=None)


@contextmanager
def writing(writer: Writer) -> Generator[None]:
    """What is set in the state meanwhile is set by this step."""
    token = _writer.set(writer)
    try:
        yield
    finally:
        _writer.reset(token)
