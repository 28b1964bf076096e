"""The state of a functional workflow while its steps run. Every entry of the function ends with the same state.

Steps that run in parallel see at once what others set, as in any Python program. If two of them set one key, and the
second did not read what the first had set, the later call wins, however fast they were. The order of calls is recorded
with what a step sets.

A running step sees everything on record, also what this entry of the function has not reached yet. The function itself
sees only what it has reached, as in its first entry. After a crash a step may run again, although other steps have used
what its first attempt had set. It then sees the state without their changes, as its first attempt did.
"""

from __future__ import annotations

import re
import threading
from bisect import insort
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, unquote

from perdure.checkpoint import StepRecord, fields_of
from perdure.codec import Kept, register_type
from perdure.engine import STEP, ActivationRecorder
from perdure.graph import ABSENT, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_NOT_YET = float("inf")

Rank: TypeAlias = tuple[int, str, str]
"""The order of writes of one key: how many came before, when the step was called, the place of its record."""

FUNCTION: Final = "workflow "
"""The beginning of the name of a step that is a function inside another one. It has a state of its own."""
_FUNCTION_QUOTED: Final = quote(FUNCTION, safe="")
_OUTCOME: Final = "perdure.functional.steps:StepOutcome"
_NAME: Final = _OUTCOME.encode()
_FIRST: Rank = (0, "", "")


