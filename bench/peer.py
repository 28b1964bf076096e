"""The port of a peer: what a library has to be able to do to be measured here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

Run = Callable[[], Awaitable[int]]
"""The part that is timed. It gives a number by which the work can be seen to be done."""


class Store(Enum):
    """Where checkpoints go."""

    NONE = "no checkpoints"
    MEMORY = "memory checkpoints"
    FILE = "file checkpoints"
    SQLITE = "SQLite checkpoints"


class Durability(Enum):
    """How safe a checkpoint is when the next superstep begins."""

    NONE = "none"
    MEMORY = "in memory"
    WRITTEN = "written"
    SYNCED = "synced"
    LATE = "synced late"


@dataclass(frozen=True, slots=True)
class Place:
    """The store of a run, and a directory of its own for what it writes."""

    store: Store
    directory: Path


class Peer(Protocol):
    """A library in the configuration that its documentation recommends.

    The methods give what is to be timed as a context: what has to be there before (a graph, an open store that was
    used once) is made on entering, and taken down on leaving. None of it is timed, except where it says so.
    """

    @property
    def name(self) -> str:
        """What the table calls it."""
        ...

    @property
    def about(self) -> str:
        """Which version it is, and how it is set up."""
        ...

    @property
    def imports(self) -> str | None:
        """The statement with which a program that uses it begins; None if that says nothing."""
        ...

    def durability(self, store: Store) -> Durability | None:
        """How durable its checkpoints are there; None if it is not to be measured with such a store."""
        ...

    def ring(self, supersteps: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """Two executors hand a number to and fro, one superstep each time. Gives `supersteps`."""
        ...

    def fan(self, laps: int, branches: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """A hub sends a number to `branches` executors and waits for all, two supersteps a lap. Gives the answers."""
        ...

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that fails in its last superstep; the checkpoints of all others stay behind."""
        ...

    def resume(self, supersteps: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """What a new process does with an interrupted ring: open, build, find the latest, finish. All is timed."""
        ...


class Interruption(Exception):
    """Ends a ring before its end."""
