"""Going on from the latest of many checkpoints."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from bench.peer import Resumes, Store
from bench.work import Reading, timed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.peer import Durability, Peer
    from bench.work import Room

_FEW = 10
_PART = 50
_DONE = "complete"


@dataclass(frozen=True, slots=True)
class Resume:
    """A ring that ended within its last superstep is opened, found and finished, as a new process would do it."""

    key: str
    stores: Sequence[Store]
    checkpoints: int
    times: int
    unit: str = "resume"

    @property
    def title(self) -> str:
        """The title, in a few words."""
        return f"resume from the latest of {self.checkpoints:,} checkpoints"

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the peer's store."""
        return peer.durability(store) if isinstance(peer, Resumes) else None

    def small(self) -> Self:
        """Few checkpoints, once."""
        return replace(self, checkpoints=max(_FEW, self.checkpoints // _PART), times=1)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure one resume. Each works on a copy, because resuming adds a checkpoint."""
        assert isinstance(peer, Resumes), "who can't do it has no durability"
        original = room.kept / f"{peer.name}, {room.place.store.value}, {self.checkpoints}"
        if not (original / _DONE).exists():
            await self._prepare(peer, room, original)
        spent = 0.0
        for number in range(self.times):
            copy = room.place.directory / str(number)
            shutil.copytree(original, copy)
            async with peer.resume(self.checkpoints, replace(room.place, directory=copy)) as run:
                spent += await timed(run, expected=self.checkpoints)
        return Reading(spent / self.times)

    async def _prepare(self, peer: Resumes, room: Room, original: Path) -> None:
        """The checkpoints are the same in all rounds, and take long to be made."""
        _empty(original)
        await peer.interrupt(self.checkpoints, replace(room.place, directory=original))
        (original / _DONE).touch()


def _empty(directory: Path) -> None:
    """Remove what an earlier bench has left unfinished."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
