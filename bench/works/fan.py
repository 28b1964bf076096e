"""From one executor to many and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peer import Place, Store
from bench.work import timed

if TYPE_CHECKING:
    from pathlib import Path

    from bench.peer import Durability, Peer


@dataclass(frozen=True, slots=True)
class Fan:
    """A hub sends a number to its branches and waits for all answers, again and again."""

    store: Store
    laps: int
    branches: int
    unit: str = "branch"

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        return f"one to {self.branches} and back, {self.store.value}"

    def durability(self, peer: Peer) -> Durability | None:
        """That of the peer's store."""
        return peer.durability(self.store)

    async def seconds(self, peer: Peer, directory: Path) -> float:
        """The seconds of one branch, out and back."""
        answers = self.laps * self.branches
        async with peer.fan(self.laps, self.branches, Place(self.store, directory)) as run:
            return await timed(run, expected=answers) / answers
