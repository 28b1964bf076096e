"""A group of writes in one transaction: one statement for each run, the other statements once for all.

A run that this process advances is known from its last write. The statement that changes the run checks that it is
still so; only if it is not, the run is read.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from perdure.errors import CheckpointWriteError, WorkflowException
from perdure.storage import retention as keep
from perdure.storage import rules
from perdure.storage.group_commit import PendingCommit
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.clock import Clock
    from perdure.records import Blob, Retention
    from perdure.storage.group_commit import Pending, PendingRecords
    from perdure.storage.sql.database import OwnerWatch, Row
    from perdure.storage.sql.tables import Tables

_EXAMINED_RUNS_PER_COMMIT_MAX = 50


class GroupWrite:
    """Writes that share a transaction, in which the caller is."""

    def __init__(
        self,
        tables: Tables,
        known: dict[str, rules.RunState],
        owners: OwnerWatch,
        *,
        retention: Retention,
        clock: Clock,
    ) -> None:
        self._tables = tables
        self._known = known
        """Runs as this process left them. They may have changed since."""
        self._owners = owners
        self._retention = retention
        self._clock = clock
        self.states: dict[str, rules.RunState] = {}
        """Runs as this group leaves them."""
        self._blobs: dict[str, Blob] = {}
        self._checkpoints: list[dict[str, object]] = []
        self._checkpoint_ids: set[str] = set()
        self._batches: list[dict[str, object]] = []
        self._pruned = 0

    def write(self, pending: Sequence[Pending]) -> None:
        """Write entries in order. An entry that is refused gets an error, and nothing of it is written.

        If anything else is raised, the whole group is void.
        """
        for each in self._commit_known_runs(pending):
            self._write_one(each)
        self._tables.put_blobs(self._blobs.values())
        self._tables.put("put_checkpoint", self._checkpoints)
        self._tables.put("put_batch", self._batches)
        if keep.forgets(self._retention):
            for each in pending:
                if isinstance(each, PendingCommit) and each.error is None:
                    self._apply_retention(each)
        self._tables.count_pruned(self._pruned)

    def _commit_known_runs(self, pending: Sequence[Pending]) -> Iterable[Pending]:
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
        if commits:
            is_done = self._commit(commits)
            left.extend(each for (each, _), done in zip(commits, is_done, strict=True) if not done)
        return left

    def _known_state(self, pending: Pending) -> rules.RunState | None:
        """Return the run as it is known, if the write follows from that."""
        lease = pending.lease
        state = self.states.get(lease.run_id) or self._known.get(lease.run_id)
        if state is None or not rules.is_held(state, lease) or state.record.head != _expected_head(pending):
            return None
        if isinstance(pending, PendingCommit) and pending.commit.manifest.position <= state.record.position:
            return None
        return state

    def _commit(self, commits: Sequence[tuple[PendingCommit, rules.RunState]]) -> Sequence[bool]:
        """Commit to runs that are in these states. Return which were; the others are not changed."""
        changes = [(state, rules.commit(state, each.commit)) for each, state in commits]
        found = self._tables.commit_runs(changes)
        for (each, state), (_, after), row in zip(commits, changes, found, strict=True):
            if row is not None:
                self.states[each.lease.run_id] = after
                self._add(each, state, row)
        return [row is not None for row in found]

    def _add(self, pending: PendingCommit, state: rules.RunState, row: Row) -> None:
        """Do the rest of a commit whose run is changed. `row` counts the run's journal records and commands."""
        pending.error = None
        run_id, commit = pending.lease.run_id, pending.commit
        manifest, events = commit.manifest, commit.events
        self._checkpoint_ids.add(manifest.checkpoint_id)
        self._checkpoints.append(
            rows.checkpoint_columns(manifest, settled=commit.settled, status=commit.status, wake_at=commit.wake_at)
        )
        self._blobs.update((blob.hash, blob) for blob in commit.blobs)
        batch = rules.number_events(state, commit)
        if batch is not None and events is not None:
            self._blobs.update((blob.hash, blob) for blob in events.blobs)
            self._batches.append(rows.event_columns(batch, keep.moment(manifest.timestamp)))
        if row["records"]:
            self._pruned += self._tables.drop_journal(run_id)
        pending.waiting = 0
        if row["commands"]:
            self._pruned += self._tables.consume(run_id, commit.consumed)
            pending.waiting = self._tables.number("newest_command", run_id=run_id)

    def _write_one(self, pending: Pending) -> None:
        """Change the run, which is the step that can be refused, and note the rest."""
        pending.error = None
        try:
            if isinstance(pending, PendingCommit):
                self._write_commit(pending)
            else:
                self._write_records(pending)
        except WorkflowException as error:
            pending.error = error

    def _write_commit(self, pending: PendingCommit) -> None:
        commit = pending.commit
        state = self._lock(pending)
        rules.require_next(state, commit)
        if state.needed_checkpoint is not None and not self._tables.lock_checkpoint(state.needed_checkpoint):
            rules.require_complete(state, commit)
        # The database does not know the checkpoints of this group yet.
        if commit.manifest.checkpoint_id in self._checkpoint_ids:
            raise rules.duplicate_checkpoint_error(commit.manifest.checkpoint_id)
        rules.require_consumed(self._tables.waiting_ids(pending.lease.run_id, commit.taken), commit)
        if not all(self._commit([(pending, state)])):
            raise rules.duplicate_checkpoint_error(commit.manifest.checkpoint_id)

    def _lock(self, pending: Pending) -> rules.RunState:
        """Read and lock the run of a write that may go on. Raises LeaseLostError, StaleHeadError."""
        lease = pending.lease
        self._known.pop(lease.run_id, None)
        found = self.states.get(lease.run_id) or self._tables.lock_run(lease.run_id)
        state = rules.require_lease(found, lease, expected_head=_expected_head(pending))
        rules.require_head(state, _expected_head(pending))
        return state

    def _write_records(self, pending: PendingRecords) -> None:
        run_id = pending.lease.run_id
        is_progress = any(record.is_progress for record in pending.records)
        state = self._known_state(pending)
        row = state and self._tables.lock_run_at(state, is_progress=is_progress)
        if state is None or row is None:
            state = self._lock(pending)
            row = self._tables.lock_run_at(state, is_progress=is_progress)
        assert row is not None, f"run {run_id!r} has changed while it was locked"
        self.states[run_id] = rules.note_progress(state) if is_progress and state.record.attempts else state
        for record in pending.records:
            self._blobs.update((blob.hash, blob) for blob in record.blobs)
        self._pruned += self._tables.put_records(
            run_id, pending.records, head=pending.head, is_empty=row["records"] == 0
        )

    def _apply_retention(self, pending: PendingCommit) -> None:
        run_id, head, now = pending.lease.run_id, pending.commit.manifest.checkpoint_id, self._clock.now()
        self._pruned += self._tables.prune_events(run_id, self._retention, now)
        self._pruned += self._tables.prune_checkpoints(run_id, self._retention, now, head=head)
        cutoff = keep.finished_cutoff(self._retention, now)
        if cutoff is not None:
            pending.removed = self._remove_finished(cutoff, but=run_id)

    def _remove_finished(self, cutoff: float, *, but: str) -> tuple[str, ...]:
        limit = _EXAMINED_RUNS_PER_COMMIT_MAX
        found = self._tables.execute("finished_runs", besides=but, cutoff=cutoff, limit=limit).fetchall()
        finished = [run for run, _ in rows.readable_runs(found)]
        free = (run.run_id for run in finished if run.owner is None or self._owners.is_dead(run.owner))
        # They are locked by now, but somebody may have forked one of them since the search began.
        alone = (run_id for run_id in free if not self._tables.dependent_forks(run_id))
        removed = tuple(itertools.islice(alone, keep.REMOVED_RUNS_PER_COMMIT_MAX))
        for run_id in removed:
            self._tables.drop_run(run_id)
            self.states.pop(run_id, None)
        return removed


def fail_all(pending: Sequence[Pending], error: Exception) -> None:
    """Give an error to all entries that have none."""
    for each in pending:
        each.error = each.error or write_error(each, error)


def write_error(pending: Pending, error: Exception) -> CheckpointWriteError:
    """Return the error of a write that the database refused."""
    failure = CheckpointWriteError(run_id=pending.lease.run_id, reason=str(error))
    failure.__cause__ = error
    return failure


def _expected_head(pending: Pending) -> str | None:
    return pending.commit.expected_head if isinstance(pending, PendingCommit) else pending.head
