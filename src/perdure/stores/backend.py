"""A store whose work is blocking, and the port on top of it.

A backend does one thing at a time and knows nothing of asyncio. `BackedStore` is the port for any of them; its
writes are grouped: the commits and records that wait when the backend gets to one are handed to it together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeAlias, TypeVar

from perdure.errors import WorkflowCheckpointException, WorkflowException
from perdure.stores import watching
from perdure.stores.carrying import Claiming, Owed, carried_out
from perdure.stores.ids import require_checkpoint_id, require_run_id, require_tenant

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from perdure.records import (
        Archive,
        Claim,
        Command,
        Commit,
        Due,
        EventBatch,
        Halt,
        JournalRecord,
        Manifest,
        Mark,
        NewRun,
        RunRecord,
        RunStatus,
    )
    from perdure.stores.port import Stir
    from perdure.stores.watching import Pause

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class PendingCommit:
    """A commit that waits for its turn, and how it ended."""

    claim: Claim
    commit: Commit
    error: Exception | None = None
    waiting: int = 0
    """The number of the newest command that waits after it."""
    removed: tuple[str, ...] = ()
    """The finished runs that the retention has removed with it."""

    @property
    def is_durable(self) -> bool:
        """A commit always is."""
        return True


@dataclass(slots=True, eq=False)
class PendingRecords:
    """Records for a journal that wait for their turn, and how they ended."""

    claim: Claim
    head: str | None
    records: Sequence[JournalRecord]
    is_durable: bool
    error: Exception | None = None


Pending: TypeAlias = PendingCommit | PendingRecords


class Backend(Protocol):
    """The operations of the storage port, blocking."""

    def of(self, tenant: str, *, founds: bool) -> Self:
        """The same for what belongs to one tenant; light, and sharing everything else. The empty name is nobody's.

        Unless it `founds` something, nothing is made for a tenant of whom nothing is here yet.
        """
        ...

    def claim(self, run_id: str, *, create: NewRun | None, takeover: bool, token: int | None) -> Claim: ...

    def release(self, claim: Claim, *, halt: Halt | None) -> None: ...

    def write(self, pending: Sequence[Pending]) -> None:
        """Write each of them whole or not at all, in order, and note the error of those that were not written."""
        ...

    def rewind(self, claim: Claim, *, expected_head: str, to: str, nonce: str) -> None: ...

    def run(self, run_id: str) -> RunRecord | None: ...

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]: ...

    def post(self, run_id: str, command: Command) -> Command:
        """Put a command into the inbox, synced; or the one of its id that waits already, whatever the head is."""
        ...

    def inbox(self, run_id: str) -> Sequence[Command]: ...

    def events(self, run_id: str, *, after: int, limit: int) -> Sequence[EventBatch]: ...

    def mark(self, run_id: str) -> Mark:
        """How far the run is, `commands` being the newest that waits, 0 if none does; cheap."""
        ...

    def changes(self) -> object:
        """Something that is another one once any process has changed anything here; cheap."""
        ...

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]: ...

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None: ...

    def archive(self, run_id: str) -> Archive: ...

    def close_run(self, run_id: str, *, halt: Halt, instead_of: Halt | None, takeover: bool) -> bool: ...

    def restore(self, archive: Archive) -> None: ...

    def remove(self, run_id: str, *, takeover: bool) -> bool: ...

    def journal(self, run_id: str) -> Sequence[JournalRecord]: ...

    def manifest(self, checkpoint_id: str) -> Manifest: ...

    def manifests(self, *, workflow_name: str | None, run_id: str | None) -> Sequence[Manifest]: ...

    def ids(self, *, workflow_name: str | None) -> Sequence[str]: ...

    def latest(self, *, workflow_name: str) -> Manifest | None: ...

    def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]: ...

    def delete(self, checkpoint_id: str) -> bool: ...

    def collect(self) -> int: ...

    def is_collection_due(self) -> bool:
        """Whether enough was forgotten to look for parts that nobody needs."""
        ...

    def close(self) -> None: ...


B = TypeVar("B", bound=Backend)
B_co = TypeVar("B_co", bound=Backend, covariant=True)


class Doer(Protocol[B_co]):
    """Whoever does the work on a backend: a thread, or the caller."""

    async def do(self, work: Callable[[B_co], T]) -> T: ...

    def do_blocking(self, work: Callable[[B_co], T]) -> T: ...

    def post(self, work: Callable[[B_co], T]) -> Future[T]: ...

    async def close(self) -> None: ...


class _OfTenant(Generic[B]):
    """Does the work on what belongs to one tenant."""

    def __init__(self, doer: Doer[B], name: str, *, founds: bool = False) -> None:
        self._doer = doer
        self._name = name
        self._founds = founds

    async def do(self, work: Callable[[B], T]) -> T:
        return await self._doer.do(self._of_tenant(work))

    def do_blocking(self, work: Callable[[B], T]) -> T:
        return self._doer.do_blocking(self._of_tenant(work))

    def post(self, work: Callable[[B], T]) -> Future[T]:
        return self._doer.post(self._of_tenant(work))

    def _of_tenant(self, work: Callable[[B], T]) -> Callable[[B], T]:
        return lambda backend: work(backend.of(self._name, founds=self._founds))

    async def close(self) -> None:
        await self._doer.close()


class BackedStore(Generic[B]):
    """The storage port on a backend.

    `pause` lets time pass between two looks for what other processes have changed; None if no other process can. If the
    doer works side by side, the `writer` does one thing after the other: writes keep their order.
    """

    def __init__(
        self,
        place: str,
        doer: Doer[B],
        *,
        writer: Doer[B] | None = None,
        pause: Pause | None = watching.real_pause,
    ) -> None:
        self._place = place
        self._doer = doer
        self._writer = writer or doer
        self._founder = doer
        """Does what may be the first of its tenant."""
        self._pause = pause
        self._tenant = ""
        self._pending: deque[Pending] = deque()
        self._owed = Owed()
        self._poller = watching.Poller(lambda: doer.do(_changes), pause)

    @property
    def place(self) -> str:
        """Where the store is."""
        return self._place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}>"

    def tenant(self, name: str) -> BackedStore[B]:
        """What belongs to one tenant. There is no way from there to what belongs to another."""
        require_tenant(name)
        if self._tenant:
            raise WorkflowCheckpointException(
                f"this is what tenant {self._tenant!r} sees of the store; take the view of {name!r} from the store"
            )
        view = BackedStore(
            f"{self._place}#{name}",
            _OfTenant(self._doer, name),
            writer=_OfTenant(self._writer, name),
            pause=self._pause,
        )
        view._tenant, view._owed = name, self._owed
        view._founder = _OfTenant(self._doer, name, founds=True)
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
        self._pending.append(mine)
        try:
            is_collection_due = await self._writer.do(self._write_pending)
        finally:
            # Only if we were cancelled before anybody took it.
            with contextlib.suppress(ValueError):
                self._pending.remove(mine)
        if is_collection_due:
            self._doer.post(_collect)
        if mine.error is not None:
            raise mine.error

    def _write_pending(self, backend: B) -> bool:
        """Write all that wait by now; whether a collection is due."""
        taken: list[Pending] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._pending.popleft())
        if not taken:
            return False
        try:
            backend.write(taken)
        except Exception as error:  # noqa: BLE001 - each of those who wait has to hear of it
            for pending in taken:
                pending.error = pending.error or error
        if any(pending.error is None for pending in taken):
            self._settle(backend)
        commits = [pending for pending in taken if isinstance(pending, PendingCommit)]
        if not commits:
            return False
        for pending in commits:
            watching.wake(self._place, pending.claim.run_id, inbox=bool(pending.commit.consumed))
            for run_id in pending.removed:
                watching.wake(self._place, run_id)
        # These writes have had their end, whatever becomes of the collection.
        with contextlib.suppress(WorkflowException):
            return backend.is_collection_due()
        return False

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

    async def run(self, run_id: str) -> RunRecord | None:
        """What is known of a run."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.run(run_id))

    async def runs(self, *, workflow_name: str | None = None, status: RunStatus | None = None) -> Sequence[RunRecord]:
        """The runs that are known, in the order in which they began."""
        return await self._doer.do(lambda backend: backend.runs(workflow_name=workflow_name, status=status))

    async def post(self, run_id: str, command: Command) -> Command:
        """Put a command into a run's inbox."""
        require_run_id(run_id)
        return await self._change(run_id, lambda backend: backend.post(run_id, command), stirs=True)

    async def inbox(self, run_id: str) -> Sequence[Command]:
        """The commands that wait."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.inbox(run_id))

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

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[EventBatch]:
        """What commits have told."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.events(run_id, after=after, limit=limit))

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """The records since the run's present head."""
        require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.journal(run_id))

    async def manifest(self, checkpoint_id: str) -> Manifest:
        """One checkpoint."""
        require_checkpoint_id(checkpoint_id)
        return await self._doer.do(lambda backend: backend.manifest(checkpoint_id))

    async def manifests(self, *, workflow_name: str | None = None, run_id: str | None = None) -> Sequence[Manifest]:
        """Checkpoints in commit order."""
        if run_id is not None:
            require_run_id(run_id)
        return await self._doer.do(lambda backend: backend.manifests(workflow_name=workflow_name, run_id=run_id))

    async def ids(self, *, workflow_name: str | None = None) -> Sequence[str]:
        """Their ids."""
        return await self._doer.do(lambda backend: backend.ids(workflow_name=workflow_name))

    async def latest(self, *, workflow_name: str) -> Manifest | None:
        """The newest commit of a workflow."""
        return await self._doer.do(lambda backend: backend.latest(workflow_name=workflow_name))

    async def parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The bytes of these parts and of all that they refer to."""
        wanted = tuple(roots)
        return await self._doer.do(lambda backend: backend.parts(wanted))

    def read_parts(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """The same, blocking."""
        wanted = tuple(roots)
        return self._doer.do_blocking(lambda backend: backend.parts(wanted))

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
        return await self._doer.do(_collect)

    async def close(self) -> None:
        """Release files and threads."""
        await self._doer.close()


def _changes(backend: Backend) -> object:
    return backend.changes()


def _collect(backend: Backend) -> int:
    return backend.collect()
