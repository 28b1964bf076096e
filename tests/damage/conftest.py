"""Two small runs on each store, to be copied and damaged."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from smallrun import write_run, write_told_run

from perdure import FileCheckpointStorage, SqliteCheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.storage import StoreStorage

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def quick_directory() -> Generator[Path]:
    """A directory in memory, for tests that write thousands of files."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        yield Path(directory)


async def written(storage: StoreStorage) -> None:
    async with storage:
        await write_run(storage)
        await write_told_run(storage)


@pytest.fixture(scope="session")
def database(quick_directory: Path) -> Path:
    """A database with two runs, all of it in the file itself."""
    path = quick_directory / "runs.db"
    asyncio.run(written(SqliteCheckpointStorage(path)))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.fixture(scope="session")
def database_with_log(quick_directory: Path) -> Path:
    """A database with the same runs, most of them in the write-ahead log beside it."""
    path, copy = quick_directory / "open.db", quick_directory / "logged.db"

    async def write() -> None:
        async with SqliteCheckpointStorage(path) as storage:
            await write_run(storage)
            await write_told_run(storage)
            # Closing it would move everything into the file.
            shutil.copy(path, copy)
            shutil.copy(f"{path}-wal", f"{copy}-wal")

    asyncio.run(write())
    return copy


@pytest.fixture(scope="session")
def directory(quick_directory: Path) -> Path:
    """A directory of the file store with two runs."""
    path = quick_directory / "runs"
    asyncio.run(written(FileCheckpointStorage(path)))
    return path
