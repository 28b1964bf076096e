"""The public storages: a store each, and above it the six methods, requests, events, tenants and transfers."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, cast

from typing_extensions import Unpack

from perdure.checkpoint import EventReader, Source, StoredCheckpoint, WorkflowCheckpoint, is_settled, origin_of
from perdure.clock import Clock, DefaultClock, now
from perdure.codec import DEFAULT_SIZE_LIMITS, NO_SIZE_LIMITS, Codec, SizeLimits, Trust
from perdure.errors import (
    BlobDamagedError,
    CheckpointDamagedError,
    CheckpointNotFoundError,
    EventsForgottenError,
    RunBusyError,
    RunError,
    RunExistsError,
    RunNotFoundError,
    WorkflowCheckpointException,
)
from perdure.records import Blob, Commit, EventBatch, Manifest, Mark, NewRun, Retention, RunRecord, RunStatus
from perdure.storage.checkpoint_storage import carried_manifest, forked_manifest, saved_manifest
from perdure.storage.export import export_run, import_run
from perdure.storage.file import FileStore
from perdure.storage.hosts import HostInfo, knows_hosts
from perdure.storage.owners import LEASE_SECONDS, this_process
from perdure.storage.port import Durability, Store, TenantStore, is_tenant_store
from perdure.storage.postgres import PostgresStore
from perdure.storage.requests import RequestQueue
from perdure.storage.rules import APART
from perdure.storage.runs import Order, RunFilter, RunInfo, count_runs, list_runs, run_infos, run_query
from perdure.storage.sizes import SizeReport, size_report
from perdure.storage.sqlite import MemoryStore, SqliteStore
from perdure.storage.sqlite.database import SqliteDatabase
from perdure.storage.store import BackedStore
from perdure.storage.views import CheckpointDiff, CheckpointView, RunDiff, diff, diff_runs, view

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from perdure.events import WorkflowEvent
    from perdure.storage.check import Damage


logger = logging.getLogger(__name__)

BATCHES_PER_PAGE = 100

_NOWHERE = Mark(head="", events=-1, commands=-1)
"""A mark that no run has, so that `watch` returns at once."""


@dataclass(slots=True)
class SharedTrust:
    """The types that this program reads, shared by a storage and the storages of its tenants."""

    trust: Trust


class StorageOptions(TypedDict, total=False):
    """The options of every storage."""

    allowed_checkpoint_types: Iterable[str | type] | None
    """Types that may be read, beside those that the workflows name."""
    clock: Clock | None
    allow_pickle: bool
    size_limits: SizeLimits | None


class StoreStorage(RequestQueue):
    """A storage on top of a store. Its `trust` grows with every workflow that uses it in this process."""

    def __init__(
        self,
        store: Store,
        *,
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        allow_pickle: bool = False,
        clock: Clock | None = None,
        size_limits: SizeLimits | None = DEFAULT_SIZE_LIMITS,
    ) -> None:
        super().__init__(
            store,
            lambda: Codec(self.trust, allow_pickle=self.allow_pickle, size_limits=self.size_limits),
            clock or DefaultClock(),
        )
        self.size_limits = size_limits or NO_SIZE_LIMITS
        self.allow_pickle = allow_pickle
        self.allowed = Trust.of(allowed=allowed_checkpoint_types or ())
        self.shared = SharedTrust(self.allowed)

    @property
    def trust(self) -> Trust:
        """The types that the workflows of this storage trust, and the allowed ones."""
        return self.shared.trust

    def codec(self) -> Codec:
        """Return a codec with the present trust."""
        return Codec(self.trust, allow_pickle=self.allow_pickle)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint that was made by hand or comes from another storage. Return its id."""
        if isinstance(checkpoint, StoredCheckpoint) and checkpoint.is_as_stored():
            manifest, blobs = carried_manifest(checkpoint)
        else:
            manifest, blobs = saved_manifest(checkpoint, self.codec())
        if not await self._has_same(manifest):
            await self._commit(manifest, blobs)
        return manifest.checkpoint_id

    async def _commit(self, manifest: Manifest, blobs: tuple[Blob, ...]) -> None:
        origin = await self._origin(manifest)
        lease = await self.store.acquire(manifest.run_id, create=origin)
        try:
            record = await self.store.run(manifest.run_id)
            position, head = (record.position, record.head) if record is not None else (-1, None)
            manifest = replace(manifest, position=max(manifest.position, position + 1))
            await self.store.commit(lease, Commit(manifest, blobs, head, settled=is_settled(manifest)))
            if record is not None and record.nonce != origin.nonce:
                # The run was rewound between this checkpoint and those before it.
                here = manifest.checkpoint_id
                await self.store.rewind(lease, expected_head=here, to=here, nonce=origin.nonce)
        finally:
            await self.store.release(lease)

    async def _origin(self, manifest: Manifest) -> NewRun:
        """Return how the run of a checkpoint began. A parent that is not here is left out."""
        origin = origin_of(manifest)
        try:
            if origin.parent_checkpoint_id is not None:
                await self.store.manifest(origin.parent_checkpoint_id)
        except CheckpointNotFoundError:
            return replace(origin, parent_checkpoint_id=None)
        return origin

    async def _has_same(self, manifest: Manifest) -> bool:
        try:
            present = await self.store.manifest(manifest.checkpoint_id)
        except CheckpointNotFoundError:
            return False
        if present.checksum() == manifest.checksum():
            return True
        raise WorkflowCheckpointException(
            f"there is another checkpoint {manifest.checkpoint_id!r} in this storage, and checkpoints never change; "
            "give this one an id of its own"
        )

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint. Raises CheckpointNotFoundError, CheckpointDamagedError."""
        return self._view(await self.store.manifest(checkpoint_id))

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        """Return checkpoints in commit order: all, or those of a workflow or a run. Nothing is decoded.

        A damaged checkpoint of the workflow or run raises CheckpointDamagedError. In a list of everything it is left
        out, and a warning in the log names it.
        """
        manifests = await self.store.manifests(workflow_name=workflow_name, run_id=run_id)
        if run_id is not None or workflow_name is not None:
            return [self._view(manifest) for manifest in manifests]
        return [view for manifest in manifests if (view := self._listed(manifest)) is not None]

    def _listed(self, manifest: Manifest) -> WorkflowCheckpoint | None:
        try:
            return self._view(manifest)
        except WorkflowCheckpointException as error:
            logger.warning("left out of the list: %s", error)
            return None

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint. Return False if there was none."""
        return await self.store.delete(checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the newest commit of any run of the workflow."""
        manifest = await self.store.latest(workflow_name=workflow_name)
        return None if manifest is None else self._view(manifest)

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None) -> list[str]:
        """Return the ids of checkpoints in commit order: all, or those of a workflow."""
        return list(await self.store.ids(workflow_name=workflow_name))

    def _view(self, manifest: Manifest) -> WorkflowCheckpoint:
        return StoredCheckpoint.of(Source(manifest, self.store.read_blobs, self.codec))

    async def runs(
        self,
        workflow: str | None = None,
        status: RunStatus | Sequence[RunStatus] | None = None,
        *,
        order: Order = "oldest",
        limit: int | None = None,
        after: str | None = None,
        **chosen: Unpack[RunFilter],
    ) -> list[RunInfo]:
        """List runs: `await storage.runs(status="failed", tags={"customer": "acme"}, order="newest", limit=50)`.

        `status` is one or several; a blocked run is also found under the status that its newest commit has left.
        `RunFilter` has further conditions. `after` is the id of the previous page's last run. The
        listing is one indexed query, except on files, where all runs are read.

        Raises ValueError for an unknown status or order or a limit below 1, RunNotFoundError if `after` is unknown.
        """
        query = run_query(workflow, status, order=order, limit=limit, after=after, **chosen)
        return await run_infos(self.store, await list_runs(self.store, query))

    async def count_runs(self, workflow: str | None = None, **chosen: Unpack[RunFilter]) -> Mapping[str, int]:
        """Return by status how many runs there are."""
        return await count_runs(self.store, run_query(workflow, **chosen))

    async def run(self, run_id: str) -> RunInfo:
        """Return the state of a run. Raises RunNotFoundError."""
        [info] = await run_infos(self.store, [await self._record(run_id)])
        return info

    async def hosts(self) -> list[HostInfo]:
        """List the living hosts, oldest first. A file store knows none."""
        return list(await self.store.hosts()) if knows_hosts(self.store) else []

    async def recover(self, run_id: str, *, budget: Mapping[str, float] | None = None) -> bool:
        """Let a failed or quarantined run continue. Any host that serves its workflow then advances it.

        A new `budget` is durable before the run can continue; resources that it does not name keep theirs.

        Return False if the run has neither failed nor been quarantined. To end a cancellation the program is needed:
        use `host.recover`. Raises RunNotFoundError, RunExportedError, and RunError for a cancelled run.
        """
        record = await self._record(run_id)
        if budget is not None and record.run_status not in {"cancelled", "exported"}:
            await self.set_budget(run_id, budget)
        if record.halt is not None:
            # A lease ends the halt.
            await self.store.release(await self.store.acquire(run_id))
            return True
        if record.status == "cancelled":
            raise RunError(f"run {run_id!r} was cancelled; its program must continue it: call host.recover({run_id!r})")
        return False

    async def fork(
        self, checkpoint_id: str, *, run_id: str | None = None, budget: Mapping[str, float] | None = None
    ) -> str:
        """Start a new run at a checkpoint. Return its id. Any host that serves its workflow then advances it.

        Resources that `budget` does not name keep the budget that they have in the checkpoint. An edit needs the
        program: use `host.fork`. Raises CheckpointNotFoundError, RunExistsError, CheckpointDamagedError.
        """
        manifest, chosen = await self.store.manifest(checkpoint_id), run_id or self.clock.new_id()
        if await self.store.run(chosen) is not None:
            raise RunExistsError(chosen)
        archive = await self._tenant_store().archive(manifest.run_id)
        found = next((each for each in archive.checkpoints if each.manifest.checkpoint_id == checkpoint_id), None)
        if found is None:
            raise CheckpointNotFoundError(checkpoint_id)  # removed meanwhile
        origin = NewRun(
            chosen,
            manifest.workflow_name,
            now(self.clock),
            self.clock.new_id(),
            parent_checkpoint_id=checkpoint_id,
            parent_run_id=manifest.run_id,
            tags=archive.record.tags,
        )
        lease = await self.store.acquire(chosen, create=origin)
        try:
            if lease.record is not None and lease.record.nonce != origin.nonce:
                raise RunExistsError(chosen)
            commit = Commit(
                forked_manifest(manifest, origin),
                (),
                checkpoint_id,
                settled=found.settled,
                status=found.status,
                wake_at=found.wake_at,
            )
            await self.store.commit(lease, commit)
            if budget is not None:
                await self.set_budget(chosen, budget)
        finally:
            await self.store.release(lease)
        return chosen

    async def restore(self, run_id: str, checkpoint_id: str) -> None:
        """Move a run back to one of its checkpoints. Later checkpoints stay readable. A halt ends.

        Raises RunNotFoundError, CheckpointNotFoundError, RunBusyError, and WorkflowCheckpointException if the
        checkpoint belongs to another run.
        """
        record = await self._record(run_id)
        self._require_not_ours(record)
        manifest = await self.store.manifest(checkpoint_id)
        if manifest.run_id != run_id:
            raise WorkflowCheckpointException(
                f"checkpoint {checkpoint_id!r} belongs to run {manifest.run_id!r}, not to {run_id!r}: fork it instead"
            )
        lease = await self.store.acquire(run_id)
        try:
            head = (await self._record(run_id)).head
            assert head is not None, "a run with a checkpoint has a head"
            await self.store.rewind(lease, expected_head=head, to=checkpoint_id, nonce=self.clock.new_id())
        finally:
            await self.store.release(lease)

    async def delete_run(self, run_id: str, *, takeover: bool = False) -> bool:
        """Delete a run with its checkpoints, events and requests. Return False if there is none.

        `collect` then frees the space of its blobs. Raises RunBusyError, and WorkflowCheckpointException if a fork
        needs one of its checkpoints.
        """
        record = await self.store.run(run_id)
        if record is not None and not takeover:
            self._require_not_ours(record)
        return await self._tenant_store().remove(run_id, takeover=takeover)

    async def _record(self, run_id: str) -> RunRecord:
        record = await self.store.run(run_id)
        if record is None:
            raise RunNotFoundError(run_id)
        return record

    @staticmethod
    def _require_not_ours(record: RunRecord) -> None:
        """Refuse a run that this process advances: the store would replace a lease of its own process."""
        if record.owner == this_process():
            raise RunBusyError(record.run_id, owner="this process", advice="wait for it, or close it first")

    async def size_report(self, run_id: str, *, since: int = 1) -> SizeReport:
        """Report how large a run is, which of its values are large, and which grow; `print` it.

        The newest checkpoint is compared with the one `since` commits before it, or with the oldest one. This needs the
        store alone. Raises RunNotFoundError, CheckpointDamagedError.
        """
        return await size_report(self.store, run_id, since=since)

    async def view(self, checkpoint_id: str, *, value_size_max: int | None = None) -> CheckpointView:
        """Return a checkpoint as plain data, with the store alone: nothing is imported, nothing is called.

        A value is read when it is looked at, and cut to about `value_size_max` characters, with a note. Raises
        CheckpointNotFoundError, CheckpointDamagedError.
        """
        return await view(self.store, checkpoint_id, value_size_max)

    async def diff(self, before: str, after: str, *, value_size_max: int | None = None) -> CheckpointDiff:
        """Compare two checkpoints by id, with the store alone. Entries that are equal are not read."""
        return await diff(self.store, before, after, value_size_max)

    async def diff_runs(self, before: str, after: str, *, value_size_max: int | None = None) -> RunDiff:
        """Find the first superstep at which two runs diverge, with the store alone. Raises RunNotFoundError."""
        return await diff_runs(self.store, before, after, value_size_max)

    async def collect(self) -> int:
        """Remove finished runs that the retention does not keep, then unused blobs. Return the number of blobs.

        A commit does the same for a few runs. Call this now and then if the storage rests for long.
        """
        return await self.store.collect()

    async def migrate(self) -> Sequence[str]:
        """Bring the store to the schema of this release. Return the names of the migrations that were made.

        A store that is opened without `read_only` is migrated anyway. Raises StorageReadOnlyError.
        """
        return await self._backed_store().migrate()

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent copy of a SQLite file or a directory of files while others write to it.

        Raises WorkflowCheckpointException if there is something at the path already, and on PostgreSQL, which has
        pg_dump for this.
        """
        await self._backed_store().backup(Path(path))

    def check(self) -> AsyncGenerator[Damage]:
        """Verify the checksums of all runs, and yield what is damaged or missing, run by run. Nothing is changed."""
        return self._backed_store().check()

    def _backed_store(self) -> BackedStore[Any]:
        if isinstance(self.store, BackedStore):
            return cast("BackedStore[Any]", self.store)
        raise WorkflowCheckpointException(f"a {type(self.store).__name__} has no migrations, copies and checks")

    async def close(self) -> None:
        """Release files and threads. A closed storage opens again when it is used."""
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def events(
        self, run_id: str, *, from_seq: int = 1, follow: bool = False, until_rest: bool = False
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Iterate over the committed events of a run, from a number on, in any process, with the storage alone.

        With `follow` it waits for further events; with `until_rest` as well, it ends when the run has nothing to do at
        once. Raises RunNotFoundError, EventsForgottenError, CheckpointDamagedError.
        """
        return committed_events(self.store, self.codec, run_id, from_seq=from_seq, follow=follow, until_rest=until_rest)

    def tenant(self, name: str) -> StoreStorage:
        """Return a storage for the data of one tenant, in which ids of other tenants do not exist.

        It has the clock of this storage and reads the same types.
        """
        if name.startswith(APART):
            raise WorkflowCheckpointException(
                f"the name of tenant {name!r} begins with {APART!r}, which is reserved for perdure's own data; "
                "choose another name"
            )
        view = StoreStorage(
            self._tenant_store().tenant(name),
            allow_pickle=self.allow_pickle,
            clock=self.clock,
            size_limits=self.size_limits,
        )
        view.allowed, view.shared = self.allowed, self.shared
        return view

    async def export_run(self, run_id: str, path: str | os.PathLike[str], *, takeover: bool = False) -> None:
        """Write a whole run to a file, and close it here. `import_run` continues it in any storage, also in this one.

        It is closed before the file is written. An exported run can be read, removed and exported again. If it had
        failed or was quarantined, the file says so.

        Raises RunNotFoundError, RunBusyError if somebody advances it (unless `takeover`) or has imported it here before
        the file was written, CheckpointDamagedError, and WorkflowCheckpointException if the file can't be written.
        """
        await export_run(self._tenant_store(), self.clock, run_id, path, takeover=takeover)

    async def import_run(self, path: str | os.PathLike[str]) -> str:
        """Store a run that was exported to a file. Return its id. It is the same run, and goes on where it was.

        Raises RunExistsError if a run of its id is here and was not exported, and WorkflowCheckpointException for a
        file that can't be read, is damaged, or is not an export. Then nothing has changed.
        """
        return await import_run(self._tenant_store(), path)

    def _tenant_store(self) -> TenantStore:
        if is_tenant_store(self.store):
            return self.store
        raise WorkflowCheckpointException(
            f"a {type(self.store).__name__} has neither tenants nor transfers of whole runs; for these a store needs "
            "the methods of perdure.storage.TenantStore"
        )


class InMemoryCheckpointStorage(StoreStorage):
    """A storage in memory, for tests. It uses the same codec as the others: what works here works on disk."""

    def __init__(self, *, retention: Retention | None = None, **options: Unpack[StorageOptions]) -> None:
        clock = options["clock"] = options.get("clock") or DefaultClock()
        super().__init__(MemoryStore(retention=retention, clock=clock), **options)


class FileCheckpointStorage(StoreStorage):
    """A directory of readable files, for one machine.

    With `read_only` nothing is created, migrated or written: a call that writes raises StorageReadOnlyError.
    A process on another machine with the same directory counts as dead when it has shown no sign of life for
    `lease_seconds`. With durability "commit" a commit survives a power cut, with "os" only a killed process.
    """

    def __init__(
        self,
        storage_path: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        lease_seconds: float = LEASE_SECONDS,
        durability: Durability = "commit",
        read_only: bool = False,
        **options: Unpack[StorageOptions],
    ) -> None:
        clock = options["clock"] = options.get("clock") or DefaultClock()
        store = FileStore(
            storage_path,
            retention=retention,
            clock=clock,
            lease_seconds=lease_seconds,
            durability=durability,
            read_only=read_only,
        )
        super().__init__(store, **options)
        self.storage_path: Path = store.directory


class SqliteCheckpointStorage(StoreStorage):
    """One SQLite file, for any number of processes of one machine: the embedded default.

    With `read_only` nothing is created, migrated or written: a call that writes raises StorageReadOnlyError. Of a file
    with an older schema it reads a temporary copy, made when it is opened.
    With durability "commit" a commit survives a power cut, with "os" only a killed process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention: Retention | None = None,
        lease_seconds: float = LEASE_SECONDS,
        durability: Durability = "commit",
        read_only: bool = False,
        **options: Unpack[StorageOptions],
    ) -> None:
        clock = options["clock"] = options.get("clock") or DefaultClock()
        store = SqliteStore(
            path,
            retention=retention,
            clock=clock,
            lease_seconds=lease_seconds,
            durability=durability,
            database=functools.partial(SqliteDatabase, read_only=read_only),
        )
        super().__init__(store, **options)
        self.path: Path = store.path


class PostgresCheckpointStorage(StoreStorage):
    """A PostgreSQL database, for several machines. It needs the extra `perdure[postgres]`.

    All tables are in one `schema`, which is created when it is first needed. `pool_size` is the maximal number of
    connections of a process. With durability "os" the server reports commits before it has synced them: they survive
    every process of ours, but a crash of the server may lose the newest. With `read_only` nothing is created, migrated
    or written: a call that writes raises StorageReadOnlyError, and an older schema StorageOutdatedError.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "perdure",
        retention: Retention | None = None,
        lease_seconds: float = LEASE_SECONDS,
        pool_size: int = 4,
        durability: Durability = "commit",
        read_only: bool = False,
        **options: Unpack[StorageOptions],
    ) -> None:
        clock = options["clock"] = options.get("clock") or DefaultClock()
        store = PostgresStore(
            dsn,
            schema=schema,
            retention=retention,
            clock=clock,
            lease_seconds=lease_seconds,
            pool_size=pool_size,
            durability=durability,
            read_only=read_only,
        )
        super().__init__(store, **options)


async def committed_events(
    store: Store,
    codec: Callable[[], Codec],
    run_id: str,
    *,
    from_seq: int = 1,
    follow: bool = False,
    until_rest: bool = False,
) -> AsyncGenerator[WorkflowEvent[Any]]:
    """Iterate over the committed events of a run, from a number on, each once and in order.

    With `follow` it waits for further events, and for a run that has not begun. With `until_rest` it ends when nobody
    advances the run, or the run has nothing to do at once: it is idle, sleeps, waits for an answer or was cancelled.

    Raises:
        RunNotFoundError: there is no such run, or no longer.
        EventsForgottenError: retention has removed the next event.
        CheckpointDamagedError: stored data is not what was written.
    """
    if from_seq < 1:
        raise ValueError(f"events are numbered from 1 on, there is no event {from_seq}; read with from_seq=1")
    cursor, has_begun = from_seq, False
    while True:
        # The mark before the record, the record before the events: a commit in between ends the wait below.
        mark = await store.watch(run_id, seen=_NOWHERE)
        record = await store.run(run_id)
        if record is None:
            if has_begun or not follow:
                raise RunNotFoundError(run_id)
            await store.watch(run_id, seen=mark)
            continue
        has_begun = True
        while cursor <= record.events:
            for batch in await _read_page(store, run_id, cursor, newest=record.events):
                for event in await _read_events(store, codec, batch, cursor):
                    yield event
                cursor = batch.last + 1
        if not follow or (until_rest and _is_at_rest(record, mark)):
            return
        await store.watch(run_id, seen=mark)


def _is_at_rest(record: RunRecord, mark: Mark) -> bool:
    """Return whether nobody has the run, or it has nothing to do at once. A waiting command is work."""
    if mark.head is None:
        # It has begun since the mark was read.
        return False
    return mark.owner is None or (record.status != "running" and mark.commands == 0)


async def _read_page(store: Store, run_id: str, cursor: int, *, newest: int) -> list[EventBatch]:
    """Return the next batches. The first contains the event `cursor`; none begins after the event `newest`."""
    found = await store.events(run_id, after=cursor - 1, limit=BATCHES_PER_PAGE)
    if not found or found[0].first > cursor:
        raise EventsForgottenError(run_id, asked=cursor, first=found[0].first if found else newest + 1)
    return [batch for batch in found if batch.first <= newest]


async def _read_events(
    store: Store, codec: Callable[[], Codec], batch: EventBatch, cursor: int
) -> list[WorkflowEvent[Any]]:
    """Return the events of a batch from `cursor` on."""
    try:
        try:
            blobs: Mapping[str, bytes] = await store.blobs(batch.refs) if batch.refs else {}
        except BlobDamagedError as error:
            raise CheckpointDamagedError(batch.checkpoint_id, error.reason) from error
        return EventReader(codec(), batch, blobs).events(from_seq=cursor)
    except CheckpointDamagedError:
        # Missing blobs are no damage if retention has removed the batch since it was read: then this raises.
        await _read_page(store, batch.run_id, cursor, newest=batch.last)
        raise
