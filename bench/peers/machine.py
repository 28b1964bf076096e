"""The machine as a peer: a task for each activation, or a raw, synced write for each checkpoint, and nothing else."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from bench.peer import Durability, Place, Run, Store, Tick

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence
    from io import FileIO

    from bench.script import Script

CHECKPOINT = b"." * 1024


class Machine:
    """The floor under every library: what they take beyond this is their own."""

    name = "machine"
    keeps = (
        "no library at all; file: 1 KB appended, then fdatasync; SQLite: 1 KB inserted in WAL mode with "
        "synchronous=FULL; Postgres: 1 KB inserted with the server's defaults"
    )
    cannot = ""

    @property
    def about(self) -> str:
        """The versions."""
        return f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"

    def durability(self, store: Store) -> Durability | None:
        """Writes are synced. A value in memory costs nothing that is worth a line."""
        match store:
            case Store.NONE:
                return Durability.NONE
            case Store.MEMORY:
                return None
            case Store.FILE | Store.SQLITE | Store.POSTGRES:
                return Durability.SYNCED

    @asynccontextmanager
    async def ring(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """A task after the other, or a write after the other."""
        with opened(place) as disk:
            disk.keep(CHECKPOINT)

            async def tasks() -> int:
                number = 0
                for _ in range(supersteps):
                    number = await asyncio.create_task(_successor(number))
                return number

            async def writes() -> int:
                for _ in range(supersteps):
                    disk.keep(CHECKPOINT)
                return supersteps

            yield tasks if place.store is Store.NONE else writes

    @asynccontextmanager
    async def fan(self, laps: int, branches: int, place: Place) -> AsyncGenerator[Run]:
        """A task for the hub, then tasks for all branches, and a write after each of the two."""
        with opened(place) as disk:
            disk.keep(CHECKPOINT)

            async def run() -> int:
                answers = 0
                for lap in range(laps):
                    number = await asyncio.create_task(_successor(lap))
                    disk.keep(CHECKPOINT)
                    answers += len(await asyncio.gather(*(_successor(number) for _ in range(branches))))
                    disk.keep(CHECKPOINT)
                return answers

            yield run

    @asynccontextmanager
    async def history(self, entries: Sequence[str], tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """Each entry is written, once."""
        with opened(place) as disk:
            disk.keep(CHECKPOINT)

            async def run() -> int:
                for entry in entries:
                    tick()
                    disk.keep(entry.encode())
                return sum(map(len, entries))

            yield run

    def converses(self, turns: int, store: Store) -> bool:
        """For as long as is asked."""
        return turns > 0 and store is not Store.NONE

    @asynccontextmanager
    async def conversation(self, script: Script, tick: Tick, place: Place) -> AsyncGenerator[Run]:
        """Each question is written with its answer, once."""
        with opened(place) as disk:
            disk.keep(CHECKPOINT)

            async def run() -> int:
                for question, answer in zip(script.questions, script.answers, strict=True):
                    tick()
                    disk.keep((question + answer).encode())
                return script.size

            yield run

    async def interrupt(self, supersteps: int, place: Place) -> None:
        """As many checkpoints as a ring leaves."""
        with opened(place) as disk:
            for _ in range(supersteps):
                disk.keep(CHECKPOINT)

    @asynccontextmanager
    async def resume(self, supersteps: int, place: Place) -> AsyncGenerator[Run]:
        """Open, read the latest, do one more."""
        with ExitStack() as stack:

            async def run() -> int:
                disk = stack.enter_context(opened(place))
                await asyncio.create_task(_successor(len(disk.latest())))
                disk.keep(CHECKPOINT)
                return supersteps

            yield run


async def _successor(number: int) -> int:
    return number + 1


@dataclass(frozen=True, slots=True)
class Disk:
    """Something that keeps bytes."""

    keep: Callable[[bytes], object]
    latest: Callable[[], bytes]


@contextmanager
def opened(place: Place) -> Generator[Disk]:
    """The barest use of a store."""
    match place.store:
        case Store.NONE | Store.MEMORY:
            yield Disk(keep=lambda _: None, latest=lambda: b"")
        case Store.FILE:
            with (place.directory / "log").open("a+b", buffering=0) as log:
                yield Disk(keep=lambda data: _append(log, data), latest=lambda: _last(log))
        case Store.SQLITE:
            with closing(_sqlite(place)) as database:
                yield Disk(
                    keep=lambda data: database.execute("INSERT INTO checkpoint (data) VALUES (?)", (data,)),
                    latest=lambda: database.execute("SELECT data FROM checkpoint ORDER BY id DESC").fetchone()[0],
                )
        case Store.POSTGRES:
            with psycopg.connect(place.dsn, autocommit=True, prepare_threshold=0) as connection:
                connection.execute("CREATE TABLE checkpoint (id BIGSERIAL PRIMARY KEY, data BYTEA NOT NULL)")
                yield Disk(
                    keep=lambda data: connection.execute("INSERT INTO checkpoint (data) VALUES (%s)", (data,)),
                    latest=lambda: b"",
                )


def _append(log: FileIO, data: bytes) -> None:
    log.write(data)
    os.fdatasync(log.fileno())


def _last(log: FileIO) -> bytes:
    log.seek(-len(CHECKPOINT), os.SEEK_END)
    return log.read()


def _sqlite(place: Place) -> sqlite3.Connection:
    """A connection that commits, and syncs, each statement."""
    database = sqlite3.connect(place.directory / "raw.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS checkpoint (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    return database
