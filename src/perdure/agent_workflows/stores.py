"""The stores of agent workflows: one for definitions and checkpoints, and one for conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

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
from perdure.agent_workflows.checking_words import told

if TYPE_CHECKING:
    import os

    from perdure import CheckpointStorage, Clock

_STORAGE: Final = ("save", "load", "list_checkpoints", "delete", "get_latest", "list_checkpoint_ids")
"""The methods of a storage."""
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


def in_memory_store(retention: Keep, clock: Clock | None = None) -> InMemoryCheckpointStorage:
    """For tests and short-lived runs."""
    return InMemoryCheckpointStorage(retention=retention_of(retention), clock=clock)


def json_store(
    root_directory: str | os.PathLike[str], retention: Keep, clock: Clock | None = None
) -> FileCheckpointStorage:
    """A directory of readable files."""
    return FileCheckpointStorage(root_directory, retention=retention_of(retention), clock=clock)


def sqlite_store(path: str | os.PathLike[str], retention: Keep, clock: Clock | None = None) -> SqliteCheckpointStorage:
    """One SQLite file."""
    return SqliteCheckpointStorage(path, retention=retention_of(retention), clock=clock)


def given_store(storage: CheckpointStorage | str, retention: Keep | None = None) -> CheckpointStorage:
    """The storage that a user means, who may name it by its URL: then it keeps the latest, unless told otherwise.

    Raises TypeError for what is no storage, and if one that was made elsewhere is told what to keep.
    """
    if isinstance(storage, str):
        return open_storage(storage, retention=retention_of(LatestOnly() if retention is None else retention))
    missing = [name for name in _STORAGE if not callable(getattr(storage, name, None))]
    if missing:
        raise TypeError(f"{told(storage)} is no storage and no URL of one: it has no {missing[0]}()")
    if retention is not None:
        raise TypeError(
            f"retention is for the storage of a URL; {told(storage)} keeps what it was made to keep; give its class "
            "the retention"
        )
    return storage
