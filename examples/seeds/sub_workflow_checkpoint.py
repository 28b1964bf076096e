"""A sub-workflow waits for an answer, and is resumed with its parent: the checkpoint of the parent holds both.

Shows: a run is one value, sub-workflows included; there is nothing else to save.
"""

import asyncio
from typing import Any

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)


class Clerk(Executor):
    """Lives in the sub-workflow: collects amounts, and asks before it passes on a large one."""

    def __init__(self) -> None:
        super().__init__(id="clerk")
        self._total = 0

    @handler
    async def book(self, amount: int, ctx: WorkflowContext[int, int]) -> None:
        if amount > 100:
            await ctx.request_info(amount, bool)
        else:
            self._total += amount
            await ctx.yield_output(self._total)

    @response_handler
    async def book_large(self, amount: int, is_allowed: bool, ctx: WorkflowContext[int, int]) -> None:  # noqa: FBT001
        self._total += amount if is_allowed else 0
        await ctx.yield_output(self._total)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"total": self._total}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._total = state["total"]


class Report(Executor):
    @handler
    async def report(self, total: int, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(f"booked in all: {total}")


def build_workflow(storage: InMemoryCheckpointStorage) -> Workflow:
    office = WorkflowBuilder(start_executor=Clerk(), name="office").build()
    booking = WorkflowExecutor(office, id="booking", propagate_request=True)
    return (
        WorkflowBuilder(start_executor=booking, checkpoint_storage=storage, name="books")
        .add_edge(booking, Report("report"))
        .build()
    )


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = build_workflow(storage)
    print(*(await workflow.run(70)).get_outputs())
    await workflow.run(500)

    checkpoint = await storage.get_latest(workflow_name="books")
    assert checkpoint is not None, "the waiting run has been checkpointed"
    workflow = build_workflow(storage)
    result = await workflow.run(checkpoint_id=checkpoint.checkpoint_id)
    [request] = result.get_request_info_events()
    print(f"a new instance is asked: may {request.data} be booked?")
    print(*(await workflow.run(responses={request.request_id: True})).get_outputs())


if __name__ == "__main__":
    asyncio.run(main())
