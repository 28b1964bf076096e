"""The storages that hosts are tested on."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

from tests import conftest
from tests.postgres_server import shared_server

from perdure import PostgresCheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path

    Storage: TypeAlias = conftest.Storage | PostgresCheckpointStorage


def opened(kind: str, directory: Path, **options: Any) -> Storage:
    """A storage of a kind; but for one in memory, the same one each time."""
    if kind != "postgres":
        return conftest.opened(kind, directory, **options)
    schema = "test_" + hashlib.blake2b(str(directory).encode(), digest_size=12).hexdigest()
    return PostgresCheckpointStorage(shared_server().dsn, schema=schema, **options)
