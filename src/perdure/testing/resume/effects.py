"""Effects: what a workflow does to the world, counted in a file outside of any store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.runtime.steps import is_inside_step
from perdure.testing.resume.points import append, lines, reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_BEGUN, _RETURNED = "begun", "returned"


@dataclass(slots=True)
class _Notes:
    """Where this process notes effects, and those of the superstep that is under way."""

    path: Path | None = None
    under_way: list[str] = field(default_factory=list[str])
    is_whole: bool = True


_notes = _Notes()


def effect(name: str) -> None:
    """Say that work is done now which must not be done again once it is recorded. Call it where the work is.

    A name stands for one piece of work: if a handler works in rounds, put the round into it. Outside of the suite
    this does nothing.
    """
    if _notes.path is None:
        return
    place = "step" if is_inside_step() else "activation"
    reach(f"{place} before its effect")
    append(_notes.path, f"{_BEGUN} {name}")
    _notes.under_way.append(name)
    reach(f"{place} after its effect")


def returned(name: str) -> None:
    """Say that the caller of a step has its result: call it after the `await`. Now the work may not be repeated.

    Work of a handler needs no such line: the suite knows when its superstep is committed.
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
    _notes.is_whole = True


def leave_open() -> None:
    """A handler was left, or has failed: the commit does not finish what it did outside of steps."""
    _notes.is_whole = False


def committed() -> None:
    """The superstep was committed."""
    if _notes.is_whole:
        for name in _notes.under_way:
            returned(name)
    _notes.under_way.clear()


@dataclass(frozen=True, slots=True)
class Effects:
    """What stands in the file."""

    begun: Mapping[str, int]
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
        return cls(begun, tuple(repeated))

    def missing(self, expected: Iterable[str]) -> tuple[str, ...]:
        """Which of these were never begun."""
        return tuple(name for name in expected if name not in self.begun)
