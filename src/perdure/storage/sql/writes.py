"""A group of writes in one transaction: one statement for each run, the other statements once for all.

A run that this process advances is known from its last write. The statement that changes the run checks that it is
still so; only if it is not, the run is read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.data_classes import new_dict, new_list
from perdure.errors import CheckpointWriteError, WorkflowException
from perdure.storage import retention as retention_rules, rules
from perdure.storage.group_commit import Pending, PendingCommit, PendingRecords
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.clock import Clock
    from perdure.records import Blob, Retention
    from perdure.storage.sql.database import OwnerWatch, Row
    from perdure.storage.sql.tables import Tables


@dataclass(slots=True)
class GroupWrite:
    """Writes that share a transaction, in which the caller is."""

    tables: Tables
    known: dict[str, rules.RunState]
    """Runs as this process left them. They may have changed since."""
    owners: OwnerWatch
    retention: Retention | None
    """None if everything is kept."""
    clock: Clock
    states: dict[str, rules.RunState] = field(default_factory=new_dict)
    """Runs as this group leaves them."""
    blobs: dict[str, Blob] = field(default_factory=new_dict)
    checkpoints: dict[str, dict[str, object]] = field(default_factory=new_dict)
    batches: list[dict[str, object]] = field(default_factory=new_list)
    pruned: int = 0

    def write(self, pending: Sequence[Pending]) -> None:
        """Write entries in order. An entry that is refused gets an error, and nothing of it is written.

        If anything else is raised, the whole group is void.
        """
        for each in self._commit_known_runs(pending):
            each.error = None
            try:
                if isinstance(each, PendingCommit):
                    self._write_commit(each)
                else:
                    self._write_records(each)
            except WorkflowException as error:
                each.error = error
        self.tables.put_blobs(self.blobs.values())
        self.tables.put("put_checkpoint", [*self.checkpoints.values()])
        self.tables.put("put_batch", self.batches)
        if self.retention is not None:
            for each in pending:
                if isinstance(each, PendingCommit) and each.error is None:
                    self._apply_retention(each, self.retention)
        if self.pruned:
            self.tables.count_pruned(self.pruned)

    def _commit_known_runs(self, pending: Sequence[Pending]) -> Sequence[Pending]:
        """Commit to known runs, all in one go. Return the entries that are left for one by one."""
        times = Counter(each.lease.run_id for each in pending)
        commits: list[tuple[PendingCommit, rules.RunState]] = []
        left: list[Pending] = []
        ids: set[str] = set()
        for each in pending:
            state = self._known_state(each)
            if (
                state is None
                or times[each.lease.run_id] > 1
                or not isinstance(each, PendingCommit)
                or state.needed_checkpoint is not None
                or each.commit.taken
                or each.commit.manifest.checkpoint_id in ids
            ):
                left.append(each)
            else:
                ids.add(each.commit.manifest.checkpoint_id)
                commits.append((each, state))
        return [*left, *self._commit(commits)] if commits else left

    def _known_state(self, pending: Pending) -> rules.RunState | None:
        """Return the run as it is known, if the write follows from that."""
        run_id = pending.lease.run_id
        state = self.states.get(run_id) or self.known.get(run_id)
        if state is None or state.token != pending.lease.token:
            return None
        if isinstance(pending, PendingCommit):
            head, is_next = pending.commit.expected_head, pending.commit.manifest.position > state.record.position
        else:
            head, is_next = pending.head, True
        return state if is_next and state.record.head == head else None

    def _commit(self, commits: Sequence[tuple[PendingCommit, rules.RunState]]) -> Sequence[PendingCommit]:
        """Commit to runs that are in these states. Return the commits to runs that are not, which change nothing."""
        changes = [(state, rules.commit(state, each.commit)) for each, state in commits]
        refused: list[PendingCommit] = []
        for (each, before), (_, after), row in zip(commits, changes, self.tables.commit_runs(changes), strict=True):
            if row is None:
                refused.append(each)
                continue
            run_id, commit, events = each.lease.run_id, each.commit, each.commit.events
            self.states[run_id] = after
            self.checkpoints[commit.manifest.checkpoint_id] = rows.checkpoint_columns(commit, after.record.moment)
            self.blobs.update((blob.hash, blob) for blob in commit.blobs)
            batch = rules.number_events(before, commit)
            if batch is not None and events is not None:
                self.blobs.update((blob.hash, blob) for blob in events.blobs)
                self.batches.append(rows.event_columns(batch, after.record.moment))
            if row["records"]:
                self.pruned += self.tables.drop_journal(run_id)
            each.error, each.newest_command = None, 0
            if row["commands"]:
                for command_id in commit.consumed:
                    self.pruned += self.tables.delete_rows("drop_command", run_id=run_id, id=rows.quote(command_id))
                each.newest_command = self.tables.number("newest_command", run_id=run_id)
        return refused

    def _write_commit(self, pending: PendingCommit) -> None:
        commit, run_id = pending.commit, pending.lease.run_id
        state = self._lock(pending, commit.expected_head)
        rules.require_next(state, commit)
        parent = state.needed_checkpoint
        if parent is not None and self.tables.find_checkpoint(parent, statement="hold_checkpoint") is None:
            rules.require_complete(state, commit)
        # The database does not know the checkpoints of this group yet.
        if commit.manifest.checkpoint_id in self.checkpoints:
            raise rules.duplicate_checkpoint_error(commit.manifest.checkpoint_id)
        waiting = {
            command_id
            for command_id in commit.taken
            if self.tables.execute("has_command", run_id=run_id, id=rows.quote(command_id)).fetchone()
        }
        rules.require_consumed(waiting, commit)
        if self._commit([(pending, state)]):
            raise rules.duplicate_checkpoint_error(commit.manifest.checkpoint_id)

    def _lock(self, pending: Pending, expected_head: str | None) -> rules.RunState:
        """Read and lock the run of a write that may go on. Raises LeaseLostError, StaleHeadError."""
        run_id = pending.lease.run_id
        self.known.pop(run_id, None)
        found = self.states.get(run_id) or self.tables.lock_run(run_id)
        state = rules.require_lease(found, pending.lease, expected_head=expected_head)
        rules.require_head(state, expected_head)
        return state

    def _lock_at(self, state: rules.RunState, *, is_progress: bool) -> Row | None:
        """Lock a run for a write to its journal, if it is as expected. Return how many records it has."""
        record = state.record
        return self.tables.execute(
            "hold_run_at",
            run_id=record.run_id,
            token=state.token,
            owner_id=record.owner.id if record.owner else None,
            before=record.head,
            attempts=0 if is_progress else record.attempts,
        ).fetchone()

    def _write_records(self, pending: PendingRecords) -> None:
        run_id = pending.lease.run_id
        is_progress = any(record.is_progress for record in pending.records)
        state = self._known_state(pending)
        row = state and self._lock_at(state, is_progress=is_progress)
        if state is None or row is None:
            state = self._lock(pending, pending.head)
            row = self._lock_at(state, is_progress=is_progress)
        assert row is not None, f"run {run_id!r} has changed while it was locked"
        self.states[run_id] = rules.note_progress(state) if is_progress and state.record.attempts else state
        for record in pending.records:
            self.blobs.update((blob.hash, blob) for blob in record.blobs)
        self.pruned += self.tables.put_records(run_id, pending.records, head=pending.head, is_empty=row["records"] == 0)

    def _apply_retention(self, pending: PendingCommit, retention: Retention) -> None:
        now = self.clock.now()
        self._prune("events", retention.events, pending, now)
        self._prune("checkpoints", retention.checkpoints, pending, now)
        cutoff = retention_rules.finished_cutoff(retention, now)
        if cutoff is not None:
            pending.removed = self.tables.drop_finished(cutoff, self.owners, but=pending.lease.run_id)
            for run_id in pending.removed:
                self.states.pop(run_id, None)

    def _prune(self, kind: str, policy: retention_rules.Policy, pending: PendingCommit, now: datetime) -> None:
        """Remove some events or checkpoints of a run that retention does not keep."""
        newest, cutoff = retention_rules.limits(policy, now)
        values: dict[str, Any] = {
            "run_id": pending.lease.run_id,
            "head": pending.commit.manifest.checkpoint_id,
            "limit": retention_rules.PRUNED_PER_COMMIT_MAX,
        }
        if newest is not None:
            self.pruned += self.tables.delete_rows(f"prune_{kind}_but_newest", keep=newest, **values)
        elif cutoff is not None:
            self.pruned += self.tables.delete_rows(f"prune_{kind}_older", cutoff=cutoff, **values)


def write_error(pending: Pending, error: Exception) -> CheckpointWriteError:
    """Return the error of a write that the database refused."""
    failure = CheckpointWriteError(run_id=pending.lease.run_id, reason=str(error))
    failure.__cause__ = error
    return failure
