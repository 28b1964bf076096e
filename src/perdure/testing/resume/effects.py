"""Effects: work of a workflow on the outside world, counted in a file outside any store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perdure.engine import ActivationRecorder, is_inside_step
from perdure.testing.resume.kill_points import append, lines, reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.codec import Kept
    from perdure.graph import WorkflowContext
    from perdure.records import JournalRecord

_BEGUN, _RETURNED = "begun", "returned"
_CHILD, _ATTEMPTS = "child", "attempts"


Finished: TypeAlias = Literal["an activation", "a child's superstep"]


@dataclass(frozen=True, slots=True)
class _Effect:
    """An effect of the current superstep. `activation` is None if the effect was reported without a context."""

    name: str
    activation: ActivationRecorder | None

    @property
    def place(self) -> tuple[str, str] | None:
        """The sub-workflow path and the executor id."""
        if self.activation is None:
            return None
        _, _, inside = self.activation.context.root_id.partition("/")
        return inside, self.activation.executor_id

    def finished_by(self, record: JournalRecord) -> Finished | None:
        """Return the unit of work that a record finishes, if this effect is part of it."""
        if self.activation is None:
            return None
        journal, activation_id = self.activation.context.journal, self.activation.activation_id
        if _is_same_record(journal.find(activation_id), record):
            return "an activation"
        is_open = self.activation.waits_for is not None or journal.find(f"{activation_id}/{_ATTEMPTS}") is not None
        return "a child's superstep" if not is_open and _is_same_record(journal.find(_CHILD), record) else None


def _is_same_record(found: Kept | None, record: JournalRecord) -> bool:
    """Return True if a journal holds this very record. Equal records of others have other bytes objects."""
    return found is not None and found.encoded is not None and found.encoded.text is record.data


@dataclass(slots=True)
class _EffectLog:
    """Effects of this process: the file, those of the current superstep, and its unfinished executors."""

    path: Path | None = None
    current: list[_Effect] = field(default_factory=list[_Effect])
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
    activation = None if ctx is None else ctx.activation
    _log.current.append(_Effect(name, activation if isinstance(activation, ActivationRecorder) else None))
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
    found: dict[str, Finished] = {}
    for record in records:
        for done in _log.current:
            if (what := done.finished_by(record)) is not None:
                found[done.name] = what
    return found


def mark_recorded(finished: Mapping[str, Finished]) -> None:
    """Mark these effects as done, because their records are written."""
    _mark_returned(finished)
    _log.current = [done for done in _log.current if done.name not in finished]
    for what in dict.fromkeys(finished.values()):
        reach(f"finished and recorded {what}")


def mark_committed() -> None:
    """Mark the effects of the superstep as done. An effect without a context counts only if every handler finished."""
    left = _log.open_executors
    _mark_returned(done.name for done in _log.current if (done.place not in left if done.place else not left))
    _log.current.clear()


def _mark_returned(names: Iterable[str]) -> None:
    for name in names:
        returned(name)


@dataclass(frozen=True, slots=True)
class Effects:
    """Contents of the effects file."""

    begun: Mapping[str, int]
    done: frozenset[str]
    """Effects that must not start again."""
    repeated: tuple[str, ...]
    """Effects that started again after they were done."""

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
