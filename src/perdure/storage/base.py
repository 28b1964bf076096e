"""A storage on top of a store: the six methods, requests and events, tenants, runs that come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from perdure.checkpoint import Source, StoredCheckpoint, WorkflowCheckpoint, is_settled, origin_of
from perdure.clock import Clock, SystemClock
from perdure.codec import DEFAULT_SIZE_LIMITS, NO_SIZE_LIMITS, Codec, SizeLimits, Trust, WeighingCodec
from perdure.data import mutable
from perdure.errors import CheckpointNotFoundError, WorkflowCheckpointException
from perdure.records import Commit, Manifest, NewRun, Part
from perdure.storage.event_log import committed_events
from perdure.storage.ids import APART
from perdure.storage.port import is_tenant_store
from perdure.storage.saving import carried_manifest, saved_manifest

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from perdure.events import WorkflowEvent
    from perdure.storage.port import Store, TenantStore
    from perdure.storage.requests import Desk, PendingRequest
    from perdure.storage.sizes import SizeReport


@mutable
class _Trusted:
    """What this program reads, known to a storage and to the views of its tenants alike."""

    trust: Trust


class StoreStorage:
    """The six methods on top of a store. `trust` grows with every workflow that uses the storage in this process."""

    def __init__(
        self,
        store: Store,
        *,
        allowed_checkpoint_types: Iterable[str | type] | None = None,
        allow_pickle: bool = False,
        clock: Clock | None = None,
        size_limits: SizeLimits | None = DEFAULT_SIZE_LIMITS,
    ) -> None:
        self.store = store
        self.size_limits = size_limits or NO_SIZE_LIMITS
        self.clock = clock or SystemClock()
        self.allow_pickle = allow_pickle
        self.allowed = Trust.of(allowed=allowed_checkpoint_types or ())
        self._trusted = _Trusted(self.allowed)

    @property
    def trust(self) -> Trust:
        """What the workflows trust that use the storage, and what it was told to allow."""
        return self._trusted.trust

    @trust.setter
    def trust(self, trust: Trust) -> None:
        self._trusted.trust = trust

    def codec(self) -> Codec:
        """The codec with the trust that the storage has now."""
        return Codec(self.trust, allow_pickle=self.allow_pickle)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Keep a checkpoint that was made by hand or comes from another storage."""
        if isinstance(checkpoint, StoredCheckpoint) and checkpoint.is_as_stored():
            manifest, parts = carried_manifest(checkpoint)
        else:
            manifest, parts = saved_manifest(checkpoint, self.codec())
        if not await self._has_same(manifest):
            await self._commit(manifest, parts)
        return manifest.checkpoint_id

    async def _commit(self, manifest: Manifest, parts: tuple[Part, ...]) -> None:
        origin = await self._origin(manifest)
        claim = await self.store.claim(manifest.run_id, create=origin)
        try:
            record = await self.store.run(manifest.run_id)
            position, head = (record.position, record.head) if record is not None else (-1, None)
            manifest = replace(manifest, position=max(manifest.position, position + 1))
            await self.store.commit(claim, Commit(manifest, parts, head, settled=is_settled(manifest)))
            if record is not None and record.nonce != origin.nonce:
                # The run was rewound between this checkpoint and those before it.
                here = manifest.checkpoint_id
                await self.store.rewind(claim, expected_head=here, to=here, nonce=origin.nonce)
        finally:
            await self.store.release(claim)

    async def _origin(self, manifest: Manifest) -> NewRun:
        """How the run of a checkpoint began. A parent that is not here can't be rested on."""
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
        """A checkpoint by its id. Raises CheckpointNotFoundError, CheckpointDamagedError."""
        return self._view(await self.store.manifest(checkpoint_id))

    async def list_checkpoints(
        self, *, workflow_name: str | None = None, run_id: str | None = None
    ) -> list[WorkflowCheckpoint]:
        """The checkpoints in commit order: all, or those of a workflow or of a run. Nothing is decoded."""
        return [self._view(m) for m in await self.store.manifests(workflow_name=workflow_name, run_id=run_id)]

    async def delete(self, checkpoint_id: str) -> bool:
        """Forget a checkpoint; False if there was none."""
        return await self.store.delete(checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest commit of any run of the workflow."""
        manifest = await self.store.latest(workflow_name=workflow_name)
        return None if manifest is None else self._view(manifest)

    async def list_checkpoint_ids(self, *, workflow_name: str | None = None) -> list[str]:
        """The ids in commit order: all, or those of a workflow."""
        return list(await self.store.ids(workflow_name=workflow_name))

    @property
    def _desk(self) -> Desk:
        from perdure.storage.requests import Desk  # noqa: PLC0415 - loaded where somebody asks or tells

        return Desk(self.store, self._weighing_codec, self.clock)

    def _weighing_codec(self) -> Codec:
        return WeighingCodec(self.trust, allow_pickle=self.allow_pickle, size_limits=self.size_limits)

    async def requests(self, run_id: str | None = None, *, workflow_name: str | None = None) -> list[PendingRequest]:
        """The requests that wait for an answer: of a run, of a workflow's runs, or of all. Needs the store alone.

        A damaged run raises CheckpointDamagedError if it is asked for by its id. In a list of several it is left out,
        and a warning in the log names it.
        """
        return await self._desk.requests(run_id, workflow_name)

    async def respond(
        self,
        run_id: str,
        responses: Mapping[str, Any],
        *,
        by: str | None = None,
        approves: Mapping[str, str] | None = None,
    ) -> None:
        """Answer requests of a run, from any process. The answers are durable when this returns.

        Plain data is checked against the stored schema; the run turns it into the type that it asked for. `approves`
        names, by request, the digest of what the answerer has seen. The same answer again is accepted until the run has
        taken it in; another one raises AlreadyAnsweredError, which says who answered what and when.
        """
        await self._desk.respond(run_id, responses, by=by, approves=approves)

    async def send(
        self,
        run_id: str,
        message: Any,
        *,
        target: str | None = None,
        by: str | None = None,
        message_id: str | None = None,
    ) -> str:
        """Send a message to a run, from any process: to one of its executors, or as its next turn. Returns its id."""
        return await self._desk.send(run_id, message, target=target, by=by, message_id=message_id)

    async def cancel(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Tell a run to stop, from any process. It ends in a checkpoint from which it can be resumed."""
        await self._desk.cancel(run_id, reason=reason, by=by)

    async def size_report(self, run_id: str, *, since: int = 1) -> SizeReport:
        """How large a run is, what makes it so and what of it grows; `print` it. Needs the store alone.

        The newest checkpoint is compared with the one that is `since` before it, or with the oldest there is.
        Raises RunNotFoundError, CheckpointDamagedError.
        """
        from perdure.storage.sizes import size_report  # noqa: PLC0415 - loaded where somebody asks

        return await size_report(self.store, run_id, since=since)

    async def collect(self) -> int:
        """Remove what no checkpoint refers to any more; the number of parts removed."""
        return await self.store.collect()

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
        """What a run has committed, from the event of a number on, told in any process with the storage alone.

        With `follow` further events are waited for; with `until_rest` as well, until the run has nothing to do at once.
        Raises RunNotFoundError, EventsForgottenError, CheckpointDamagedError.
        """
        return committed_events(self.store, self.codec, run_id, from_seq=from_seq, follow=follow, until_rest=until_rest)

    def tenant(self, name: str) -> StoreStorage:
        """What belongs to one tenant: a storage of its own, in which ids of other tenants do not exist.

        It has the clock of this storage and reads the same types.
        """
        if name.startswith(APART):
            raise WorkflowCheckpointException(
                f"the name of tenant {name!r} begins with {APART!r}, which stands for what perdure keeps beside runs; "
                "choose another name"
            )
        view = StoreStorage(
            self._tenant_store().tenant(name),
            allow_pickle=self.allow_pickle,
            clock=self.clock,
            size_limits=self.size_limits,
        )
        view.allowed, view._trusted = self.allowed, self._trusted
        return view

    async def export_run(self, run_id: str, path: str | os.PathLike[str], *, takeover: bool = False) -> None:
        """Write a run to a file, whole, and close it here. `import_run` goes on with it in any storage, also in this.

        It is closed before the file is written: a run that was exported can be read, removed, and exported again. One
        that had failed or was parked is so in the file too.

        Raises RunNotFoundError, RunBusyError if somebody advances it (unless `takeover`) or has imported it here before
        the file was there, CheckpointDamagedError, and WorkflowCheckpointException if the file can't be written.
        """
        from perdure.storage.export import exported  # noqa: PLC0415 - loaded where runs move

        await exported(self._tenant_store(), self.clock, run_id, path, takeover=takeover)

    async def import_run(self, path: str | os.PathLike[str]) -> str:
        """Take in a run that was exported to a file; its id. It is the same run, and goes on where it was.

        Raises RunExistsError if a run of its id is here and was not exported, and WorkflowCheckpointException for a
        file that can't be read, is not whole, or not one of these. Nothing has changed then.
        """
        from perdure.storage.export import imported  # noqa: PLC0415 - loaded where runs move

        return await imported(self._tenant_store(), path)

    def _tenant_store(self) -> TenantStore:
        if is_tenant_store(self.store):
            return self.store
        raise WorkflowCheckpointException(
            f"a {type(self.store).__name__} has no tenants, nor whole runs that come and go: for these a store has the "
            "methods of perdure.storage.port.TenantStore"
        )

    def _view(self, manifest: Manifest) -> WorkflowCheckpoint:
        return StoredCheckpoint.of(Source(manifest, self.store.read_parts, self.codec))
