"""The named points at which a life can kill itself, and which windows they lie in."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
