"""Effects: what a workflow does to the world, counted in a file outside of any store."""

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
class _Done:
    """An effect of the superstep that is under way, and the activation that had it, if it has said which."""

    name: str
    activation: ActivationRecorder | None

    @property
    def place(self) -> tuple[str, str] | None:
        """The sub-workflow and the executor that had it."""
        if self.activation is None:
            return None
        _, _, inside = self.activation.around.root_id.partition("/")
        return inside, self.activation.executor_id

    def finished_by(self, record: JournalRecord) -> Finished | None:
        """What a record says to be finished, if this effect is part of it."""
        if self.activation is None:
            return None
        journal, home = self.activation.around.journal, self.activation.home
        if _is(journal.find(home), record):
            return "an activation"
        is_left = self.activation.suspender.waits_for is not None or journal.find(f"{home}/{_ATTEMPTS}") is not None
        return "a child's superstep" if not is_left and _is(journal.find(_CHILD), record) else None


def _is(found: Kept | None, record: JournalRecord) -> bool:
    """Whether a journal has just noted this record. Equal ones of others have bytes of their own."""
    return found is not None and found.encoded is not None and found.encoded.text is record.data


@dataclass(slots=True)
class _Notes:
    """Where this process notes effects, those of the superstep that is under way, and who was left in it."""

    path: Path | None = None
    under_way: list[_Done] = field(default_factory=list[_Done])
    left_open: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


_notes = _Notes()


def effect(name: str, ctx: WorkflowContext[Any, Any] | None = None) -> None:
    """Say that work is done now which must not be done again once it is recorded. Call it where the work is.

    A name stands for one piece of work: if a handler works in rounds, put the round into it. In a handler, outside of
    steps, give the context: then the work counts as done as soon as this call of the handler is recorded, and not only
    when its superstep is committed. Outside of the suite this does nothing.
    """
    if _notes.path is None:
        return
    place = "step" if is_inside_step() else "activation"
    reach(f"{place} before its effect")
    append(_notes.path, f"{_BEGUN} {name}")
    activation = None if ctx is None else ctx.activation
    _notes.under_way.append(_Done(name, activation if isinstance(activation, ActivationRecorder) else None))
    reach(f"{place} after its effect")


def returned(name: str) -> None:
    """Say that the caller of a step has its result: call it after the `await`. Now the work may not be repeated.

    Work of a handler needs no such line: the suite knows when it is recorded.
    """
    if _notes.path is not None:
        append(_notes.path, f"{_RETURNED} {name}")
        reach("step returned")


def was_begun(name: str) -> bool:
    """Whether the world has seen this work, as a service would tell that is asked after a crash."""
    return _notes.path is not None and f"{_BEGUN} {name}" in lines(_notes.path)


def note_into(path: Path) -> None:
    """Let this process note its effects into a file."""
    _notes.path = path


def begin_superstep() -> None:
    """A superstep begins: what is done from here on is recorded by its commit."""
    _notes.under_way.clear()
    _notes.left_open.clear()


def leave_open(path: Sequence[str], executor_id: str) -> None:
    """A handler was left, or has failed: the commit does not finish what it did outside of steps."""
    _notes.left_open.add(("/".join(path), executor_id))


def about_to_record(records: Sequence[JournalRecord]) -> dict[str, Finished]:
    """Which effects will be finished once these are written, and what finishes them.

    To be asked before they are: by then a sub-workflow may have gone on.
    """
    found: dict[str, Finished] = {}
    for record in records:
        for done in _notes.under_way:
            if (what := done.finished_by(record)) is not None:
                found[done.name] = what
    return found


def recorded(finished: Mapping[str, Finished]) -> None:
    """What finishes these effects is written."""
    _return(finished)
    _notes.under_way = [done for done in _notes.under_way if done.name not in finished]
    for what in dict.fromkeys(finished.values()):
        reach(f"finished and recorded {what}")


def committed() -> None:
    """The superstep was committed. Of an effect that has not said whose it is, nobody may have been left."""
    left = _notes.left_open
    _return(done.name for done in _notes.under_way if (done.place not in left if done.place else not left))
    _notes.under_way.clear()


def _return(names: Iterable[str]) -> None:
    for name in names:
        returned(name)


@dataclass(frozen=True, slots=True)
class Effects:
    """What stands in the file."""

    begun: Mapping[str, int]
    done: frozenset[str]
    """What may not be begun again."""
    repeated: tuple[str, ...]
    """What was begun again after it had returned."""

    @classmethod
    def of(cls, path: Path) -> Effects:
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

    def fault(self, expected: Effects) -> str | None:
        """What was done again, or never, though others have done it; None if there is nothing."""
        if self.repeated:
            return f"done again after it had returned: {', '.join(self.repeated)}"
        missing = [name for name in expected.begun if name not in self.begun]
        return f"never done: {', '.join(missing)}" if missing else None
