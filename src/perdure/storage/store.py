"""The storage port over a blocking backend.

Writes go through group commit; everything else is one job for the worker. A store for one tenant shares the worker, and
asks the backend for the tenant's data in each job.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

from typing_extensions import override

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException, WorkflowException
from perdure.records import SinceHead, WholeCheckpoint
from perdure.storage import notifications
from perdure.storage.backend import Backend, HostBackend, PendingCommit, PendingRecords
from perdure.storage.group_commit import GroupWriter
from perdure.storage.ids import APART, require_checkpoint_id, require_run_id, require_tenant
from perdure.storage.worker import forget_parent_in_child, wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence

    from perdure.records import (
        Archive,
        Command,
        Commit,
        Due,
        EventBatch,
        Halt,
        JournalRecord,
        Lease,
        Manifest,
        Mark,
        NewRun,
        RunRecord,
        RunStatus,
    )
    from perdure.storage.backend import Pending
    from perdure.storage.notifications import Pause
    from perdure.storage.port import Subscription
    from perdure.storage.worker import JobRunner

B = TypeVar("B", bound=Backend)
H = TypeVar("H", bound=HostBackend)
T = TypeVar("T")


class BackedStore(Generic[B]):
    """The storage port over a backend.

    Args:
        place: Identifies the store's data. Two objects of one place notify each other.
        worker: Does the backend's work.
        collector: Collects blobs while the worker goes on. The worker does it if there is none.
        pause: Waits between two looks for changes by other processes. None if no other process can make any.
    """

    def __init__(
        self,
        place: str,
        worker: JobRunner[B],
        *,
        collector: JobRunner[B] | None = None,
        pause: Pause | None = notifications.real_pause,
    ) -> None:
        self._place = place
        self._worker = worker
        self._collector = collector or worker
        self._pause = pause
        self._tenant = ""
        self._parent: BackedStore[B] | None = None
        """The whole store, if this is the view of one tenant."""
        self._group = GroupWriter[B](functools.partial(self._submit, ordered=True), self._write_group)
        self._is_collection_due = False
        self._collection: Future[int] | None = None
        self._failed_releases: deque[tuple[str, Lease, Halt | None]] = deque()
        """Releases to try again, each with its tenant. A run whose owner is alive would wait forever."""
        self._poller = notifications.Poller(lambda: self._do(_changes), pause)
        forget_parent_in_child(self)

    @property
    def place(self) -> str:
        """Identify the store's data."""
        return self._place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}>"

    def tenant(self, name: str) -> BackedStore[B]:
        """Return a store for the data of one tenant. It gives no access to anybody else's."""
        if self._parent is not None and name.startswith(APART):
            return self._parent.tenant(f"{name}:{self._tenant}")
        require_tenant(name)
        if self._tenant:
            raise WorkflowCheckpointException(
                f"this is the store of tenant {self._tenant!r}; get the one of {name!r} from the whole store"
            )
        view = self._view(f"{self._place}#{name}")
        view._tenant, view._parent, view._failed_releases = name, self, self._failed_releases
        return view

    def _view(self, place: str) -> BackedStore[B]:
        return BackedStore(place, self._worker, collector=self._collector, pause=self._pause)

    def _submit(
        self, work: Callable[[B], T], *, creates: bool = False, ordered: bool = False, on: JobRunner[B] | None = None
    ) -> Future[T]:
        """Queue a job on the tenant's data. `creates` allows it to create a tenant that has none."""
        tenant, worker = self._tenant, on or self._worker
        if not tenant:
            return worker.submit(work, ordered=ordered)
        return worker.submit(lambda backend: work(backend.for_tenant(tenant, creates=creates)), ordered=ordered)

    async def _do(self, work: Callable[[B], T], *, creates: bool = False, on: JobRunner[B] | None = None) -> T:
        """Do a job and return its result. If the caller is cancelled before the job begins, it is not done."""
        job = self._submit(work, creates=creates, on=on)
        try:
            return await wait_for(job)
        except asyncio.CancelledError:
            job.cancel()
            raise

    def _then_notify(self, run_id: str, work: Callable[[B], T], *, is_work: bool = False) -> Callable[[B], T]:
        """Notify those who wait for a run after work that may change it, even if its caller is gone by then."""

        def change(backend: B) -> T:
            try:
                return work(backend)
            finally:
                notifications.notify(self._place, run_id, is_work=is_work)

        return change

    async def acquire(
        self, run_id: str, *, create: NewRun | None = None, takeover: bool = False, token: int | None = None
    ) -> Lease:
        """Take the lease of a run for this process. If the caller is cancelled, the lease is returned."""
        require_run_id(run_id)

        handover: Future[Lease] = Future()

        def acquire(backend: B) -> Lease:
            taken = backend.acquire(run_id, create=create, takeover=takeover, token=token)
            self._retry_releases(backend)
            if handover.set_running_or_notify_cancel():
                handover.set_result(taken)
            else:
                self._try_release(backend, taken, taken.halt)
            return taken

        job = self._submit(self._then_notify(run_id, acquire), creates=create is not None)
        try:
            return await wait_for(job)
        except asyncio.CancelledError:
            if not job.cancel():
                # The job has begun. It returns the lease itself, unless it was faster: then that is for us.
                with contextlib.suppress(Exception):
                    if handover.cancel():
                        await wait_for(job)
                    else:
                        taken = handover.result()
                        await self.release(taken, halt=taken.halt)
            raise

    async def release(self, lease: Lease, *, halt: Halt | None = None) -> None:
        """Release a run if the lease still holds. Goes on if the caller is cancelled; tried again if it fails."""

        def release(backend: B) -> None:
            backend.release(lease, halt=halt)
            self._retry_releases(backend)

        job = self._submit(release)
        job.add_done_callback(functools.partial(self._note_release, lease, halt))
        await wait_for(job)

    def _try_release(self, backend: B, lease: Lease, halt: Halt | None) -> bool:
        """Release a run for a caller who is gone. Return whether that worked."""
        job: Future[None] = Future()
        try:
            job.set_result(backend.release(lease, halt=halt))
        except Exception as error:  # noqa: BLE001 - it is tried again
            job.set_exception(error)
        self._note_release(lease, halt, job)
        return job.exception() is None

    def _note_release(self, lease: Lease, halt: Halt | None, job: Future[None]) -> None:
        """Notify others of a release, and remember it if it failed."""
        error = job.exception()
        # A run that can't be read can't be claimed by anybody either, so it does not matter who has it.
        if error is not None and not isinstance(error, CheckpointDamagedError):
            self._failed_releases.append((self._tenant, lease, halt))
        notifications.notify(self._place, lease.run_id, inbox=False, is_work=True)

    def _retry_releases(self, backend: B) -> None:
        """Try failed releases of this tenant again, until one fails."""
        for _ in range(len(self._failed_releases)):
            try:
                tenant, lease, halt = self._failed_releases.popleft()
            except IndexError:
                return  # another thread was faster
            if tenant != self._tenant:
                self._failed_releases.append((tenant, lease, halt))
            elif not self._try_release(backend, lease, halt):
                return

    async def commit(self, lease: Lease, commit: Commit) -> int:
        """Write one commit. Return the number of the newest command that waits."""
        require_checkpoint_id(commit.manifest.checkpoint_id)
        pending = PendingCommit(lease, commit)
        await self._write(pending)
        return pending.waiting

    async def record(
        self, lease: Lease, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """Keep records of the superstep that follows the head."""
        await self._write(PendingRecords(lease, head, tuple(records), durable))

    async def _write(self, pending: Pending) -> None:
        if self._worker.is_inline:
            await self._do(lambda backend: self._write_group(backend, [pending]))
        else:
            await self._group.write(pending)
        if self._is_collection_due:
            self._is_collection_due = False
            # The write is done, even if no collection can begin. The next one that is due is tried again.
            with contextlib.suppress(Exception):
                if self._collection is None or self._collection.done():
                    self._collection = self._submit(_collect, on=self._collector)
        if pending.error is not None:
            raise pending.error

    def _write_group(self, backend: B, pending: Sequence[Pending]) -> None:
        """Write a group and notify those who wait for its runs."""
        try:
            backend.write(pending)
        except Exception as error:  # noqa: BLE001 - every caller is told
            for each in pending:
                each.error = each.error or error
        if self._failed_releases and any(each.error is None for each in pending):
            self._retry_releases(backend)
        commits = [each for each in pending if isinstance(each, PendingCommit)]
        for commit in commits:
            notifications.notify(self._place, commit.lease.run_id, inbox=bool(commit.commit.consumed))
            for run_id in commit.removed:
                notifications.notify(self._place, run_id)
        if commits:
            # These writes are done, whatever the question about a collection leads to.
            with contextlib.suppress(WorkflowException):
                self._is_collection_due = backend.is_collection_due() or self._is_collection_due

    def forget_parent(self) -> None:
        """Drop, in a forked child, a collection that the parent has begun."""
        self._collection = None

    async def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None:
        """Move the head back."""
        require_checkpoint_id(to)

        def rewind(backend: B) -> None:
            backend.rewind(lease, expected_head=expected_head, to=to, nonce=nonce)

        await self._do(self._then_notify(lease.run_id, rewind))

    async def run(self, run_id: str) -> RunRecord | None:
        """Return the record of a run, or None."""
        require_run_id(run_id)
        return await self._do(lambda backend: backend.run(run_id))

    async def runs(self, *, workflow_name: str | None = None, status: RunStatus | None = None) -> Sequence[RunRecord]:
        """Return runs in the order in which they began."""
        return await self._do(lambda backend: backend.runs(workflow_name=workflow_name, status=status))

    async def journal(self, run_id: str) -> Sequence[JournalRecord]:
        """Return the records since the run's head."""
        require_run_id(run_id)
        return await self._do(lambda backend: backend.journal(run_id))

    async def post(self, run_id: str, command: Command) -> Command:
        """Add a command to a run's inbox."""
        require_run_id(run_id)
        return await self._do(self._then_notify(run_id, lambda backend: backend.post(run_id, command), is_work=True))

    async def inbox(self, run_id: str) -> Sequence[Command]:
        """Return the commands that wait."""
        require_run_id(run_id)
        return await self._do(lambda backend: backend.inbox(run_id))

    async def watch(self, run_id: str, *, seen: Mark, commands_only: bool = False) -> Mark:
        """Wait until a run's mark differs from the one that was seen. Closing the store does not end the wait."""
        require_run_id(run_id)
        # Subscribe before looking, so that no change in between is missed.
        with notifications.subscribe(self._place, run_id, commands_only=commands_only) as listener:
            try:
                while True:
                    listener.clear()
                    known, mark = await self._do(lambda backend: (backend.changes(), backend.mark(run_id)))
                    if mark.commands != seen.commands or (mark != seen and not commands_only):
                        return mark
                    self._poller.join(listener, known=known)
                    await listener.wait()
            finally:
                await self._poller.leave(listener)

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[EventBatch]:
        """Return batches of committed events."""
        require_run_id(run_id)
        return await self._do(lambda backend: backend.events(run_id, after=after, limit=limit))

    async def manifest(self, checkpoint_id: str) -> Manifest:
        """Return one checkpoint."""
        require_checkpoint_id(checkpoint_id)
        return await self._do(lambda backend: backend.manifest(checkpoint_id))

    async def manifests(self, *, workflow_name: str | None = None, run_id: str | None = None) -> Sequence[Manifest]:
        """Return checkpoints in commit order."""
        if run_id is not None:
            require_run_id(run_id)
        return await self._do(lambda backend: backend.manifests(workflow_name=workflow_name, run_id=run_id))

    async def ids(self, *, workflow_name: str | None = None) -> Sequence[str]:
        """Return the ids of checkpoints in commit order."""
        return await self._do(lambda backend: backend.ids(workflow_name=workflow_name))

    async def latest(self, *, workflow_name: str) -> Manifest | None:
        """Return the newest checkpoint of a workflow."""
        return await self._do(lambda backend: backend.latest(workflow_name=workflow_name))

    async def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """Return blobs with all that they refer to."""
        wanted = tuple(roots)
        return await self._do(lambda backend: backend.blobs(wanted))

    def read_blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        """Return blobs with all that they refer to, blocking."""
        wanted = tuple(roots)
        return self._submit(lambda backend: backend.blobs(wanted)).result()

    async def whole_checkpoint(self, checkpoint_id: str) -> WholeCheckpoint:
        """Return a checkpoint with its blobs and its run."""
        require_checkpoint_id(checkpoint_id)

        def read(backend: B) -> WholeCheckpoint:
            manifest = backend.manifest(checkpoint_id)
            return WholeCheckpoint(manifest, backend.blobs(manifest.roots), backend.run(manifest.run_id))

        return await self._do(read)

    async def since_head(self, run_id: str) -> SinceHead:
        """Return the journal and the inbox of a run."""
        require_run_id(run_id)
        return await self._do(lambda backend: SinceHead(backend.journal(run_id), backend.inbox(run_id)))

    async def archive(self, run_id: str) -> Archive:
        """Return everything that is stored of a run."""
        require_run_id(run_id)
        return await self._do(lambda backend: backend.archive(run_id))

    async def close_run(
        self, run_id: str, *, halt: Halt, instead_of: Halt | None = None, takeover: bool = False
    ) -> bool:
        """Halt a run that nobody advances."""
        require_run_id(run_id)

        def close(backend: B) -> bool:
            return backend.close_run(run_id, halt=halt, instead_of=instead_of, takeover=takeover)

        return await self._do(self._then_notify(run_id, close))

    async def restore(self, archive: Archive) -> None:
        """Store a run that comes from another store."""
        run_id = archive.record.run_id
        require_run_id(run_id)
        for checkpoint in archive.checkpoints:
            require_checkpoint_id(checkpoint.manifest.checkpoint_id)
        restore = self._then_notify(run_id, lambda backend: backend.restore(archive), is_work=True)
        await self._do(restore, creates=True)

    async def remove(self, run_id: str, *, takeover: bool = False) -> bool:
        """Remove a run."""
        require_run_id(run_id)
        return await self._do(self._then_notify(run_id, lambda backend: backend.remove(run_id, takeover=takeover)))

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete one checkpoint."""
        require_checkpoint_id(checkpoint_id)

        def delete(backend: B) -> bool:
            try:
                return backend.delete(checkpoint_id)
            finally:
                # Only the backend knows which run that was.
                notifications.notify_all(self._place)

        return await self._do(delete)

    async def collect(self) -> int:
        """Remove blobs that nothing refers to."""
        return await self._do(_collect, on=self._collector)

    async def close(self) -> None:
        """Release files and threads."""
        self._group.flush()
        await self._worker.close()
        await self._collector.close()


class HostBackedStore(BackedStore[H]):
    """The storage port with the work lists that a host needs."""

    if TYPE_CHECKING:

        @override
        def tenant(self, name: str) -> HostBackedStore[H]: ...

    @override
    def _view(self, place: str) -> HostBackedStore[H]:
        return HostBackedStore(place, self._worker, collector=self._collector, pause=self._pause)

    async def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        """Return runs that can go on and that no living process advances."""
        wanted = tuple(workflow_names)

        def due(backend: H) -> Sequence[Due]:
            self._retry_releases(backend)
            return backend.due(at=at, workflow_names=wanted, limit=limit)

        return await self._do(due)

    async def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        """Return when the next timer is due."""
        wanted = tuple(workflow_names)
        return await self._do(lambda backend: backend.next_wake(after=after, workflow_names=wanted))

    @contextlib.asynccontextmanager
    async def subscribe(self) -> AsyncGenerator[Subscription]:
        """Notify the caller of anything that may be work."""
        with notifications.subscribe(self._place, notifications.EVERY_RUN) as listener:
            self._poller.join(listener, known=await self._do(_changes))
            try:
                yield listener
            finally:
                await self._poller.leave(listener)


def _changes(backend: Backend) -> object:
    return backend.changes()


def _collect(backend: Backend) -> int:
    return backend.collect()
