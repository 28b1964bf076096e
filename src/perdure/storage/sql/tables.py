"""The tables of a SQL store, as far as they belong to one tenant.

A method that changes something is called inside a transaction. Methods that remove rows return how many of them
referred to blobs: the number decides when a collection is worthwhile.
"""

from __future__ import annotations

import itertools
import json
from operator import attrgetter
from typing import TYPE_CHECKING, get_args

from perdure.errors import BlobDamagedError, CheckpointDamagedError
from perdure.records import Archive, ArchivedCheckpoint, Blob, Due, HaltKind
from perdure.storage import retention as keep
from perdure.storage import rules
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from perdure.records import (
        Command,
        EventBatch,
        JournalRecord,
        Owner,
        Retention,
        RunRecord,
        RunStatus,
    )
    from perdure.storage.rules import RunState
    from perdure.storage.sql.database import Row, Rows, Statements

_HALTED = frozenset(get_args(HaltKind))
_NO_LIMIT = 2**62


class Tables:
    """Statements about the rows of one tenant."""

    def __init__(self, database: Statements, tenant: str) -> None:
        self._database = database
        self._tenant = tenant
        self.has_pruned = False
        """Anything was removed whose blobs may be unused now."""

    def execute(self, name: str, /, **values: object) -> Rows:
        """Run a statement."""
        return self._database.execute(name, tenant=self._tenant, **values)

    def number(self, name: str, /, **values: object) -> int:
        """Run a statement that returns a number."""
        return self._database.number(name, tenant=self._tenant, **values)

    def put(self, name: str, new: Sequence[dict[str, object]]) -> None:
        """Run a statement once for each row of values."""
        if new:
            for row in new:
                row["tenant"] = self._tenant
            self._database.execute_many(name, new)

    def find_run(self, run_id: str) -> RunState | None:
        """Return a run, whether it has a checkpoint or is only claimed."""
        row = self.execute("run", run_id=run_id).fetchone()
        return rows.read_run(row) if row else None

    def lock_run(self, run_id: str) -> RunState | None:
        """Return a run and let nobody else change it until the transaction ends."""
        row = self.execute("run_for_change", run_id=run_id).fetchone()
        return rows.read_run(row) if row else None

    def update_lease(self, state: RunState) -> None:
        """Store the owner and the halt of an existing run. Nothing else of it has changed."""
        self.execute("hand_run_over", run_id=state.record.run_id, **rows.lease_columns(state))

    def commit_runs(self, changes: Sequence[tuple[RunState, RunState]]) -> Sequence[Row | None]:
        """Store runs after commits, if each is still as it was before and has no checkpoint of the new id.

        Return for each how many journal records and commands it has, or None if it was not changed.
        """
        names: list[str] = []
        new: list[dict[str, object]] = []
        for before, after in changes:
            old, record = before.record, after.record
            is_same = (old.settled, old.status, old.wake_at) == (record.settled, record.status, record.wake_at)
            names.append("advance_run" if is_same else "commit_run")
            new.append({"tenant": self._tenant, **rows.commit_columns(after, before=old.head)})
        return self._database.execute_each(names, new)

    def lock_run_at(self, state: RunState, *, is_progress: bool) -> Row | None:
        """Lock a run for a write to its journal, if it is as expected. Return how many records it has."""
        record = state.record
        return self.execute(
            "hold_run_at",
            run_id=record.run_id,
            token=state.token,
            owner_id=record.owner.id if record.owner else None,
            before=record.head,
            attempts=0 if is_progress else record.attempts,
        ).fetchone()

    def list_runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        """Return runs in the order in which they began. Raises CheckpointDamagedError."""
        if status in _HALTED:
            found = self.execute("runs_halted")
        elif workflow_name is not None:
            found = self.execute("runs_of_workflow", workflow_name=workflow_name)
        elif status is not None:
            found = self.execute("runs_of_status", status=status)
        else:
            found = self.execute("runs")
        records = [rows.read_run(row).record for row in found.fetchall()]
        return [
            record
            for record in records
            if workflow_name in {None, record.workflow_name} and status in {None, record.standing}
        ]

    def owners(self) -> Sequence[Owner]:
        """Return every owner of a run."""
        return [rows.read_owner(row) for row in self.execute("owners").fetchall()]

    def due(self, *, at: str, workflow_names: Collection[str], owners: Collection[str], limit: int) -> Sequence[Due]:
        """Return runs that can go on, without an owner or with one of these."""
        names, ids = json.dumps(list(workflow_names)), json.dumps(list(owners))
        found = self._readable_runs("due", limit=max(0, limit), at=at, workflow_names=names, owners=ids)
        return [Due(record, row["newest_command"]) for record, row in found]

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        """Return the first time after `after` to which a timer is set."""
        names = json.dumps(list(workflow_names))
        found = self._readable_runs("next_wake", limit=1, after=after, workflow_names=names)
        return found[0][0].wake_at if found else None

    def _readable_runs(self, name: str, *, limit: int, **values: object) -> Sequence[tuple[RunRecord, Row]]:
        """Return the first undamaged runs of a statement. A damaged one is an error for whoever asks for it by id."""
        asked_for = limit
        while True:
            found = self.execute(name, limit=asked_for, **values).fetchall()
            readable = list(rows.readable_runs(found))
            if len(readable) >= limit or len(found) < asked_for:
                return readable[:limit]
            # Damaged runs must not take the places of others.
            asked_for *= 2

    def dependent_forks(self, run_id: str) -> Mapping[str, str]:
        """Return forks that have only a checkpoint of this run, each with that checkpoint."""
        found = self.execute("forks_that_rest", run_id=run_id).fetchall()
        return {row["run_id"]: row["parent_checkpoint_id"] for row in found}

    def drop_run(self, run_id: str) -> None:
        """Remove a run with everything that belongs to it. Its blobs are left to the next collection."""
        removed = self.number("count_checkpoints_of_run", run_id=run_id) + self.drop_journal(run_id)
        removed += self.number("count_commands_with_parts", run_id=run_id)
        removed += self.number("count_batches_with_parts", run_id=run_id)
        self.count_pruned(removed)
        self.execute("drop_run", run_id=run_id)

    def count_pruned(self, number: int) -> None:
        """Count removed rows whose blobs may be unused now."""
        if number:
            self.has_pruned = True
            self.execute("count_pruned", by=number)

    def find_checkpoint(self, checkpoint_id: str | None) -> Row | None:
        """Return the row of a checkpoint."""
        if checkpoint_id is None:
            return None
        names = rows.name_columns(checkpoint_id)
        return self.execute("checkpoint", checkpoint_id=checkpoint_id, **names).fetchone()

    def lock_checkpoint(self, checkpoint_id: str) -> bool:
        """Return whether a checkpoint exists. If so, nobody removes it until the transaction ends."""
        names = rows.name_columns(checkpoint_id)
        return self.execute("hold_checkpoint", checkpoint_id=checkpoint_id, **names).fetchone() is not None

    def checkpoints_of_run(self, run_id: str) -> Sequence[Row]:
        """Return the rows of a run's checkpoints in commit order. Raises CheckpointDamagedError."""
        found = self.execute("checkpoints_of_run", run_id=run_id).fetchall()
        return rows.require_count(found, run_id, key="sequence", kind="checkpoints")

    def prune_checkpoints(self, run_id: str, retention: Retention, now: datetime, *, head: str) -> int:
        """Remove some checkpoints that retention does not keep."""
        newest, cutoff = keep.kept_newest(retention), keep.checkpoint_cutoff(retention, now)
        some: dict[str, object] = {"run_id": run_id, "head": head, "limit": keep.PRUNED_PER_COMMIT_MAX}
        if newest is not None:
            return self.execute("prune_but_newest", keep=newest, **some).rowcount
        if cutoff is not None:
            return self.execute("prune_older", cutoff=cutoff, **some).rowcount
        return 0

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """Return the records since a run's head, in the order of their first recording.

        Raises CheckpointDamagedError.
        """
        found = self.execute("journal", run_id=run_id).fetchall()
        # Verify every record, also those of another head: the head may be what is damaged.
        records = [
            (row["head"] == row["run_head"], rows.read_journal_record(row))
            for row in rows.require_count(found, run_id, key="ordinal", kind="records in its journal")
        ]
        return [record for is_current, record in records if is_current]

    def put_records(self, run_id: str, records: Sequence[JournalRecord], *, head: str | None, is_empty: bool) -> int:
        """Add journal records, or replace those with the same keys. `is_empty` says that there are none yet."""
        new: list[dict[str, object]] = [
            {
                "run_id": run_id,
                "key": json.dumps(record.key),
                "head": head,
                "checksum": record.checksum(run_id=run_id, head=head),
                "refs": json.dumps(record.refs),
                "data": record.data,
            }
            for record in records
        ]
        replaced = 0
        if not is_empty:
            keys = json.dumps([row["key"] for row in new])
            replaced = self.number("count_replaced_with_parts", run_id=run_id, keys=keys)
        self.put("put_record", new)
        return replaced

    def drop_journal(self, run_id: str) -> int:
        """Remove the journal of a run."""
        removed = self.number("count_records_with_parts", run_id=run_id)
        self.execute("drop_journal", run_id=run_id)
        self.execute("count_no_records", run_id=run_id)
        return removed

    def inbox(self, run_id: str) -> Sequence[Command]:
        """Return the commands that wait for a run, oldest first. Raises CheckpointDamagedError."""
        found = self.execute("commands", run_id=run_id).fetchall()
        return [rows.read_command(row) for row in rows.require_count(found, run_id, key="number", kind="commands")]

    def find_command(self, run_id: str, command_id: str) -> Command | None:
        """Return the waiting command of that id."""
        row = self.execute("command", run_id=run_id, id=json.dumps(command_id)).fetchone()
        return rows.read_command(row) if row else None

    def waiting_ids(self, run_id: str, ids: Iterable[str]) -> set[str]:
        """Return which of these ids belong to waiting commands."""
        return {each for each in ids if self.execute("has_command", run_id=run_id, id=json.dumps(each)).fetchone()}

    def put_command(self, run_id: str, command: Command) -> Command:
        """Add a command. Return it with its number."""
        waiting = rules.number_command(command, number=self.number("next_command"))
        self.execute(
            "put_command",
            number=waiting.number,
            run_id=run_id,
            id=json.dumps(waiting.id),
            kind=json.dumps(waiting.kind),
            expects=None if waiting.expects is None else json.dumps(waiting.expects),
            checksum=waiting.checksum(run_id=run_id),
            refs=json.dumps(waiting.refs),
            data=waiting.data,
        )
        return waiting

    def consume(self, run_id: str, ids: Iterable[str]) -> int:
        """Remove the commands of these ids."""
        removed = 0
        for each in ids:
            row: dict[str, object] = {"run_id": run_id, "id": json.dumps(each)}
            removed += self.execute("has_command_with_parts", **row).fetchone() is not None
            self.execute("drop_command", **row)
        return removed

    def drop_expecting_commands(self, run_id: str) -> int:
        """Remove the commands that expect something of the head."""
        removed = self.number("count_expecting_commands_with_parts", run_id=run_id)
        self.execute("drop_expecting_commands", run_id=run_id)
        return removed

    def events(self, run_id: str, *, after: int = 0, limit: int = _NO_LIMIT) -> Sequence[EventBatch]:
        """Return batches with events beyond number `after`. Raises CheckpointDamagedError."""
        limit = max(0, limit)
        found = self.execute("batches", run_id=run_id, after=after, limit=limit).fetchall()
        if not found:
            return []
        batches = [rows.read_batch(row) for row in found if row["batch"] is not None]
        forgotten, newest = found[0]["forgotten"], found[0]["newest"]
        first = batches[0].first if batches else newest + 1
        # The first batch follows the removed ones, or is the one that holds the event after `after`.
        is_later = 0 <= forgotten < after and forgotten + 1 < first <= after + 1
        if first != forgotten + 1 and not is_later:
            where = str(found[0]["run_head"] or run_id)
            raise CheckpointDamagedError(where, f"events of its run are missing before number {first}")
        for earlier, later in itertools.pairwise(batches):
            if later.first != earlier.last + 1:
                raise CheckpointDamagedError(later.checkpoint_id, "events are missing before its own")
        if batches and len(batches) < limit and batches[-1].last != newest:
            raise CheckpointDamagedError(batches[-1].checkpoint_id, "events are missing after its own")
        return [batch for batch in batches if batch.last > after]

    def prune_events(self, run_id: str, retention: Retention, now: datetime) -> int:
        """Remove some batches of events that retention does not keep."""
        newest, cutoff = keep.kept_newest_batches(retention), keep.events_cutoff(retention, now)
        some: dict[str, object] = {"run_id": run_id, "limit": keep.PRUNED_PER_COMMIT_MAX}
        if newest is not None:
            prunable = self.execute("batches_but_newest", keep=newest, **some).fetchall()
        elif cutoff is not None:
            prunable = self.execute("batches_older", cutoff=cutoff, **some).fetchall()
        else:
            return 0
        if prunable:
            self.execute("drop_batches", run_id=run_id, last=prunable[-1]["first"])
        return sum(row["has_parts"] for row in prunable)

    def put_blobs(self, blobs: Iterable[Blob]) -> None:
        """Add blobs that are not there yet, and mark the others as needed again."""
        # All writers use the same order, so that no two of them wait for each other.
        new: list[dict[str, object]] = [
            {
                "hash": blob.hash,
                "kind": blob.kind,
                "refs": json.dumps(blob.refs) if blob.refs else "[]",
                "data": blob.data,
            }
            for blob in sorted(blobs, key=attrgetter("hash"))
        ]
        self.put("put_part", new)

    def blobs(self, roots: Iterable[str]) -> Sequence[Row]:
        """Return the rows of blobs with all that they refer to. Raises BlobDamagedError."""
        found = self.execute("parts", roots=json.dumps(list(roots))).fetchall()
        damaged = next((row["hash"] for row in found if not row["has_refs"]), None)
        if damaged is not None:
            raise BlobDamagedError(f"the references of blob {damaged!r} are not what was written")
        return found

    def archive(self, state: RunState) -> Archive:
        """Return everything that is stored of a run. Raises CheckpointDamagedError."""
        record = rules.archive_record(state)
        archive = Archive(
            record=record,
            checkpoints=tuple(
                ArchivedCheckpoint(
                    rows.read_manifest(row), settled=bool(row["settled"]), status=row["status"], wake_at=row["wake_at"]
                )
                for row in self.checkpoints_of_run(record.run_id)
            ),
            blobs=(),
            journal=tuple(self.journal(record.run_id)),
            inbox=tuple(self.inbox(record.run_id)),
            events=tuple(self.events(record.run_id)),
        )
        try:
            found = self.blobs(rules.archive_roots(archive))
        except BlobDamagedError as error:
            raise CheckpointDamagedError(str(record.head), error.reason) from error
        blobs = [
            Blob(row["hash"], row["data"], refs=tuple(json.loads(row["refs"])), kind=row["kind"])
            for row in found
            if isinstance(row["data"], bytes)  # a damaged cell may hold anything; then the blob is missing
        ]
        return rules.complete_archive(archive, blobs)

    def put_archive(self, archive: Archive, *, token: int) -> None:
        """Store a run of which nothing is here."""
        record, run_id = archive.record, archive.record.run_id
        for each in archive.checkpoints:
            if self.find_checkpoint(each.manifest.checkpoint_id) is not None:
                raise rules.duplicate_checkpoint_error(each.manifest.checkpoint_id)
        self.execute("put_run", **rows.run_columns(rules.restored_state(archive, token=token)))
        self.put_blobs(archive.blobs)
        self.put(
            "put_checkpoint",
            [
                rows.checkpoint_columns(each.manifest, settled=each.settled, status=each.status, wake_at=each.wake_at)
                for each in archive.checkpoints
            ],
        )
        self.execute("count_checkpoints_in", run_id=run_id, by=len(archive.checkpoints))
        self.put_records(run_id, archive.journal, head=record.head, is_empty=True)
        for command in archive.inbox:
            self.put_command(run_id, command)
        moments = rules.event_times(archive)
        self.put("put_batch", list(map(rows.event_columns, archive.events, moments)))
        self.execute("forget_events", run_id=run_id, last=rules.last_removed_event(archive))
