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
    """How far a run had got, and what it had taken until then."""

    superstep: int
    seconds: float
    written: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What one unit took: seconds, the bytes that were handed to the kernel, and by how many the store has grown."""

    seconds: float
    written: float | None = None
    stored: float | None = None
    points: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """Where a sample is taken: a place of its own, a directory that outlasts the rounds, and what counts bytes."""

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
        """What is measured, in a few words."""
        ...

    @property
    def unit(self) -> str:
        """What is counted."""
        ...

    @property
    def stores(self) -> Sequence[Store]:
        """The stores that it is done with, if a peer has them."""
        ...

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """How durable the work is when this peer does it there; None if it can't do it."""
        ...

    def small(self) -> Self:
        """The same in a second or less, to warm up or to look whether all works."""
        ...

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """What one unit took. The place is new and empty."""
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
