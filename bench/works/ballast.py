"""Ten megabytes that do not change, beside a number that does."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final, Self

from bench.peer import Ballast, Carries, Store
from bench.probe import Probe
from bench.units import size as shown
from bench.work import Reading, require_done, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Durability, Peer
    from bench.work import Room

BALLAST_BYTES: Final = 10 * 1000 * 1000
_BARE = {Ballast.NONE, Ballast.EMPTY}
_WARM = 3
_FEW = 3
_TEXT_BYTES = 100
_PACKED = 0.2  # a database may compress


@dataclass(frozen=True, slots=True)
class Load:
    """A ring that carries the ballast through its supersteps. The first ones, which write it, are not counted."""

    key: str
    stores: Sequence[Store]
    ballast: Ballast
    supersteps: int
    size: int = BALLAST_BYTES
    unit: str = "superstep"

    @property
    def title(self) -> str:
        """The title, in a few words."""
        if self.ballast in _BARE:
            return f"{self.ballast.value}, to compare with"
        return f"{shown(self.size)} unchanged: {self.ballast.value}"

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the peer's store."""
        return peer.durability(store) if isinstance(peer, Carries) and peer.carries(self.ballast, store) else None

    def small(self) -> Self:
        """A few supersteps with a hundredth of it."""
        return replace(self, supersteps=_FEW, size=min(self.size, BALLAST_BYTES // 100))

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure the time and the bytes of one superstep."""
        assert isinstance(peer, Carries), "who can't do it has no durability"
        # A server that has just written all its pages logs each of them whole when it is next changed. Over a few
        # supersteps that would be all there is to see.
        probe = Probe(room.meter, room.place, warm=_WARM, every=self.supersteps, settles=False)
        supersteps = _WARM + self.supersteps
        async with peer.carry(
            self.ballast, _ballast(self.ballast, self.size), supersteps, probe.tick, room.place
        ) as run:
            settle()
            result = await run()
            seconds = probe.stop()
            # Before the store is closed: closing writes the ballast itself, once, wherever it had been put first.
            written = probe.finish()
            stored = room.meter.stored(room.place)
        require_done(result, expected=supersteps)
        if self.ballast not in _BARE and stored < self.size * _PACKED:
            raise AssertionError(f"the ballast was not kept: the store holds {stored:,} bytes")
        return Reading(seconds / self.supersteps, written / self.supersteps)


@cache
def _ballast(kind: Ballast, size: int) -> object:
    """Return this many bytes, equal in every round."""
    chance = random.Random(kind.value)  # noqa: S311 - nobody has to be kept from guessing them
    match kind:
        case Ballast.NONE | Ballast.EMPTY:
            return None
        case Ballast.BYTES:
            return chance.randbytes(size)
        case Ballast.STR:
            return "".join(chance.choices(string.ascii_letters, k=size))
        case Ballast.KEY | Ballast.NESTED:
            return nested(size)


def nested(size: int) -> list[dict[str, object]]:
    """Documents as programs keep them, about so many bytes of JSON."""
    chance = random.Random(size)  # noqa: S311 - nobody has to be kept from guessing them
    return [
        {
            "id": number,
            "title": f"document {number}",
            "score": chance.random(),
            "tags": ["alpha", "beta"],
            "text": "".join(chance.choices(string.ascii_letters, k=_TEXT_BYTES)),
        }
        for number in range(size // (_TEXT_BYTES + 100))
    ]
