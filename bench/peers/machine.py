"""The machine as a peer: a task for each activation and a raw, synced write for each checkpoint, and nothing else."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peer import Durability, Place, Run, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from io import FileIO

_CHECKPOINT = b"." * 1024


class Machine:
    """The floor under every library: what they take beyond this is their own."""

    name = "machine"
    imports = None

    @property
    def about(self) -> str:
        """Which versions these are."""
        return f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"

    def durability(self, store: Store) -> Durability | None:
        """What is written is synced. Keeping a value in memory costs nothing worth a line."""
        match store:
            case Store.NONE:
                return Durability.NONE
            case Store.MEMORY:
                return None
            case Store.FILE | Store.SQLITE:
                return Durability.SYNCED

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """A task after the other."""
        with _opened(place) as disk:
            disk.keep()

            async def run() -> int:
                number = 0
                for _ in range(supersteps):
                    number = await asyncio.create_task(_successor(number))
                    disk.keep()
                return number

            yield run

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A task for the hub, then tasks for all branches."""
        with _opened(place) as disk:
            disk.keep()

            async def run() -> int:
                answers = 0
                for lap in range(laps):
                    number = await asyncio.create_task(_successor(lap))
                    disk.keep()
                    answers += len(await asyncio.gather(*(_successor(number) for _ in range(branches))))
                    disk.keep()
                return answers

            yield run

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """As many checkpoints as a ring leaves."""
        with _opened(place) as disk:
            for _ in range(supersteps):
                disk.keep()

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, read the latest, do one more."""
        with ExitStack() as stack:

            async def run() -> int:
                disk = stack.enter_context(_opened(place))
                await asyncio.create_task(_successor(len(disk.latest())))
                disk.keep()
                return supersteps

            yield run


async def _successor(number: int) -> int:
    return number + 1


@dataclass(frozen=True, slots=True)
class _Disk:
    keep: Callable[[], object]
    latest: Callable[[], bytes]


@contextmanager
def _opened(place: Place) -> Generator[_Disk]:
    match place.store:
        case Store.NONE | Store.MEMORY:
            yield _Disk(keep=lambda: None, latest=lambda: b"")
        case Store.FILE:
            with (place.directory / "log").open("a+b", buffering=0) as log:
                yield _Disk(keep=lambda: _append(log), latest=lambda: _last(log))
        case Store.SQLITE:
            with closing(_database(place)) as database:
                yield _Disk(
                    keep=lambda: database.execute("INSERT INTO checkpoint (data) VALUES (?)", (_CHECKPOINT,)),
                    latest=lambda: database.execute("SELECT data FROM checkpoint ORDER BY id DESC").fetchone()[0],
                )


def _append(log: FileIO) -> None:
    log.write(_CHECKPOINT)
    os.fdatasync(log.fileno())


def _last(log: FileIO) -> bytes:
    log.seek(-len(_CHECKPOINT), os.SEEK_END)
    return log.read()


def _database(place: Place) -> sqlite3.Connection:
    """A connection that commits, and syncs, each statement."""
    database = sqlite3.connect(place.directory / "raw.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS checkpoint (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    return database
