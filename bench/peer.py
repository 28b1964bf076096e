"""The ports of a peer: what a library can do, an ability each. It is measured in those that it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from bench.script import Script

Run = Callable[[], Awaitable[int]]
"""The part that is timed. It gives a number by which the work can be seen to be done."""

Tick = Callable[[], None]
"""Called in each superstep, or before each turn, so that the way through a run can be seen."""


class Store(Enum):
    """Where checkpoints go."""

    NONE = "none"
    MEMORY = "memory"
    FILE = "file"
    SQLITE = "SQLite"
    POSTGRES = "Postgres"


class Durability(Enum):
    """How safe a checkpoint is when the next superstep begins."""

    NONE = "none"
    MEMORY = "in memory"
    WRITTEN = "written"
    SYNCED = "synced"
    LATE = "synced late"


class Ballast(Enum):
    """What the ten megabytes are that do not change, and where they are kept."""

    NONE = "nothing"
    EMPTY = "nothing, in the state of an executor that runs"
    KEY = "nested, under a key that nobody touches"
    BYTES = "bytes, in the state of an executor that runs"
    STR = "str, in the state of an executor that runs"
    NESTED = "nested, in the state of an executor that runs"


@dataclass(frozen=True, slots=True)
class Place:
    """The store of a run: a directory of its own, and a database of its own on the server if the store is there."""

    store: Store
    directory: Path
    dsn: str = ""


class Peer(Protocol):
    """A library in the configuration that its documentation recommends.

    The abilities below give what is to be timed as a context: what has to be there before (a graph, an open store that
    was used once) is made on entering, and taken down on leaving. None of it is timed, except where it says so.
    """

    @property
    def name(self) -> str:
        """What the tables call it."""
        ...

    @property
    def about(self) -> str:
        """Which version it is, and how it is set up."""
        ...

    @property
    def keeps(self) -> str:
        """What becomes of a checkpoint, and what syncs it; nothing if another peer of the same library says it."""
        ...

    @property
    def cannot(self) -> str:
        """What it is left out of, and why; nothing if it takes part in all."""
        ...

    def durability(self, store: Store) -> Durability | None:
        """How durable its checkpoints are there; None if it is not to be measured with such a store."""
        ...


@runtime_checkable
class Rings(Protocol):
    """Supersteps one after the other."""

    def ring(self, supersteps: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """Two executors hand a number to and fro, one superstep each time. Gives `supersteps`."""
        ...


@runtime_checkable
class Fans(Protocol):
    """One to many and back."""

    def fan(self, laps: int, branches: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """A hub sends a number to `branches` executors and waits for all, two supersteps a lap. Gives the answers."""
        ...


@runtime_checkable
class Resumes(Protocol):
    """Going on in a new process."""

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """A ring that ends within its last superstep; the checkpoints of all others stay behind."""
        ...

    def resume(self, supersteps: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """What a new process does with an interrupted ring: open, build, find the latest, finish. All is timed."""
        ...


@runtime_checkable
class Grows(Protocol):
    """A history that grows."""

    def history(self, entries: Sequence[str], tick: Tick, place: Place) -> AbstractAsyncContextManager[Run]:
        """A ring that adds an entry to its history in each superstep. Gives the characters of the whole history."""
        ...


@runtime_checkable
class Carries(Protocol):
    """A large value that does not change, beside a small one that does."""

    def carries(self, ballast: Ballast, store: Store) -> bool:
        """Whether it can hold such a value there."""
        ...

    def carry(
        self, ballast: Ballast, value: object, supersteps: int, tick: Tick, place: Place
    ) -> AbstractAsyncContextManager[Run]:
        """A ring that carries the value through its supersteps. Gives `supersteps`."""
        ...


@runtime_checkable
class Crowds(Protocol):
    """Many runs at once, in one store."""

    def crowd(self, runs: int, supersteps: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """So many rings side by side. Gives the supersteps of all."""
        ...


@runtime_checkable
class Converses(Protocol):
    """An agent that remembers what was said."""

    def converses(self, turns: int, store: Store) -> bool:
        """Whether it can go on for so many turns there, in a time that is worth waiting for."""
        ...

    def conversation(self, script: Script, tick: Tick, place: Place) -> AbstractAsyncContextManager[Run]:
        """A run for each question, of which all is kept before the next begins; `bench.script.Model` answers.

        Gives the characters of the whole conversation: those that the model was shown in the last turn, and its answer.
        """
        ...


@runtime_checkable
class Bounds(Protocol):
    """One thing that the machine does, and that no library can do faster."""

    @property
    def weight(self) -> int:
        """How many times as long as the lightest it takes, roughly."""
        ...

    def bound(self, times: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """The same thing so many times. Gives `times`."""
        ...


@runtime_checkable
class Installs(Protocol):
    """Something that pip installs."""

    @property
    def requirement(self) -> str:
        """What pip is asked for, without what it can do without."""
        ...

    @property
    def imports(self) -> str:
        """The statement with which a program that uses it begins."""
        ...


class Interruption(Exception):
    """Ends a ring before its end."""
