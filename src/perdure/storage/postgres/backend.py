"""The backend of a PostgreSQL store: a SQL backend that repeats operations whose outcome is unknown.

If a connection is lost while a transaction commits, nobody knows whether it did. Every change leaves something behind
by which a repetition recognizes it as its own.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from typing_extensions import override

from perdure.errors import WorkflowCheckpointException
from perdure.storage.group_commit import Pending, PendingCommit
from perdure.storage.postgres.database import ConflictError, ConnectionLostError, PostgresDatabase
from perdure.storage.sql.backend import SqlBackend
from perdure.storage.sql.writes import write_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.clock import Clock
    from perdure.records import Archive, Command, Halt, Lease, NewRun, Retention
    from perdure.storage.postgres.owners import PostgresOwners
    from perdure.storage.rules import RunState


class PostgresBackend(SqlBackend):
    """The blocking operations of a PostgreSQL store. Several threads may use it at once."""

    def __init__(
        self,
        database: PostgresDatabase,
        owners: PostgresOwners,
        *,
        retention: Retention,
        clock: Clock,
        tenant: str = "",
    ) -> None:
        super().__init__(database, owners, retention=retention, clock=clock, tenant=tenant)
        self._postgres = database
        self._retry = database.retry
        self._session = owners

    @override
    def acquire(
        self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None, tried: list[Lease] | None = None
    ) -> Lease:
        leases: list[Lease] = [] if tried is None else tried

        def acquire() -> Lease:
            # Others have to see that we are alive before they see that we own something.
            self._session.enter()
            return super(PostgresBackend, self).acquire(
                run_id, create=create, takeover=takeover, token=token, tried=leases
            )

        def acquire_again() -> Lease:
            state = self._read_when_settled(run_id)
            # No two leases have the same token.
            mine = [
                lease for lease in leases if state and (state.token, state.record.owner) == (lease.token, lease.owner)
            ]
            return mine[0] if mine else acquire()

        return self._retry(acquire, again=acquire_again)

    def _read_when_settled(self, run_id: str) -> RunState | None:
        """Return a run once no transaction changes it any more, not even one of our own lost session."""
        with self._database.transaction():
            self.execute("hold_run", run_id=run_id)
            return self.lock_run(run_id)

    @override
    def release(self, lease: Lease, *, halt: Halt | None) -> None:
        self._retry(lambda: super(PostgresBackend, self).release(lease, halt=halt))

    @override
    def write(self, pending: Sequence[Pending]) -> None:
        # Everybody locks runs in the same order. The writes of one run keep theirs.
        ordered = sorted(pending, key=lambda each: each.lease.run_id)
        # The runs that are not known to be written, and how many of them the next transaction takes.
        runs = [list(writes) for _, writes in itertools.groupby(ordered, key=lambda each: each.lease.run_id)]
        count, is_unknown = len(runs), False

        def write() -> None:
            with self._postgres.transaction(lazy=_is_lazy(ordered), pipelined=True):
                states = self._write_group(ordered)
            self._known.update(states)

        def write_again() -> None:
            nonlocal count, is_unknown
            is_unknown = True
            # If sessions end often, a shorter transaction gets through.
            count = max(1, count // 2)
            while runs:
                self._write_again([each for writes in runs[:count] for each in writes])
                del runs[:count]

        try:
            self._retry(write, again=write_again)
        except (ConnectionLostError, ConflictError) as error:
            for each in itertools.chain(*runs):
                each.error = write_error(each, error)
        except WorkflowCheckpointException as error:
            if len(ordered) == 1:
                ordered[0].error = write_error(ordered[0], error)
                return
            # The server refuses one of them and does not say which. Write each alone.
            for each in self._unwritten([*itertools.chain(*runs)]) if is_unknown else ordered:
                self.write([each])

    def _unwritten(self, pending: Sequence[Pending]) -> Sequence[Pending]:
        """Return which of several writes of unknown outcome were not written."""

        def look() -> Sequence[Pending]:
            with self._postgres.transaction():
                written = self._written(pending)
            return [each for each in pending if each not in written]

        return self._retry(look)

    def _write_again(self, pending: Sequence[Pending]) -> None:
        """Write the entries that are not there."""
        for each in pending:
            self._known.pop(each.lease.run_id, None)
        with self._postgres.transaction(lazy=_is_lazy(pending)):
            written = self._written(pending)
            for each in pending:
                if each not in written:
                    self._write_alone(each)

    def _written(self, pending: Sequence[Pending]) -> list[Pending]:
        """Return the entries that are certainly written: commits that are there, and what led to them."""
        written: list[Pending] = []
        for number, each in enumerate(pending):
            # With the lock, no transaction changes the run any more, not even one of our own lost session.
            state = self.lock_run(each.lease.run_id)
            if isinstance(each, PendingCommit) and self._is_written(each, state):
                each.newest_command = self.number("newest_command", run_id=each.lease.run_id)
                written += [earlier for earlier in pending[: number + 1] if earlier.lease == each.lease]
        return written

    def _is_written(self, pending: PendingCommit, state: RunState | None) -> bool:
        """Return whether the checkpoint is there and its lease still holds."""
        manifest = pending.commit.manifest
        row = self.find_checkpoint(manifest.checkpoint_id)
        is_ours = row is not None and row["run_id"] == manifest.run_id and row["checksum"] == manifest.checksum()
        return is_ours and state is not None and state.token == pending.lease.token

    @override
    def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None:
        def rewind() -> None:
            super(PostgresBackend, self).rewind(lease, expected_head=expected_head, to=to, nonce=nonce)

        def rewind_again() -> None:
            state = self._read_when_settled(lease.run_id)
            # No run has had this nonce before.
            if state is None or state.token != lease.token or state.record.nonce != nonce:
                rewind()

        self._retry(rewind, again=rewind_again)

    @override
    def post(self, run_id: str, command: Command) -> Command:
        return self._retry(lambda: super(PostgresBackend, self).post(run_id, command))

    @override
    def archive(self, run_id: str) -> Archive:
        return self._retry(lambda: super(PostgresBackend, self).archive(run_id))

    @override
    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        def close() -> bool:
            return super(PostgresBackend, self).close_run(run_id, halt=halt, instead_of=instead_of, takeover=takeover)

        def close_again() -> bool:
            state = self._read_when_settled(run_id)
            # No run has had this halt before.
            return (state is not None and state.record.halt == halt) or close()

        return self._retry(close, again=close_again)

    @override
    def restore(self, archive: Archive) -> None:
        def restore() -> None:
            super(PostgresBackend, self).restore(archive)

        def restore_again() -> None:
            state = self._read_when_settled(archive.record.run_id)
            if state is None or state.record.halt is not None or state.record.nonce != archive.record.nonce:
                restore()

        self._retry(restore, again=restore_again)

    @override
    def remove(self, run_id: str, *, takeover: bool) -> bool:
        was_there = self.run(run_id) is not None
        remove = super().remove
        return self._retry(
            lambda: remove(run_id, takeover=takeover), again=lambda: remove(run_id, takeover=takeover) or was_there
        )

    @override
    def delete(self, checkpoint_id: str) -> bool:
        was_there = self.find_checkpoint(checkpoint_id) is not None
        delete = super().delete
        return self._retry(lambda: delete(checkpoint_id), again=lambda: delete(checkpoint_id) or was_there)

    @override
    def collect(self) -> int:
        return self._retry(super().collect)


def _is_lazy(pending: Sequence[Pending]) -> bool:
    return not any(each.is_durable for each in pending)
