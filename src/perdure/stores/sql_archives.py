"""A whole run of a SQL store, taken out or put in. Whoever calls this is inside of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError, PartDamagedError
from perdure.records import Archive, ArchivedCheckpoint
from perdure.stores import archiving, rows, rules
from perdure.stores.sql_events import EventTable
from perdure.stores.sql_inboxes import InboxTable
from perdure.stores.sql_journals import JournalTable
from perdure.stores.sql_parts import PartTable
from perdure.stores.sql_runs import RunTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.stores.sql_database import OfTenant


class Archives:
    """Runs as a whole, from all tables at once."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database
        self._runs = RunTable(database)
        self._parts = PartTable(database)
        self._journal = JournalTable(database)
        self._inbox = InboxTable(database)
        self._events = EventTable(database)

    def of(self, state: rules.RunState) -> Archive:
        """All that there is of a run. Raises CheckpointDamagedError."""
        record = rules.archived(state)
        archive = Archive(
            record=record,
            checkpoints=tuple(self._checkpoints(record.run_id)),
            parts=(),
            journal=tuple(self._journal.of(record.run_id)),
            inbox=tuple(self._inbox.of(record.run_id)),
            events=tuple(self._events.every(record.run_id)),
        )
        try:
            return archiving.whole(archive, self._parts.whole(archiving.roots(archive)))
        except PartDamagedError as error:
            raise CheckpointDamagedError(str(record.head), error.reason) from error

    def _checkpoints(self, run_id: str) -> Iterator[ArchivedCheckpoint]:
        every = self._database.execute("checkpoints_of_run", run_id=run_id).fetchall()
        for row in rows.those_of_run(every, run_id, key="sequence", kind="checkpoints"):
            yield ArchivedCheckpoint(
                rows.manifest(row), settled=bool(row["settled"]), status=row["status"], wake_at=row["wake_at"]
            )

    def put(self, archive: Archive, *, token: int) -> None:
        """Keep a run of which nothing is here."""
        record = archive.record
        self._runs.put(archiving.state_of(archive, token=token))
        self._parts.put(archive.parts)
        self._put_checkpoints(archive.checkpoints)
        for each in archive.journal:
            self._journal.put(record.run_id, each, head=record.head)
        for command in archive.inbox:
            self._inbox.put(record.run_id, command)
        for batch, moment in zip(archive.events, archiving.moments_told(archive), strict=True):
            self._events.add(batch, moment)
        first = archive.events[0].first if archive.events else record.events + 1
        self._events.forget(record.run_id, first - 1)

    def _put_checkpoints(self, checkpoints: Iterable[ArchivedCheckpoint]) -> None:
        for each in checkpoints:
            checkpoint_id = each.manifest.checkpoint_id
            if self._database.execute("is_checkpoint", checkpoint_id=checkpoint_id).fetchone():
                raise rules.exists_already(checkpoint_id)
            row = rows.of_checkpoint(each.manifest, settled=each.settled, status=each.status, wake_at=each.wake_at)
            self._database.execute("put_checkpoint", **row)
