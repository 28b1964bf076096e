"""Supersteps one after the other, with a tiny message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from bench.peer import Rings, Store
from bench.work import Reading, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Durability, Peer
    from bench.work import Room

_FEW = 20


@dataclass(frozen=True, slots=True)
class Ring:
    """Two executors hand a number to and fro."""

    key: str
    title: str
    stores: Sequence[Store]
    supersteps: int
    unit: str = "superstep"

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the peer's store."""
        return peer.durability(store) if isinstance(peer, Rings) else None

    def small(self) -> Self:
        """A few supersteps."""
        return replace(self, supersteps=_FEW)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure one superstep."""
        assert isinstance(peer, Rings), "who can't do it has no durability"
        async with peer.ring(self.supersteps, room.place) as run:
            return Reading(await timed(run, expected=self.supersteps) / self.supersteps)
