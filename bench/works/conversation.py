"""A long conversation with an agent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from bench.peer import Converses, Store
from bench.probe import Probe
from bench.script import TURN_BYTES, Script
from bench.work import Reading, require_done, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Durability, Peer
    from bench.work import Room

_LOOKS = 25
_FEW = 50


@dataclass(frozen=True, slots=True)
class Conversation:
    """One agent that remembers all, turn after turn: a question and the answer of a model that takes no time."""

    key: str
    stores: Sequence[Store]
    turns: int
    unit: str = "conversation"

    @property
    def title(self) -> str:
        """The title, in a few words."""
        return f"conversation with an agent, {self.turns:,} turns of {TURN_BYTES:,} bytes"

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the peer's store."""
        can = isinstance(peer, Converses) and peer.converses(self.turns, store)
        return peer.durability(store) if can else None

    def small(self) -> Self:
        """A few turns."""
        return replace(self, turns=_FEW)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure the whole conversation, and the bytes until its store was closed."""
        assert isinstance(peer, Converses), "who can't do it has no durability"
        script = Script.of(self.turns)
        probe = Probe(room.meter, room.place, warm=0, every=max(1, self.turns // _LOOKS), settles=True)
        async with peer.conversation(script, probe.tick, room.place) as run:
            settle()
            result = await run()
            seconds = probe.stop()
        require_done(result, expected=script.size)
        return Reading(seconds, probe.finish(), room.meter.stored(room.place), probe.points)
