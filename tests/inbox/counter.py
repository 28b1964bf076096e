"""A run that counts, and has a listener for those outside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler

if TYPE_CHECKING:
    from perdure.storage import StoreStorage


class Counter(Executor):
    """Counts to three, a superstep for each number; at one it waits to be let on."""

    def __init__(self) -> None:
        super().__init__("counter")
        self.is_at_one, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.may_go_on.set()

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int | str, str]) -> None:
        if number == 1:
            self.is_at_one.set()
            await self.may_go_on.wait()
        if number % 10 < 3:
            await ctx.send_message(number + 1)
        await ctx.yield_output(str(number))


class Listener(Executor):
    """Tells what it hears."""

    @handler
    async def hear(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"heard {text}")


def counting(storage: Any, counter: Counter | None = None, **options: Any) -> Workflow:
    """A counter, and a listener that nobody in the workflow speaks to."""
    start, listener = counter or Counter(), Listener("listener")
    builder = WorkflowBuilder(name="counting", start_executor=start, checkpoint_storage=storage, **options)
    return builder.add_edge(start, start).add_edge(start, listener).build()


def held() -> Counter:
    """A counter that waits at one."""
    counter = Counter()
    counter.may_go_on.clear()
    return counter


async def told(storage: StoreStorage, run_id: str = "r") -> list[Any]:
    """The outputs that the run has committed, in order."""
    return [event.data async for event in storage.events(run_id) if event.type == "output"]
