"""A host process: it serves the runs of a place from the end of its input until it is asked to end. Run as a script.

python -m tests.hosting.chaos.worker WORKFLOW TARGET SCHEMA DIRECTORY LEASE_SECONDS
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from functools import partial

from tests.hosting.chaos import orders, relay
from tests.hosting.chaos.place import Place
from tests.hosting.chaos.witness import witnessed
from tests.hosting.chaos.world import Fact

from perdure import Host

WORKFLOWS = {orders.NAME: orders.build, relay.NAME: relay.build}

ATTEMPTS_MAX = 50
"""Here processes are killed so often that a run may well meet it five times in a row, and is not to blame."""

_TICK_SECONDS = 0.1


def watch_for_stalls(place: Place) -> None:
    """Note when this process gets no time: where a machine is busy, a host may lose its runs without being frozen."""
    seen = time.monotonic()
    while True:
        time.sleep(_TICK_SECONDS)
        before, seen = seen, time.monotonic()
        if seen - before > place.lease_seconds / 2:
            place.world.note(Fact("stalled", os.getpid()))


async def serve(workflow: str, place: Place) -> None:
    """One life of a host."""
    threading.Thread(target=watch_for_stalls, args=(place,), daemon=True).start()
    async with witnessed(place.storage(), place.world) as storage:
        host = Host(storage, max_runs=40, max_attempts=ATTEMPTS_MAX, drain_seconds=5.0)
        host.register(partial(WORKFLOWS[workflow], place.world), name=workflow)
        serving = asyncio.create_task(host.serve())
        # From its first turn on it hears the signal to end.
        await asyncio.sleep(0)
        place.world.note(Fact("serving", os.getpid()))
        await serving


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s")
    logging.getLogger("perdure.graph").setLevel(logging.WARNING)
    # Everything is loaded: it begins when it is told to.
    sys.stdin.read()
    asyncio.run(serve(sys.argv[1], Place.of(*sys.argv[2:])))
