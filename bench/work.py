"""The port of a work: what is measured, and how a stretch of it is timed."""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from bench.peer import Durability, Peer, Run


class Work(Protocol):
    """Something small that every peer does."""

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        ...

    @property
    def unit(self) -> str:
        """What is counted."""
        ...

    def durability(self, peer: Peer) -> Durability | None:
        """How durable the work is when this peer does it; None if it can't do it."""
        ...

    async def seconds(self, peer: Peer, directory: Path) -> float:
        """The seconds that one unit took. The directory is new and empty."""
        ...


async def timed(run: Run, *, expected: int) -> float:
    """The seconds that a run took. Raises if it gave another result than every peer has to give."""
    _settle()
    began = time.perf_counter()
    result = await run()
    elapsed = time.perf_counter() - began
    if result != expected:
        raise AssertionError(f"the work was not done: it gave {result}, not {expected}")
    return elapsed


def _settle() -> None:
    """Let nobody pay for what others have left: objects that a garbage collection visits, pages that a sync writes."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    os.sync()
