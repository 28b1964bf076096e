"""Bind a storage to a workflow: the store, and a codec with the trust of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.checkpoint import Source, StoredCheckpoint
from perdure.codec import Codec, CodedValues, SizeLimits
from perdure.storage.checkpoint_storage import CheckpointStorage
from perdure.storage.storages import StoreStorage
from perdure.storage.urls import open_storage
from perdure.storage.user_storage import ForeignStore

if TYPE_CHECKING:
    from perdure.checkpoint import WorkflowCheckpoint
    from perdure.codec import Trust
    from perdure.storage.port import Store


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything that a workflow needs to write and read its checkpoints."""

    storage: object
    store: Store
    codec: Codec
    values: CodedValues
    foreign: ForeignStore | None = None
    """The store, if it is on top of a user's own storage."""

    @property
    def has_inbox(self) -> bool:
        """Commands can be sent to runs in this storage."""
        return self.foreign is None

    async def checkpoints(self, run_id: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a run in commit order."""
        if self.foreign is not None:
            return await self.foreign.checkpoints(run_id)
        mine = await self.store.manifests(run_id=run_id)
        return [StoredCheckpoint.of(Source(manifest, self.store.read_blobs, lambda: self.codec)) for manifest in mine]


def bind(storage: object, *, workflow_name: str, trust: Trust, is_lenient: bool = False) -> Binding:
    """Bind a storage, or the storage of a URL, to a workflow. Raises TypeError for anything else."""
    if isinstance(storage, str):
        storage = open_storage(storage)
    if isinstance(storage, StoreStorage):
        storage.trust = storage.trust.including(trust)
        codec = Codec(
            storage.allowed.including(trust), allow_pickle=storage.allow_pickle, size_limits=storage.size_limits
        )
        values = CodedValues(codec, is_lenient=is_lenient)
        return Binding(storage, storage.store, codec, values)
    if isinstance(storage, CheckpointStorage):
        codec = Codec(trust, size_limits=SizeLimits())
        store = ForeignStore(storage, workflow_name=workflow_name, codec=codec)
        values = CodedValues(codec, is_lenient=is_lenient)
        return Binding(storage, store, codec, values, foreign=store)
    raise TypeError(
        f"a {type(storage).__name__} is not a checkpoint storage: it needs the methods save, load, list_checkpoints, "
        "delete, get_latest and list_checkpoint_ids"
    )
