"""The storage port over a blocking backend.

Writes go through group commit; everything else is one job for the worker. A store for one tenant shares the worker, and
asks the backend for the tenant's data in each job.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException, WorkflowException
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
    RunQuery,
    RunRecord,
    RunStatus,
    SinceHead,
    WholeCheckpoint,
)
from perdure.storage import notifications
from perdure.storage.check import Damage, check_run
from perdure.storage.group_commit import GroupWriter, Pending, PendingCommit, PendingRecords
from perdure.storage.rules import APART, require_checkpoint_id, require_run_id, require_tenant
from perdure.storage.worker import JobRunner, forget_parent_in_child

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.storage.file import FileBackend
    from perdure.storage.hosts import HostInfo
    from perdure.storage.notifications import Pause
    from perdure.storage.port import Subscription
    from perdure.storage.sql.backend import SqlBackend

B = TypeVar("B", bound="FileBackend | SqlBackend")
H = TypeVar("H", bound="SqlBackend")
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
        self.place = place
        self._worker = worker
        self._collector = collector or worker
        self._pause = pause
        self._parent: Self | None = None
        """The whole store, if this is the view of one tenant."""
        self._releases: dict[str, deque[tuple[Lease, Halt | None]]] = {}
        """Releases to try again, by tenant. A run whose owner is alive would wait forever."""
        self._set_tenant("")

    def _set_tenant(self, tenant: str) -> None:
        self._tenant = tenant
        self._failed_releases = self._releases.setdefault(tenant, deque())
        submit = functools.partial(self._submit, ordered=True)
        self._group = GroupWriter[B](submit, self._write_group, is_inline=self._worker.is_inline)
        self._is_collection_due = False
        self._collection: Future[int] | None = None
        self._poller = notifications.Poller(lambda: self._do(lambda backend: backend.changes()), self._pause)
        forget_parent_in_child(self)

    def forget_parent(self) -> None:
        """Drop, in a forked child, what the parent has begun."""
        self._group.forget_parent()
        self._collection = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place}>"

    def tenant(self, name: str) -> Self:
        """Return a store for the data of one tenant. It gives no access to anybody else's."""
        if self._parent is not None and name.startswith(APART):
            return self._parent.tenant(f"{name}:{self._tenant}")
        require_tenant(name)
        if self._tenant:
            raise WorkflowCheckpointException(
                f"this is the store of tenant {self._tenant!r}; get the one of {name!r} from the whole store"
            )
        view = copy.copy(self)
        view.place, view._parent = f"{self.place}#{name}", self
        view._set_tenant(name)
        return view

    def _submit(
        self, work: Callable[[B], T], *, creates: bool = False, ordered: bool = False, on: JobRunner[B] | None = None
    ) -> Future[T]:
        """Queue a job on the tenant's data. `creates` allows it to create a tenant that has none."""

        def do(backend: B) -> T:
            with backend.errors():
                return work(backend.for_tenant(self._tenant, creates=creates) if self._tenant else backend)

        return (on or self._worker).submit(do, ordered=ordered)

    async def _do(
        self,
        work: Callable[[B], T],
        *,
        changes: str | None = None,
        is_work: bool = False,
        creates: bool = False,
        on: JobRunner[B] | None = None,
    ) -> T:
        """Do a job and return its result. If the caller is cancelled before the job begins, it is not done.

        Those who wait for the run `changes` are notified after the job, even if the caller is gone by then.
        """
        job = self._submit(work, creates=creates, on=on)
        if changes is not None:
            job.add_done_callback(lambda _: notifications.notify(self.place, changes, is_work=is_work))
        return job.result() if job.done() else await asyncio.wrap_future(job)

    async def acquire(
        self, run_id: str, *, create: NewRun | None = None, takeover: bool = False, token: int | None = None
    ) -> Lease:
        """Take the lease of a run for this process. If the caller is cancelled, the lease is returned."""
        require_run_id(run_id)
        handover: Future[Lease] = Future()

        def acquire(backend: B) -> Lease:
            try:
                taken = backend.acquire(run_id, create=create, takeover=takeover, token=token)
            finally:
                notifications.notify(self.place, run_id)
            if self._failed_releases:
                self._retry_releases(backend)
            if handover.set_running_or_notify_cancel():
                handover.set_result(taken)
            else:
                self._try_release(backend, taken, taken.halt)
            return taken

        job = self._submit(acquire, creates=create is not None)
        try:
            return await _finish(job)
        except asyncio.CancelledError:
            if not job.cancel():
                # The job has begun. It returns the lease itself, unless it was faster: then that is for us.
                with contextlib.suppress(Exception):
                    if handover.cancel():
                        await _finish(job)
                    else:
                        taken = handover.result()
                        await self.release(taken, halt=taken.halt)
            raise

    async def release(self, lease: Lease, *, halt: Halt | None = None) -> None:
        """Release a run if the lease still holds. Goes on if the caller is cancelled; tried again if it fails."""

        def release(backend: B) -> None:
            backend.release(lease, halt=halt)
            if self._failed_releases:
                self._retry_releases(backend)

        job = self._submit(release)
        job.add_done_callback(functools.partial(self._note_release, lease, halt))
        await _finish(job)

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
        # A run that can't be read can't be leased by anybody either, so it does not matter who has it.
        if error is not None and not isinstance(error, CheckpointDamagedError):
            self._failed_releases.append((lease, halt))
        notifications.notify(self.place, lease.run_id, inbox=False, is_work=True)

    def _retry_releases(self, backend: B) -> None:
        """Try failed releases again, until one fails."""
        with contextlib.suppress(IndexError):  # another thread was faster
            while self._failed_releases and self._try_release(backend, *self._failed_releases.popleft()):
                pass

    async def commit(self, lease: Lease, commit: Commit) -> int:
        """Write one commit. Return the number of the newest command that waits."""
        require_checkpoint_id(commit.manifest.checkpoint_id)
        return await self._write(PendingCommit(lease, commit))

    async def record(
        self, lease: Lease, *, head: str | None, records: Sequence[JournalRecord], durable: bool = True
    ) -> None:
        """Keep records of the superstep that follows the head."""
        await self._write(PendingRecords(lease, head, tuple(records), durable))

    async def _write(self, pending: Pending) -> int:
        newest = await self._group.write(pending)
        if self._is_collection_due:
            self._is_collection_due = False
            # The write is done, even if no collection can begin. The next one that is due is tried again.
            with contextlib.suppress(Exception):
                if self._collection is None or self._collection.done():
                    self._collection = self._submit(lambda backend: backend.collect(), on=self._collector)
        return newest

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
        for each in commits:
            notifications.notify(self.place, each.lease.run_id, inbox=bool(each.commit.consumed))
            if each.removed:
                notifications.notify(self.place, *each.removed)
        if commits:
            # These writes are done, whatever the question about a collection leads to.
            with contextlib.suppress(WorkflowException), backend.errors():
                self._is_collection_due = backend.is_collection_due() or self._is_collection_due

    async def rewind(self, lease: Lease, *, expected_head: str, to: str, nonce: str) -> None:
        """Move the head back."""
        require_checkpoint_id(to)
        await self._do(
            lambda backend: backend.rewind(lease, expected_head=expected_head, to=to, nonce=nonce), changes=lease.run_id
        )

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
        return await self._do(lambda backend: backend.post(run_id, command), changes=run_id, is_work=True)

    async def inbox(self, run_id: str) -> Sequence[Command]:
        """Return the commands that wait."""
        require_run_id(run_id)
        return await self._do(lambda backend: backend.inbox(run_id))

    async def watch(self, run_id: str, *, seen: Mark, commands_only: bool = False) -> Mark:
        """Wait until a run's mark differs from the one that was seen. Closing the store does not end the wait."""
        require_run_id(run_id)
        # Subscribe before looking, so that no change in between is missed.
        with notifications.subscribe(self.place, run_id, commands_only=commands_only) as listener:
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
        return await self._do(
            lambda backend: backend.close_run(run_id, halt=halt, instead_of=instead_of, takeover=takeover),
            changes=run_id,
        )

    async def restore(self, archive: Archive) -> None:
        """Store a run that comes from another store."""
        run_id = archive.record.run_id
        require_run_id(run_id)
        for checkpoint in archive.checkpoints:
            require_checkpoint_id(checkpoint.manifest.checkpoint_id)
        await self._do(lambda backend: backend.restore(archive), changes=run_id, is_work=True, creates=True)

    async def remove(self, run_id: str, *, takeover: bool = False) -> bool:
        """Remove a run."""
        require_run_id(run_id)
        return await self._do(lambda backend: backend.remove(run_id, takeover=takeover), changes=run_id)

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete one checkpoint."""
        require_checkpoint_id(checkpoint_id)

        def delete(backend: B) -> bool:
            try:
                return backend.delete(checkpoint_id)
            finally:
                # Only the backend knows which run that was.
                notifications.notify_all(self.place)

        return await self._do(delete)

    async def collect(self) -> int:
        """Remove finished runs that retention does not keep, and blobs that nothing refers to."""
        try:
            return await self._do(lambda backend: backend.collect(), on=self._collector)
        finally:
            # Only the backend knows which runs it has removed.
            notifications.notify_all(self.place)

    async def migrate(self) -> Sequence[str]:
        """Return the migrations that opening the store has made, once."""
        return await self._do(lambda backend: backend.migrate(), creates=True)

    async def backup(self, path: Path) -> None:
        """Write a consistent copy."""
        await self._do(lambda backend: backend.backup(path), on=self._collector)

    async def check(self) -> AsyncGenerator[Damage]:
        """Verify all runs, one by one."""
        reason = await self._do(lambda backend: backend.damage(), on=self._collector)
        if reason is not None:
            yield Damage(None, "store", self.place, reason)
        for run_id in await self._do(lambda backend: backend.run_ids(), on=self._collector):
            for each in await self._do(functools.partial(check_run, run_id=run_id), on=self._collector):
                yield each

    async def close(self) -> None:
        """Release files and threads."""
        self._group.flush()
        await self._worker.close()
        await self._collector.close()


class HostBackedStore(BackedStore[H]):
    """The storage port with the work lists that a host needs, and with indexed listings."""

    async def list_runs(self, query: RunQuery) -> Sequence[RunRecord]:
        """Return the runs that a query selects, in its order."""
        return await self._do(lambda backend: backend.list_runs(query))

    async def count_runs(self, query: RunQuery) -> Mapping[str, int]:
        """Return by status how many runs a query selects."""
        return await self._do(lambda backend: backend.count_runs(query))

    async def manifests_of(self, checkpoint_ids: Collection[str]) -> Mapping[str, Manifest]:
        """Return several checkpoints by id."""
        return await self._do(lambda backend: backend.manifests_of(checkpoint_ids))

    async def register_host(self, host_id: str, *, workflows: Mapping[str, int]) -> None:
        """Register a host of this process."""
        await self._do(lambda backend: backend.register_host(host_id, workflows=workflows))
        notifications.notify_all(self.place)

    async def unregister_host(self, host_id: str) -> None:
        """Remove a host."""
        await self._do(lambda backend: backend.unregister_host(host_id))
        notifications.notify_all(self.place)

    async def hosts(self) -> Sequence[HostInfo]:
        """Return the living hosts."""
        return await self._do(lambda backend: backend.hosts())

    async def note_block(self, host_id: str, run_id: str, *, head: str, reason: str) -> None:
        """Note why a host could not load a run."""
        await self._do(lambda backend: backend.note_block(host_id, run_id, head=head, reason=reason), changes=run_id)

    async def blocked(self, run_ids: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Return those runs that are blocked, each with the reasons by host."""
        return await self._do(lambda backend: backend.blocked(run_ids))

    async def begin_upkeep(self, *, at: str, before: str) -> bool:
        """Return whether the last collection by a host was before a time."""
        return await self._do(lambda backend: backend.begin_upkeep(at=at, before=before))

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
        with notifications.subscribe(self.place, notifications.EVERY_RUN) as listener:
            self._poller.join(listener, known=await self._do(lambda backend: backend.changes()))
            try:
                yield listener
            finally:
                await self._poller.leave(listener)


async def _finish(job: Future[T]) -> T:
    """Wait for a job that goes on if the caller is cancelled."""
    return job.result() if job.done() else await asyncio.shield(asyncio.wrap_future(job))
