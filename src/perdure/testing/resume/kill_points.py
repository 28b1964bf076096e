"""Named points at which a process can kill itself, and effects: work on the outside world that must not be repeated.

Effects are counted in a file outside any store.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - seeded, to choose what is tested
import signal
import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from perdure.engine import is_inside_step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from perdure.engine import ActivationRecorder
    from perdure.graph import WorkflowContext
    from perdure.records import JournalRecord

# Windows by the first word of a point's name.
WINDOWS: Final = {
    "activation": "inside an activation",
    "intent": "between a step's intent and its result",
    "step": "after a step's effect, before its record",
    "record": "while a record is written",
    "finished": "after an activation's record, before the commit",
    "commit": "inside the commit",
    "emit": "between the commit and its event",
    "recovery": "during recovery",
    "post": "while an answer or a message is recorded",
    "answer": "while an answer or a message is recorded",
    "sleep": "at suspension and wake",
    "inherited": "while recorded work of an earlier process is pending",
}


@dataclass(slots=True)
class KillPlan:
    """Decides where one process is killed: at the given occurrence of the target point.

    With `action`, that is called there instead. `seen` counts the points that the process passed.
    """

    target: str | None = None
    occurrence: int = 1
    hits: Path | None = None
    is_resuming: bool = False
    action: Callable[[], None] | None = None
    seen: Counter[str] = field(default_factory=Counter[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pass_point(self, name: str) -> None:
        """Pass a point, and die there if it is the target."""
        with self._lock:
            self.seen[name] += 1
            is_target = name == self.target and self.seen[name] == self.occurrence
            if is_target and self.action is None:
                self._kill_process(name)
        if is_target and self.action is not None:
            self.action()

    def _kill_process(self, name: str) -> None:
        if self.hits is not None:
            append(self.hits, name)
        os.kill(os.getpid(), signal.SIGKILL)
        # Another thread may take the signal, so this one must not continue.
        threading.Event().wait()


_plan: KillPlan | None = None


def use_plan(plan: KillPlan) -> None:
    """Set the plan of this process."""
    global _plan  # noqa: PLW0603 - a process lives once
    _plan = plan


def reach(name: str) -> None:
    """Pass a point. Outside the suite this does nothing."""
    if _plan is not None:
        _plan.pass_point(name)


def is_resuming() -> bool:
    """Return True if this process continues the work of a killed one."""
    return _plan is not None and _plan.is_resuming


def window_of(name: str) -> str:
    """Return the window of a point."""
    return WINDOWS[name.partition(" ")[0]]


def append(path: Path, line: str) -> None:
    """Append a line with a single write, which survives a kill and does not mix with other writers."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[str]:
    """Return the lines of a file; an empty list if it does not exist."""
    return path.read_text("utf-8").splitlines() if path.exists() else []


class WriteTracker:
    """Tracks the writes in progress, so that an operation knows its kind of write."""

    def __init__(self) -> None:
        self._kinds: list[str] = []

    @contextmanager
    def track(self, kind: str) -> Generator[None]:
        """Track a write of this kind during the block."""
        self._kinds.append(kind)
        try:
            yield
        finally:
            self._kinds.remove(kind)

    @contextmanager
    def operation(self, name: str) -> Generator[None]:
        """Pass a point before and after an operation that is part of a write."""
        self.point(f"before {name}")
        yield
        self.point(f"after {name}")

    def point(self, name: str) -> None:
        """Pass a point that is part of a write."""
        kind = next((kind for kind in ("commit", "post", "record") if kind in self._kinds), None)
        if kind is not None:
            reach(f"{kind} {name}")


# Writes of this process.
writes: Final = WriteTracker()

_BEGUN, _RETURNED = "begun", "returned"
_CHILD, _ATTEMPTS_KEY = "child", "attempts"

Finished: TypeAlias = Literal["an activation", "a child's superstep"]


@dataclass(slots=True)
class _EffectLog:
    """Effects of this process: the file, those of the current superstep, and its unfinished executors.

    An effect that was reported with a context has the activation that it is part of.
    """

    path: Path | None = None
    current: dict[str, ActivationRecorder | None] = field(default_factory=dict[str, "ActivationRecorder | None"])
    open_executors: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


