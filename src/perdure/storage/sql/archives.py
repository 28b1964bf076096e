"""A whole run of a SQL store, taken out or put in. Whoever calls this is inside of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError, PartDamagedError
from perdure.records import Archive, ArchivedCheckpoint
from perdure.storage import archiving, rules
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perdure.storage.sql.tables import Tables


class Archives:
    """Runs as a whole, from all tables at once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def of(self, state: rules.RunState) -> Archive:
        """All that there is of a run. Raises CheckpointDamagedError."""
        record = rules.archived(state)
        archive = Archive(
            record=record,
            checkpoints=tuple(self._checkpoints(record.run_id)),
            parts=(),
            journal=tuple(self._tables.journal.of(record.run_id)),
            inbox=tuple(self._tables.inbox.of(record.run_id)),
            events=tuple(self._tables.events.every(record.run_id)),
        )
        try:
            return archiving.whole(archive, self._tables.parts.whole(archiving.roots(archive)))
        except PartDamagedError as error:
            raise CheckpointDamagedError(str(record.head), error.reason) from error

    def _checkpoints(self, run_id: str) -> Iterator[ArchivedCheckpoint]:
        for row in self._tables.checkpoints.of_run(run_id):
            yield ArchivedCheckpoint(
                rows.manifest(row), settled=bool(row["settled"]), status=row["status"], wake_at=row["wake_at"]
            )

    def put(self, archive: Archive, *, token: int) -> None:
        """Keep a run of which nothing is here."""
        record = archive.record
        self._tables.runs.put(archiving.state_of(archive, token=token))
        self._tables.parts.put(archive.parts)
        self._put_checkpoints(record.run_id, archive.checkpoints)
        self._tables.journal.put(record.run_id, archive.journal, head=record.head, is_empty=True)
        for command in archive.inbox:
            self._tables.inbox.put(record.run_id, command)
        told = zip(archive.events, archiving.moments_told(archive), strict=True)
        self._tables.events.put([rows.of_batch(batch, moment) for batch, moment in told])
        first = archive.events[0].first if archive.events else record.events + 1
        self._tables.events.forget(record.run_id, first - 1)

    def _put_checkpoints(self, run_id: str, checkpoints: Sequence[ArchivedCheckpoint]) -> None:
        for each in checkpoints:
            if self._tables.checkpoints.find(each.manifest.checkpoint_id) is not None:
                raise rules.exists_already(each.manifest.checkpoint_id)
        self._tables.checkpoints.put(
            [
                rows.of_checkpoint(each.manifest, settled=each.settled, status=each.status, wake_at=each.wake_at)
                for each in checkpoints
            ]
        )
        self._tables.runs.count_checkpoints(run_id, len(checkpoints))
