"""The machine as a peer: a task for each activation and a raw, synced write for each checkpoint, and nothing else."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING

from bench.peer import Durability, Place, Run, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

_CHECKPOINT = b"." * 1024


class Machine:
    """The floor under every library: what they take beyond this is their own."""

    name = "machine"
    imports = None

    @property
    def version(self) -> str:
        """The version of the interpreter."""
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
        with _keeper(place) as keep:
            keep()

            async def run() -> int:
                number = 0
                for _ in range(supersteps):
                    number = await asyncio.create_task(_successor(number))
                    keep()
                return number

            yield run

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A task for the hub, then tasks for all branches."""
        with _keeper(place) as keep:
            keep()

            async def run() -> int:
                answers = 0
                for lap in range(laps):
                    number = await asyncio.create_task(_successor(lap))
                    keep()
                    answers += len(await asyncio.gather(*(_successor(number) for _ in range(branches))))
                    keep()
                return answers

            yield run

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """As many checkpoints as a ring leaves."""
        with _keeper(place) as keep:
            for _ in range(supersteps):
                keep()

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, read the latest, do one more."""

        async def run() -> int:
            found = _latest(place)
            with _keeper(place) as keep:
                await asyncio.create_task(_successor(len(found)))
                keep()
            return supersteps

        yield run


async def _successor(number: int) -> int:  # noqa: RUF029 - the smallest coroutine there is
    return number + 1


@contextmanager
def _keeper(place: Place) -> Generator[Callable[[], object]]:
    match place.store:
        case Store.NONE | Store.MEMORY:
            yield lambda: None
        case Store.FILE:
            with (place.directory / "log").open("ab", buffering=0) as log:

                def append() -> None:
                    log.write(_CHECKPOINT)
                    os.fdatasync(log.fileno())

                yield append
        case Store.SQLITE:
            with closing(_database(place)) as database:
                yield lambda: database.execute("INSERT INTO checkpoint (data) VALUES (?)", (_CHECKPOINT,))


def _latest(place: Place) -> bytes:
    match place.store:
        case Store.NONE | Store.MEMORY:
            return b""
        case Store.FILE:
            with (place.directory / "log").open("rb") as log:
                log.seek(-len(_CHECKPOINT), os.SEEK_END)
                return log.read()
        case Store.SQLITE:
            with closing(_database(place)) as database:
                return database.execute("SELECT data FROM checkpoint ORDER BY id DESC LIMIT 1").fetchone()[0]


def _database(place: Place) -> sqlite3.Connection:
    """A connection that commits, and syncs, each statement."""
    database = sqlite3.connect(place.directory / "raw.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS checkpoint (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    return database
