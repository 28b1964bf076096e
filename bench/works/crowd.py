"""Many runs side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from bench.peer import Crowds, Store
from bench.work import Reading, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Durability, Peer
    from bench.work import Room

_FEW = 5


@dataclass(frozen=True, slots=True)
class Crowd:
    """Rings of many runs at once, in one process and one store."""

    key: str
    stores: Sequence[Store]
    runs: int
    supersteps: int
    unit: str = "superstep"

    @property
    def title(self) -> str:
        """The title, in a few words."""
        return f"{self.runs} concurrent runs of {self.supersteps} supersteps"

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the peer's store."""
        return peer.durability(store) if isinstance(peer, Crowds) else None

    def small(self) -> Self:
        """A few runs of a few supersteps."""
        return replace(self, runs=_FEW, supersteps=_FEW)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure one superstep of any run."""
        assert isinstance(peer, Crowds), "who can't do it has no durability"
        supersteps = self.runs * self.supersteps
        async with peer.crowd(self.runs, self.supersteps, room.place) as run:
            return Reading(await timed(run, expected=supersteps) / supersteps)
