"""Make golden stores with runs of every package: `python tests/golden/make_packages.py DIRECTORY`.

Each scenario begins in a process of its own, which ends, or is killed, and leaves its runs unfinished in a file store,
an SQLite file and a PostgreSQL database. Stores of a release are never made again: later releases have to read them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import lzma
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from golden_programs import SCENARIOS
from golden_programs.places import KINDS, SCHEMA, open_place
from golden_programs.world import world
from tests.postgres_server import binaries, shared_server

from perdure import SystemClock
from perdure.clock import now
from perdure.records import Halt

if TYPE_CHECKING:
    from golden_programs.world import Place, Scenario

_POLL_SECONDS = 0.3


async def begin(scenario: Scenario, kind: str, where: str, notes: Path) -> dict[str, Any]:
    """Begin a scenario, and return what it saved; it may be killed."""
    world.log = notes.with_suffix(".effects")
    async with open_place(kind, where) as place:

        async def kill() -> None:
            await _records_are_written(place, scenario.runs[0])
            os.kill(os.getpid(), signal.SIGKILL)

        world.kill_at, world.kill = scenario.kill_at, kill
        place.park = functools.partial(park, place)
        await scenario.begin(place)
        return place.saved


async def _records_are_written(place: Place, run: str) -> None:
    """Wait until the journal of a run does not grow any more."""
    before = -1
    while (now := len(await place.storage.store.journal(run))) != before:
        before = now
        await asyncio.sleep(_POLL_SECONDS)
    assert now, f"nothing was recorded of {run!r}"


async def park(place: Place, run: str) -> None:
    """Take a run out of rotation, as a host does with one that has killed several processes."""
    store = place.storage.store
    await store.release(await store.claim(run), halt=Halt("parked", now(SystemClock()), "it has ended 3 processes"))


async def undisturbed(scenario: Scenario) -> dict[str, Any]:
    """Run a scenario in one go, in memory."""
    world.effects.clear()
    async with open_place("memory", "") as place:
        place.park = functools.partial(park, place)
        await scenario.begin(place)
        outcome = await scenario.finish(place)
    return {"outcome": outcome, "effects": sorted(world.effects)}


def interrupted(scenario: Scenario, kind: str, where: str, notes: Path) -> dict[str, Any]:
    """Begin a scenario in a process of its own; what it has done and saved."""
    command = [sys.executable, __file__, "begin", scenario.name, kind, where, str(notes)]
    ended = subprocess.run(command, check=False).returncode
    assert ended == (0 if scenario.kill_at is None else -signal.SIGKILL), (scenario.name, kind, ended)
    effects = notes.with_suffix(".effects")
    found: dict[str, Any] = {
        "effects": effects.read_text("utf-8").splitlines() if effects.exists() else [],
        "saved": json.loads(notes.read_text("utf-8")) if notes.exists() else {},
    }
    for each in (notes, effects):
        each.unlink(missing_ok=True)
    return found


def pack_files(directory: Path, target: Path) -> None:
    """Pack the directory of a file store."""
    # Locks of the processes that wrote it say nothing to a reader.
    shutil.rmtree(directory / ".perdure" / "owners", ignore_errors=True)
    with tarfile.open(target, "w:xz") as archive:
        archive.add(directory, arcname="files")


def pack_sqlite(path: Path, target: Path) -> None:
    """Pack an SQLite file, with what stands in its log."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    target.write_bytes(lzma.compress(path.read_bytes()))


def pack_postgres(dsn: str, target: Path) -> None:
    """Pack a dump of a PostgreSQL schema."""
    programs = binaries()
    assert programs is not None
    # Leases of the processes that wrote it say nothing to a reader on another server.
    leases = f"--exclude-table-data={SCHEMA}.owners"
    options = [f"--schema={SCHEMA}", "--no-owner", leases, "--inserts", "--rows-per-insert=20"]
    command = [str(programs / "pg_dump"), dsn, *options]
    dump = subprocess.run(command, check=True, capture_output=True, cwd="/").stdout.decode()
    # Commands for psql are no SQL.
    lines = [line for line in dump.splitlines(keepends=True) if not line.startswith("\\")]
    target.write_bytes(lzma.compress("".join(lines).encode()))


def main(directory: Path) -> None:
    """Make the stores, and note how each scenario is to end."""
    directory.mkdir(parents=True)
    room = directory / "room"
    room.mkdir()
    server = shared_server()
    places = {"file": str(room / "files"), "sqlite": str(room / "runs.sqlite"), "postgres": server.fresh_database()}
    begun = {
        kind: {each.name: interrupted(each, kind, places[kind], room / "notes") for each in SCENARIOS} for kind in KINDS
    }
    ends = {each.name: asyncio.run(undisturbed(each)) for each in SCENARIOS}
    (directory / "scenarios.json").write_text(json.dumps({"begun": begun, "ends": ends}, indent=1) + "\n", "utf-8")
    pack_files(room / "files", directory / "files.tar.xz")
    pack_sqlite(room / "runs.sqlite", directory / "runs.sqlite.xz")
    pack_postgres(places["postgres"], directory / "postgres.sql.xz")
    shutil.rmtree(room)


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        _, _, name, kind, where, notes = sys.argv
        (chosen,) = [each for each in SCENARIOS if each.name == name]
        saved = asyncio.run(begin(chosen, kind, where, Path(notes)))
        Path(notes).write_text(json.dumps(saved), "utf-8")
    else:
        main(Path(sys.argv[1]))
