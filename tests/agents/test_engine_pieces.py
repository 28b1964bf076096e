"""What the engine offers to agents: numbers, pieces of outputs, and the activation in progress."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import lone
from tests.workflow.nodes import node

from perdure import WorkflowBuilder
from perdure.agents import AgentResponse, Message
from perdure.graph import current_activation

if TYPE_CHECKING:
    from perdure.engine import ActivationRecorder


def said(text: str) -> AgentResponse[Any]:
    return AgentResponse(messages=[Message("assistant", [each]) for each in text.split()])


async def outputs(stream: Any) -> list[str]:
    return [str(event.data) async for event in stream if event.type == "output"]


async def test_the_activation_in_progress_is_known_inside_of_the_handler_alone() -> None:
    found: list[ActivationRecorder | None] = []

    def look() -> None:
        found.append(current_activation())

    async def look_later() -> None:
        look()

    async def do(_: Any, ctx: Any) -> None:
        look()
        await asyncio.create_task(look_later())
        await ctx.step("async", look_later)
        await ctx.step("plain", look)
        assert set(found) == {ctx.activation}

    await lone(do).run("go")
    assert (len(found), current_activation()) == (4, None)


async def test_a_task_that_outlives_its_handler_is_in_no_activation() -> None:
    go_on, left = asyncio.Event(), list[asyncio.Task[Any]]()

    async def look_later() -> ActivationRecorder | None:
        await go_on.wait()
        return current_activation()

    async def do(_: Any, __: Any) -> None:
        left.append(asyncio.create_task(look_later()))

    await lone(do).run("go")
    go_on.set()
    assert await left[0] is None


async def test_the_inner_of_two_runs_is_the_one_in_progress() -> None:
    found: list[Any] = []

    async def inner(_: Any, ctx: Any) -> None:
        found.append(current_activation() is ctx.activation)

    async def outer(message: Any, ctx: Any) -> None:
        await lone(inner).run(message)
        found.append(current_activation() is ctx.activation)

    await lone(outer).run("go")
    assert found == [True, True]


async def test_numbers_count_by_name_in_the_handler_and_in_each_step() -> None:
    numbers: list[int] = []

    async def do(_: Any, ctx: Any) -> None:
        def count(name: str) -> None:
            numbers.append(ctx.activation.number(name))

        async def twice() -> None:
            count("turn")
            count("turn")

        count("turn")
        count("other")
        await ctx.step("turn", twice)
        await ctx.step("turn", twice)
        count("turn")

    await lone(do).run("go")
    assert numbers == [0, 0, 0, 1, 0, 1, 1]


async def test_an_attempt_counts_anew() -> None:
    numbers: list[int] = []

    async def do(_: Any, ctx: Any) -> None:
        numbers.append(ctx.activation.number("turn"))
        if len(numbers) == 1:
            raise ConnectionError

    workflow = lone(do)
    with pytest.raises(ConnectionError):
        await workflow.run("go", run_id="r")
    await workflow.run(run_id="r")
    assert numbers == [0, 0]


async def in_pieces(_: Any, ctx: Any) -> None:
    whole = said("a b")
    for piece in ("a", "b"):
        ctx.activation.show(piece)
    ctx.activation.output(whole, in_pieces=True)


async def test_pieces_are_told_to_a_stream_and_the_whole_is_recorded(storage: Any) -> None:
    workflow = lone(in_pieces, storage=storage)
    assert await outputs(workflow.run("go", run_id="r", stream=True)) == ["a", "b"]
    assert await outputs(storage.events("r")) == ["ab"]
    assert await outputs(storage.events("r", follow=False, from_seq=1)) == ["ab"]
    run = lone(in_pieces, storage=storage).start(run_id="r")
    assert [str(output) for output in (await run.result()).get_outputs()] == ["ab"]


async def test_without_a_stream_pieces_are_told_to_nobody(storage: Any) -> None:
    result = await lone(in_pieces, storage=storage).run("go")
    assert [str(output) for output in result.get_outputs()] == ["ab"]


async def test_pieces_of_an_executor_that_has_no_outputs_are_told_to_nobody() -> None:
    async def pass_on(message: Any, ctx: Any) -> None:
        await in_pieces(message, ctx)
        await ctx.send_message(message)

    async def end(message: Any, ctx: Any) -> None:
        await ctx.yield_output(message)

    first, last = node("first", pass_on), node("last", end)
    workflow = WorkflowBuilder(start_executor=first, output_from=[last]).add_edge(first, last).build()
    assert await outputs(workflow.run("go", stream=True)) == ["go"]


async def test_what_a_finished_run_tells_again_comes_in_pieces_to_a_stream(storage: Any) -> None:
    await lone(in_pieces, storage=storage).run("go", run_id="r", stream=True).get_final_response()
    assert await outputs(lone(in_pieces, storage=storage).run(run_id="r", stream=True)) == ["a", "b"]
    again = await lone(in_pieces, storage=storage).run(run_id="r")
    assert [str(output) for output in again.get_outputs()] == ["ab"]


async def test_what_a_recorded_activation_tells_again_comes_in_pieces_to_a_stream(storage: Any) -> None:
    ended, is_mended = asyncio.Event(), False

    async def pass_on(message: Any, ctx: Any) -> None:
        await ctx.send_message(message)

    async def fails(_: Any, __: Any) -> None:
        await ended.wait()
        if not is_mended:
            raise ConnectionError

    async def talks(message: Any, ctx: Any) -> None:
        assert not is_mended, "it is recorded"
        await in_pieces(message, ctx)
        asyncio.get_running_loop().call_soon(ended.set)

    start, one, other = node("start", pass_on), node("one", talks), node("other", fails)
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage)
    workflow = builder.add_fan_out_edges(start, [one, other]).build()
    with pytest.raises(ConnectionError):
        await workflow.run("go", run_id="r", stream=True).get_final_response()
    is_mended = True
    again = [event async for event in workflow.run(run_id="r", stream=True)]
    assert [event.executor_id for event in again if event.type == "executor_bypassed"] == ["one"]
    assert [str(event.data) for event in again if event.type == "output"] == ["a", "b"]
    assert await outputs(storage.events("r")) == ["ab"]
