"""What the commits of all runs of a SQL store have told. Whoever changes something is inside of a transaction."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError
from perdure.storage import retention as keep
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.records import EventBatch, Retention
    from perdure.storage.sql.database import OfTenant, Row

_NO_LIMIT = 2**62


class EventTable:
    """The batches of events, one for each commit that told any."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database

    def put(self, batches: Sequence[dict[str, object]]) -> None:
        """Add the newest batches of runs."""
        if batches:
            self._database.execute_many("put_batch", batches)

    def after(self, run_id: str, number: int, *, limit: int) -> Sequence[EventBatch]:
        """The batches with events beyond a number, at most so many. Raises CheckpointDamagedError."""
        limit = max(0, limit)
        found = self._database.execute("batches", run_id=run_id, after=number, limit=limit).fetchall()
        if not found:
            return []
        batches = [rows.batch(row) for row in found if row["batch"] is not None]
        where = str(found[0]["run_head"] or run_id)
        _require_first(batches, where, after=number, forgotten=found[0]["forgotten"], newest=found[0]["newest"])
        for earlier, later in itertools.pairwise(batches):
            if later.first != earlier.last + 1:
                raise CheckpointDamagedError(later.checkpoint_id, "events are missing before its own")
        if batches and len(batches) < limit and batches[-1].last != found[0]["newest"]:
            raise CheckpointDamagedError(batches[-1].checkpoint_id, "events are missing after its own")
        return [batch for batch in batches if batch.last > number]

    def every(self, run_id: str) -> Sequence[EventBatch]:
        """All batches of a run. Raises CheckpointDamagedError."""
        return self.after(run_id, 0, limit=_NO_LIMIT)

    def forget(self, run_id: str, last: int) -> None:
        """Note that events up to this one were removed before the run came here."""
        self._database.execute("forget_events", run_id=run_id, last=last)

    def prune(self, run_id: str, retention: Retention, now: datetime) -> int:
        """Remove some of what the retention lets go; how many of those had parts."""
        prunable = self._prunable(run_id, retention, now)
        if prunable:
            self._database.execute("drop_batches", run_id=run_id, last=prunable[-1]["first"])
        return sum(row["has_parts"] for row in prunable)

    def _prunable(self, run_id: str, retention: Retention, now: datetime) -> Sequence[Row]:
        newest, cutoff = keep.kept_newest_batches(retention), keep.events_cutoff(retention, now)
        some: dict[str, object] = {"run_id": run_id, "limit": keep.PRUNED_PER_COMMIT_MAX}
        if newest is not None:
            return self._database.execute("batches_but_newest", keep=newest, **some).fetchall()
        if cutoff is not None:
            return self._database.execute("batches_older", cutoff=cutoff, **some).fetchall()
        return []

    def with_parts(self, run_id: str) -> int:
        """How many batches of a run have parts."""
        return self._database.number("count_batches_with_parts", run_id=run_id)


def _require_first(batches: Sequence[EventBatch], where: str, *, after: int, forgotten: int, newest: int) -> None:
    """Refuse batches that begin later than they should: with the first that is kept, or with what follows `after`."""
    first = batches[0].first if batches else newest + 1
    is_further = 0 <= forgotten < after and forgotten + 1 < first <= after + 1
    if first != forgotten + 1 and not is_further:
        raise CheckpointDamagedError(where, f"events of its run are missing before number {first}")
