"""A history that grows with every superstep."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from bench.peer import Grows, Store
from bench.probe import Probe
from bench.work import Reading, require_done, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Durability, Peer
    from bench.work import Room

ENTRY_BYTES: Final = 1024
_LOOKS = 25
_FEW = 50


@dataclass(frozen=True, slots=True)
class History:
    """Two executors hand a number to and fro, and each time one of them adds an entry of 1 KB to their history."""

    key: str
    stores: Sequence[Store]
    supersteps: int
    unit: str = "run"

    @property
    def title(self) -> str:
        """The title, in a few words."""
        return f"history grows by 1 KB a superstep, {self.supersteps:,} supersteps"

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the peer's store."""
        return peer.durability(store) if isinstance(peer, Grows) else None

    def small(self) -> Self:
        """A few supersteps."""
        return replace(self, supersteps=_FEW)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure the whole run, and the bytes until its store was closed."""
        assert isinstance(peer, Grows), "who can't do it has no durability"
        entries = _entries(self.supersteps)
        probe = Probe(room.meter, room.place, warm=0, every=max(1, self.supersteps // _LOOKS), settles=True)
        async with peer.history(entries, probe.tick, room.place) as run:
            settle()
            result = await run()
            seconds = probe.stop()
        require_done(result, expected=sum(map(len, entries)))
        return Reading(seconds, probe.finish(), room.meter.stored(room.place), probe.points)


def _entries(number: int) -> list[str]:
    """Texts that no database can make smaller."""
    chance = random.Random(number)  # noqa: S311 - nobody has to be kept from guessing them
    return ["".join(chance.choices(string.ascii_letters + string.digits, k=ENTRY_BYTES)) for _ in range(number)]
