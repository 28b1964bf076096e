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
from typing import TYPE_CHECKING, Self

from perdure.errors import CheckpointNotFoundError
from perdure.records import Lease, Mark
from perdure.storage import retention as keep
from perdure.storage import rules
from perdure.storage.sql import rows
from perdure.storage.sql.tables import Tables
from perdure.storage.sql.writes import GroupWrite, fail_all, write_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from perdure.clock import Clock
    from perdure.records import (
        Archive,
        Command,
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
    from perdure.storage.group_commit import Pending
    from perdure.storage.sql.database import OwnerWatch, Row, SqlDatabase

_TENANTS_MAX = 1000
_KNOWN_RUNS_MAX = 10_000

_FOUND_AT_ONCE_MAX = 20_000
"""Limits the memory of a collection."""

_REMOVED_AT_ONCE_MAX = 200
"""Limits the time that commits wait for a collection to a few milliseconds."""


class SqlBackend:
    """The blocking operations of a SQL store, on the data of one tenant."""

    def __init__(
        self, database: SqlDatabase, owners: OwnerWatch, *, retention: Retention, clock: Clock, tenant: str = ""
    ) -> None:
        self._database = database
        self._owners = owners
        self._retention = retention
        self._clock = clock
        self._tables = Tables(database, tenant)
        self._known: dict[str, rules.RunState] = {}
        """Runs as this process left them. They may have changed since."""
        self._proportion = keep.Proportion()
        self._tenants: dict[str, Self] = {}

    def for_tenant(self, tenant: str, *, creates: bool) -> Self:
        """Return the backend of a tenant, which binds its name to every statement."""
        del creates  # A tenant has nothing but its rows.
        if not tenant:
            return self
        found = self._tenants.get(tenant)
        if found is None:
            found = type(self)(
                self._database,
                self._owners,
                retention=keep.of_tenant(self._retention, tenant),
                clock=self._clock,
                tenant=tenant,
            )
            if len(self._tenants) == _TENANTS_MAX:
                self._tenants.clear()
            self._tenants[tenant] = found
        return found

    def errors(self) -> AbstractContextManager[None]:
        """Turn errors of the driver into perdure's."""
        return self._database.errors()

    def acquire(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Lease:
        with self._database.errors(), self._database.transaction("later"):
            if create is not None:
                self._tables.execute("hold_run", run_id=run_id)
            found = self._tables.lock_run(run_id)
            state = rules.require_leasable(
                found,
                run_id,
                create=create,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                token=token,
            )
            owner = self._owners.enter()
            acquired = rules.acquire(state, owner=owner, token=self._next_token(state, token))
            if not state.is_new:
                self._tables.update_lease(acquired)
            else:
                if found is not None:
                    # It died before its first commit.
                    self._tables.drop_run(run_id)
                self._tables.execute("put_run", **rows.run_columns(acquired))
        self._remember({run_id: acquired})
        return Lease(run_id, acquired.token, owner, acquired.record.attempts, state.record.halt, acquired.record)

    def _next_token(self, state: rules.RunState, given: int | None) -> int:
        if given is None:
            return self._tables.number("next_token", above=state.token)
        self._tables.execute("note_token", token=given)
        return given

    def _remember(self, states: Mapping[str, rules.RunState]) -> None:
        if len(self._known) > _KNOWN_RUNS_MAX:
            self._known.clear()
        self._known.update(states)

    def release(self, lease: Lease, *, halt: Halt | None) -> None:
        self._known.pop(lease.run_id, None)
        # A run that has moved to another store must not come back to life here, even after a power cut.
        is_exported = halt is not None and halt.kind == "exported"
        sync = "later" if halt is None else "always" if is_exported else "as chosen"
        with self._database.errors(), self._database.transaction(sync):
            state = self._tables.lock_run(lease.run_id)
            if state is None or not rules.is_held(state, lease):
                return
            if state.is_known:
                self._tables.update_lease(rules.release(state, halt=halt))
            else:
                self._tables.drop_run(lease.run_id)

    def write(self, pending: Sequence[Pending]) -> None:
        sync = "as chosen" if any(each.is_durable for each in pending) else "later"
        is_begun = False
        try:
            with self._database.transaction(sync):
                is_begun = True
                states = self._write_group(pending)
        except Exception as error:  # noqa: BLE001 - every entry gets it
            if not is_begun:
                fail_all(pending, error)
                return
        else:
            self._remember(states)
            return
        # One entry made the group fail. Write them so that it does not disturb the others.
        for each in pending:
            self._known.pop(each.lease.run_id, None)
        try:
            with self._database.transaction(sync):
                for each in pending:
                    self._write_alone(each)
        except self._database.failure as error:
            fail_all(pending, error)

    def _write_group(self, pending: Sequence[Pending]) -> Mapping[str, rules.RunState]:
        """Write entries inside a transaction. Return the runs as they are then."""
        group = GroupWrite(self._tables, self._known, self._owners, retention=self._retention, clock=self._clock)
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
        with self._database.errors(), self._database.transaction():
            state = rules.require_lease(self._tables.lock_run(lease.run_id), lease, expected_head=expected_head)
            rules.require_head(state, expected_head)
            row = self._tables.find_checkpoint(to)
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
        self._tables.execute("put_run", **rows.run_columns(moved))
        removed = self._tables.drop_journal(run_id) + self._tables.drop_expecting_commands(run_id)
        self._tables.count_pruned(removed)

    def run(self, run_id: str) -> RunRecord | None:
        with self._database.errors():
            state = self._tables.find_run(run_id)
        return state.record if state and state.is_known else None

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        with self._database.errors():
            return self._tables.list_runs(workflow_name=workflow_name, status=status)

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        with self._database.errors():
            return self._tables.journal(run_id)

    def inbox(self, run_id: str) -> Sequence[Command]:
        with self._database.errors():
            return self._tables.inbox(run_id)

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]:
        with self._database.errors():
            return self._tables.events(run_id, after=after, limit=limit)

    def mark(self, run_id: str) -> Mark:
        with self._database.errors():
            row = self._tables.execute("mark", run_id=run_id).fetchone()
        if row is None:
            return Mark()
        owner = None if row["owner_id"] is None else rows.read_owner(row)
        return Mark(row["head"], row["events"], row["commands"], self._owners.living(owner), bool(row["is_halted"]))

    def manifest(self, checkpoint_id: str) -> Manifest:
        with self._database.errors():
            row = self._tables.find_checkpoint(checkpoint_id)
            if row is None:
                raise CheckpointNotFoundError(checkpoint_id)
            return rows.read_manifest(row)

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        with self._database.errors():
            if run_id is not None:
                found = self._tables.checkpoints_of_run(run_id)
            elif workflow_name is not None:
                found = self._tables.execute("checkpoints_of_workflow", workflow_name=workflow_name).fetchall()
            else:
                found = self._tables.execute("checkpoints").fetchall()
            return [rows.read_manifest(row) for row in found if workflow_name in {None, row["workflow_name"]}]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        statement = "ids" if workflow_name is None else "ids_of_workflow"
        with self._database.errors():
            found = self._tables.execute(statement, workflow_name=workflow_name).fetchall()
        return [row["checkpoint_id"] for row in found]

    def latest(self, *, workflow_name: str) -> Manifest | None:
        with self._database.errors():
            row = self._tables.execute("latest_of_workflow", workflow_name=workflow_name).fetchone()
            return rows.read_manifest(row) if row else None

    def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        with self._database.errors():
            return {row["hash"]: _as_bytes(row["data"]) for row in self._tables.blobs(roots)}

    def post(self, run_id: str, command: Command) -> Command:
        with self._database.errors(), self._database.transaction():
            state = self._tables.lock_run(run_id)
            waiting = self._tables.find_command(run_id, command.id)
            if waiting is not None:
                return waiting
            head = self._tables.find_checkpoint(state.record.head) if state and command.expects else None
            rules.require_postable(state, run_id, command, rows.read_manifest(head).toc if head else {})
            self._tables.put_blobs(command.blobs)
            return self._tables.put_command(run_id, command)

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        with self._database.errors():
            replaceable = [owner.id for owner in self._tables.owners() if self._is_given_up(owner)]
            return self._tables.due(at=at, workflow_names=workflow_names, owners=replaceable, limit=limit)

    def _is_given_up(self, owner: Owner) -> bool:
        """Return whether others may take the runs of an owner. What this process owns, it advances itself."""
        return owner.id != self._owners.enter().id and self._owners.is_replaceable(owner)

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        with self._database.errors():
            return self._tables.next_wake(after=after, workflow_names=workflow_names)

    def changes(self) -> object:
        with self._database.errors():
            return self._database.version_of_data()

    def archive(self, run_id: str) -> Archive:
        # The lock makes all of it one moment.
        with self._database.errors(), self._database.transaction("later"):
            return self._tables.archive(rules.require_own_history(self._tables.lock_run(run_id), run_id))

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        with self._database.errors(), self._database.transaction("always"):
            state = rules.find_closable(
                self._tables.lock_run(run_id),
                run_id,
                instead_of=instead_of,
                takeover=takeover,
                is_given_up=self._is_given_up,
            )
            if state is not None:
                self._known.pop(run_id, None)
                self._tables.update_lease(rules.release(state, halt=halt))
        return state is not None

    def restore(self, archive: Archive) -> None:
        run_id = archive.record.run_id
        with self._database.errors(), self._database.transaction("always"):
            self._tables.execute("hold_run", run_id=run_id)
            state = self._tables.lock_run(run_id)
            rules.require_restorable(state, archive, forks=self._tables.dependent_forks(run_id))
            self._tables.drop_run(run_id)
            token = self._tables.number("next_token", above=state.token if state else 0)
            self._tables.put_archive(archive, token=token)

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        with self._database.errors(), self._database.transaction():
            state = self._tables.lock_run(run_id)
            is_removable = rules.is_removable(
                state,
                takeover=takeover,
                is_replaceable=self._owners.is_replaceable,
                fork=next(iter(self._tables.dependent_forks(run_id)), None),
            )
            if is_removable:
                self._tables.drop_run(run_id)
        return is_removable

    def delete(self, checkpoint_id: str) -> bool:
        with self._database.errors(), self._database.transaction():
            row = self._tables.find_checkpoint(checkpoint_id)
            state = self._tables.lock_run(row["run_id"]) if row else None
            if row is None or state is None:
                return False
            found = {name: row[name] for name in ("run_id", "position", "checkpoint_id")}
            if not self._tables.execute("drop_checkpoint", **found).rowcount:
                return False  # somebody was faster while we waited for the lock
            self._tables.execute("drop_journals_of_forks", checkpoint_id=checkpoint_id)
            self._tables.execute("count_no_records_of_forks", checkpoint_id=checkpoint_id)
            self._tables.count_pruned(1)
            newest = self._tables.execute("newest_of_run", run_id=row["run_id"]).fetchone()
            if newest is None:
                self._tables.drop_run(row["run_id"])
            elif state.record.head == checkpoint_id:
                self._move_head(state, newest)
        return True

    def collect(self) -> int:
        with self._database.errors():
            with self._database.transaction("later", alone=True):
                self._tables.execute("reset_pruned")
                epoch = self._tables.number("begin_collection")
            removed = 0
            while True:
                found = self._tables.execute("unreachable", epoch=epoch, limit=_FOUND_AT_ONCE_MAX).fetchall()
                hashes = [row["hash"] for row in found]
                for first in range(0, len(hashes), _REMOVED_AT_ONCE_MAX):
                    some = json.dumps(hashes[first : first + _REMOVED_AT_ONCE_MAX])
                    with self._database.transaction("later"):
                        removed += self._tables.execute("drop_parts", hashes=some, epoch=epoch).rowcount
                if len(hashes) < _FOUND_AT_ONCE_MAX:
                    return removed

    def is_collection_due(self) -> bool:
        if not self._tables.has_pruned:
            return False
        with self._database.errors():
            pruned = self._tables.number("pruned")
            return self._proportion.is_reached(pruned=pruned, count=lambda: self._tables.number("count_checkpoints"))

    def close(self) -> None:
        self._database.close()


def _as_bytes(data: object) -> bytes:
    """Return the content of a blob. A damaged cell may hold anything; as bytes it fails the comparison of hashes."""
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
