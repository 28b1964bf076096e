"""Decide which checkpoints, events and runs retention removes. Stores remove them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from perdure.records import FullHistory, KeepFor, KeepLast, LatestOnly, Retention
from perdure.storage.ids import APART

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from perdure.records import HeadStatus

PRUNED_PER_COMMIT_MAX = 100
"""Number of checkpoints, and of batches of events, that one commit removes at most. The next commit goes on."""

REMOVED_RUNS_PER_COMMIT_MAX = 10
"""Number of finished runs that one commit removes at most."""

PRUNED_BEFORE_COLLECTION_MIN = 200
"""A collection of blobs is due after this many removed checkpoints, journal records, commands and batches of events,
and not before as many were removed as checkpoints are left."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint, as far as retention and order need it."""

    checkpoint_id: str
    position: int
    sequence: int
    """Its number in the order of all commits of the store."""
    moment: float | None
    settled: bool
    status: HeadStatus = "running"
    wake_at: str | None = None


def of_tenant(retention: Retention, tenant: str) -> Retention:
    """Return the retention of a tenant. Perdure's own tenants hold no runs, and keep the latest version only."""
    return Retention(checkpoints=LatestOnly()) if tenant.startswith(APART) else retention


def forgets(retention: Retention) -> bool:
    """Return whether a retention removes anything."""
    return not all(
        isinstance(each, FullHistory) for each in (retention.checkpoints, retention.finished_runs, retention.events)
    )


@functools.lru_cache(maxsize=256)
def moment(timestamp: str) -> float | None:
    """Return a timestamp as seconds since the epoch, or None if it can't be read. Then it never grows old."""
    try:
        time = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def kept_newest(retention: Retention) -> int | None:
    """Return how many of a run's newest checkpoints stay, if their number decides."""
    match retention.checkpoints:
        case LatestOnly():
            return 1
        case KeepLast(n):
            return n
        case FullHistory() | KeepFor():
            return None


def checkpoint_cutoff(retention: Retention, now: datetime) -> float | None:
    """Return the time before which checkpoints are old, if their age decides."""
    match retention.checkpoints:
        case KeepFor(age):
            return now.timestamp() - age.total_seconds()
        case LatestOnly() | KeepLast() | FullHistory():
            return None


def kept_newest_batches(retention: Retention) -> int | None:
    """Return how many of a run's newest batches of events stay, if their number decides."""
    match retention.events:
        case KeepLast(n):
            return n
        case FullHistory() | KeepFor():
            return None


def events_cutoff(retention: Retention, now: datetime) -> float | None:
    """Return the time before which events are old, if their age decides."""
    match retention.events:
        case KeepFor(age):
            return now.timestamp() - age.total_seconds()
        case KeepLast() | FullHistory():
            return None


def prunable_batches(retention: Retention, moments: Sequence[float | None], now: datetime) -> int:
    """Return how many of a run's batches of events go. `moments` are the times of their commits, oldest first.

    The oldest batches go, so that the rest has no gap.
    """
    newest = kept_newest_batches(retention)
    if newest is not None:
        return max(0, len(moments) - newest)
    cutoff = events_cutoff(retention, now)
    if cutoff is not None:
        return next((number for number, moment in enumerate(moments) if not is_older(moment, cutoff)), len(moments))
    return 0


def finished_cutoff(retention: Retention, now: datetime) -> float | None:
    """Return the time before which a finished run is old, if finished runs are removed at all."""
    match retention.finished_runs:
        case KeepFor(age):
            return now.timestamp() - age.total_seconds()
        case FullHistory():
            return None


def prunable(retention: Retention, history: Sequence[Entry], now: datetime) -> Iterable[Entry]:
    """Return the checkpoints of a run, oldest first, that retention removes. The store spares the head."""
    newest = kept_newest(retention)
    if newest is not None:
        return history[: max(0, len(history) - newest)]
    cutoff = checkpoint_cutoff(retention, now)
    if cutoff is not None:
        return [entry for entry in history if is_older(entry.moment, cutoff)]
    return []


def is_older(moment: float | None, cutoff: float) -> bool:
    """Return whether a time is before the cutoff."""
    return moment is not None and moment < cutoff


def is_collection_due(*, pruned: int, remaining: int) -> bool:
    """Return whether enough was removed since the last collection to be worth its cost."""
    return pruned >= max(PRUNED_BEFORE_COLLECTION_MIN, remaining)


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
        is_due = is_collection_due(pruned=pruned, remaining=remaining)
        self._remaining = PRUNED_BEFORE_COLLECTION_MIN if is_due else remaining
        return is_due
