"""The stores of agent workflows: one for definitions and checkpoints, and one for conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from perdure import (
    FileCheckpointStorage,
    FullHistory,
    InMemoryCheckpointStorage,
    KeepFor,
    KeepLast,
    LatestOnly,
    Retention,
    SqliteCheckpointStorage,
    open_storage,
)

if TYPE_CHECKING:
    import os

    from perdure import CheckpointStorage

Keep: TypeAlias = LatestOnly | FullHistory | KeepLast | KeepFor | Retention
"""What a workflow store keeps of an execution: its latest checkpoint, all of them, the last few, those of some time."""


def retention_of(keep: Keep) -> Retention:
    """What a storage is told. Raises TypeError for what says nothing of keeping."""
    if isinstance(keep, Retention):
        return keep
    if isinstance(keep, (LatestOnly, FullHistory, KeepLast, KeepFor)):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
        return Retention(checkpoints=keep)
    raise TypeError(
        f"retention is LatestOnly(), FullHistory(), KeepLast(...), KeepFor(...) or a Retention, not {keep!r}"
    )


def in_memory_store(retention: Keep) -> InMemoryCheckpointStorage:
    """For tests and short-lived runs."""
    return InMemoryCheckpointStorage(retention=retention_of(retention))


def json_store(root_directory: str | os.PathLike[str], retention: Keep) -> FileCheckpointStorage:
    """A directory of readable files."""
    return FileCheckpointStorage(root_directory, retention=retention_of(retention))


def sqlite_store(path: str | os.PathLike[str], retention: Keep) -> SqliteCheckpointStorage:
    """One SQLite file."""
    return SqliteCheckpointStorage(path, retention=retention_of(retention))


def given_store(storage: CheckpointStorage | str) -> CheckpointStorage:
    """The storage that a user means, who may name it by its URL."""
    return open_storage(storage) if isinstance(storage, str) else storage
