"""A store in one SQLite file, for all processes of a machine."""

from __future__ import annotations

import functools
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.errors import CheckpointNotFoundError, CheckpointWriteError, WorkflowCheckpointException
from perdure.records import Claim, Mark, Retention
from perdure.stores import retention as keep
from perdure.stores import rows, rules
from perdure.stores.backend import BackedStore, PendingCommit, PendingRecords
from perdure.stores.database import Database, database_errors
from perdure.stores.owners import Owners
from perdure.stores.sqlite_events import EventTable
from perdure.stores.sqlite_inboxes import InboxTable
from perdure.stores.sqlite_journals import JournalTable
from perdure.stores.sqlite_parts import SWEPT_AT_ONCE_MAX, PartTable
from perdure.stores.watching import real_pause
from perdure.stores.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from perdure.clock import Clock
    from perdure.records import (
        Command,
        Commit,
        EventBatch,
        JournalRecord,
        Manifest,
        NewRun,
        RunRecord,
        RunStatus,
    )
    from perdure.stores.backend import Pending
    from perdure.stores.watching import Pause

_EXAMINED_RUNS_PER_COMMIT_MAX = 50


class SqliteStore(BackedStore["SqliteBackend"]):
    """Runs in a SQLite file. The file is opened when it is first needed."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        clock: Clock | None = None,
        pause: Pause = real_pause,
        database: Callable[[Path], Database] = Database,
    ) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise WorkflowCheckpointException("runs are kept in a file; give its path, or use the in-memory storage")
        self.path = Path(path).absolute()
        open_backend = functools.partial(
            SqliteBackend,
            self.path,
            retention=retention or Retention(),
            clock=clock or SystemClock(),
            database=database,
        )
        worker = Worker(f"perdure {self.path.name}", open_backend)
        super().__init__(f"sqlite:{self.path.resolve()}", worker, pause=pause)


class SqliteBackend:
    """What the store's thread does with the file."""

    def __init__(
        self, path: Path, *, retention: Retention, clock: Clock, database: Callable[[Path], Database] = Database
    ) -> None:
        self._path = path
        self._retention = retention
        self._clock = clock
        self._owners = Owners(path.with_name(f"{path.name}-owners"))
        self._database = database(path)
        # Versions of the data mean something to the connection that gave them, and to no other.
        self._connected = object()
        self._parts = PartTable(self._database)
        self._journal = JournalTable(self._database)
        self._inbox = InboxTable(self._database)
        self._events = EventTable(self._database)

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool) -> Claim:
        with database_errors(self._path), self._database.transaction(durable=False):
            state = rules.claimable(
                self._state(run_id),
                run_id,
                create=create,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
            )
            if state.is_new:
                self._drop_run(run_id)
            self._database.execute("count", name="token", by=1)
            token = self._database.number("counted", name="token")
            owner = self._owners.enter()
            self._put(rules.claimed(state, owner=owner, token=token))
        return Claim(run_id, token, owner)

    def release(self, claim: Claim) -> None:
        with database_errors(self._path), self._database.transaction(durable=False):
            state = self._state(claim.run_id)
            if state is None or not rules.is_held(state, claim):
                return
            if state.is_known:
                self._put(rules.released(state))
            else:
                self._drop_run(claim.run_id)

    def write(self, pending: Sequence[Pending]) -> None:
        try:
            with self._database.transaction(durable=any(each.is_durable for each in pending)):
                for each in pending:
                    self._try(each)
        except sqlite3.Error as error:
            for each in pending:
                failure = CheckpointWriteError(run_id=each.claim.run_id, reason=str(error))
                failure.__cause__ = error
                each.error = each.error or failure

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
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this write, not to the others
            pending.error = error

    def _record(self, claim: Claim, head: str | None, records: Sequence[JournalRecord]) -> None:
        state = rules.require_claim(self._state(claim.run_id), claim, expected_head=head)
        rules.require_head(state, head)
        for record in records:
            self._parts.put(record.parts)
            self._count_pruned(self._journal.put(claim.run_id, record, head=head))

    def _drop_run(self, run_id: str) -> None:
        of_journal = self._journal.drop(run_id)
        self._count_pruned(of_journal + self._inbox.with_parts(run_id) + self._events.with_parts(run_id))
        self._database.execute("drop_run", run_id=run_id)

    def _count_pruned(self, number: int) -> None:
        if number:
            self._database.execute("count", name="pruned", by=number)

    def _commit(self, claim: Claim, commit: Commit) -> None:
        state = rules.require_claim(self._state(claim.run_id), claim, expected_head=commit.expected_head)
        rules.require_head(state, commit.expected_head)
        rules.require_next(state, commit)
        checkpoint_id = commit.manifest.checkpoint_id
        if self._database.execute("is_checkpoint", checkpoint_id=checkpoint_id).fetchone():
            raise rules.exists_already(checkpoint_id)
        rules.require_done(self._inbox.among(claim.run_id, commit.taken), commit)
        self._parts.put(commit.parts)
        self._database.execute("put_checkpoint", **rows.of_commit(commit))
        self._put(rules.committed(state, commit))
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
            return self._database.execute("prune_but_newest", keep=newest, **common).rowcount
        if cutoff is not None:
            return self._database.execute("prune_older", cutoff=cutoff, **common).rowcount
        return 0

    def _remove_finished(self, *, besides: str) -> tuple[str, ...]:
        cutoff = keep.finished_cutoff(self._retention, self._clock.now())
        if cutoff is None:
            return ()
        finished = self._database.execute(
            "finished_runs", besides=besides, cutoff=cutoff, limit=_EXAMINED_RUNS_PER_COMMIT_MAX
        ).fetchall()
        records = [rows.run_state(row).record for row in finished]
        free = [record.run_id for record in records if record.owner is None or self._owners.is_dead(record.owner)]
        removed = tuple(free[: keep.REMOVED_RUNS_PER_COMMIT_MAX])
        for run_id in removed:
            self._count_pruned(self._database.number("count_checkpoints_of_run", run_id=run_id))
            self._drop_run(run_id)
        return removed

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        with database_errors(self._path), self._database.transaction():
            state = rules.require_claim(self._state(claim.run_id), claim, expected_head=expected_head)
            rules.require_head(state, expected_head)
            row = self._database.execute("checkpoint", checkpoint_id=to).fetchone()
            if row is None or row["run_id"] != claim.run_id:
                raise CheckpointNotFoundError(to)
            self._move(state, row, nonce=nonce)

    def _move(self, state: rules.RunState, row: sqlite3.Row, *, nonce: str | None = None) -> None:
        """Give the run another head, of which this is the row."""
        moved = rules.moved(
            state,
            head=row["checkpoint_id"],
            settled=bool(row["settled"]),
            nonce=nonce,
            status=row["status"],
            wake_at=row["wake_at"],
        )
        self._put(moved)
        run_id = state.record.run_id
        self._count_pruned(self._journal.drop(run_id) + self._inbox.drop_expecting(run_id))

    def run(self, run_id: str) -> RunRecord | None:
        with database_errors(self._path):
            state = self._state(run_id)
        return state.record if state and state.is_known else None

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        with database_errors(self._path):
            if workflow_name is not None:
                found = self._database.execute("runs_of_workflow", workflow_name=workflow_name).fetchall()
            elif status is not None:
                found = self._database.execute("runs_of_status", status=status).fetchall()
            else:
                found = self._database.execute("runs").fetchall()
            return [rows.run_state(row).record for row in found if status in {None, row["status"]}]

    def post(self, run_id: str, command: Command) -> Command:
        with database_errors(self._path), self._database.transaction():
            waiting = self._inbox.find(run_id, command.id)
            if waiting is not None:
                return waiting
            state = self._state(run_id)
            rules.require_postable(state, run_id, command, self._toc_of_head(state) if command.expects else {})
            self._parts.put(command.parts)
            return self._inbox.put(run_id, command)

    def _toc_of_head(self, state: rules.RunState | None) -> Mapping[str, str]:
        head = state.record.head if state else None
        row = self._database.execute("checkpoint", checkpoint_id=head).fetchone()
        return rows.manifest(row).toc if row else {}

    def inbox(self, run_id: str) -> Sequence[Command]:
        with database_errors(self._path):
            return self._inbox.of(run_id)

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]:
        with database_errors(self._path):
            return self._events.after(run_id, after, limit=limit)

    def mark(self, run_id: str) -> Mark:
        with database_errors(self._path):
            row = self._database.execute("mark", run_id=run_id).fetchone()
        if row is None:
            return Mark()
        owner = rows.owner(row)
        return Mark(row["head"], row["events"], row["commands"], self._owners.living(owner))

    def changes(self) -> object:
        with database_errors(self._path):
            return self._connected, self._database.version_of_data()

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        with database_errors(self._path):
            return self._journal.of(run_id)

    def manifest(self, checkpoint_id: str) -> Manifest:
        with database_errors(self._path):
            row = self._database.execute("checkpoint", checkpoint_id=checkpoint_id).fetchone()
            if row is None:
                raise CheckpointNotFoundError(checkpoint_id)
            return rows.manifest(row)

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        with database_errors(self._path):
            if run_id is not None:
                every = self._database.execute("checkpoints_of_run", run_id=run_id).fetchall()
                found = rows.those_of_run(every, run_id, key="sequence", kind="checkpoints")
            elif workflow_name is not None:
                found = self._database.execute("checkpoints_of_workflow", workflow_name=workflow_name).fetchall()
            else:
                found = self._database.execute("checkpoints").fetchall()
            return [rows.manifest(row) for row in found if workflow_name in {None, row["workflow_name"]}]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        with database_errors(self._path):
            if workflow_name is None:
                found = self._database.execute("ids").fetchall()
            else:
                found = self._database.execute("ids_of_workflow", workflow_name=workflow_name).fetchall()
        return [row["checkpoint_id"] for row in found]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        with database_errors(self._path):
            row = self._database.execute("latest_of_workflow", workflow_name=workflow_name).fetchone()
            return rows.manifest(row) if row else None

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        with database_errors(self._path):
            return self._parts.closure(roots)

    def delete(self, checkpoint_id: str) -> bool:
        with database_errors(self._path), self._database.transaction():
            row = self._database.execute("checkpoint", checkpoint_id=checkpoint_id).fetchone()
            if row is None:
                return False
            self._database.execute("drop_journals_of_forks", checkpoint_id=checkpoint_id)
            self._database.execute("drop_checkpoint", checkpoint_id=checkpoint_id)
            self._count_pruned(1)
            self._move_head_from(checkpoint_id, run_id=row["run_id"])
        return True

    def _move_head_from(self, checkpoint_id: str, *, run_id: str) -> None:
        newest = self._database.execute("newest_of_run", run_id=run_id).fetchone()
        if newest is None:
            self._drop_run(run_id)
            return
        state = self._state(run_id)
        assert state is not None, f"checkpoints of {run_id!r} without their run"
        if state.record.head == checkpoint_id:
            self._move(state, newest)

    def collect(self) -> int:
        removed = 0
        with database_errors(self._path):
            while True:
                with self._database.transaction(durable=False):
                    swept = self._parts.sweep()
                    self._database.execute("reset_pruned")
                removed += swept
                if swept < SWEPT_AT_ONCE_MAX:
                    return removed

    def is_collection_due(self) -> bool:
        with database_errors(self._path):
            pruned = self._database.number("counted", name="pruned")
            if pruned < keep.PRUNED_BEFORE_COLLECTION_MIN:
                return False
            return keep.is_collection_due(pruned=pruned, remaining=self._database.number("count_checkpoints"))

    def close(self) -> None:
        self._database.close()

    def _state(self, run_id: str) -> rules.RunState | None:
        row = self._database.execute("run", run_id=run_id).fetchone()
        return rows.run_state(row) if row else None

    def _put(self, state: rules.RunState) -> None:
        self._database.execute("put_run", **rows.of_run_state(state))
