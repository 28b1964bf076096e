"""What the machine can do at best."""

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
        """That of the limit, at the one store that it is about."""
        return peer.durability(store) if isinstance(peer, Bounds) else None

    def small(self) -> Self:
        """A few times."""
        return replace(self, times=_FEW)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """What doing it once took."""
        assert isinstance(peer, Bounds), "others have no durability"
        times = max(1, self.times // peer.weight)
        async with peer.bound(times, room.place) as run:
            return Reading(await timed(run, expected=times) / times)
