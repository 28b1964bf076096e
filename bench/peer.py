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
    """The kind of store."""

    NONE = "none"
    MEMORY = "memory"
    FILE = "file"
    SQLITE = "SQLite"
    POSTGRES = "Postgres"


class Durability(Enum):
    """The safety of a checkpoint when the next superstep begins."""

    NONE = "none"
    MEMORY = "in memory"
    WRITTEN = "written"
    SYNCED = "synced"
    LATE = "synced late"


class Ballast(Enum):
    """The kind of the ten megabytes that do not change, and their location."""

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
        """The name in the tables."""
        ...

    @property
    def about(self) -> str:
        """The version and the configuration."""
        ...

    @property
    def keeps(self) -> str:
        """The way checkpoints are stored and synced; empty if another peer of the same library says it."""
        ...

    @property
    def cannot(self) -> str:
        """The works that it does not take part in, with the reason; empty if there are none."""
        ...

    def durability(self, store: Store) -> Durability | None:
        """Return the durability of its checkpoints in a store; None if it is not measured with that store."""
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
        """Resume an interrupted ring as a new process does: open, build, find the latest, finish. All is timed."""
        ...


@runtime_checkable
class Lists(Protocol):
    """Lists of runs and of what they ask."""

    async def fill(self, runs: int, place: Place) -> None:
        """So many runs; each fourth waits for an answer."""
        ...

    def page(self, what: str, size: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """A page of `runs`, those that wait, or of `requests`. Gives the number of its rows."""
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
        """Return True if it can hold such a value in that store."""
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
        """Run this many rings at the same time. The result is the number of supersteps of all."""
        ...


@runtime_checkable
class Converses(Protocol):
    """An agent that remembers what was said."""

    def converses(self, turns: int, store: Store) -> bool:
        """Return True if it can do this many turns with that store in acceptable time."""
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
        """The rough cost, relative to the cheapest limit."""
        ...

    def bound(self, times: int, place: Place) -> AbstractAsyncContextManager[Run]:
        """Do it `times` times. The result is `times`."""
        ...


@runtime_checkable
class Installs(Protocol):
    """Something that pip installs."""

    @property
    def requirement(self) -> str:
        """The requirement for pip, without optional extras."""
        ...

    @property
    def imports(self) -> str:
        """The statement with which a program that uses it begins."""
        ...


class Interruption(Exception):
    """Ends a ring before its end."""
