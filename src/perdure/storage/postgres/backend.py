"""What the threads of a PostgreSQL store do: what any SQL store does, and again if it is not known to be done.

When a connection is lost while a transaction is being committed, nobody knows how that ended. What is there tells: each
change leaves something behind by which whoever tries again knows it for their own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from typing_extensions import override

from perdure.errors import WorkflowCheckpointException
from perdure.records import Claim
from perdure.storage.backend import PendingCommit
from perdure.storage.postgres.database import ConflictError, ConnectionLostError
from perdure.storage.sql.backend import SqlBackend
from perdure.storage.sql.writes import write_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.clock import Clock
    from perdure.records import Archive, Command, Halt, NewRun, Retention
    from perdure.storage.backend import Pending
    from perdure.storage.postgres.database import PostgresDatabase
    from perdure.storage.postgres.owners import PostgresOwners
    from perdure.storage.rules import RunState


class _Tried(threading.local):
    """The claim that the thread has tried last: its token, and the halt that it would end."""

    token: int | None = None
    halt: Halt | None = None


class PostgresBackend(SqlBackend):
    """What belongs to one tenant. Several threads may use it at once."""

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
        self._steadily = database.steadily
        self._session = owners
        self._tried = _Tried()

    @override
    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Claim:
        def claim() -> Claim:
            # Others have to see that we live before they see that we own something.
            self._session.enter()
            return super(PostgresBackend, self).claim(run_id, create=create, takeover=takeover, token=token)

        self._tried.token = None
        return self._steadily(claim, again=lambda: self._claimed(run_id) or claim())

    @override
    def _next_token(self, state: RunState, given: int | None) -> int:
        token = super()._next_token(state, given)
        self._tried.token, self._tried.halt = token, state.record.halt
        return token

    def _claimed(self, run_id: str) -> Claim | None:
        """The claim that was tried last, if we have it already."""
        state, me = self._when_settled(run_id), self._session.enter()
        token = self._tried.token
        if token is None or state is None or state.token != token or state.record.owner != me:
            return None
        return Claim(run_id, token, me, state.record.attempts, self._tried.halt, state.record)

    def _when_settled(self, run_id: str) -> RunState | None:
        """The run when nobody is about to change it, nor are we ourselves in a session that was lost."""
        with self._database.errors(), self._database.transaction():
            self._runs.hold(run_id)
            return self._runs.find_for_change(run_id)

    @override
    def release(self, claim: Claim, *, halt: Halt | None) -> None:
        self._steadily(lambda: super(PostgresBackend, self).release(claim, halt=halt))

    @override
    def write(self, pending: Sequence[Pending]) -> None:
        # Whoever takes several runs takes them in the same order as the others. That of each run's own writes stays.
        ordered = sorted(pending, key=lambda each: each.claim.run_id)
        is_unknown = False

        def write_again() -> None:
            nonlocal is_unknown
            is_unknown = True
            self._write_again(ordered)

        try:
            self._steadily(lambda: self._write(ordered), again=write_again)
        except (ConnectionLostError, ConflictError) as error:
            for each in pending:
                each.error = write_error(each, error)
        except WorkflowCheckpointException as error:
            if len(ordered) == 1:
                ordered[0].error = write_error(ordered[0], error)
                return
            # The server refuses one of them, and does not say which; the others must not suffer for it.
            for each in self._unwritten(ordered) if is_unknown else ordered:
                self.write([each])

    def _unwritten(self, pending: Sequence[Pending]) -> Sequence[Pending]:
        """Of writes whose outcome is not known, those that were not written."""

        def look() -> Sequence[Pending]:
            with self._database.errors(), self._postgres.transaction():
                done = self._settled(pending)
            return [each for each in pending if each not in done]

        return self._steadily(look)

    def _write(self, pending: Sequence[Pending]) -> None:
        with self._database.errors(), self._postgres.transaction(lazy=_is_lazy(pending), pipelined=True):
            states = self._write_together(pending)
        self._known.note(states)

    def _write_again(self, pending: Sequence[Pending]) -> None:
        """Write what was not written, if anything was."""
        for each in pending:
            self._known.forget(each.claim.run_id)
        with self._database.errors(), self._postgres.transaction(lazy=_is_lazy(pending)):
            done = self._settled(pending)
            for each in pending:
                # What was done has ended as it has ended then.
                if each not in done:
                    self._try(each)

    def _settled(self, pending: Sequence[Pending]) -> list[Pending]:
        """Those of which is known that they were written: commits that are there, and what led to them."""
        done: list[Pending] = []
        for number, each in enumerate(pending):
            # Who has the run knows that nobody is about to change it, nor are we ourselves in a session that was lost.
            state = self._runs.find_for_change(each.claim.run_id)
            if isinstance(each, PendingCommit) and self._is_written(each, state):
                each.waiting = self._inbox.newest(each.claim.run_id)
                done += [earlier for earlier in pending[: number + 1] if earlier.claim == each.claim]
        return done

    def _is_written(self, pending: PendingCommit, state: RunState | None) -> bool:
        """Whether the checkpoint is there, and the claim under which it was written still stands."""
        manifest = pending.commit.manifest
        row = self._tables.checkpoints.find(manifest.checkpoint_id)
        is_ours = row is not None and row["run_id"] == manifest.run_id and row["checksum"] == manifest.checksum()
        return is_ours and state is not None and state.token == pending.claim.token

    @override
    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        def rewind() -> None:
            super(PostgresBackend, self).rewind(claim, expected_head=expected_head, to=to, nonce=nonce)

        def rewind_again() -> None:
            state = self._when_settled(claim.run_id)
            # The nonce is one that no run has had before.
            if state is None or state.token != claim.token or state.record.nonce != nonce:
                rewind()

        self._steadily(rewind, again=rewind_again)

    @override
    def post(self, run_id: str, command: Command) -> Command:
        return self._steadily(lambda: super(PostgresBackend, self).post(run_id, command))

    @override
    def archive(self, run_id: str) -> Archive:
        return self._steadily(lambda: super(PostgresBackend, self).archive(run_id))

    @override
    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool:
        def close() -> bool:
            return super(PostgresBackend, self).close_run(run_id, halt=halt, instead_of=instead_of, takeover=takeover)

        return self._steadily(close, again=lambda: self._is_halted(run_id, halt) or close())

    def _is_halted(self, run_id: str, halt: Halt) -> bool:
        state = self._when_settled(run_id)
        return state is not None and state.record.halt == halt

    @override
    def restore(self, archive: Archive) -> None:
        def restore() -> None:
            super(PostgresBackend, self).restore(archive)

        def restore_again() -> None:
            state = self._when_settled(archive.record.run_id)
            if state is None or state.record.halt is not None or state.record.nonce != archive.record.nonce:
                restore()

        self._steadily(restore, again=restore_again)

    @override
    def remove(self, run_id: str, *, takeover: bool) -> bool:
        was_there = self.run(run_id) is not None
        remove = super().remove
        return self._steadily(
            lambda: remove(run_id, takeover=takeover), again=lambda: remove(run_id, takeover=takeover) or was_there
        )

    @override
    def delete(self, checkpoint_id: str) -> bool:
        with self._database.errors():
            was_there = self._tables.checkpoints.find(checkpoint_id) is not None
        delete = super().delete
        return self._steadily(lambda: delete(checkpoint_id), again=lambda: delete(checkpoint_id) or was_there)

    @override
    def collect(self) -> int:
        return self._steadily(super().collect)

    @override
    def close(self) -> None:
        super().close()
        self._session.leave()


def _is_lazy(pending: Sequence[Pending]) -> bool:
    return not any(each.is_durable for each in pending)
