"""A run frees its memory as it goes: the garbage collector finds nothing of it."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from tests.workflow.nodes import Context, node

from perdure import Agent, InMemoryCheckpointStorage, WorkflowBuilder, step, workflow
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from perdure import Message

FEW, MANY = 5, 40


class Work(Protocol):
    """Something that takes longer the larger its length is."""

    async def __call__(self, length: int, storage: InMemoryCheckpointStorage | None) -> None: ...


async def garbage_of(work: Coroutine[Any, Any, None]) -> int:
    """How much of what the work has made only a collection can free."""
    gc.collect()
    gc.disable()
    try:
        await work
        return gc.collect()
    finally:
        gc.enable()


def ring(do: Callable[[Any, Context], Coroutine[Any, Any, None]], length: int) -> WorkflowBuilder:
    one, other = node("one", do, takes=int), node("other", do, takes=int)
    builder = WorkflowBuilder(start_executor=one, max_iterations=length + 1)
    return builder.add_edge(one, other).add_edge(other, one)


async def send(length: int, storage: InMemoryCheckpointStorage | None) -> None:
    """Supersteps that do nothing but send."""

    async def do(number: int, ctx: Context) -> None:
        if number < length:
            await ctx.send_message(number + 1)

    await ring(do, length).build().run(1, checkpoint_storage=storage)


async def work_in_steps(length: int, storage: InMemoryCheckpointStorage | None) -> None:
    """Handlers with steps, state and expenses."""

    async def do(number: int, ctx: Context) -> None:
        async def doubled() -> int:
            await asyncio.sleep(0)
            return number * 2

        ctx.set_state("doubled", await ctx.step("double", doubled))
        ctx.spend(doublings=1)
        if number < length:
            await ctx.send_message(number + 1)

    await ring(do, length).build().run(1, checkpoint_storage=storage)


@step
async def tripled(number: int) -> int:
    """A step of a function."""
    await asyncio.sleep(0)
    return number * 3


@workflow(name="tripling")
async def tripling(length: int) -> int:
    """A function with steps, one after the other and side by side."""
    first = [await tripled(number) for number in range(length)]
    return sum(first) + sum(await asyncio.gather(*[tripled(number) for number in range(length)]))


async def call_function(length: int, storage: InMemoryCheckpointStorage | None) -> None:
    """A functional workflow."""
    await tripling.run(length, checkpoint_storage=storage)


async def ask_agent(length: int, storage: InMemoryCheckpointStorage | None) -> None:
    """Turns of an agent that calls a tool."""

    def reply(messages: Sequence[Message], _: object) -> str | ToolCall:
        return "It is sunny." if messages[-1].role == "tool" else ToolCall("weather", city="Oslo")

    def weather(city: str) -> str:
        """The weather."""
        return f"sunny in {city}"

    agent = Agent(ScriptedChatClient(reply), name="forecaster", tools=[weather])
    asked = WorkflowBuilder(start_executor=agent, output_from=[agent]).build()
    for turn in range(length):
        await asked.run(f"And on day {turn}?", checkpoint_storage=storage)


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()], ids=["alone", "stored"])
@pytest.mark.parametrize("work", [send, work_in_steps, call_function, ask_agent])
async def test_more_work_leaves_no_more_garbage(work: Work, storage: InMemoryCheckpointStorage | None) -> None:
    await work(FEW, storage)
    # What others have left may become garbage at any time, and what a run leaves may be collected before it is counted.
    few, many = [[await garbage_of(work(length, storage)) for _ in range(3)] for length in (FEW, MANY)]
    assert min(many) <= max(few)
