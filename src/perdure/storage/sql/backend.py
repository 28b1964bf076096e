"""The backend of every SQL store: what its threads do, in named statements.

Whoever changes a run locks its row before reading it.

Collection removes blobs that nothing refers to, while commits go on. It has three stages. A short transaction that
overlaps with no other starts a new epoch: every blob that is put from then on is marked with it, even if it was there
before. Then one statement, which sees a single moment, finds the blobs that nothing refers to. Then they are removed,
a few per transaction, unless they are marked with the new epoch.

No blob that is needed is removed. A reference to it was written before the moment of the search, and was seen, or after
it. In the second case the writer has put the blob again, in the new epoch, or relied on the head that it followed. A
head is never removed before its successor is written, so that head, or an earlier one that put the blob, was seen or is
of the new epoch. A killed collection leaves blobs for the next one, and does no other harm.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from perdure.errors import BlobDamagedError, CheckpointDamagedError, CheckpointNotFoundError
from perdure.records import Archive, ArchivedCheckpoint, Blob, Command, Due, Halt, Lease, Mark, NewRun, Retention
from perdure.storage import retention as retention_rules, rules
from perdure.storage.sql import rows
from perdure.storage.sql.hosts import HostTables
from perdure.storage.sql.writes import GroupWrite, write_error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from perdure.clock import Clock
    from perdure.storage.group_commit import Pending
    from perdure.storage.sql.database import OwnerWatch, Row, SqlDatabase

_TENANTS_MAX = 1000

_FOUND_AT_ONCE_MAX = 20_000
"""Limits the memory of a collection."""

_REMOVED_AT_ONCE_MAX = 200
"""Limits the time that commits wait for a collection to a few milliseconds."""


class SqlBackend(HostTables):
    """The blocking operations of a SQL store, on the data of one tenant."""

    def __init__(
        self, database: SqlDatabase, owners: OwnerWatch, *, retention: Retention, clock: Clock, tenant: str = ""
    ) -> None:
        super().__init__(database, owners, clock, tenant)
        self.errors = database.errors
        self.backup = database.backup
        self.damage = database.damage
        self._retention = retention
        self._pruning = retention if retention_rules.forgets(retention) else None
        self._known: dict[str, rules.RunState] = {}
        """Leased runs as this process left them. They may have changed since."""
        self._proportion = retention_rules.Proportion()
        self._tenants: dict[str, Self] = {}

    def for_tenant(self, tenant: str, *, creates: bool) -> Self:
        """Return the backend of a tenant, which binds its name to every statement."""
        del creates  # A tenant has nothing but its rows.
        if tenant not in self._tenants:
            if len(self._tenants) == _TENANTS_MAX:
                self._tenants.clear()
            retention = retention_rules.of_tenant(self._retention, tenant)
            self._tenants[tenant] = type(self)(
                self._database, self._owners, retention=retention, clock=self._clock, tenant=tenant
            )
        return self._tenants[tenant]

    def acquire(
        self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None, tried: list[Lease] | None = None
    ) -> Lease:
        """Take the lease of a run. `tried` gets the lease before it is committed, should the outcome be unknown."""
        with self._database.transaction("later"):
            if create is not None:
                self.execute("hold_run", run_id=run_id)
            found = self.lock_run(run_id)
            state = rules.require_leasable(
                found, run_id, create=create, takeover=takeover, is_replaceable=self._owners.is_replaceable, token=token
            )
            if token is None:
                token = self.number("next_token", above=state.token)
            else:
                self.execute("note_token", token=token)
            owner = self._owners.enter((self._tenant, run_id, token))
            acquired = rules.acquire(state, owner=owner, token=token)
            record, previous = acquired.record, rules.replaced_owner(state)
            lease = Lease(run_id, token, owner, record.attempts, state.record.halt, record, previous)
            if tried is not None:
                tried.append(lease)
            if state is found:
                self.execute("hand_run_over", run_id=run_id, **rows.lease_columns(acquired))
            else:
                if found is not None:
                    # It died before its first commit.
                    self.drop_run(run_id)
                self.execute("put_run", **rows.run_columns(acquired))
                self.put_tags(acquired.record)
        self._known[run_id] = acquired
        return lease

    def release(self, lease: Lease, *, halt: Halt | None) -> None:
        self._known.pop(lease.run_id, None)
        # A run that has moved to another store must not come back to life here, even after a power cut.
        is_exported = halt is not None and halt.kind == "exported"
        sync = "later" if halt is None else "always" if is_exported else "as chosen"
        text = rows.halt_text(lease.run_id, halt) if halt else None
        with self._database.transaction(sync):
            if halt is not None and halt.events is not None:
                self._put_halt_events(lease, halt)
            released = self.execute("release_run", run_id=lease.run_id, token=lease.token, halt=text).fetchall()
            if released and released[0]["head"] is None:
                self.drop_run(lease.run_id)
        self._owners.leave((self._tenant, lease.run_id, lease.token))

    def _put_halt_events(self, lease: Lease, halt: Halt) -> None:
        state = self.lock_run(lease.run_id)
        if state is None or not state.is_known or not rules.is_held(state, lease):
            return
        batch = rules.number_events(state, halt)
        if batch is not None and halt.events is not None:
            self.put_blobs(halt.events.blobs)
            self.put("put_batch", [rows.event_columns(batch, batch.moment)])
            counted = replace(state, record=replace(state.record, events=batch.last))
            self.execute("put_run", **rows.run_columns(counted))

    def write(self, pending: Sequence[Pending]) -> None:
        """Write each entry whole or not at all, in order. Note the error of an entry that was not written."""
        sync = "as chosen" if any(each.is_durable for each in pending) else "later"
        is_begun = False
        try:
            with self._database.transaction(sync):
                is_begun = True
                states = self._write_group(pending)
        except Exception as error:  # noqa: BLE001 - every entry gets it
            if not is_begun:
                self._fail(pending, error)
                return
        else:
            self._known.update(states)
            return
        # One entry made the group fail. Write them so that it does not disturb the others.
        for each in pending:
            self._known.pop(each.lease.run_id, None)
        try:
            with self._database.transaction(sync):
                for each in pending:
                    self._write_alone(each)
        except self._database.failure as error:
            self._fail(pending, error)

    def _fail(self, pending: Sequence[Pending], error: Exception) -> None:
        for each in pending:
            each.error = each.error or write_error(each, error)

    def _write_group(self, pending: Sequence[Pending]) -> Mapping[str, rules.RunState]:
        """Write entries inside a transaction. Return the runs as they are then."""
        group = GroupWrite(self, self._known, self._owners, self._pruning, self._clock)
        group.write(pending)
        return group.states

    def _write_alone(self, pending: Pending) -> None:
        """Write one entry in a savepoint. Note an error that concerns it alone."""
        try:
            with self._database.savepoint():
                self._write_group([pending])
        except self._database.refusals as error:
            pending.error = write_error(pending, error)
        except self._database.failure:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to this entry, not to the others
            pending.error = error

    def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None:
        with self._database.transaction():
            state = rules.require_lease(self.lock_run(lease.run_id), lease, expected_head=expected_head)
            rules.require_head(state, expected_head)
            row = self.find_checkpoint(to)
            if row is None or row["run_id"] != lease.run_id:
                raise CheckpointNotFoundError(to)
            self._move_head(state, row, nonce=nonce)

    def _move_head(self, state: rules.RunState, row: Row, *, nonce: str | None = None) -> None:
        """Make the checkpoint of a row the head. The journal, and commands that expect something, go."""
        moved = rules.move_head(
            state,
            head=row["checkpoint_id"],
            settled=bool(row["settled"]),
            nonce=nonce,
            status=row["status"],
            wake_at=row["wake_at"],
        )
        run_id = state.record.run_id
        self._known.pop(run_id, None)
        self.execute("put_run", **rows.run_columns(moved))
        self.count_pruned(self.drop_journal(run_id) + self.delete_rows("drop_expecting_commands", run_id=run_id))

    def mark(self, run_id: str) -> Mark:
        """Return the run's mark. `commands` is the newest command that waits, or 0. It is asked for often."""
        row = self.execute("mark", run_id=run_id).fetchone()
        if row is None:
            return Mark()
        owner = None if row["owner_id"] is None else rows.read_owner(row)
        living = None if owner is None or self._owners.is_dead(owner) else owner.id
        may_go_on = row["status"] == "running" or row["commands"] or row["wake_at"]
        is_blocked = bool(may_go_on and living is None and not row["is_halted"] and self.blocked([run_id]))
        return Mark(row["head"], row["events"], row["commands"], living, bool(row["is_halted"]), is_blocked)

    def post(self, run_id: str, command: Command) -> Command:
        with self._database.transaction():
            state = self.lock_run(run_id)
            waiting = self.execute("command", run_id=run_id, id=rows.quote(command.id)).fetchone()
            if waiting is not None:
                return rows.read_command(waiting)
            head = self.find_checkpoint(state.record.head) if state and command.expects else None
            rules.require_postable(state, run_id, command, rows.read_manifest(head).toc if head else {})
            self.put_blobs(command.blobs)
            return self.put_command(run_id, command)

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        found = self.readable_runs(
            "due",
            limit=max(0, limit),
            at=at,
            workflow_names=json.dumps(list(workflow_names)),
            owners=self.gone_owners(),
        )
        return [Due(record, row["newest_command"]) for record, row in found]

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        names = json.dumps(list(workflow_names))
        found = self.readable_runs("next_wake", limit=1, after=after, workflow_names=names)
        return found[0][0].wake_at if found else None

    def changes(self) -> object:
        """Return a value that differs once any process has changed anything here. It is asked for often."""
        return self._database.version_of_data()

    def archive(self, run_id: str) -> Archive:
        # The lock makes all of it one moment.
        with self._database.transaction("later"):
            record = rules.archive_record(rules.require_own_history(self.lock_run(run_id), run_id))
            archive = Archive(
                record=record,
                checkpoints=tuple(
                    ArchivedCheckpoint(
                        rows.read_manifest(row),
                        settled=bool(row["settled"]),
                        status=row["status"],
                        wake_at=row["wake_at"],
                    )
                    for row in self.checkpoints_of_run(run_id)
                ),
                blobs=(),
                journal=tuple(self.journal(run_id)),
                inbox=tuple(self.inbox(run_id)),
                events=tuple(self.events(run_id)),
            )
            try:
                found = self.blob_rows(rules.archive_roots(archive))
            except BlobDamagedError as error:
                raise CheckpointDamagedError(str(record.head), error.reason) from error
        blobs = [
            Blob(row["hash"], row["data"], refs=tuple(json.loads(row["refs"])), kind=row["kind"])
            for row in found
            if isinstance(row["data"], bytes)  # a damaged cell may hold anything; then the blob is missing
        ]
        return rules.complete_archive(archive, blobs)

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        with self._database.transaction("always"):
            state = rules.find_closable(
                self.lock_run(run_id), run_id, instead_of=instead_of, takeover=takeover, is_gone=self.is_gone
            )
            if state is not None:
                self._known.pop(run_id, None)
                released = rules.release(state, halt=halt)
                self.execute("hand_run_over", run_id=run_id, **rows.lease_columns(released))
        return state is not None

    def restore(self, archive: Archive) -> None:
        record, run_id = archive.record, archive.record.run_id
        with self._database.transaction("always"):
            self.execute("hold_run", run_id=run_id)
            state = self.lock_run(run_id)
            rules.require_restorable(state, archive, forks=self.dependent_forks(run_id))
            self.drop_run(run_id)
            for each in archive.checkpoints:
                if self.find_checkpoint(each.manifest.checkpoint_id) is not None:
                    raise rules.duplicate_checkpoint_error(each.manifest.checkpoint_id)
            token = self.number("next_token", above=state.token if state else 0)
            self.execute("put_run", **rows.run_columns(rules.restored_state(archive, token=token)))
            self.put_tags(record)
            self.put_blobs(archive.blobs)
            checkpoints = [
                rows.checkpoint_columns(each, rules.moment(each.manifest.timestamp)) for each in archive.checkpoints
            ]
            self.put("put_checkpoint", checkpoints)
            self.execute("count_checkpoints_in", run_id=run_id, by=len(checkpoints))
            self.put_records(run_id, archive.journal, head=record.head, is_empty=True)
            for command in archive.inbox:
                self.put_command(run_id, command)
            self.put("put_batch", [*map(rows.event_columns, archive.events, rules.event_times(archive))])
            self.execute("forget_events", run_id=run_id, last=rules.last_removed_event(archive))

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        with self._database.transaction():
            is_removable = rules.is_removable(
                self.lock_run(run_id),
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                fork=next(iter(self.dependent_forks(run_id)), None),
            )
            if is_removable:
                self.drop_run(run_id)
        return is_removable

    def delete(self, checkpoint_id: str) -> bool:
        with self._database.transaction():
            row = self.find_checkpoint(checkpoint_id)
            state = self.lock_run(row["run_id"]) if row else None
            if row is None or state is None:
                return False
            run_id = state.record.run_id
            names = {"run_id": run_id, "position": row["position"], "checkpoint_id": checkpoint_id}
            if not self.execute("drop_checkpoint", **names).fetchall():
                return False  # somebody was faster while we waited for the lock
            self.execute("drop_journals_of_forks", checkpoint_id=checkpoint_id)
            self.execute("count_no_records_of_forks", checkpoint_id=checkpoint_id)
            self.count_pruned(1)
            newest = self.execute("newest_of_run", run_id=run_id).fetchone()
            if newest is None:
                self.drop_run(run_id)
            elif state.record.head == checkpoint_id:
                self._move_head(state, newest)
        return True

    def collect(self) -> int:
        cutoff = retention_rules.finished_cutoff(self._retention, self._clock.now())
        is_done = cutoff is None
        while cutoff is not None and not is_done:
            with self._database.transaction("later"):
                is_done = not self.drop_finished(cutoff, self._owners)
        with self._database.transaction("later", alone=True):
            self.execute("reset_pruned")
            epoch = self.number("begin_collection")
        removed = 0
        while True:
            found = self.execute("unreachable", epoch=epoch, limit=_FOUND_AT_ONCE_MAX).fetchall()
            hashes = [row["hash"] for row in found]
            for first in range(0, len(hashes), _REMOVED_AT_ONCE_MAX):
                some = json.dumps(hashes[first : first + _REMOVED_AT_ONCE_MAX])
                with self._database.transaction("later"):
                    removed += len(self.execute("drop_parts", hashes=some, epoch=epoch).fetchall())
            if len(hashes) < _FOUND_AT_ONCE_MAX:
                return removed

    def is_collection_due(self) -> bool:
        return self._has_pruned and self._proportion.is_reached(
            pruned=self.number("pruned"), count=lambda: self.number("count_checkpoints")
        )

    def migrate(self) -> Sequence[str]:
        """Return the migrations that opening the database has made, once."""
        with self._database.transaction("later"):
            applied, self._database.applied = self._database.applied, ()
        return applied

    def close(self) -> None:
        self._database.close()
        self._owners.close()
