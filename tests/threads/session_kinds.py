"""The kinds of session store that tests run on. A further kind is a further name here, and a further case."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from tests.postgres_server import binaries, shared_server
from tests.soak import MEMORY

from perdure.threads import FileSessionStore, InMemorySessionStore, PostgresSessionStore, SqliteSessionStore

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.threads import SessionStore

ON_DISK: Final = ["file", "sqlite"]
LASTING: Final = [*ON_DISK, *(["postgres"] if binaries() else [])]
"""Those that outlast the process: for the same directory they are the same one."""

KINDS: Final = [*LASTING, *MEMORY]


def opened(kind: str, directory: Path, **options: Any) -> SessionStore:
    """A session store of a kind, with the options of its constructor."""
    match kind:
        case "file":
            return FileSessionStore(*place(kind, directory), **options)
        case "sqlite":
            return SqliteSessionStore(*place(kind, directory), **options)
        case "postgres":
            dsn, schema = place(kind, directory)
            return PostgresSessionStore(dsn, schema=schema, **options)
        case _:
            return InMemorySessionStore(**options)


def place(kind: str, directory: Path) -> list[str]:
    """Where the store of a kind is, as arguments for another process."""
    match kind:
        case "file":
            return [str(directory / "sessions")]
        case "sqlite":
            return [str(directory / "sessions.db")]
        case _:
            return [shared_server().dsn, _schema(directory)]


@functools.cache
def _schema(directory: Path) -> str:
    del directory
    return shared_server().fresh_schema()
