"""A storage of one's own: any object with the six methods will do.

Shows: a run on a storage that perdure has never heard of is interrupted and resumed like any other.
"""

import asyncio

from perdure import WorkflowBuilder, WorkflowCheckpoint, WorkflowCheckpointException, WorkflowContext, executor


class ListStorage:
    """Keeps checkpoints in a list, in the order in which they come."""

    def __init__(self) -> None:
        self._checkpoints: list[WorkflowCheckpoint] = []

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        self._checkpoints.append(checkpoint)
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        for checkpoint in self._checkpoints:
            if checkpoint.checkpoint_id == checkpoint_id:
                return checkpoint
        raise WorkflowCheckpointException(f"there is no checkpoint {checkpoint_id!r}")

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        return [checkpoint for checkpoint in self._checkpoints if checkpoint.workflow_name == workflow_name]

    async def delete(self, checkpoint_id: str) -> bool:
        before = len(self._checkpoints)
        self._checkpoints = [kept for kept in self._checkpoints if kept.checkpoint_id != checkpoint_id]
        return len(self._checkpoints) < before

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        return next(reversed(await self.list_checkpoints(workflow_name=workflow_name)), None)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        return [checkpoint.checkpoint_id for checkpoint in await self.list_checkpoints(workflow_name=workflow_name)]


@executor
async def double(number: int, ctx: WorkflowContext[int, int]) -> None:
    if number < 100:
        await ctx.send_message(number * 2)
    else:
        await ctx.yield_output(number)


async def main() -> None:
    storage = ListStorage()
    builder = WorkflowBuilder(start_executor=double, checkpoint_storage=storage).add_edge(double, double)

    workflow = builder.build()
    async for event in workflow.run(3, stream=True):
        if event.type == "superstep_completed" and event.iteration == 4:
            print("interrupted after", event.iteration, "supersteps")
            break

    workflow = builder.build()
    latest = await storage.get_latest(workflow_name=workflow.name)
    assert latest is not None, "every superstep has left a checkpoint"
    result = await workflow.run(checkpoint_id=latest.checkpoint_id)
    print("output:", *result.get_outputs())
    print(f"{len(await storage.list_checkpoint_ids(workflow_name=workflow.name))} checkpoints")


if __name__ == "__main__":
    asyncio.run(main())
