"""Every storage that we ship, and some of the kind that users write, against the suite that we ship."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from typing_extensions import override

from perdure import (
    CheckpointNotFoundError,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    WorkflowCheckpoint,
)
from perdure.testing.storages import StorageConformance

if TYPE_CHECKING:
    from pathlib import Path

    from perdure import CheckpointStorage


class TestInMemory(StorageConformance):
    @override
    def open_storage(self, directory: Path) -> CheckpointStorage:
        return InMemoryCheckpointStorage()


class TestFile(StorageConformance):
    @override
    def open_storage(self, directory: Path) -> CheckpointStorage:
        return FileCheckpointStorage(directory / "checkpoints")


class TestSqlite(StorageConformance):
    @override
    def open_storage(self, directory: Path) -> CheckpointStorage:
        return SqliteCheckpointStorage(directory / "runs.db")


class DictStorage:
    """The least that a user would write."""

    def __init__(self) -> None:
        self._checkpoints: dict[str, WorkflowCheckpoint] = {}

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        self._checkpoints[checkpoint.checkpoint_id] = copy.deepcopy(checkpoint)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        if checkpoint_id not in self._checkpoints:
            raise CheckpointNotFoundError(checkpoint_id)
        return copy.deepcopy(self._checkpoints[checkpoint_id])

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        mine = [each for each in self._checkpoints.values() if each.workflow_name == workflow_name]
        return copy.deepcopy(mine)

    async def delete(self, checkpoint_id: str) -> bool:
        return self._checkpoints.pop(checkpoint_id, None) is not None

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        mine = await self.list_checkpoints(workflow_name=workflow_name)
        return max(mine, key=lambda each: each.timestamp, default=None)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        return [each.checkpoint_id for each in await self.list_checkpoints(workflow_name=workflow_name)]


class TestAUsersOwn(StorageConformance):
    @override
    def open_storage(self, directory: Path) -> CheckpointStorage:
        return DictStorage()