_log = _EffectLog()


def effect(name: str, ctx: WorkflowContext[Any, Any] | None = None) -> None:
    """Report work that must not be repeated once it is recorded. Call it where the work happens.

    A name stands for one piece of work: if a handler works in rounds, put the round into the name. In a handler,
    outside steps, pass the context: then the work counts as done as soon as the handler's record is written, not only
    when the superstep is committed. Outside the suite this does nothing.
    """
    if _log.path is None:
        return
    place = "step" if is_inside_step() else "activation"
    reach(f"{place} before its effect")
    append(_log.path, f"{_BEGUN} {name}")
    _log.current[name] = None if ctx is None else ctx.activation
    reach(f"{place} after its effect")


def returned(name: str) -> None:
    """Report that the caller of a step has its result. Call it after the `await`: the work must not be repeated.

    Work of a handler does not need this: the suite knows when it is recorded.
    """
    if _log.path is not None:
        append(_log.path, f"{_RETURNED} {name}")
        reach("step returned")


def was_begun(name: str) -> bool:
    """Return True if the work was started, as an external service would answer after a crash."""
    return _log.path is not None and f"{_BEGUN} {name}" in lines(_log.path)


def record_into(path: Path) -> None:
    """Set the file for the effects of this process."""
    _log.path = path


def begin_superstep() -> None:
    """Forget the unfinished executors of the superstep before. The event of this may arrive after its first effects."""
    _log.open_executors.clear()


def mark_open(path: Sequence[str], executor_id: str) -> None:
    """Note that a handler was suspended or failed: the commit does not finish its work outside steps."""
    _log.open_executors.add(("/".join(path), executor_id))


def find_finished(records: Sequence[JournalRecord]) -> dict[str, Finished]:
    """Return the effects that these records finish, with the unit of work that each one belongs to.

    Call it before the records are written: afterwards a sub-workflow may have continued.
    """
    return {
        name: unit
        for record in records
        for name, activation in list(_log.current.items())
        if activation is not None and (unit := _unit_finished_by(record, activation)) is not None
    }


def _unit_finished_by(record: JournalRecord, activation: ActivationRecorder) -> Finished | None:
    """Return the unit of work that a record finishes, if the activation is part of it."""

    def is_record_of(key: str) -> bool:
        # Equal records of others have other bytes objects.
        found = journal.find(key)
        return found is not None and found.encoded is not None and found.encoded.text is record.data

    journal, activation_id = activation.context.journal, activation.activation_id
    if is_record_of(activation_id):
        return "an activation"
    is_open = activation.waits_for is not None or journal.find(f"{activation_id}/{_ATTEMPTS_KEY}") is not None
    return "a child's superstep" if not is_open and is_record_of(_CHILD) else None


def mark_recorded(finished: Mapping[str, Finished]) -> None:
    """Mark these effects as done, because their records are written."""
    for name in finished:
        returned(name)
        _log.current.pop(name, None)
    for unit in dict.fromkeys(finished.values()):
        reach(f"finished and recorded {unit}")


def mark_committed() -> None:
    """Mark the effects of the superstep as done. An effect without a context counts only if every handler finished."""
    for name, activation in list(_log.current.items()):
        if activation is None:
            is_open = bool(_log.open_executors)
        else:
            _, _, inside = activation.context.root_id.partition("/")
            is_open = (inside, activation.executor_id) in _log.open_executors
        if not is_open:
            returned(name)
    _log.current.clear()


@dataclass(frozen=True, slots=True)
class Effects:
    """Contents of the effects file: `done` must not start again, `repeated` started again after they were done."""

    begun: Mapping[str, int]
    done: frozenset[str]
    repeated: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Effects:
        """Read the file."""
        begun, done, repeated = Counter[str](), set[str](), list[str]()
        for line in lines(path):
            what, _, name = line.partition(" ")
            if what == _RETURNED:
                done.add(name)
            else:
                begun[name] += 1
                if name in done:
                    repeated.append(name)
        return cls(begun, frozenset(done), tuple(repeated))

    def find_fault(self, expected: Effects) -> str | None:
        """Return a description of a repeated or missing effect; None if there is none."""
        if self.repeated:
            return f"done again after it had returned: {', '.join(self.repeated)}"
        missing = [name for name in expected.begun if name not in self.begun]
        return f"never done: {', '.join(missing)}" if missing else None


