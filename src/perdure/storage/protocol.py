"""The six methods that make an object a checkpoint storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.checkpoint import WorkflowCheckpoint

CheckpointID: TypeAlias = str


@runtime_checkable
class CheckpointStorage(Protocol):
    """Where checkpoints rest. Any object with these methods will do; the shipped ones can do more."""

    async def save(self, checkpoint: WorkflowCheckpoint) -> CheckpointID:
        """Keep a checkpoint; its id."""
        ...

    async def load(self, checkpoint_id: CheckpointID) -> WorkflowCheckpoint:
        """A checkpoint by its id. Raises WorkflowCheckpointException if there is none."""
        ...

    async def list_checkpoints(self, *, workflow_name: str) -> Sequence[WorkflowCheckpoint]:
        """All checkpoints of a workflow."""
        ...

    async def delete(self, checkpoint_id: CheckpointID) -> bool:
        """Forget a checkpoint; False if there was none."""
        ...

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The newest checkpoint of a workflow."""
        ...

    async def list_checkpoint_ids(self, *, workflow_name: str) -> Sequence[CheckpointID]:
        """The ids of all checkpoints of a workflow."""
        ...
