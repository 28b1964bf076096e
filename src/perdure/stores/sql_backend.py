"""A store in a SQL database, whichever it is: what its thread does, in the names of statements."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Self

from perdure.errors import CheckpointNotFoundError, CheckpointWriteError
from perdure.records import Claim, Mark
from perdure.stores import retention as keep
from perdure.stores import rows, rules
from perdure.stores.backend import PendingCommit, PendingRecords
from perdure.stores.sql_archives import Archives
from perdure.stores.sql_database import OfTenant
from perdure.stores.sql_events import EventTable
from perdure.stores.sql_inboxes import InboxTable
from perdure.stores.sql_journals import JournalTable
from perdure.stores.sql_parts import SWEPT_AT_ONCE_MAX, PartTable
from perdure.stores.sql_runs import RunTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from perdure.clock import Clock
    from perdure.records import (
        Archive,
        Command,
        Commit,
        Due,
        EventBatch,
        Halt,
        JournalRecord,
        Manifest,
        NewRun,
        Owner,
        Retention,
        RunRecord,
        RunStatus,
    )
    from perdure.stores.backend import Pending
    from perdure.stores.sql_database import OwnerWatch, Row, SqlDatabase

_EXAMINED_RUNS_PER_COMMIT_MAX = 50


class SqlBackend:
    """What belongs to one tenant. Whoever changes a run holds its row from before it is read."""

    def __init__(
        self, database: SqlDatabase, owners: OwnerWatch, *, retention: Retention, clock: Clock, tenant: str = ""
    ) -> None:
        self._database = database
        self._owners = owners
        self._retention = retention
        self._clock = clock
        self._sql = OfTenant(database, tenant)
        self._runs = RunTable(self._sql)
        self._parts = PartTable(self._sql)
        self._journal = JournalTable(self._sql)
        self._inbox = InboxTable(self._sql)
        self._events = EventTable(self._sql)
        self._archives = Archives(self._sql)

    def of(self, tenant: str, *, founds: bool) -> Self:
        """The same for what belongs to a tenant."""
        del founds  # A tenant is nothing but its rows.
        return type(self)(self._database, self._owners, retention=self._retention, clock=self._clock, tenant=tenant)

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Claim:
        with self._database.errors(), self._database.transaction(durable=False):
            if create is not None:
                self._runs.hold(run_id)
            state = rules.claimable(
                self._runs.find_for_change(run_id),
                run_id,
                create=create,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                token=token,
            )
            if state.is_new:
                self._drop_run(run_id)
            owner = self._owners.enter()
            claimed = rules.claimed(state, owner=owner, token=self._next_token(state, token))
            self._runs.put(claimed)
        return Claim(run_id, claimed.token, owner, claimed.record.attempts, state.record.halt)

    def _next_token(self, state: rules.RunState, given: int | None) -> int:
        if given is None:
            return self._runs.next_token(above=state.token)
        self._runs.note_token(given)
        return given

    def release(self, claim: Claim, *, halt: Halt | None) -> None:
        # What has moved to another store must not come alive here, not after a power cut either.
        with self._database.errors(), self._database.transaction(durable=halt is not None):
            state = self._runs.find_for_change(claim.run_id)
            if state is None or not rules.is_held(state, claim):
                return
            if state.is_known:
                self._runs.put(rules.released(state, halt=halt))
            else:
                self._drop_run(claim.run_id)

    def write(self, pending: Sequence[Pending]) -> None:
        try:
            with self._database.transaction(durable=any(each.is_durable for each in pending)):
                for each in pending:
                    self._try(each)
        except self._database.failure as error:
            for each in pending:
                each.error = each.error or _write_error(each, error)

    def _try(self, pending: Pending) -> None:
        try:
            with self._database.savepoint():
                match pending:
                    case PendingCommit():
                        self._commit(pending.claim, pending.commit)
                        pending.removed = self._remove_finished(besides=pending.claim.run_id)
                        pending.waiting = self._inbox.newest(pending.claim.run_id)
                    case PendingRecords():
                        self._record(pending.claim, pending.head, pending.records)
        except self._database.refusals as error:
            pending.error = _write_error(pending, error)
        except self._database.failure:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this write, not to the others
            pending.error = error

    def _record(self, claim: Claim, head: str | None, records: Sequence[JournalRecord]) -> None:
        state = rules.require_claim(self._runs.find_for_change(claim.run_id), claim, expected_head=head)
        rules.require_head(state, head)
        if state.record.attempts > 0 and any(record.is_progress for record in records):
            self._runs.put(rules.progressed(state))
        for record in records:
            self._parts.put(record.parts)
            self._count_pruned(self._journal.put(claim.run_id, record, head=head))

    def _drop_run(self, run_id: str) -> None:
        """With all that belongs to it; its parts are for the next collection."""
        of_checkpoints = self._sql.number("count_checkpoints_of_run", run_id=run_id)
        of_journal = self._journal.drop(run_id)
        besides = self._inbox.with_parts(run_id) + self._events.with_parts(run_id)
        self._count_pruned(of_checkpoints + of_journal + besides)
        self._sql.execute("drop_run", run_id=run_id)

    def _count_pruned(self, number: int) -> None:
        if number:
            self._sql.execute("count_pruned", by=number)

    def _commit(self, claim: Claim, commit: Commit) -> None:
        state = rules.require_claim(self._runs.find_for_change(claim.run_id), claim, expected_head=commit.expected_head)
        rules.require_head(state, commit.expected_head)
        rules.require_next(state, commit)
        checkpoint_id = commit.manifest.checkpoint_id
        if self._sql.execute("is_checkpoint", checkpoint_id=checkpoint_id).fetchone():
            raise rules.exists_already(checkpoint_id)
        rules.require_done(self._inbox.among(claim.run_id, commit.taken), commit)
        self._parts.put(commit.parts)
        self._sql.execute("put_checkpoint", **_row_of(commit))
        self._runs.put(rules.committed(state, commit))
        self._count_pruned(self._journal.drop(claim.run_id))
        self._count_pruned(self._inbox.consume(claim.run_id, commit.consumed))
        self._tell(state, commit)
        self._count_pruned(self._prune(claim.run_id, head=checkpoint_id))

    def _tell(self, state: rules.RunState, commit: Commit) -> None:
        batch = rules.told(state, commit)
        if batch is not None and commit.events is not None:
            self._parts.put(commit.events.parts)
            self._events.add(batch, keep.moment(commit.manifest.timestamp))
        self._count_pruned(self._events.prune(state.record.run_id, self._retention, self._clock.now()))

    def _prune(self, run_id: str, *, head: str) -> int:
        newest = keep.kept_newest(self._retention)
        cutoff = keep.checkpoint_cutoff(self._retention, self._clock.now())
        common: dict[str, object] = {"run_id": run_id, "head": head, "limit": keep.PRUNED_PER_COMMIT_MAX}
        if newest is not None:
            return self._sql.execute("prune_but_newest", keep=newest, **common).rowcount
        if cutoff is not None:
            return self._sql.execute("prune_older", cutoff=cutoff, **common).rowcount
        return 0

    def _remove_finished(self, *, besides: str) -> tuple[str, ...]:
        cutoff = keep.finished_cutoff(self._retention, self._clock.now())
        if cutoff is None:
            return ()
        finished = self._sql.execute(
            "finished_runs", besides=besides, cutoff=cutoff, limit=_EXAMINED_RUNS_PER_COMMIT_MAX
        ).fetchall()
        records = [record for record, _ in rows.sound_runs(finished)]
        free = (record.run_id for record in records if record.owner is None or self._owners.is_dead(record.owner))
        # They are held by now, but a fork may have begun to rest on one of them while they were being looked for.
        alone = (run_id for run_id in free if not self._runs.forks_that_rest(run_id))
        removed = tuple(itertools.islice(alone, keep.REMOVED_RUNS_PER_COMMIT_MAX))
        for run_id in removed:
            self._drop_run(run_id)
        return removed

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        with self._database.errors(), self._database.transaction():
            state = rules.require_claim(self._runs.find_for_change(claim.run_id), claim, expected_head=expected_head)
            rules.require_head(state, expected_head)
            row = self._sql.execute("checkpoint", checkpoint_id=to).fetchone()
            if row is None or row["run_id"] != claim.run_id:
                raise CheckpointNotFoundError(to)
            self._move(state, row, nonce=nonce)

    def _move(self, state: rules.RunState, row: Row, *, nonce: str | None = None) -> None:
        """Give the run another head, of which this is the row."""
        moved = rules.moved(
            state,
            head=row["checkpoint_id"],
            settled=bool(row["settled"]),
            nonce=nonce,
            status=row["status"],
            wake_at=row["wake_at"],
        )
        self._runs.put(moved)
        run_id = state.record.run_id
        self._count_pruned(self._journal.drop(run_id) + self._inbox.drop_expecting(run_id))

    def run(self, run_id: str) -> RunRecord | None:
        with self._database.errors():
            state = self._runs.find(run_id)
        return state.record if state and state.is_known else None

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        with self._database.errors():
            return self._runs.those(workflow_name=workflow_name, status=status)

    def post(self, run_id: str, command: Command) -> Command:
        with self._database.errors(), self._database.transaction():
            state = self._runs.find_for_change(run_id)
            waiting = self._inbox.find(run_id, command.id)
            if waiting is not None:
                return waiting
            rules.require_postable(state, run_id, command, self._toc_of_head(state) if command.expects else {})
            self._parts.put(command.parts)
            return self._inbox.put(run_id, command)

    def _toc_of_head(self, state: rules.RunState | None) -> Mapping[str, str]:
        head = state.record.head if state else None
        row = self._sql.execute("checkpoint", checkpoint_id=head).fetchone()
        return rows.manifest(row).toc if row else {}

    def inbox(self, run_id: str) -> Sequence[Command]:
        with self._database.errors():
            return self._inbox.of(run_id)

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]:
        with self._database.errors():
            return self._events.after(run_id, after, limit=limit)

    def mark(self, run_id: str) -> Mark:
        with self._database.errors():
            row = self._sql.execute("mark", run_id=run_id).fetchone()
        if row is None:
            return Mark()
        owner = rows.owner(row)
        return Mark(row["head"], row["events"], row["commands"], self._owners.living(owner), bool(row["is_halted"]))

    def changes(self) -> object:
        with self._database.errors():
            return self._database.version_of_data()

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        with self._database.errors():
            return self._runs.due(at=at, workflow_names=workflow_names, owners=self._replaceable(), limit=limit)

    def _replaceable(self) -> list[str]:
        """The owners whose runs others may take. What this process advances itself it knows."""
        owners = self._runs.owners()
        if not owners:
            return []
        return [owner.id for owner in owners if self._is_given_up(owner)]

    def _is_given_up(self, owner: Owner) -> bool:
        return owner.id != self._owners.enter().id and self._owners.is_replaceable(owner)

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        with self._database.errors():
            return self._runs.next_wake(after=after, workflow_names=workflow_names)

    def archive(self, run_id: str) -> Archive:
        # Held, so that all is of one moment.
        with self._database.errors(), self._database.transaction(durable=False):
            return self._archives.of(rules.require_own_history(self._runs.find_for_change(run_id), run_id))

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        with self._database.errors(), self._database.transaction():
            state = rules.closable(
                self._runs.find_for_change(run_id),
                run_id,
                instead_of=instead_of,
                takeover=takeover,
                is_given_up=self._is_given_up,
            )
            if state is not None:
                self._runs.put(rules.released(state, halt=halt))
        return state is not None

    def restore(self, archive: Archive) -> None:
        run_id = archive.record.run_id
        with self._database.errors(), self._database.transaction():
            self._runs.hold(run_id)
            state = self._runs.find_for_change(run_id)
            rules.require_restorable(state, archive, resting=self._runs.forks_that_rest(run_id))
            self._drop_run(run_id)
            self._archives.put(archive, token=self._runs.next_token(above=state.token if state else 0))

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        with self._database.errors(), self._database.transaction():
            state = self._runs.find_for_change(run_id)
            rests = next(iter(self._runs.forks_that_rest(run_id)), None)
            is_removable = rules.removable(
                state, takeover=takeover, is_replaceable=self._owners.is_replaceable, rests=rests
            )
            if is_removable:
                self._drop_run(run_id)
        return is_removable

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        with self._database.errors():
            return self._journal.of(run_id)

    def manifest(self, checkpoint_id: str) -> Manifest:
        with self._database.errors():
            row = self._sql.execute("checkpoint", checkpoint_id=checkpoint_id).fetchone()
            if row is None:
                raise CheckpointNotFoundError(checkpoint_id)
            return rows.manifest(row)

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        with self._database.errors():
            if run_id is not None:
                every = self._sql.execute("checkpoints_of_run", run_id=run_id).fetchall()
                found = rows.those_of_run(every, run_id, key="sequence", kind="checkpoints")
            elif workflow_name is not None:
                found = self._sql.execute("checkpoints_of_workflow", workflow_name=workflow_name).fetchall()
            else:
                found = self._sql.execute("checkpoints").fetchall()
            return [rows.manifest(row) for row in found if workflow_name in {None, row["workflow_name"]}]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        with self._database.errors():
            if workflow_name is None:
                found = self._sql.execute("ids").fetchall()
            else:
                found = self._sql.execute("ids_of_workflow", workflow_name=workflow_name).fetchall()
        return [row["checkpoint_id"] for row in found]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        with self._database.errors():
            row = self._sql.execute("latest_of_workflow", workflow_name=workflow_name).fetchone()
            return rows.manifest(row) if row else None

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        with self._database.errors():
            return self._parts.closure(roots)

    def delete(self, checkpoint_id: str) -> bool:
        with self._database.errors(), self._database.transaction():
            row = self._sql.execute("checkpoint", checkpoint_id=checkpoint_id).fetchone()
            if row is None:
                return False
            state = self._runs.find_for_change(row["run_id"])
            # Until we had the run, another may have been faster.
            if state is None or self._sql.execute("drop_checkpoint", checkpoint_id=checkpoint_id).rowcount == 0:
                return False
            self._sql.execute("drop_journals_of_forks", checkpoint_id=checkpoint_id)
            self._count_pruned(1)
            self._move_head_from(checkpoint_id, state)
        return True

    def _move_head_from(self, checkpoint_id: str, state: rules.RunState) -> None:
        newest = self._sql.execute("newest_of_run", run_id=state.record.run_id).fetchone()
        if newest is None:
            self._drop_run(state.record.run_id)
        elif state.record.head == checkpoint_id:
            self._move(state, newest)

    def collect(self) -> int:
        removed = 0
        with self._database.errors():
            while True:
                with self._database.transaction(durable=False, alone=True):
                    swept = self._parts.sweep()
                    self._sql.execute("reset_pruned")
                removed += swept
                if swept < SWEPT_AT_ONCE_MAX:
                    return removed

    def is_collection_due(self) -> bool:
        with self._database.errors():
            pruned = self._sql.number("pruned")
            if pruned < keep.PRUNED_BEFORE_COLLECTION_MIN:
                return False
            return keep.is_collection_due(pruned=pruned, remaining=self._sql.number("count_checkpoints"))

    def close(self) -> None:
        self._database.close()


def _write_error(pending: Pending, error: Exception) -> CheckpointWriteError:
    failure = CheckpointWriteError(run_id=pending.claim.run_id, reason=str(error))
    failure.__cause__ = error
    return failure


def _row_of(commit: Commit) -> dict[str, object]:
    return rows.of_checkpoint(commit.manifest, settled=commit.settled, status=commit.status, wake_at=commit.wake_at)
