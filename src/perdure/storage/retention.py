"""Decide which checkpoints, events and runs retention removes. Stores remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from perdure.records import FullHistory, KeepFor, KeepLast, LatestOnly, Retention
from perdure.storage.rules import APART

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

Policy: TypeAlias = LatestOnly | FullHistory | KeepLast | KeepFor

PRUNED_PER_COMMIT_MAX = 100
"""Number of checkpoints, and of batches of events, that one commit removes at most. The next commit goes on."""

REMOVED_RUNS_PER_COMMIT_MAX = 10
"""Number of finished runs that one commit removes at most."""

PRUNED_BEFORE_COLLECTION_MIN = 200
"""A collection of blobs is due after this many removed checkpoints, journal records, commands and batches of events,
and not before as many were removed as checkpoints are left."""


def of_tenant(retention: Retention, tenant: str) -> Retention:
    """Return the retention of a tenant. Perdure's own tenants hold no runs, and keep the latest version only."""
    return Retention(checkpoints=LatestOnly()) if tenant.startswith(APART) else retention


def forgets(retention: Retention) -> bool:
    """Return whether a retention removes anything."""
    return retention != Retention()


def limits(policy: Policy, now: datetime) -> tuple[int | None, float | None]:
    """Return how many of the newest stay, or the time before which they are old. None and None keep all."""
    match policy:
        case LatestOnly():
            return 1, None
        case KeepLast(n):
            return n, None
        case KeepFor(age):
            return None, now.timestamp() - age.total_seconds()
        case FullHistory():
            return None, None


def prunable_batches(retention: Retention, moments: Sequence[float | None], now: datetime) -> int:
    """Return how many of a run's batches of events go. `moments` are the times of their commits, oldest first.

    The oldest batches go, so that the rest has no gap.
    """
    newest, cutoff = limits(retention.events, now)
    if newest is not None:
        return max(0, len(moments) - newest)
    if cutoff is not None:
        return next((number for number, moment in enumerate(moments) if not is_older(moment, cutoff)), len(moments))
    return 0


def finished_cutoff(retention: Retention, now: datetime) -> float | None:
    """Return the time before which a finished run is old, if finished runs are removed at all."""
    return limits(retention.finished_runs, now)[1]


def is_older(moment: float | None, cutoff: float) -> bool:
    """Return whether a time is before the cutoff."""
    return moment is not None and moment < cutoff


class Proportion:
    """Decide when a collection is due, and count the remaining checkpoints only when that can make a difference.

    A store with n checkpoints has to remove n before a collection is due.
    """

    def __init__(self) -> None:
        self._remaining = PRUNED_BEFORE_COLLECTION_MIN

    def is_reached(self, *, pruned: int, count: Callable[[], int]) -> bool:
        """Return whether a collection is due."""
        if pruned < self._remaining:
            return False
        remaining = count()
        is_due = pruned >= max(PRUNED_BEFORE_COLLECTION_MIN, remaining)
        self._remaining = PRUNED_BEFORE_COLLECTION_MIN if is_due else remaining
        return is_due
