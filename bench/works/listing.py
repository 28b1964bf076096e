"""A page of a long list of runs, or of open requests."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from bench.peer import Lists, Store
from bench.work import Reading, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.peer import Durability, Peer
    from bench.work import Room

PAGE = 50
_FEW = 400
_TIMES = 20
_DONE = "complete"


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of 50 is read from a store with many runs, a quarter of which wait for a person."""

    key: str
    what: Literal["runs", "requests"]
    runs: int
    unit: str = "page"
    stores: Sequence[Store] = (Store.SQLITE,)

    @property
    def title(self) -> str:
        """The title, in a few words."""
        return f"a page of {PAGE} {self.what}, of {self.runs:,} runs"

    def durability(self, peer: Peer, store: Store) -> Durability | None:
        """Return the durability of the peer's store."""
        return peer.durability(store) if isinstance(peer, Lists) else None

    def small(self) -> Self:
        """Few runs."""
        return replace(self, runs=_FEW)

    async def reading(self, peer: Peer, room: Room) -> Reading:
        """Measure some pages. The runs are made once for all rounds."""
        assert isinstance(peer, Lists), "others have no durability"
        directory = room.kept / f"{peer.name}, {room.place.store.value}, {self.runs} runs"
        if not (directory / _DONE).exists():
            shutil.rmtree(directory, ignore_errors=True)  # an earlier bench may have left it unfinished
            directory.mkdir(parents=True)
            await peer.fill(self.runs, replace(room.place, directory=directory))
            (directory / _DONE).touch()
        async with peer.page(self.what, PAGE, replace(room.place, directory=directory)) as run:
            return Reading(min([await timed(run, expected=PAGE) for _ in range(_TIMES)]))
