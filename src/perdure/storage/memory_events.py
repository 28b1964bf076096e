"""What the commits of all runs have told, in memory."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.storage import retention as keep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from perdure.records import EventBatch, Retention


@dataclass(frozen=True, slots=True)
class _Told:
    batch: EventBatch
    moment: float | None


class MemoryEvents:
    """By run its batches, oldest first. What removes some of them says how many of those had parts."""

    def __init__(self) -> None:
        self._of_run: dict[str, list[_Told]] = {}

    def add(self, batch: EventBatch, moment: float | None) -> None:
        """Add the newest batch of a run, of a commit at that moment."""
        self._of_run.setdefault(batch.run_id, []).append(_Told(batch, moment))

    def of(self, run_id: str) -> Sequence[EventBatch]:
        """All batches of a run."""
        return [told.batch for told in self._of_run.get(run_id, [])]

    def after(self, run_id: str, number: int, *, limit: int) -> Sequence[EventBatch]:
        """The batches with events beyond a number, at most so many."""
        of_run = self._of_run.get(run_id, [])
        start = bisect_right(of_run, number, key=lambda told: told.batch.last)
        return [told.batch for told in of_run[start : start + max(0, limit)]]

    def prune(self, run_id: str, retention: Retention, now: datetime) -> int:
        """Remove some of what the retention lets go."""
        of_run = self._of_run.get(run_id, [])
        prunable = keep.prunable_batches(retention, [told.moment for told in of_run], now)
        return self._remove_oldest(run_id, min(prunable, keep.PRUNED_PER_COMMIT_MAX))

    def drop(self, run_id: str) -> int:
        """Remove all of a run."""
        return self._remove_oldest(run_id, len(self._of_run.get(run_id, ())))

    def refs(self) -> Iterator[tuple[str, ...]]:
        """What batches refer to."""
        return (told.batch.refs for told in itertools.chain.from_iterable(self._of_run.values()))

    def _remove_oldest(self, run_id: str, number: int) -> int:
        of_run = self._of_run.get(run_id, [])
        removed, of_run[:number] = sum(bool(told.batch.refs) for told in of_run[:number]), []
        if not of_run:
            self._of_run.pop(run_id, None)
        return removed
