"""Workflow stores: storages for definitions and checkpoints, with their retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from perdure import FullHistory, KeepFor, KeepLast, LatestOnly, Retention, open_storage
from perdure.agent_workflows.definition.problems import describe

if TYPE_CHECKING:
    from perdure import CheckpointStorage

_STORAGE_METHODS: Final = ("save", "load", "list_checkpoints", "delete", "get_latest", "list_checkpoint_ids")
Keep: TypeAlias = LatestOnly | FullHistory | KeepLast | KeepFor | Retention
"""The checkpoints that a workflow store keeps of an execution: the latest, all, the last few, or those of a time."""


def retention_of(keep: Keep) -> Retention:
    """Return the retention of a storage. Raises TypeError for any other object."""
    if isinstance(keep, Retention):
        return keep
    if isinstance(keep, (LatestOnly, FullHistory, KeepLast, KeepFor)):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        return Retention(checkpoints=keep)
    raise TypeError(
        f"retention is LatestOnly(), FullHistory(), KeepLast(...), KeepFor(...) or a Retention, not {keep!r}"
    )


def open_store(storage: CheckpointStorage | str, retention: Keep | None = None) -> CheckpointStorage:
    """Return a storage, or open the one of a URL, which keeps the latest checkpoint unless `retention` is given.

    Raises TypeError if it is no storage, or if `retention` is given for a storage object.
    """
    if isinstance(storage, str):
        return open_storage(storage, retention=retention_of(LatestOnly() if retention is None else retention))
    missing = [name for name in _STORAGE_METHODS if not callable(getattr(storage, name, None))]
    if missing:
        raise TypeError(f"{describe(storage)} is neither a storage nor the URL of one: it has no {missing[0]}()")
    if retention is not None:
        raise TypeError(
            f"retention is for a storage given as a URL; {describe(storage)} has its own: give the retention to its "
            "class"
        )
    return storage
