"""The kinds of storage that tests run on. A further kind is a further name here, and a further case."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from tests.postgres_server import binaries, shared_server
from tests.soak import MEMORY

from perdure import FileCheckpointStorage, InMemoryCheckpointStorage, PostgresCheckpointStorage, SqliteCheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import StoreStorage

LASTING: Final = ["file", "sqlite", *(["postgres"] if binaries() else [])]
"""Those that outlast the process: for the same directory they are the same one."""

KINDS: Final = [*LASTING, *MEMORY]


def opened(kind: str, directory: Path, **options: Any) -> StoreStorage:
    """A storage of a kind, with the options of its constructor."""
    match kind:
        case "file":
            return FileCheckpointStorage(directory / "runs", **options)
        case "sqlite":
            return SqliteCheckpointStorage(directory / "runs.db", **options)
        case "postgres":
            return PostgresCheckpointStorage(shared_server().dsn, schema=_schema(directory), **options)
        case _:
            return InMemoryCheckpointStorage(**options)


@functools.cache
def _schema(directory: Path) -> str:
    del directory
    return shared_server().fresh_schema()
