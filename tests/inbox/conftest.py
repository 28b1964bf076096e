"""A process that knows the store alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm

from perdure import FileCheckpointStorage, SqliteCheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def stranger() -> Callable[..., Any]:
    """Lets another process do something to a storage on disk; what came of it."""

    def do(storage: FileCheckpointStorage | SqliteCheckpointStorage, *order: str) -> Any:
        place = storage.path if isinstance(storage, SqliteCheckpointStorage) else storage.storage_path
        kind = "sqlite" if isinstance(storage, SqliteCheckpointStorage) else "file"
        done = warm.run("-m", "tests.inbox.stranger", kind, str(place), *order, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return do