@register_type(name=_OUTCOME)
@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The recorded result of a step that has set state. A step that has set none is recorded with its result alone.

    Attributes:
        ranks: By key: the order of the write among others.
        rests_on: By key: the steps that had set it before and were not recorded yet, and how often each of them had.
    """

    result: Any
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    ranks: dict[str, Any] = field(default_factory=dict[str, Any])
    rests_on: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    def rank(self, key: str) -> Rank:
        """Return the order of a write among others."""
        return _as_rank(self.ranks.get(key, _FIRST))

    def shortest(self) -> Any:
        """Return what is recorded: the result alone if no state was set."""
        # A result that is a StepOutcome itself must not be taken for this one.
        return self if self.state or isinstance(self.result, StepOutcome) else self.result


class MemoryStore(dict[str, Any]):
    """A state in memory, for a function that runs inside another run."""

    set = dict[str, Any].__setitem__
    delete = dict[str, Any].__delitem__


@dataclass(slots=True, eq=False)
class Writer:
    """A call of a step that may set state.

    Attributes:
        state: None for a recorded step that this entry of the function has not reached.
        order: A sort key: later calls have larger ones.
        place: The key of its record, which is the same in every process and in forks.
        calls: The number of steps that were called inside it.
        seen: By key: when it was read last.
        sets: By key: how often it was set.
        conflicts: Texts of warnings.
    """

    state: FunctionState | None
    name: str
    order: str
    began: int
    outer: Writer | None = None
    place: str = ""
    calls: int = 0
    seen: dict[str, int] = field(default_factory=dict[str, int])
    sets: Counter[str] = field(default_factory=Counter[str])
    is_recorded: bool = False
    has_ended: bool = False
    conflicts: list[str] = field(default_factory=list[str])

    @property
    def is_over(self) -> bool:
        """Return True if it or an enclosing step has ended."""
        return self.has_ended or (self.outer is not None and self.outer.is_over)

    def is_within(self, other: Writer) -> bool:
        """Return True if it is `other`, or inside it."""
        return self is other or (self.outer is not None and self.outer.is_within(other))

    def is_related(self, other: Writer) -> bool:
        """Return True if one of the two is inside the other."""
        return self.is_within(other) or other.is_within(self)

    def lineage(self) -> Iterator[Writer]:
        """Iterate over it and the enclosing steps."""
        yield self
        if self.outer is not None:
            yield from self.outer.lineage()


@dataclass(slots=True, eq=False)
class _Write:
    """A value that a step has set.

    Attributes:
        shown: The time since when steps see it.
        reached: The time since when the function sees it.
        rests_on: By place of a step that was not recorded when this was set: how often that had set the key before.
    """

    rank: Rank
    give: Callable[[], Any]
    writer: Writer
    shown: float
    reached: float
    rests_on: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def ahead(cls, name: str, place: str, rank: Rank, rests_on: Mapping[str, int], give: Callable[[], Any]) -> _Write:
        """Return a recorded write that the function has not reached. `give` decodes it if it is needed."""
        writer = Writer(None, name, "", 0, place=place, is_recorded=True, has_ended=True)
        return cls(rank, give, writer, 0, _NOT_YET, rests_on)

    @property
    def is_ahead(self) -> bool:
        """Return True if it is recorded and the function has not reached it."""
        return self.reached == _NOT_YET

    def is_ahead_in(self, writer: Writer) -> bool:
        """Return True if it is recorded inside a step that has not reached it."""
        return self.is_ahead and bool(writer.place) and self.writer.place.startswith(f"{writer.place}/")

    def limits(self, key: str, writer: Writer) -> bool:
        """Return True if it rests on a write of a step that runs again and has not repeated that write."""
        return any(each.sets[key] < self.rests_on.get(each.place, 0) for each in writer.lineage())


class FunctionState:
    """The state in one entry of a function. It starts with what earlier entries have recorded. Threads may use it."""

    def __init__(self, store: State | MemoryStore, past: Iterable[tuple[str, _Write]] = ()) -> None:
        self._store = store
        # By key: all writes, also those that the function has not reached. The highest rank is last.
        self._writes: dict[str, list[_Write]] = {}
        # By key that steps have set: the value before.
        self._floors: dict[str, Any] = {}
        # The places of recorded steps.
        self._recorded: set[str] = set()
        self._lock = threading.RLock()
        self._time = 0
        self._calls = 0
        for key, write in past:
            self._insert(key, write)
            self._recorded.add(write.rank[-1])

    def begin_call(self, name: str) -> Writer:
        """Note that a step is called."""
        with self._lock:
            outer = self._writing()
            if outer is None:
                number, around = self._calls, ""
                self._calls += 1
            else:
                number, around = outer.calls, f"{outer.order}/"
                outer.calls += 1
            # Earlier versions recorded the task before the number. This is the text for the function's own task.
            return Writer(self, name, f"{around}00000000:#{number:08}", self._tick(), outer)

    def get(self, key: str, default: Any) -> Any:
        """Return the value of a key, or the default."""
        with self._lock:
            writer = self._writing()
            if writer is None:
                return self._store.get(key, default)
            writer.seen[key] = self._tick()
            top, last = self._top(key, writer), self._last(key)
            if top is not None and top is not last:
                return top.give()
            if top is None and last is not None:
                floor = self._floors[key]
                return default if floor is ABSENT else floor
            return self._store.get(key, default)

    def _last(self, key: str) -> _Write | None:
        """Return the winning write, as the function sees it."""
        return next((each for each in reversed(self._writes.get(key, [])) if not each.is_ahead), None)

    def _top(self, key: str, writer: Writer) -> _Write | None:
        """Return the winning write, as a running step sees it."""
        every = self._writes.get(key, [])
        limit = min((each.rank for each in every if each.limits(key, writer)), default=None)
        seen = (each for each in every if limit is None or each.rank < limit or each.writer.is_related(writer))
        return max((each for each in seen if not each.is_ahead_in(writer)), key=_rank, default=None)

    def set(self, key: str, value: Any) -> None:
        """Set a value. Raises RuntimeError in code that a step has left running."""
        with self._lock:
            writer = self._writing()
            if writer is None:
                self._remove(key, lambda write: not write.is_ahead)
                self._floors.pop(key, None)
                self._store.set(key, value)
                return
            if writer.is_over:
                raise RuntimeError(
                    f"step {writer.name!r} has ended: the state {key!r} that it sets now would be lost; await every "
                    "task inside the step that starts it"
                )
            self._set_by(writer, key, value)

    def _set_by(self, writer: Writer, key: str, value: Any) -> None:
        top, rests_on = self._top(key, writer), dict[str, int]()
        if top is None:
            rank = (1, writer.order, writer.place)
        elif top.writer is writer:
            rank, rests_on = top.rank, dict(top.rests_on)
        elif writer.began > top.reached or writer.seen.get(key, 0) > top.shown or writer.is_related(top.writer):
            rank, rests_on = (top.rank[0] + 1, writer.order, writer.place), self._unrecorded_below(key, top)
        else:
            # The step overwrites a value that it can't have known.
            rank = (top.rank[0], writer.order, writer.place)
            writer.conflicts.append(
                f"steps {top.writer.name!r} and {writer.name!r} run in parallel and both set the state {key!r}: what "
                f"{(writer if rank > top.rank else top.writer).name!r} sets is kept; let one of them set it, or read "
                "it before you set it"
            )
        writer.sets[key] += 1
        self._remove(key, lambda write: write.writer is writer)
        now = self._tick()
        self._put(key, _Write(rank, lambda: value, writer, now, now, rests_on))

    def _unrecorded_below(self, key: str, top: _Write) -> dict[str, int]:
        """Return the steps below a write that would run again after a crash, and how often they have set the key."""
        unrecorded = {each.place: each.sets[key] for each in top.writer.lineage() if not each.is_recorded}
        return {each: count for each, count in {**top.rests_on, **unrecorded}.items() if each not in self._recorded}

    def _insert(self, key: str, write: _Write) -> None:
        insort(self._writes.setdefault(key, []), write, key=_rank)

    def _put(self, key: str, write: _Write) -> None:
        """Add a write that the function has reached."""
        if key not in self._floors:
            self._floors[key] = self._store.get(key, ABSENT)
        self._insert(key, write)
        self._show(key)

    def _remove(self, key: str, is_meant: Callable[[_Write], bool]) -> list[_Write]:
        """Remove writes and return them."""
        writes = self._writes.get(key, [])
        removed = [each for each in writes if is_meant(each)]
        writes[:] = [each for each in writes if each not in removed]
        return removed

    def _show(self, key: str) -> None:
        """Make the winning write the value."""
        last, floor = self._last(key), self._floors[key]
        if last is not None or floor is not ABSENT:
            self._store.set(key, floor if last is None else last.give())
        else:
            self._store.delete(key)

    def roll_back(self, writer: Writer) -> None:
        """Take back what an attempt at a step has set. Another attempt may reach what is recorded inside the step."""
        with self._lock:
            writer.has_ended = True
            for key, write in self._take_out(writer):
                by = write.writer
                if by.is_recorded:
                    self._insert(key, _Write.ahead(by.name, by.place, write.rank, write.rests_on, write.give))

    def withdraw(self, writer: Writer) -> list[str]:
        """Take back what a failed step has set, for good. Return warnings."""
        with self._lock:
            writer.has_ended = True
            self._drop_ahead_inside(writer)
            self._take_out(writer)
            return [
                f"step {write.writer.name!r} has used the state {key!r} that step {writer.name!r} had set before it "
                "failed, and its own change is kept; let one of them end before the other starts"
                for key, writes in self._writes.items()
                for write in writes
                if not write.is_ahead and write.rests_on.get(writer.place)
            ]

    def _take_out(self, writer: Writer) -> list[tuple[str, _Write]]:
        """Remove the writes of a step and of those inside it. Return them, with their keys."""
        found: list[tuple[str, _Write]] = []
        for key in self._writes:
            removed = self._remove(key, lambda write: write.writer.is_within(writer))
            if removed:
                self._show(key)
            found.extend((key, write) for write in removed)
        return found

    def finish(self, writer: Writer, result: Any, *, with_ahead: bool = False) -> StepOutcome:
        """Return the result of a step that has ended, with what it and those inside it have set.

        An interrupted step that does not run again has not reached what is recorded inside it; `with_ahead` adds that.
        """
        with self._lock:
            writer.has_ended = True
            # The highest rank is last, and stays.
            found = {
                key: write
                for key, writes in self._writes.items()
                for write in writes
                if write.writer.is_within(writer) or (with_ahead and write.is_ahead_in(writer))
            }
            return StepOutcome(
                result,
                {key: write.give() for key, write in found.items()},
                {key: write.rank for key, write in found.items()},
                {key: dict(write.rests_on) for key, write in found.items() if write.rests_on},
            )

    def restore(self, writer: Writer, outcome: StepOutcome) -> None:
        """Apply what a step has set, as it was recorded in this process or another."""
        with self._lock:
            writer.is_recorded = True
            self._recorded.add(writer.place)
            self._drop_ahead_inside(writer)
            for key, value in outcome.state.items():
                rank = outcome.rank(key)
                own = self._remove(key, lambda write: write.writer.is_within(writer))
                was_ahead = self._remove(key, lambda write, rank=rank: write.is_ahead and write.rank == rank)
                reached = max((each.reached for each in own), default=0) or self._tick()
                shown, rests_on = 0 if was_ahead else reached, outcome.rests_on.get(key, {})
                self._put(key, _Write(rank, lambda value=value: value, writer, shown, reached, rests_on))

    def _drop_ahead_inside(self, writer: Writer) -> None:
        """Forget the recorded writes inside a step that has ended without reaching them."""
        for key in self._writes:
            self._remove(key, lambda write: write.is_ahead_in(writer))

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _writing(self) -> Writer | None:
        """Return the running step of this function. Steps of an enclosing function set that function's state."""
        writer = current_writer.get()
        return writer if writer is not None and writer.state is self else None


