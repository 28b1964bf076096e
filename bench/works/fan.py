"""From one executor to many and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from bench.peer import Fans, Store
from bench.work import Reading, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Durability, Peer
    from bench.work import Room

_FEW = 10


@dataclass(frozen=True, slots=True)
class Fan:
    """A hub sends a number to its branches and waits for all answers, again and again."""

    key: str
    kept: str
    stores: Sequence[Store]
    laps: int
    branches: int
    unit: str = "branch"

    @property
    def title(self) -> str:
        """The title, in a few words."""
        return f"one to {self.branches:,} executors and back, {self.kept}"

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the peer's store."""
        return peer.durability(store) if isinstance(peer, Fans) else None

    def small(self) -> Self:
        """One lap, a few branches."""
        return replace(self, laps=1, branches=_FEW)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure one branch, out and back."""
        assert isinstance(peer, Fans), "who can't do it has no durability"
        answers = self.laps * self.branches
        async with peer.fan(self.laps, self.branches, room.place) as run:
            return Reading(await timed(run, expected=answers) / answers)
