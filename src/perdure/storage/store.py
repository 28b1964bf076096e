"""The storage port on a backend whose work is blocking."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from perdure.errors import WorkflowCheckpointException, WorkflowException
from perdure.storage import notifications as watching
from perdure.storage.backend import Backend, OfOneTenant, PendingCommit, PendingRecords
from perdure.storage.carrying import Claiming, Owed, carried_out
from perdure.storage.forking import watch_forks
from perdure.storage.group_commit import GroupWriter
from perdure.storage.ids import APART, require_checkpoint_id, require_run_id, require_tenant
from perdure.storage.reading import Reading

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Sequence
    from concurrent.futures import Future

    from perdure.records import (
        Archive,
        Claim,
        Command,
        Commit,
        Due,
        Halt,
        JournalRecord,
        Mark,
        NewRun,
    )
    from perdure.storage.backend import Doer, Pending
    from perdure.storage.notifications import Pause
    from perdure.storage.port import Stir

B = TypeVar("B", bound=Backend)
T = TypeVar("T")


class BackedStore(Reading[B]):
    """The storage port on a backend.

    `pause` lets time pass between two looks for what other processes have changed; None if no other process can. If the
    doer works side by side, the `writer` does one thing after the other: writes keep their order. The `collector`, if
    there is one, collects parts while the others work on.
    """

    def __init__(
        self,
        place: str,
        doer: Doer[B],
        *,
        writer: Doer[B] | None = None,
        collector: Doer[B] | None = None,
        pause: Pause | None = watching.real_pause,
    ) -> None:
        super().__init__(doer)
        self._place = place
        self._writer = writer or doer
        self._collector = collector or doer
        self._founder = doer
        """Does what may be the first of its tenant."""
        self._pause = pause
        self._tenant = ""
        self._whole: BackedStore[B] | None = None
        """Of the view of one tenant: what it is a view of."""
        self._group = GroupWriter(self._writer, self._write_all)
        self._is_collection_due = False
        self._collection: Future[int] | None = None
        self._owed = Owed()
        self._poller = watching.Poller(lambda: doer.do(_changes), pause)
        watch_forks(self)

    @property
    def place(self) -> str:
        """Where the store is."""
        return self._place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}>"

    def tenant(self, name: str) -> BackedStore[B]:
        """What belongs to one tenant. There is no way from there to what belongs to another."""
        if self._whole is not None and name.startswith(APART):
            return self._whole.tenant(f"{name}:{self._tenant}")
        require_tenant(name)
        if self._tenant:
            raise WorkflowCheckpointException(
                f"this is what tenant {self._tenant!r} sees of the store; take the view of {name!r} from the store"
            )
        view = BackedStore(
            f"{self._place}#{name}",
            OfOneTenant(self._doer, name),
            writer=OfOneTenant(self._writer, name),
            collector=OfOneTenant(self._collector, name),
            pause=self._pause,
        )
        view._tenant, view._owed, view._whole = name, self._owed, self
        view._founder = OfOneTenant(self._doer, name, founds=True)
        return view

    async def claim(
        self, run_id: str, *, create: NewRun | None = None, takeover: bool = False, token: int | None = None
    ) -> Claim:
        """Take the run for this process. Whoever is cancelled meanwhile leaves it to nobody."""
        require_run_id(run_id)

        def make(backend: B) -> Claim:
            claim = backend.claim(run_id, create=create, takeover=takeover, token=token)
            self._settle(backend)
            return claim

        claiming = Claiming(make, self._give_back)
        job = (self._doer if create is None else self._founder).post(self._changing(run_id, claiming))
        try:
            claim = await carried_out(job)
        except asyncio.CancelledError:
            await self._abandon(claiming, job)
            raise
        assert claim is not None, "a claim is made unless it was abandoned"
        return claim

    async def _abandon(self, claiming: Claiming[B], job: Future[Claim | None]) -> None:
        """See to it that a claim is given back, now or when it is made, whether or not this is waited for."""
        claim = claiming.abandon()
        # What fails here is tried again, or has made no claim.
        with contextlib.suppress(Exception):
            if claim is not None:
                await self.release(claim, halt=claim.halt)
            elif claiming.is_begun:
                await carried_out(job)

    def _give_back(self, backend: B, claim: Claim) -> None:
        """Leave a run as it was before it was claimed."""
        try:
            backend.release(claim, halt=claim.halt)
        except Exception as error:  # noqa: BLE001 - nobody is there to hear of it
            self._owed.add(self._tenant, claim, halt=claim.halt, error=error)
        watching.wake(self._place, claim.run_id, inbox=False, stirs=True)

    async def release(self, claim: Claim, *, halt: Halt | None = None) -> None:
        """Give the run free, if the claim still stands: also if the caller is cancelled, and later if it fails now."""

        def release(backend: B) -> None:
            backend.release(claim, halt=halt)
            self._settle(backend)

        def note(job: Future[None]) -> None:
            error = job.exception()
            if error is not None:
                self._owed.add(self._tenant, claim, halt=halt, error=error)
            watching.wake(self._place, claim.run_id, inbox=False, stirs=True)

        job = self._doer.post(release)
        job.add_done_callback(note)
        await carried_out(job)

    def _settle(self, backend: B) -> None:
        """Give free what could not be given free before."""
        if self._owed:
            for run_id in self._owed.settle(self._tenant, backend):
                watching.wake(self._place, run_id, inbox=False, stirs=True)

    async def commit(self, claim: Claim, commit: Commit) -> int:
        """Write one commit; the number of the newest command that waits."""
        require_checkpoint_id(commit.manifest.checkpoint_id)
        pending = PendingCommit(claim, commit)
        await self._write(pending)
        return pending.waiting

    async def record(
        self, claim: Claim, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """Keep records of the superstep that follows the head."""
        await self._write(PendingRecords(claim, head, tuple(records), durable))

    async def _write(self, mine: Pending) -> None:
        await self._group.write(mine)
        if self._is_collection_due:
            self._is_collection_due = False
            # The write has had its end, whatever becomes of the collection. The next one that is due is tried again.
            with contextlib.suppress(Exception):
                self._collect_soon()
        if mine.error is not None:
            raise mine.error

    def _collect_soon(self) -> None:
        """Begin a collection that nobody waits for, unless one is under way."""
        if self._collection is None or self._collection.done():
            self._collection = self._collector.post(_collect)

    def forget_parent(self) -> None:
        """Take note, in a forked child, that a collection which is under way is none of its own."""
        self._collection = None

    def _write_all(self, backend: B, pending: Sequence[Pending]) -> None:
        """Write all of them, and wake those who wait for their runs."""
        try:
            backend.write(pending)
        except Exception as error:  # noqa: BLE001 - each of those who wait has to hear of it
            for each in pending:
                each.error = each.error or error
        if any(each.error is None for each in pending):
            self._settle(backend)
        commits = [each for each in pending if isinstance(each, PendingCommit)]
        for commit in commits:
            watching.wake(self._place, commit.claim.run_id, inbox=bool(commit.commit.consumed))
            for run_id in commit.removed:
                watching.wake(self._place, run_id)
        if commits:
            # These writes have had their end, whatever becomes of the collection.
            with contextlib.suppress(WorkflowException):
                self._is_collection_due = backend.is_collection_due() or self._is_collection_due

    async def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None:
        """Move the head back."""
        require_checkpoint_id(to)
        await self._change(
            claim.run_id, lambda backend: backend.rewind(claim, expected_head=expected_head, to=to, nonce=nonce)
        )

    async def _change(self, run_id: str, work: Callable[[B], T], *, stirs: bool = False) -> T:
        return await self._doer.do(self._changing(run_id, work, stirs=stirs))

    def _changing(self, run_id: str, work: Callable[[B], T], *, stirs: bool = False) -> Callable[[B], T]:
        """What may change a run, and then wakes those who wait for it, though whoever asked may be gone by then."""

        def change(backend: B) -> T:
            try:
                return work(backend)
            finally:
                watching.wake(self._place, run_id, stirs=stirs)

        return change

    async def post(self, run_id: str, command: Command) -> Command:
        """Put a command into a run's inbox."""
        require_run_id(run_id)
        return await self._change(run_id, lambda backend: backend.post(run_id, command), stirs=True)

    async def watch(self, run_id: str, *, seen: Mark, commands_only: bool = False) -> Mark:
        """Wait until a run's mark is another than the one that was seen. Closing the store does not end that."""
        require_run_id(run_id)
        # Whoever listens before looking misses nothing in between.
        with watching.listening(self._place, run_id, commands_only=commands_only) as listener:
            try:
                while True:
                    listener.rest()
                    known, mark = await self._doer.do(lambda backend: (backend.changes(), backend.mark(run_id)))
                    if mark.commands != seen.commands or (mark != seen and not commands_only):
                        return mark
                    self._poller.join(listener, known=known)
                    await listener.woken()
            finally:
                await self._poller.leave(listener)

    async def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        """Runs that can go on and that nobody living advances."""
        wanted = tuple(workflow_names)

        def due(backend: B) -> Sequence[Due]:
            self._settle(backend)
            return backend.due(at=at, workflow_names=wanted, limit=limit)

        return await self._doer.do(due)

    async def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        """When the next timer is due."""
        wanted = tuple(workflow_names)
        return await self._doer.do(lambda backend: backend.next_wake(after=after, workflow_names=wanted))

    @contextlib.asynccontextmanager
    async def stirring(self) -> AsyncGenerator[Stir]:
        """Hear of whatever may be work."""
        with watching.listening(self._place, watching.EVERY_RUN) as listener:
            self._poller.join(listener, known=await self._doer.do(_changes))
            try:
                yield listener
            finally:
                await self._poller.leave(listener)

    async def archive(self, run_id: str) -> Archive:
        """All that there is of a run."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.archive(run_id))

    async def close_run(
        self, run_id: str, *, halt: Halt, instead_of: Halt | None = None, takeover: bool = False
    ) -> bool:
        """Halt a run that nobody advances."""
        require_run_id(run_id)
        return await self._change(
            run_id, lambda backend: backend.close_run(run_id, halt=halt, instead_of=instead_of, takeover=takeover)
        )

    async def restore(self, archive: Archive) -> None:
        """Keep a run that comes from elsewhere."""
        run_id = archive.record.run_id
        require_run_id(run_id)
        for checkpoint in archive.checkpoints:
            require_checkpoint_id(checkpoint.manifest.checkpoint_id)
        await self._founder.do(self._changing(run_id, lambda backend: backend.restore(archive), stirs=True))

    async def remove(self, run_id: str, *, takeover: bool = False) -> bool:
        """Forget a run."""
        require_run_id(run_id)
        return await self._change(run_id, lambda backend: backend.remove(run_id, takeover=takeover))

    async def delete(self, checkpoint_id: str) -> bool:
        """Forget one checkpoint."""
        require_checkpoint_id(checkpoint_id)

        def delete(backend: B) -> bool:
            try:
                return backend.delete(checkpoint_id)
            finally:
                # Which run that was is for the backend to know.
                watching.wake_all(self._place)

        return await self._doer.do(delete)

    async def collect(self) -> int:
        """Remove parts that nothing refers to."""
        return await self._collector.do(_collect)

    async def close(self) -> None:
        """Release files and threads."""
        self._group.hand_in()
        await self._doer.close()
        await self._collector.close()


def _changes(backend: Backend) -> object:
    return backend.changes()


def _collect(backend: Backend) -> int:
    return backend.collect()