def _rank(write: _Write) -> Rank:
    return write.rank


current_writer: ContextVar[Writer | None] = ContextVar("perdure_step_writer", default=None)


def place_of_step(activation: ActivationRecorder) -> str:
    """Return the place of the step that runs here; an empty text if none does."""
    running = activation.running_step
    return "" if running is None else running.place


def recorded_writes(activation: ActivationRecorder) -> Iterator[tuple[str, _Write]]:
    """Yield the state that recorded steps have set in the function that is entered here, by key."""
    reader = _Reader(activation)
    for place in dict.fromkeys([*reader.held, *activation.context.journal.keys(activation.activation_id)]):
        yield from reader.writes(place)


class _Reader:
    """Read the records of a function that is being entered: a handler, or a step of one."""

    def __init__(self, activation: ActivationRecorder) -> None:
        self._context = activation.context
        self._function = place_of_step(activation) or activation.activation_id
        # Results of steps that are in memory only, by place.
        self.held = activation.context.held(activation.activation_id)

    def writes(self, place: str) -> Iterator[tuple[str, _Write]]:
        """Yield the state that a step has set, by key.

        A step inside one that has ended is skipped: the outer one has recorded what is kept.
        """
        if not place.startswith(f"{self._function}{STEP}") or "/" in _last(place):
            return
        # The places of the enclosing steps, inside the function.
        outer = [place.rpartition(STEP)[0]]
        while len(outer[-1]) > len(self._function):
            outer.append(outer[-1].rpartition(STEP)[0])
        outer.pop()
        if any(_last(each).startswith(_FUNCTION_QUOTED) for each in outer):
            return
        fields = self._fields(place)
        if not fields or any(self._has_ended(each) for each in outer):
            return
        give, state = self._context.values.give, fields["state"]
        ranks = {key: _as_rank(rank) for key, rank in give(fields["ranks"]).items()}
        rests_on: dict[str, dict[str, int]] = give(fields["rests_on"]) if "rests_on" in fields else {}
        name = unquote(re.split("[#@]", _last(place))[0])
        for key, rank in ranks.items():
            yield key, _Write.ahead(name, place, rank, rests_on.get(key, {}), lambda key=key: give(state)[key])

    def _fields(self, place: str) -> Mapping[str, Kept]:
        """Return the fields of a step's outcome, if it has set state. Only the step itself knows the result's type."""
        result = self.held[place].result if place in self.held else None
        found = self._context.journal.find(place) if result is None else None
        # Results may be long, and most steps set nothing.
        if found is not None and _NAME in found.require_encoded().text:
            result = StepRecord.of(found, place).result
        return {} if result is None else fields_of(result, StepOutcome)

    def _has_ended(self, place: str) -> bool:
        found = self._context.journal.find(place)
        record = None if found is None else StepRecord.of(found, place)
        return place in self.held or (record is not None and (record.result is not None or bool(record.raised)))


def _as_rank(recorded: Any) -> Rank:
    """Return a recorded rank. In the first versions the second member was a number."""
    writes, order, place = recorded
    return (writes, f"{order:08}" if isinstance(order, int) else order, place)


def _last(place: str) -> str:
    return place.rpartition(STEP)[2]
