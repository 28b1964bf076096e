"""A store in a SQL database, whichever it is: what its thread does, in the names of statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from perdure.errors import CheckpointNotFoundError
from perdure.records import Claim, Mark
from perdure.storage import retention as keep
from perdure.storage import rules
from perdure.storage.sql import collection, rows
from perdure.storage.sql.archives import Archives
from perdure.storage.sql.database import OfTenant
from perdure.storage.sql.tables import Tables
from perdure.storage.sql.writes import Group, KnownRuns, fail_all, sync_of, write_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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
    from perdure.storage.backend import Pending
    from perdure.storage.sql.database import OwnerWatch, Row, SqlDatabase, Sync

_TENANTS_MAX = 1000


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
        self._tables = Tables(self._sql)
        self._runs = self._tables.runs
        self._inbox = self._tables.inbox
        self._archives = Archives(self._tables)
        self._known = KnownRuns()
        self._proportion = keep.Proportion()
        self._tenants: dict[str, Self] = {}

    def of(self, tenant: str, *, founds: bool) -> Self:
        """The same for what belongs to a tenant."""
        del founds  # A tenant is nothing but its rows.
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

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Claim:
        with self._database.errors(), self._database.transaction("later"):
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
                self._tables.drop_run(run_id)
            owner = self._owners.enter()
            claimed = rules.claimed(state, owner=owner, token=self._next_token(state, token))
            (self._runs.put if state.is_new else self._runs.hand_over)(claimed)
        self._known.note({run_id: claimed})
        return Claim(run_id, claimed.token, owner, claimed.record.attempts, state.record.halt, claimed.record)

    def _next_token(self, state: rules.RunState, given: int | None) -> int:
        if given is None:
            return self._runs.next_token(above=state.token)
        self._runs.note_token(given)
        return given

    def release(self, claim: Claim, *, halt: Halt | None) -> None:
        self._known.forget(claim.run_id)
        with self._database.errors(), self._database.transaction(_sync_with(halt)):
            state = self._runs.find_for_change(claim.run_id)
            if state is None or not rules.is_held(state, claim):
                return
            if state.is_known:
                self._runs.hand_over(rules.released(state, halt=halt))
            else:
                self._tables.drop_run(claim.run_id)

    def write(self, pending: Sequence[Pending]) -> None:
        is_begun = False
        try:
            with self._database.transaction(sync_of(pending)):
                is_begun = True
                states = self._write_together(pending)
        except Exception as error:  # noqa: BLE001 - each of those who wait hears of it
            if not is_begun:
                fail_all(pending, error)
            else:
                # Whose it is shows when they are tried one by one.
                self._write_one_by_one(pending)
        else:
            self._known.note(states)

    def _write_together(self, pending: Sequence[Pending]) -> dict[str, rules.RunState]:
        """Write all of them, inside of a transaction; the runs as they are then."""
        group = Group(self._tables, self._known, self._owners, retention=self._retention, clock=self._clock)
        group.write(pending)
        return group.states

    def _write_one_by_one(self, pending: Sequence[Pending]) -> None:
        """Write them so that one which can't be written does not disturb the others."""
        for each in pending:
            self._known.forget(each.claim.run_id)
        try:
            with self._database.transaction(sync_of(pending)):
                for each in pending:
                    self._try(each)
        except self._database.failure as error:
            fail_all(pending, error)

    def _try(self, pending: Pending) -> None:
        try:
            with self._database.savepoint():
                self._write_together([pending])
        except self._database.refusals as error:
            pending.error = write_error(pending, error)
        except self._database.failure:
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this write, not to the others
            pending.error = error

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        with self._database.errors(), self._database.transaction():
            state = rules.require_claim(self._runs.find_for_change(claim.run_id), claim, expected_head=expected_head)
            rules.require_head(state, expected_head)
            row = self._tables.checkpoints.find(to)
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
        self._known.forget(run_id)
        self._tables.count_pruned(self._tables.journal.drop(run_id) + self._inbox.drop_expecting(run_id))

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
            self._tables.parts.put(command.parts)
            return self._inbox.put(run_id, command)

    def _toc_of_head(self, state: rules.RunState | None) -> Mapping[str, str]:
        head = state.record.head if state else None
        row = self._tables.checkpoints.find(head)
        return rows.manifest(row).toc if row else {}

    def inbox(self, run_id: str) -> Sequence[Command]:
        with self._database.errors():
            return self._inbox.of(run_id)

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]:
        with self._database.errors():
            return self._tables.events.after(run_id, after, limit=limit)

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
        with self._database.errors(), self._database.transaction("later"):
            return self._archives.of(rules.require_own_history(self._runs.find_for_change(run_id), run_id))

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        with self._database.errors(), self._database.transaction("always"):
            state = rules.closable(
                self._runs.find_for_change(run_id),
                run_id,
                instead_of=instead_of,
                takeover=takeover,
                is_given_up=self._is_given_up,
            )
            if state is not None:
                self._known.forget(run_id)
                self._runs.hand_over(rules.released(state, halt=halt))
        return state is not None

    def restore(self, archive: Archive) -> None:
        run_id = archive.record.run_id
        with self._database.errors(), self._database.transaction("always"):
            self._runs.hold(run_id)
            state = self._runs.find_for_change(run_id)
            rules.require_restorable(state, archive, resting=self._runs.forks_that_rest(run_id))
            self._tables.drop_run(run_id)
            self._archives.put(archive, token=self._runs.next_token(above=state.token if state else 0))

    def remove(self, run_id: str, *, takeover: bool) -> bool:
        with self._database.errors(), self._database.transaction():
            state = self._runs.find_for_change(run_id)
            rests = next(iter(self._runs.forks_that_rest(run_id)), None)
            is_removable = rules.removable(
                state, takeover=takeover, is_replaceable=self._owners.is_replaceable, rests=rests
            )
            if is_removable:
                self._tables.drop_run(run_id)
        return is_removable

    def journal(self, run_id: str) -> Sequence[JournalRecord]:
        with self._database.errors():
            return self._tables.journal.of(run_id)

    def manifest(self, checkpoint_id: str) -> Manifest:
        with self._database.errors():
            return self._tables.checkpoints.manifest(checkpoint_id)

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]:
        with self._database.errors():
            if run_id is not None:
                found = self._tables.checkpoints.of_run(run_id)
            elif workflow_name is not None:
                found = self._tables.checkpoints.of_workflow(workflow_name)
            else:
                found = self._tables.checkpoints.every()
            return [rows.manifest(row) for row in found if workflow_name in {None, row["workflow_name"]}]

    def ids(self, *, workflow_name: str | None) -> Sequence[str]:
        with self._database.errors():
            return self._tables.checkpoints.ids(workflow_name=workflow_name)

    def latest(self, *, workflow_name: str) -> Manifest | None:
        with self._database.errors():
            return self._tables.checkpoints.latest(workflow_name=workflow_name)

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        with self._database.errors():
            return self._tables.parts.closure(roots)

    def delete(self, checkpoint_id: str) -> bool:
        with self._database.errors(), self._database.transaction():
            row = self._tables.checkpoints.find(checkpoint_id)
            if row is None:
                return False
            state = self._runs.find_for_change(row["run_id"])
            # Until we had the run, another may have been faster.
            if state is None or not self._tables.checkpoints.drop(row):
                return False
            self._tables.journal.drop_of_forks(checkpoint_id)
            self._tables.count_pruned(1)
            self._move_head_from(checkpoint_id, state)
        return True

    def _move_head_from(self, checkpoint_id: str, state: rules.RunState) -> None:
        newest = self._tables.checkpoints.newest_of_run(state.record.run_id)
        if newest is None:
            self._tables.drop_run(state.record.run_id)
        elif state.record.head == checkpoint_id:
            self._move(state, newest)

    def collect(self) -> int:
        with self._database.errors():
            return collection.collect(self._database, self._tables)

    def is_collection_due(self) -> bool:
        if not self._tables.has_pruned:
            return False
        with self._database.errors():
            return self._proportion.is_reached(pruned=self._tables.pruned(), count=self._tables.checkpoints.count)

    def close(self) -> None:
        self._database.close()


def _sync_with(halt: Halt | None) -> Sync:
    """What has moved to another store must not come alive here, not after a power cut either."""
    if halt is None:
        return "later"
    return "always" if halt.kind == "exported" else "as chosen"
