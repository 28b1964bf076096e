"""Writes the golden files of runs that wait: `python tests/golden/make_waits.py DIRECTORY`."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from waiting_program import build

from perdure import FileCheckpointStorage, SqliteCheckpointStorage
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from perdure.storage import StoreStorage


async def write(storage: StoreStorage) -> None:
    """A run that sleeps and asks, one that has an answer in its inbox, a cancelled one, one that failed half-way."""
    clock = ManualClock()
    await build(storage, clock).run("plain", run_id="plain", wait_for_timers=False, budget={"stamps": 5})
    await build(storage, clock).run("answered", run_id="answered", wait_for_timers=False)
    await storage.respond("answered", {"consent to answered": {"given": True, "note": "posted"}}, by="ada")
    cancelled = build(storage, clock)
    await cancelled.run("cancelled", run_id="cancelled", wait_for_timers=False)
    await storage.cancel("cancelled", reason="second thoughts", by="ada")
    await cancelled.run(run_id="cancelled", wait_for_timers=False)
    broken = build(storage, clock)
    with contextlib.suppress(OSError):
        await broken.run("broken", run_id="broken", wait_for_timers=False)
    await storage.close()


def main(directory: Path) -> None:
    """One directory of files, and one SQLite file."""
    files, database = directory / "files", directory / "runs.sqlite"
    directory.mkdir(parents=True)
    asyncio.run(write(FileCheckpointStorage(files)))
    asyncio.run(write(SqliteCheckpointStorage(database)))
    # Locks of the process that wrote them say nothing to a reader.
    for owners in (files / ".perdure" / "owners", directory / "runs.sqlite-owners"):
        shutil.rmtree(owners, ignore_errors=True)
    assert not list(directory.glob("runs.sqlite-*")), "the database is one file"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
