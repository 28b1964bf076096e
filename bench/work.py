"""The port of a work: what is measured, and how a stretch of it is timed."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.peer import Durability, Peer, Place, Run, Store
    from bench.probe import Meter


@dataclass(frozen=True, slots=True)
class Point:
    """The progress of a run at one moment, with its cost so far."""

    superstep: int
    seconds: float
    written: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The cost of one unit: seconds, bytes passed to the kernel, and the growth of the store."""

    seconds: float
    written: float | None = None
    stored: float | None = None
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """The environment of a sample: a new place, a directory that lives longer than a round, and a byte counter."""

    place: Place
    kept: Path
    meter: Meter


class Work(Protocol):
    """Something small that every peer does."""

    @property
    def key(self) -> str:
        """The letter of its line in the table of aims, and what tells it from others of the same line."""
        ...

    @property
    def title(self) -> str:
        """The title, in a few words."""
        ...

    @property
    def unit(self) -> str:
        """The unit."""
        ...

    @property
    def stores(self) -> Sequence[Store]:
        """The stores that it is done with, if a peer has them."""
        ...

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the work with this peer and store; None if the peer can't do it."""
        ...

    def small(self) -> Self:
        """Return a version that takes a second or less, to warm up or to check that everything works."""
        ...

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure one unit. The place is new and empty."""
        ...


async def timed(run: Run, *, expected: int) -> float:
    """The seconds that a run took. Raises if it gave another result than every peer has to give."""
    settle()
    began = time.perf_counter()
    result = await run()
    elapsed = time.perf_counter() - began
    require_done(result, expected=expected)
    return elapsed


def require_done(result: int, *, expected: int) -> None:
    """Raises if a peer did less, or more, than the others."""
    if result != expected:
        raise AssertionError(f"the work was not done: it gave {result}, not {expected}")


def settle() -> None:
    """Let nobody pay for what others have left: objects that a garbage collection visits, pages that a sync writes."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    os.sync()
