"""What waits to be written to a SQL store, in one transaction: a statement for each run, the others for all at once.

A run that this process advances is known from what it wrote last. The statement that changes the run says whether it
still is so, and only if it is not, the run is read.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from perdure.errors import CheckpointWriteError, WorkflowException
from perdure.storage import retention as keep
from perdure.storage import rules
from perdure.storage.backend import PendingCommit
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.clock import Clock
    from perdure.records import Commit, Part, Retention
    from perdure.storage.backend import Pending, PendingRecords
    from perdure.storage.sql.database import OwnerWatch, Row, Sync
    from perdure.storage.sql.tables import Tables

_KNOWN_MAX = 10_000
_EXAMINED_RUNS_PER_COMMIT_MAX = 50


class KnownRuns:
    """The runs of one tenant as this process left them last. They may have changed since."""

    def __init__(self) -> None:
        self._states: dict[str, rules.RunState] = {}

    def find(self, run_id: str) -> rules.RunState | None:
        """A run, if it is known."""
        return self._states.get(run_id)

    def note(self, states: dict[str, rules.RunState]) -> None:
        """Remember how runs are now."""
        if len(self._states) > _KNOWN_MAX:
            self._states.clear()
        self._states.update(states)

    def forget(self, run_id: str) -> None:
        """Let the run be read when it is needed next."""
        self._states.pop(run_id, None)


class Group:
    """Writes that share a transaction, which whoever makes this is inside of."""

    def __init__(
        self, tables: Tables, known: KnownRuns, owners: OwnerWatch, *, retention: Retention, clock: Clock
    ) -> None:
        self._tables = tables
        self._known = known
        self._owners = owners
        self._retention = retention
        self._clock = clock
        self.states: dict[str, rules.RunState] = {}
        """The runs as this leaves them."""
        self._parts: dict[str, Part] = {}
        self._checkpoints: list[dict[str, object]] = []
        self._ids: set[str] = set()
        """Those of the checkpoints, which the database knows of only when all are put."""
        self._batches: list[dict[str, object]] = []
        self._pruned = 0

    def write(self, pending: Sequence[Pending]) -> None:
        """Write them in order, and note the error of those that are refused: nothing of these is written.

        Whatever else is raised, nothing of any counts.
        """
        for each in self._but_for_lone_commits(pending):
            self._begin(each)
        self._tables.parts.put(self._parts.values())
        self._tables.checkpoints.put(self._checkpoints)
        self._tables.events.put(self._batches)
        if keep.forgets(self._retention):
            for each in pending:
                if isinstance(each, PendingCommit) and each.error is None:
                    self._tidy(each)
        self._tables.count_pruned(self._pruned)

    def _but_for_lone_commits(self, pending: Sequence[Pending]) -> Sequence[Pending]:
        """Begin with the commits of known runs that write nothing else, all at once; those that are left."""
        times = Counter(each.claim.run_id for each in pending)
        known: list[tuple[PendingCommit, rules.RunState]] = []
        left: list[Pending] = []
        ids: set[str] = set()
        for each in pending:
            state = self._known_before(each) if times[each.claim.run_id] == 1 else None
            if (
                state is None
                or state.rests_on is not None
                or not isinstance(each, PendingCommit)
                or each.commit.taken
                or each.commit.manifest.checkpoint_id in ids
            ):
                left.append(each)
            else:
                ids.add(each.commit.manifest.checkpoint_id)
                known.append((each, state))
        for (each, state), row in zip(known, self._commit(known), strict=True):
            if row is None:
                left.append(each)
            else:
                self._follow(each, state, row)
        return left

    def _known_before(self, pending: Pending) -> rules.RunState | None:
        """The run as it is known, if it is what the write goes on from."""
        claim, head = pending.claim, pending.expected_head
        state = self.states.get(claim.run_id) or self._known.find(claim.run_id)
        if state is None or not rules.is_held(state, claim) or state.record.head != head:
            return None
        if isinstance(pending, PendingCommit) and pending.commit.manifest.position <= state.record.position:
            return None
        return state

    def _commit(self, commits: Sequence[tuple[PendingCommit, rules.RunState]]) -> Sequence[Row | None]:
        changes = [(state, rules.committed(state, each.commit)) for each, state in commits]
        found = self._tables.runs.commit(changes)
        for (_, after), row in zip(changes, found, strict=True):
            if row is not None:
                self.states[after.record.run_id] = after
        return found

    def _begin(self, pending: Pending) -> None:
        """Change the run, which is what can be refused, and note the rest."""
        pending.error = None
        try:
            if isinstance(pending, PendingCommit):
                self._begin_commit(pending)
            else:
                self._begin_records(pending)
        except WorkflowException as error:
            pending.error = error

    def _begin_commit(self, pending: PendingCommit) -> None:
        commit = pending.commit
        state = self._found(pending)
        rules.require_next(state, commit)
        if state.rests_on is not None and not self._tables.checkpoints.is_held(state.rests_on):
            rules.require_whole(state, commit)
        if commit.manifest.checkpoint_id in self._ids:
            raise rules.exists_already(commit.manifest.checkpoint_id)
        rules.require_done(self._tables.inbox.among(pending.claim.run_id, commit.taken), commit)
        (row,) = self._commit([(pending, state)])
        if row is None:
            raise rules.exists_already(commit.manifest.checkpoint_id)
        self._follow(pending, state, row)

    def _found(self, pending: Pending) -> rules.RunState:
        """The run as it is. Nobody else changes it before the transaction ends."""
        claim = pending.claim
        self._known.forget(claim.run_id)
        found = self.states.get(claim.run_id) or self._tables.runs.find_for_change(claim.run_id)
        state = rules.require_claim(found, claim, expected_head=pending.expected_head)
        rules.require_head(state, pending.expected_head)
        return state

    def _follow(self, pending: PendingCommit, state: rules.RunState, row: Row) -> None:
        """Do what a commit does beside changing its run, of which this is told."""
        pending.error = None
        run_id, commit = pending.claim.run_id, pending.commit
        self._add(state, commit)
        if row["records"]:
            self._pruned += self._tables.journal.drop(run_id)
        pending.waiting = 0
        if row["commands"]:
            self._pruned += self._tables.inbox.consume(run_id, commit.consumed)
            pending.waiting = self._tables.inbox.newest(run_id)

    def _begin_records(self, pending: PendingRecords) -> None:
        run_id = pending.claim.run_id
        is_progress = any(record.is_progress for record in pending.records)
        state = self._known_before(pending)
        row = state and self._tables.runs.hold_at(state, is_progress=is_progress)
        if state is None or row is None:
            state = self._found(pending)
            row = self._tables.runs.hold_at(state, is_progress=is_progress)
        assert row is not None, f"run {run_id!r} has changed while it was held"
        self.states[run_id] = rules.progressed(state) if is_progress and state.record.attempts else state
        for record in pending.records:
            self._parts.update((part.hash, part) for part in record.parts)
        self._pruned += self._tables.journal.put(
            run_id, pending.records, head=pending.head, is_empty=row["records"] == 0
        )

    def _add(self, state: rules.RunState, commit: Commit) -> None:
        """Note what the commit adds to the other tables."""
        self._ids.add(commit.manifest.checkpoint_id)
        self._checkpoints.append(
            rows.of_checkpoint(commit.manifest, settled=commit.settled, status=commit.status, wake_at=commit.wake_at)
        )
        self._parts.update((part.hash, part) for part in commit.parts)
        batch = rules.told(state, commit)
        if batch is not None and commit.events is not None:
            self._parts.update((part.hash, part) for part in commit.events.parts)
            self._batches.append(rows.of_batch(batch, keep.moment(commit.manifest.timestamp)))

    def _tidy(self, pending: PendingCommit) -> None:
        """Forget what the retention lets go."""
        run_id, head = pending.claim.run_id, pending.commit.manifest.checkpoint_id
        now = self._clock.now()
        self._pruned += self._tables.events.prune(run_id, self._retention, now)
        self._pruned += self._tables.checkpoints.prune(run_id, self._retention, now, head=head)
        cutoff = keep.finished_cutoff(self._retention, now)
        if cutoff is not None:
            pending.removed = self._remove_finished(cutoff, besides=run_id)

    def _remove_finished(self, cutoff: float, *, besides: str) -> tuple[str, ...]:
        finished = self._tables.runs.finished(cutoff, besides=besides, limit=_EXAMINED_RUNS_PER_COMMIT_MAX)
        free = (run.run_id for run in finished if run.owner is None or self._owners.is_dead(run.owner))
        # They are held by now, but a fork may have begun to rest on one of them while they were being looked for.
        alone = (run_id for run_id in free if not self._tables.runs.forks_that_rest(run_id))
        removed = tuple(itertools.islice(alone, keep.REMOVED_RUNS_PER_COMMIT_MAX))
        for run_id in removed:
            self._tables.drop_run(run_id)
            self.states.pop(run_id, None)
        return removed


def sync_of(pending: Sequence[Pending]) -> Sync:
    """What one of them needs, all of them have."""
    return "as chosen" if any(each.is_durable for each in pending) else "later"


def fail_all(pending: Sequence[Pending], error: Exception) -> None:
    """Note that those which have no other error were not written for this reason."""
    for each in pending:
        each.error = each.error or write_error(each, error)


def write_error(pending: Pending, error: Exception) -> CheckpointWriteError:
    """What is told of a write that the database has refused."""
    failure = CheckpointWriteError(run_id=pending.claim.run_id, reason=str(error))
    failure.__cause__ = error
    return failure
