"""Going on from the latest of many checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peer import Place, Store
from bench.work import timed

if TYPE_CHECKING:
    from pathlib import Path

    from bench.peer import Durability, Peer


@dataclass(frozen=True, slots=True)
class Resume:
    """A ring that failed in its last superstep is opened, found and finished, as a new process would do it."""

    store: Store
    checkpoints: int
    times: int
    unit: str = "resume"

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        return f"resume from the latest of {self.checkpoints:,}, {self.store.value}"

    def durability(self, peer: Peer) -> Durability | None:
        """That of the peer's store."""
        return peer.durability(self.store)

    async def seconds(self, peer: Peer, directory: Path) -> float:
        """The seconds of one resume. Each works on a copy of its own, for resuming adds a checkpoint."""
        original = directory / "original"
        original.mkdir()
        await peer.interrupt(self.checkpoints, Place(self.store, original))
        spent = 0.0
        for number in range(self.times):
            copy = directory / str(number)
            shutil.copytree(original, copy)
            async with peer.resume(self.checkpoints, Place(self.store, copy)) as run:
                spent += await timed(run, expected=self.checkpoints)
        return spent / self.times
