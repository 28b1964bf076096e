"""Storages for tests: each test that asks for one runs on files and on SQLite, in the soak in memory too."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import hypothesis
import pytest
from tests.soak import MEMORY

from perdure import FileCheckpointStorage, InMemoryCheckpointStorage, SqliteCheckpointStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

# Tests start programs by the hundred: what these import is compiled once, whatever the environment says about it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A loaded machine takes any time for an example, which says nothing about the example.
hypothesis.settings.register_profile("perdure", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("perdure")

Storage: TypeAlias = InMemoryCheckpointStorage | FileCheckpointStorage | SqliteCheckpointStorage


def opened(kind: str, directory: Path, **options: Any) -> Storage:
    """Open a storage; on disk, the same one each time."""
    match kind:
        case "file":
            return FileCheckpointStorage(directory / "checkpoints", **options)
        case "sqlite":
            return SqliteCheckpointStorage(directory / "checkpoints.db", **options)
        case _:
            return InMemoryCheckpointStorage(**options)


@pytest.fixture(params=["file", "sqlite", *MEMORY])
def open_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Storage]:
    """Open a storage with the options of its constructor."""
    return functools.partial(opened, request.param, tmp_path)


@pytest.fixture
async def storage(open_storage: Callable[..., Storage]) -> AsyncIterator[Storage]:
    """A storage of each kind."""
    async with open_storage() as one:
        yield one


@pytest.fixture(params=["file", "sqlite"])
def open_on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Storage]:
    """Open the storage of one place on disk, as often as it is called."""
    return functools.partial(opened, request.param, tmp_path)
