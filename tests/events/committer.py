"""A process that advances a run. Run as a script, with a kind of store, a path, and how many commits to make.

It makes a commit for each line that it reads, and then kills itself or comes to rest.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from tests.events.samples import Teller

from perdure.clock import SystemClock
from perdure.storage import FileStore, SqliteStore
from perdure.testing.stores import RunDriver, new_run

if TYPE_CHECKING:
    from perdure.storage import Store


async def continued(store: Store, run_id: str) -> Teller:
    """The run from where it is."""
    run = RunDriver(store, SystemClock(), run_id, "flow")
    run.lease = await store.acquire(run_id, create=new_run(run_id))
    record = await store.run(run_id)
    if record is not None:
        run.head, run.position = record.head, record.position
    return Teller(run)


async def main(kind: str, path: str, commits: int, *, dies: bool) -> None:
    store: Store = SqliteStore(path) if kind == "sqlite" else FileStore(path)
    run = await continued(store, "r")
    for _ in range(commits):
        if not sys.stdin.readline():
            return
        await run.tell(f"first of {run.run.position + 1}", f"second of {run.run.position + 1}")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    await run.tell("end", status="idle")
    await run.run.release()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), dies=sys.argv[4] == "dies"))
