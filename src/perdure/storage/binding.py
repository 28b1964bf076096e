"""A storage as one workflow uses it: the store beneath, and the codec with the trust of both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.checkpoint import Source, StoredCheckpoint
from perdure.codec import Codec, CodedValues, Scale, SizeLimits
from perdure.data import frozen
from perdure.storage.base import StoreStorage
from perdure.storage.protocol import CheckpointStorage
from perdure.storage.urls import open_storage

if TYPE_CHECKING:
    from perdure.checkpoint import WorkflowCheckpoint
    from perdure.codec import Trust
    from perdure.storage.port import Store
    from perdure.storage.user_storage import ForeignStore


@frozen
class Binding:
    """Everything that is needed to write and read the checkpoints of a workflow."""

    storage: object
    store: Store
    codec: Codec
    values: CodedValues
    foreign: ForeignStore | None = None
    """The store, if it stands on a user's object."""

    @property
    def has_inbox(self) -> bool:
        """Whether commands can be sent to runs in this storage."""
        return self.foreign is None

    def for_run(self) -> Binding:
        """The same with values of its own: a run is told of what it keeps itself."""
        return replace(self, values=self.values.of_run())

    async def checkpoints(self, run_id: str) -> list[WorkflowCheckpoint]:
        """The checkpoints of a run, in commit order."""
        if self.foreign is not None:
            return await self.foreign.checkpoints(run_id)
        mine = await self.store.manifests(run_id=run_id)
        return [StoredCheckpoint.of(Source(manifest, self.store.read_parts, lambda: self.codec)) for manifest in mine]


def bind(storage: object, *, workflow_name: str, trust: Trust, is_lenient: bool = False) -> Binding:
    """Bind a storage, or that of a URL, to a workflow. Raises TypeError for what is no storage."""
    if isinstance(storage, str):
        storage = open_storage(storage)
    if isinstance(storage, StoreStorage):
        storage.trust = storage.trust.including(trust)
        codec = Codec(storage.allowed.including(trust), allow_pickle=storage.allow_pickle)
        values = CodedValues(codec, is_lenient=is_lenient, scale=Scale(storage.size_limits))
        return Binding(storage, storage.store, codec, values)
    if isinstance(storage, CheckpointStorage):
        from perdure.storage.user_storage import ForeignStore  # noqa: PLC0415 - loaded where there is one

        codec = Codec(trust)
        store = ForeignStore(storage, workflow_name=workflow_name, codec=codec)
        values = CodedValues(codec, is_lenient=is_lenient, scale=Scale(SizeLimits()))
        return Binding(storage, store, codec, values, foreign=store)
    raise TypeError(
        f"a {type(storage).__name__} is no checkpoint storage: it needs the methods save, load, list_checkpoints, "
        "delete, get_latest and list_checkpoint_ids"
    )
