"""Which checkpoints and events of a run, and which runs, may be forgotten. Stores do the forgetting."""

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
"""Checkpoints, and batches of events, that one commit forgets at most; the next one goes on."""

REMOVED_RUNS_PER_COMMIT_MAX = 10
"""Finished runs that one commit removes at most."""

PRUNED_BEFORE_COLLECTION_MIN = 200
"""So many forgotten checkpoints, journal records, commands and batches of events, and no fewer than there are
checkpoints left, make a collection of parts worth its while."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint, as far as retention and order are concerned."""

    checkpoint_id: str
    position: int
    sequence: int
    """Its place in the order of all commits of the store."""
    moment: float | None
    settled: bool
    status: HeadStatus = "running"
    wake_at: str | None = None


def of_tenant(retention: Retention, tenant: str) -> Retention:
    """What may be forgotten of a tenant's. Where no runs are kept, a retention of runs has no say."""
    return Retention(checkpoints=LatestOnly()) if tenant.startswith(APART) else retention


def forgets(retention: Retention) -> bool:
    """Whether it lets anything go."""
    return not all(
        isinstance(each, FullHistory) for each in (retention.checkpoints, retention.finished_runs, retention.events)
    )


@functools.lru_cache(maxsize=256)
def moment(timestamp: str) -> float | None:
    """A timestamp as seconds since the epoch; None if it can't be read, and so never grows old."""
    try:
        time = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def kept_newest(retention: Retention) -> int | None:
    """How many of a run's newest checkpoints stay, if it is their number that decides."""
    match retention.checkpoints:
        case LatestOnly():
            return 1
        case KeepLast(n):
            return n
        case FullHistory() | KeepFor():
            return None


def checkpoint_cutoff(retention: Retention, now: datetime) -> float | None:
    """The moment before which checkpoints are old, if their age decides."""
    match retention.checkpoints:
        case KeepFor(age):
            return now.timestamp() - age.total_seconds()
        case LatestOnly() | KeepLast() | FullHistory():
            return None


def kept_newest_batches(retention: Retention) -> int | None:
    """How many of a run's newest batches of events stay, if it is their number that decides."""
    match retention.events:
        case KeepLast(n):
            return n
        case FullHistory() | KeepFor():
            return None


def events_cutoff(retention: Retention, now: datetime) -> float | None:
    """The moment before which events are old, if their age decides."""
    match retention.events:
        case KeepFor(age):
            return now.timestamp() - age.total_seconds()
        case KeepLast() | FullHistory():
            return None


def prunable_batches(retention: Retention, moments: Sequence[float | None], now: datetime) -> int:
    """How many of a run's batches of events go; `moments` are those of their commits, oldest batch first.

    Always the first so many: what stays has no gap.
    """
    newest = kept_newest_batches(retention)
    if newest is not None:
        return max(0, len(moments) - newest)
    cutoff = events_cutoff(retention, now)
    if cutoff is not None:
        return next((number for number, moment in enumerate(moments) if not is_older(moment, cutoff)), len(moments))
    return 0


def finished_cutoff(retention: Retention, now: datetime) -> float | None:
    """The moment before which the last commit of a finished run is old, if finished runs are forgotten at all."""
    match retention.finished_runs:
        case KeepFor(age):
            return now.timestamp() - age.total_seconds()
        case FullHistory():
            return None


def prunable(retention: Retention, history: Sequence[Entry], now: datetime) -> Iterable[Entry]:
    """Of a run's checkpoints, oldest first, those that the retention lets go. The head is for the store to spare."""
    newest = kept_newest(retention)
    if newest is not None:
        return history[: max(0, len(history) - newest)]
    cutoff = checkpoint_cutoff(retention, now)
    if cutoff is not None:
        return [entry for entry in history if is_older(entry.moment, cutoff)]
    return []


def is_older(moment: float | None, cutoff: float) -> bool:
    """Whether something of that moment is past its time."""
    return moment is not None and moment < cutoff


def is_collection_due(*, pruned: int, remaining: int) -> bool:
    """Whether enough was forgotten since the last collection; the work then stays in proportion."""
    return pruned >= max(PRUNED_BEFORE_COLLECTION_MIN, remaining)


class Proportion:
    """The same where it costs something to count what is left: that is done when it can make a difference.

    A store that had so many checkpoints must forget as many before a collection is due, or have lost some otherwise,
    which nobody notices before.
    """

    def __init__(self) -> None:
        self._remaining = PRUNED_BEFORE_COLLECTION_MIN

    def is_reached(self, *, pruned: int, count: Callable[[], int]) -> bool:
        """Whether a collection is due."""
        if pruned < self._remaining:
            return False
        remaining = count()
        is_due = is_collection_due(pruned=pruned, remaining=remaining)
        self._remaining = PRUNED_BEFORE_COLLECTION_MIN if is_due else remaining
        return is_due
