"""The limits of the machine, each a peer in the one work that is about them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.peer import Durability, Place, Run, Store
from bench.peers.machine import CHECKPOINT, opened
from bench.works.ballast import BALLAST_BYTES, nested

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

TASK: Final = "asyncio.create_task"
APPEND: Final = "append 1 KB, fdatasync"
SQLITE: Final = "SQLite commit of 1 KB"
POSTGRES: Final = "Postgres commit of 1 KB"
ENCODE_SMALL: Final = "json.dumps of 1 KB"
ENCODE_LARGE: Final = "json.dumps of 10 MB"


@dataclass(frozen=True, slots=True)
class _Limit:
    """The common part of all limits."""

    name: str
    weight: int
    about: str = ""
    keeps: str = ""
    cannot: str = ""


@dataclass(frozen=True, slots=True)
class Task(_Limit):
    """Tasks, each awaited."""

    def durability(self, store: Store) -> Durability | None:
        """Nothing is kept."""
        return Durability.NONE if store is Store.NONE else None

    @asynccontextmanager
    async def bound(self, times: int, place: Place) -> AsyncGenerator[Run]:
        """One after the other."""
        assert place.store is Store.NONE, "it has no other durability"

        async def nothing() -> int:
            return 1

        async def run() -> int:
            done = 0
            for _ in range(times):
                done += await asyncio.create_task(nothing())
            return done

        yield run


@dataclass(frozen=True, slots=True)
class Commit(_Limit):
    """Raw writes that are synced."""

    store: Store = Store.FILE

    def durability(self, store: Store) -> Durability | None:
        """It is about one store."""
        return Durability.SYNCED if store is self.store else None

    @asynccontextmanager
    async def bound(self, times: int, place: Place) -> AsyncGenerator[Run]:
        """One after the other."""
        with opened(place) as disk:
            disk.keep(CHECKPOINT)

            async def run() -> int:
                for _ in range(times):
                    disk.keep(CHECKPOINT)
                return times

            yield run


@dataclass(frozen=True, slots=True)
class Encode(_Limit):
    """The standard library's JSON, which is written in C."""

    size: int = 0

    def durability(self, store: Store) -> Durability | None:
        """Nothing is kept."""
        return Durability.NONE if store is Store.NONE else None

    @asynccontextmanager
    async def bound(self, times: int, place: Place) -> AsyncGenerator[Run]:
        """Commit the same value again and again."""
        assert place.store is Store.NONE, "it has no other durability"
        value = nested(self.size)

        async def run() -> int:
            return sum(bool(json.dumps(value)) for _ in range(times))

        yield run


def limits() -> list[Task | Commit | Encode]:
    """All of them."""
    return [
        Task(TASK, weight=1),
        Commit(APPEND, weight=20, store=Store.FILE),
        Commit(SQLITE, weight=20, store=Store.SQLITE),
        Commit(POSTGRES, weight=20, store=Store.POSTGRES),
        Encode(ENCODE_SMALL, weight=1, size=1024),
        Encode(ENCODE_LARGE, weight=500, size=BALLAST_BYTES),
    ]