_ATTEMPTS_MAX = 4
_OCCURRENCE_MAX = 5
_RECORD_WRITTEN = "record after all"
_INHERITED_POINTS = ("inherited before commit", "inherited after commit")


@dataclass(frozen=True, slots=True)
class KillTarget:
    """A point to kill at, and its occurrence.

    `after` are the targets of the processes before it: some points are passed only after another kill.
    """

    name: str
    occurrence: int = 1
    after: tuple[KillTarget, ...] = ()


# Lets a process run to its end. Some points are passed only when nothing is left to do.
NO_KILL: Final = KillTarget("")


@dataclass(slots=True)
class KillTargets:
    """Known points in random order, and those that have killed a process.

    `per_window` limits the number of points in each window.
    """

    chance: Chance
    per_window: int | None = None
    hit: set[str] = field(default_factory=set[str])
    tried: Counter[str] = field(default_factory=Counter[str])
    _remaining: deque[KillTarget] = field(default_factory=deque[KillTarget])
    _taken: Counter[str] = field(default_factory=Counter[str])

    def add_points(self, seen: Mapping[str, int], after: tuple[KillTarget, ...]) -> None:
        """Add new points that a process passed."""
        for name in self.chance.shuffled(sorted(set(seen) - set(self.tried))):
            window = window_of(name)
            if self.per_window is None or self._taken[window] < self.per_window:
                self._taken[window] += 1
                self.tried[name] = 0
                first = 1 + self.chance.below(min(_OCCURRENCE_MAX, seen[name]))
                self._remaining.append(KillTarget(name, 1 if after else first, after))

    def add_inherited_points(self, seen: Mapping[str, int]) -> None:
        """Add the points that only a successor passes: the commit of work that an earlier process recorded."""
        if seen.get(_RECORD_WRITTEN):
            self.tried.update(dict.fromkeys(_INHERITED_POINTS, 0))
            self._remaining.extend(KillTarget(name, after=(KillTarget(_RECORD_WRITTEN),)) for name in _INHERITED_POINTS)

    @property
    def is_done(self) -> bool:
        """True if no target is left."""
        return not self._remaining

    def next_run(self) -> deque[KillTarget]:
        """Return the targets for the processes of a new run. The last one is the next point."""
        target = self._remaining.popleft()
        return deque([*target.after, target])

    def next_target(self) -> KillTarget | None:
        """Return another target for a run that was killed already; None if the next target needs its own run."""
        return self._remaining.popleft() if self._remaining and not self.tried[self._remaining[0].name] else None

    def record_result(self, target: KillTarget, *, was_hit: bool) -> None:
        """Record the result. A missed target is tried again in its own run, at its first occurrence."""
        if was_hit:
            self.hit.add(target.name)
            return
        self.tried[target.name] += 1
        if target.name not in self.hit and self.tried[target.name] < _ATTEMPTS_MAX:
            self._remaining.append(KillTarget(target.name, 1, target.after))

    def describe_missed(self) -> str | None:
        """Return a description of the points that never killed a process; None if there are none."""
        names = sorted(set(self.tried) - self.hit)
        return f"never hit, though processes pass them: {', '.join(names)}" if names else None


T = TypeVar("T")


class Chance:
    """Random numbers from a seed, the same on every machine."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311

    def below(self, limit: int) -> int:
        """Return an integer from 0 up to, but not including, the limit."""
        return self._random.randrange(limit)

    def one_of(self, things: Sequence[T]) -> T:
        """Return a random item."""
        return self._random.choice(things)

    def shuffled(self, things: Sequence[T]) -> list[T]:
        """Return all items in random order."""
        return self._random.sample(things, len(things))

    def seconds(self, longest: float) -> float:
        """Return a random duration up to the longest."""
        return self._random.uniform(0, longest)
