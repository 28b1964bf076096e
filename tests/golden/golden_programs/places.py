"""Stores of every kind for golden programs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import FileCheckpointStorage, InMemoryCheckpointStorage, PostgresCheckpointStorage, SqliteCheckpointStorage
from perdure.threads import FileSessionStore, InMemorySessionStore, PostgresSessionStore, SqliteSessionStore

from .world import Place, world

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

KINDS = ("file", "sqlite", "postgres")
SCHEMA = "golden"


@asynccontextmanager
async def open_place(kind: str, where: str, saved: dict[str, Any] | None = None) -> AsyncGenerator[Place]:
    """Open a storage and a session store at one place: a directory, a file, a connection string."""
    match kind:
        case "file":
            storage, sessions = FileCheckpointStorage(Path(where)), FileSessionStore(Path(where))
        case "sqlite":
            storage, sessions = SqliteCheckpointStorage(Path(where)), SqliteSessionStore(Path(where))
        case "postgres":
            storage = PostgresCheckpointStorage(where, schema=SCHEMA)
            sessions = PostgresSessionStore(where, schema=SCHEMA)
        case _:
            storage, sessions = InMemoryCheckpointStorage(), InMemorySessionStore()
    async with storage, sessions:
        place = Place(storage, sessions, saved or {})
        world.clock = place.clock.now
        yield place
