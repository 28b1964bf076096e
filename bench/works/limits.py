"""The limits of the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from bench.peer import Bounds, Store
from bench.work import Reading, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Durability, Peer
    from bench.work import Room

_FEW = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Tasks, commits, syncs and encodings without any library."""

    times: int
    key: str = "limits"
    title: str = "the machine's limits"
    unit: str = "operation"
    stores: Sequence[Store] = (Store.NONE, Store.FILE, Store.SQLITE, Store.POSTGRES)

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the limit with its own store."""
        return peer.durability(store) if isinstance(peer, Bounds) else None

    def small(self) -> Self:
        """A few times."""
        return replace(self, times=_FEW)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure one repetition."""
        assert isinstance(peer, Bounds), "others have no durability"
        times = max(1, self.times // peer.weight)
        async with peer.bound(times, room.place) as run:
            return Reading(await timed(run, expected=times) / times)
