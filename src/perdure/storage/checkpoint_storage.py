"""The six methods of a checkpoint storage, and checkpoints that a program saves through them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from perdure.checkpoint import SAVED_FIELDS_PATH, VALUE_FIELDS, StoredCheckpoint, WorkflowCheckpoint
from perdure.checkpoint.manifest import FORMAT
from perdure.codec import Codec, dumps, loads, references
from perdure.errors import EncodeError
from perdure.records import Blob, Manifest, NewRun
from perdure.typenames import describe_stored

if TYPE_CHECKING:
    from collections.abc import Sequence


CheckpointID: TypeAlias = str


@runtime_checkable
class CheckpointStorage(Protocol):
    """A place for checkpoints. Any object with these methods will do. The shipped ones can do more."""

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Store a checkpoint. Return its id."""
        ...

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """Return a checkpoint. Raises WorkflowCheckpointException if there is none."""
        ...

    async def list_checkpoints(self, *, workflow_name: str) -> Sequence[WorkflowCheckpoint]:
        """Return all checkpoints of a workflow."""
        ...

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Delete a checkpoint. Return False if there was none."""
        ...

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the newest checkpoint of a workflow."""
        ...

    async def list_checkpoint_ids(self, *, workflow_name: str) -> Sequence[CheckpointID]:
        """Return the ids of all checkpoints of a workflow."""
        ...


def carried_manifest(checkpoint: StoredCheckpoint) -> tuple[Manifest, tuple[Blob, ...]]:
    """Return the manifest and blobs of a checkpoint from another storage, byte by byte."""
    blobs = checkpoint.source.blobs().values()
    return checkpoint.source.manifest, tuple(Blob.of(data, references(data)) for data in blobs)


def forked_manifest(manifest: Manifest, origin: NewRun) -> Manifest:
    """Return a checkpoint as the first one of a fork. It needs the same blobs."""
    names: dict[str, Any] = {
        "checkpoint_id": f"{origin.run_id}@0",
        "run_id": origin.run_id,
        "timestamp": origin.created_at,
    }
    run = {name: getattr(origin, name) for name in ("created_at", "nonce", "input_digest", "parent_checkpoint_id")}
    header = {
        **loads(manifest.header),
        **names,
        "previous_checkpoint_id": manifest.checkpoint_id,
        "kind": "edit",
        "run": run,
    }
    return replace(manifest, **names, position=0, previous_id=manifest.checkpoint_id, header=dumps(header))


def saved_manifest(checkpoint: WorkflowCheckpoint, codec: Codec) -> tuple[Manifest, tuple[Blob, ...]]:
    """Encode a checkpoint that was made by hand. Its values are one blob. Raises EncodeError."""
    encoded = codec.encode({name: getattr(checkpoint, name) for name in VALUE_FIELDS}, path="checkpoint")
    run_id = checkpoint.run_id or f"saved:{checkpoint.checkpoint_id}"
    manifest = Manifest(
        checkpoint_id=checkpoint.checkpoint_id,
        run_id=run_id,
        workflow_name=checkpoint.workflow_name,
        position=0,
        previous_id=checkpoint.previous_checkpoint_id,
        timestamp=checkpoint.timestamp,
        iteration_count=checkpoint.iteration_count,
        header=_header(checkpoint, run_id),
        toc={SAVED_FIELDS_PATH: encoded.blob().hash},
    )
    return manifest, (*encoded.blobs, encoded.blob())


def _header(checkpoint: WorkflowCheckpoint, run_id: str) -> bytes:
    header: dict[str, Any] = {
        "format": FORMAT,
        "workflow_name": checkpoint.workflow_name,
        "checkpoint_id": checkpoint.checkpoint_id,
        "run_id": run_id,
        "previous_checkpoint_id": checkpoint.previous_checkpoint_id,
        "timestamp": checkpoint.timestamp,
        "iteration_count": checkpoint.iteration_count,
        "graph_signature_hash": checkpoint.graph_signature_hash,
        "kind": "saved",
        "turn": 1,
        "since_input": checkpoint.iteration_count,
        "pending_request_info_events": {
            request_id: {
                "type": "request_info",
                "request_id": request_id,
                "source_executor_id": event.source_executor_id,
                "request_type": describe_stored(event.request_type),
                "response_type": describe_stored(event.response_type),
            }
            for request_id, event in checkpoint.pending_request_info_events.items()
        },
        "metadata": checkpoint.metadata,
        "version": checkpoint.version,
    }
    try:
        return dumps(header)
    except (TypeError, ValueError) as error:
        raise EncodeError(
            path="checkpoint['metadata']", reason=str(error), remedy="keep plain JSON data in the metadata"
        ) from error
