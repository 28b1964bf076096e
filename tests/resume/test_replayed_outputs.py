"""A resumed run emits outputs again in the same form: in pieces only if they were streamed in pieces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

import pytest

from perdure import (
    Agent,
    AgentResponse,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
)
from perdure.orchestrations import ConcurrentBuilder, SequentialBuilder
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Storage

RESPONSE = AgentResponse(messages=[Message("assistant", ["one"]), Message("assistant", ["two"])])


@executor(id="whole")
async def whole(_: str, ctx: WorkflowContext[Never, AgentResponse]) -> None:
    await ctx.yield_output(RESPONSE)


@executor(id="pieces")
async def pieces(_: str, ctx: WorkflowContext[Never, AgentResponse]) -> None:
    await ctx.yield_output(RESPONSE, in_pieces=True)


def alone(node: Any) -> Callable[[Storage | None], Workflow]:
    """A workflow of one executor."""
    return lambda storage: WorkflowBuilder(start_executor=node, checkpoint_storage=storage, name="alone").build()


def inside(storage: Storage | None) -> Workflow:
    """A workflow whose output is that of one inside of it."""
    child = WorkflowExecutor(alone(pieces)(None), id="child", allow_direct_output=True)
    return WorkflowBuilder(start_executor=child, checkpoint_storage=storage, name="parent").build()


def agents() -> list[Agent]:
    """Agents that answer in several pieces."""
    return [Agent(ScriptedChatClient([f"{name} says so"]), name=name) for name in ("ada", "bob")]


SHAPES: dict[str, Callable[[Any], Workflow]] = {
    "whole": alone(whole),
    "pieces": alone(pieces),
    "sub-workflow": inside,
    "side by side": lambda storage: ConcurrentBuilder(participants=agents(), checkpoint_storage=storage).build(),
    "one by one": lambda storage: SequentialBuilder(participants=agents(), checkpoint_storage=storage).build(),
}


async def streamed(definition: Workflow, *message: str) -> list[str]:
    """The types of the outputs that a stream tells."""
    events = [event async for event in definition.run(*message, run_id="r", stream=True)]
    return [type(event.data).__name__ for event in events if event.type == "output"]


@pytest.mark.parametrize("was_streamed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_stream_of_a_run_that_has_ended_tells_what_a_live_one_tells(
    storage: Storage, shape: str, *, was_streamed: bool
) -> None:
    build = SHAPES[shape]
    live = await streamed(build(None), "go")
    if was_streamed:
        assert await streamed(build(storage), "go") == live
    else:
        await build(storage).run("go", run_id="r")
    again = await streamed(build(storage))
    # Of an answer that has come in pieces the whole is kept: how many they were is not.
    assert list(dict.fromkeys(again)) == list(dict.fromkeys(live))


async def test_what_was_recorded_in_the_middle_of_a_superstep_is_told_as_it_was(storage: Storage) -> None:
    failures, is_over = [OSError("down")], asyncio.Event()

    @executor(id="start")
    async def start(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)

    @executor(id="last")
    async def last(_: str) -> None:
        if failures:
            await is_over.wait()
            raise failures.pop()

    def built() -> Workflow:
        builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage, name="several")
        return builder.add_fan_out_edges(start, [whole, pieces, last]).build()

    async def first() -> None:
        done = 0
        async for event in built().run("go", run_id="r", stream=True):
            done += event.type == "executor_completed"
            if done == 3:
                is_over.set()

    with pytest.raises(OSError, match="down"):
        await first()
    assert await streamed(built()) == ["AgentResponse", "AgentResponseUpdate", "AgentResponseUpdate"]
