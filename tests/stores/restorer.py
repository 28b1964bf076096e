"""A process that takes a run in and removes it again, on and on, until it is killed."""

from __future__ import annotations

import asyncio
import itertools
import sys

from perdure.storage import FileStore, MemoryStore
from perdure.testing.clock import ManualClock
from perdure.testing.stores.base import make_sample_run


async def main(directory: str) -> None:
    elsewhere = MemoryStore(clock=ManualClock())
    await make_sample_run(elsewhere, ManualClock())
    archive = await elsewhere.archive("r")
    store = FileStore(directory)
    await store.remove("r")
    for number in itertools.count():
        await store.restore(archive)
        await store.remove("r")
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
