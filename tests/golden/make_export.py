"""Writes the golden file of an exported run: `python tests/golden/make_export.py FILE`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from export_program import build

from perdure import InMemoryCheckpointStorage
from perdure.clock import now
from perdure.records import Halt
from perdure.testing.clock import ManualClock


async def write(path: Path) -> None:
    """A run that was stopped in the middle of a superstep and parked, with a message in its inbox."""
    clock = ManualClock()
    storage = InMemoryCheckpointStorage(clock=clock)
    workflow, _ = build(storage, clock, is_mended=False)
    with contextlib.suppress(OSError):
        await workflow.run("clock", run_id="shop/1")
    halt = Halt("parked", now(clock), "it has ended 3 processes")
    await storage.store.release(await storage.store.acquire("shop/1"), halt=halt)
    await storage.send("shop/1", "watch", message_id="second", by="ada")
    await storage.export_run("shop/1", path)


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
