"""A counter that survives: an executor's own state is part of every checkpoint, so a resumed run counts on.

Shows: after an interruption the run continues exactly what was committed.
"""

import asyncio
from typing import Any

from perdure import Executor, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler


class CounterExecutor(Executor):
    def __init__(self, id: str) -> None:  # noqa: A002 - the documented name
        super().__init__(id=id)
        self._counter = 0

    @handler
    async def count(self, _: None, ctx: WorkflowContext[None, int]) -> None:
        self._counter += 1
        print(f"counter = {self._counter}")
        if self._counter < 5:
            await ctx.send_message(None)
        else:
            await ctx.yield_output(self._counter)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"counter": self._counter}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._counter = state.get("counter", 0)


def build_workflow(storage: InMemoryCheckpointStorage) -> Workflow:
    counter = CounterExecutor("counter")
    builder = WorkflowBuilder(start_executor=counter, checkpoint_storage=storage)
    builder.add_edge(counter, counter)  # what it sends comes back to it in the next superstep
    return builder.build()


async def main() -> None:
    storage = InMemoryCheckpointStorage()

    workflow = build_workflow(storage)
    async for event in workflow.run(None, stream=True):
        if event.type == "superstep_completed" and event.iteration == 3:
            print("-- interrupted: the workflow and its executors are gone, the storage is not")
            break

    # A workflow without a name is named after its graph: the same graph built again finds its checkpoints.
    workflow = build_workflow(storage)
    checkpoint = await storage.get_latest(workflow_name=workflow.name)
    assert checkpoint is not None, "every superstep has left a checkpoint"
    print(f"-- a new workflow resumes after superstep {checkpoint.iteration_count}")
    async for event in workflow.run(checkpoint_id=checkpoint.checkpoint_id, stream=True):
        if event.type == "output":
            print("output:", event.data)


if __name__ == "__main__":
    asyncio.run(main())
