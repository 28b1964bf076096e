"""Kills a process that runs a workflow, at random moments, until enough have died. Run as a script.

    python -m tests.crash.killing sqlite DIRECTORY KILLS SEED

It prints one JSON line: how many were killed, how many lives ended by themselves, and everything that was wrong.
The lives are forked from this process, which has imported everything and started no thread: a life costs milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.crash.program import live

from perdure import FileCheckpointStorage, InMemoryCheckpointStorage, SqliteCheckpointStorage

PAUSE_SECONDS = 0.002
LIFE_SECONDS_MAX = 0.12


def storage_of(kind: str, directory: Path) -> FileCheckpointStorage | SqliteCheckpointStorage:
    """The storage of one run."""
    return FileCheckpointStorage(directory) if kind == "file" else SqliteCheckpointStorage(directory / "runs.db")


def one_life(kind: str, directory: Path) -> int:
    """Fork a process that starts the run or goes on with it, and writes down how it ended."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ended = asyncio.run(live(storage_of(kind, directory), PAUSE_SECONDS))
        (directory / "ending").write_text(repr(ended))
        (directory / "ending").rename(directory / "ended")  # at once, since the killer may come while it is written
        status = 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, the killer tells it
        (directory / "error").write_text(repr(error))
    finally:
        os._exit(status)


def kill_until_ended(kind: str, directory: Path, chance: random.Random, kills: int) -> tuple[int, str | None]:
    """Kill life after life at a random moment until one gets through, or enough have died and the last is let be.

    Returns how many died, and what went wrong.
    """
    killed = 0
    while True:
        pid = one_life(kind, directory)
        if killed < kills:
            time.sleep(chance.uniform(0, LIFE_SECONDS_MAX))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) and not (directory / "ended").exists():
            killed += 1
        elif (directory / "error").exists():
            return killed, (directory / "error").read_text()
        else:
            return killed, None


def main(kind: str, directory: Path, kills: int, seed: int) -> dict[str, Any]:
    """Run after run, until enough processes have died."""
    chance = random.Random(seed)
    expected = repr(asyncio.run(undisturbed()))
    killed, runs, wrong = 0, 0, list[str]()
    while killed < kills and not wrong:
        place = directory / str(runs)
        place.mkdir(parents=True)
        died, error = kill_until_ended(kind, place, chance, kills - killed)
        killed, runs = killed + died, runs + 1
        ended = (place / "ended").read_text() if error is None else error
        if ended != expected:
            wrong.append(f"run {runs - 1} after {died} kills: {ended}, expected {expected}")
    return {"killed": killed, "runs": runs, "wrong": wrong}


async def undisturbed() -> dict[str, Any]:
    """How the run ends if nobody disturbs it."""
    return await live(InMemoryCheckpointStorage())


if __name__ == "__main__":
    told = main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    sys.stdout.write(json.dumps(told) + "\n")
