"""A loop that starts a workflow, loses it, and resumes it until it is done, on each of the three storages.

Shows: a run goes on from its newest checkpoint however often it is interrupted, and ends as an undisturbed one would.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import override

from perdure import (
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    handler,
)


@dataclass
class Remaining:
    numbers: list[int]


class StartExecutor(Executor):
    @handler
    async def start(self, upper_limit: int, ctx: WorkflowContext[Remaining]) -> None:
        await ctx.send_message(Remaining(list(range(1, upper_limit + 1))))


class WorkerExecutor(Executor):
    def __init__(self) -> None:
        super().__init__(id="worker")
        self._results: dict[int, int] = {}  # Internal state

    @handler
    async def square(self, remaining: Remaining, ctx: WorkflowContext[Remaining, dict[int, int]]) -> None:
        number, *rest = remaining.numbers
        self._results[number] = number * number
        if rest:
            await ctx.send_message(Remaining(rest))
        else:
            await ctx.yield_output(self._results)

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Save executor state into checkpoint."""
        return {"results": self._results}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore executor state from checkpoint."""
        self._results = state.get("results", {})


async def run_with_recovery(checkpoint_storage: CheckpointStorage) -> None:
    print(type(checkpoint_storage).__name__)
    start = StartExecutor("start")
    worker = WorkerExecutor()

    # Build workflow with checkpoint storage
    workflow_builder = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=checkpoint_storage)
        .add_edge(start, worker)
        .add_edge(worker, worker)  # Self-loop
    )

    # Run with automatic recovery
    latest_checkpoint: WorkflowCheckpoint | None = None
    while True:
        # All the workflows share the two executors; whichever advances puts them back to what its run has stored.
        workflow = workflow_builder.build()

        event_stream = (
            workflow.run(message=10, stream=True)  # Fresh start
            if latest_checkpoint is None
            else workflow.run(checkpoint_id=latest_checkpoint.checkpoint_id, stream=True)  # Resume
        )

        supersteps = 0
        async for event in event_stream:
            if event.type == "checkpoint":
                latest_checkpoint = event.data  # Save checkpoint
            elif event.type == "output":
                print("  Done:", event.data)
                return
            elif event.type == "superstep_completed":
                supersteps += 1
            elif event.type == "executor_completed" and supersteps == 3:
                # The worst moment: the work of a superstep is done, and not yet committed.
                assert latest_checkpoint is not None, "three supersteps have left checkpoints"
                print(f"  interrupted; the newest checkpoint is of superstep {latest_checkpoint.iteration_count}")
                break


async def main() -> None:
    with TemporaryDirectory() as directory:
        await run_with_recovery(InMemoryCheckpointStorage())
        await run_with_recovery(FileCheckpointStorage(Path(directory) / "checkpoints"))
        await run_with_recovery(SqliteCheckpointStorage(Path(directory) / "runs.db"))


if __name__ == "__main__":
    asyncio.run(main())
