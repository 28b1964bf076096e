"""A table of factor pairs, half computed, carried over an interruption on each of the three storages.

Shows: state comes back as it was, keys that are numbers and values that are tuples included, and what was computed
is not computed again.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from perdure import (
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)

Pairs = dict[int, list[tuple[int, int]]]


@dataclass
class ComputeTask:
    remaining_numbers: list[int]


class WorkerExecutor(Executor):
    def __init__(self, id: str) -> None:  # noqa: A002 - the documented name
        super().__init__(id=id)
        self._pairs: Pairs = {}

    @handler
    async def compute(self, task: ComputeTask, ctx: WorkflowContext[ComputeTask, Pairs]) -> None:
        n = task.remaining_numbers.pop(0)
        self._pairs[n] = [(i, n // i) for i in range(1, n) if n % i == 0]
        print(f"  computed {n}")

        if task.remaining_numbers:
            await ctx.send_message(task)
        else:
            await ctx.yield_output(self._pairs)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"pairs": self._pairs}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._pairs = state.get("pairs", {})


def build_workflow(storage: CheckpointStorage) -> Workflow:
    worker = WorkerExecutor("worker")
    builder = WorkflowBuilder(start_executor=worker, checkpoint_storage=storage)
    builder.add_edge(worker, worker)
    return builder.build()


async def compute_with_interruption(storage: CheckpointStorage) -> None:
    print(type(storage).__name__)
    workflow = build_workflow(storage)
    async for event in workflow.run(ComputeTask([4, 6, 12]), stream=True):
        if event.type == "superstep_completed" and event.iteration == 2:
            print("  interrupted")
            break

    workflow = build_workflow(storage)
    checkpoint = await storage.get_latest(workflow_name=workflow.name)
    assert checkpoint is not None, "every superstep has left a checkpoint"
    async for event in workflow.run(checkpoint_id=checkpoint.checkpoint_id, stream=True):
        if event.type == "output":
            print("  output:", event.data)


async def main() -> None:
    with TemporaryDirectory() as directory:
        await compute_with_interruption(InMemoryCheckpointStorage())
        await compute_with_interruption(FileCheckpointStorage(Path(directory) / "checkpoints"))
        await compute_with_interruption(SqliteCheckpointStorage(Path(directory) / "runs.db"))


if __name__ == "__main__":
    asyncio.run(main())
