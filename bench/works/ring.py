"""Supersteps one after the other, with a tiny message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peer import Place, Store
from bench.work import timed

if TYPE_CHECKING:
    from pathlib import Path

    from bench.peer import Durability, Peer


@dataclass(frozen=True, slots=True)
class Ring:
    """Two executors hand a number to and fro."""

    store: Store
    supersteps: int
    unit: str = "superstep"

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        return f"superstep, {self.store.value}"

    def durability(self, peer: Peer) -> Durability | None:
        """That of the peer's store."""
        return peer.durability(self.store)

    async def seconds(self, peer: Peer, directory: Path) -> float:
        """The seconds of one superstep."""
        async with peer.ring(self.supersteps, Place(self.store, directory)) as run:
            return await timed(run, expected=self.supersteps) / self.supersteps
