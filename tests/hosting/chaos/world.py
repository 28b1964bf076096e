"""The world outside of the store: a file to which everybody adds lines, in the order in which things happen."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.02

What: TypeAlias = Literal[
    "serving",  # a host looks for work from here on
    "born",  # a host is about to claim a run, with new executors: a life
    "claimed",  # a process has claimed a run
    "released",  # it has given the run free
    "writing",  # it is about to write under a claim
    "wrote",  # that was accepted
    "refused",  # that was refused: the claim was replaced
    "effect",  # the work of a step is done
    "returned",  # the handler has its result
    "stalled",  # a host has done nothing for a good part of its lease, frozen or not
    "killing",  # about to kill a host
    "frozen",  # it was stopped
    "thawing",  # about to let it go on
    "ending",  # about to ask it to end
]


@dataclass(frozen=True, slots=True)
class Fact:
    """One line. `run` and `name` say which work it is about, `key` is what a service would know it by."""

    what: What
    pid: int
    run: str = ""
    name: str = ""
    key: str = ""
    life: int = 0
    token: int = 0

    @property
    def whose(self) -> tuple[int, int]:
        """The life that it is about."""
        return self.pid, self.life

    @property
    def work(self) -> tuple[str, str]:
        """The work that it is about."""
        return self.run, self.name


class World:
    """The file, and what was read of it so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._facts: list[Fact] = []
        self._offset = 0
        self._lock = threading.Lock()

    def note(self, fact: Fact) -> None:
        """Add a line by one write, which a crash of this process does not undo and which other writers don't tear."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, json.dumps(dataclasses.asdict(fact)).encode() + b"\n")
        finally:
            os.close(descriptor)

    def facts(self) -> list[Fact]:
        """All that has happened so far. Steps ask in threads of their own."""
        with self._lock:
            if self.path.exists():
                self._read_on()
            return list(self._facts)

    def _read_on(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._offset)
            told = file.read()
        # The last line may be on its way.
        whole = told[: told.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._facts += [Fact(**json.loads(line)) for line in whole.splitlines()]

    async def until(self, is_it: Callable[[Fact], bool], *, past: int = 0) -> int:
        """Wait until a fact is there, past that many others; its number, counted from 1."""
        for _ in range(int(WAIT_SECONDS_MAX / _LOOK_SECONDS)):
            for number, fact in enumerate(self.facts(), 1):
                if number > past and is_it(fact):
                    return number
            await asyncio.sleep(_LOOK_SECONDS)
        told = "\n".join(map(str, self.facts()[past:]))
        raise AssertionError(f"it did not happen within {WAIT_SECONDS_MAX:.0f} seconds; this did:\n{told}")
