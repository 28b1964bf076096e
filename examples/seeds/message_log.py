"""An executor that remembers every message it got: the two hooks, `on_checkpoint_save` and `on_checkpoint_restore`.

Shows: what a hook returns is stored as it was at that moment. Changing the restored list changes no checkpoint.
"""

import asyncio
from typing import Any

from perdure import Executor, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler


class CustomExecutor(Executor):
    def __init__(self) -> None:
        super().__init__(id="custom")
        self._messages: list[str] = []

    @handler
    async def handle(self, message: str, ctx: WorkflowContext[str, list[str]]) -> None:
        self._messages.append(message)
        await ctx.yield_output(list(self._messages))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"messages": self._messages}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._messages = state["messages"]


def build_workflow(storage: InMemoryCheckpointStorage) -> Workflow:
    return WorkflowBuilder(start_executor=CustomExecutor(), checkpoint_storage=storage, name="log").build()


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = build_workflow(storage)
    for message in ("one", "two"):
        print("heard so far:", *(await workflow.run(message)).get_outputs())

    first_turn = (await storage.list_checkpoints(workflow_name="log"))[1]
    for attempt in ("three", "four"):
        workflow = build_workflow(storage)
        await workflow.run(checkpoint_id=first_turn.checkpoint_id)
        print(f"from the end of the first turn, {attempt!r}:", *(await workflow.run(attempt)).get_outputs())


if __name__ == "__main__":
    asyncio.run(main())
