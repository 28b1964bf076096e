"""The cost of a superstep, counted in tasks, loop turns and calls, never in time."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.workflow.nodes import Context, ending, node, passing

from perdure import WorkflowBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from perdure import Workflow, WorkflowRunResult

SUPERSTEPS = 20


def ring(length: int) -> Workflow:
    """Two executors that send a number to and fro until it has grown to the length."""

    async def do(number: int, ctx: Context) -> None:
        if number < length:
            await ctx.send_message(number + 1)

    one, other = node("one", do, takes=int), node("other", do, takes=int)
    builder = WorkflowBuilder(start_executor=one, max_iterations=length + 1, output_from=[one])
    return builder.add_edge(one, other).add_edge(other, one).build()


def fan(width: int, work: Callable[[int], Callable[[Any, Context], Coroutine[Any, Any, None]]]) -> Workflow:
    """One executor, many that it sends to, and one that gathers what they send."""
    start, end = passing("start", takes=int), ending("end")
    branches = [node(f"branch{number}", work(number), takes=int) for number in range(width)]
    builder = WorkflowBuilder(start_executor=start, output_from=[end])
    return builder.add_fan_out_edges(start, branches).add_fan_in_edges(branches, end).build()


def at_once(_: int) -> Callable[[Any, Context], Coroutine[Any, Any, None]]:
    """Every branch ends as soon as it has begun."""

    async def do(message: int, ctx: Context) -> None:
        await ctx.send_message(message)

    return do


class Baton:
    """Branches that end one after the other, each in a turn of the loop of its own."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def __call__(self, number: int) -> Callable[[Any, Context], Coroutine[Any, Any, None]]:
        async def do(message: int, ctx: Context) -> None:
            if number:
                waiter = self._waiting[number] = asyncio.get_running_loop().create_future()
                await waiter
            else:
                await asyncio.sleep(0)
            await ctx.send_message(message)
            follower = self._waiting.get(number + 1)
            if follower is not None:
                follower.set_result(None)

        return do


async def calls_of(work: Coroutine[Any, Any, WorkflowRunResult]) -> int:
    """How many functions are called, or entered again, until the work is done; not what garbage calls in its end."""
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        await work
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


async def calls_per_branch(make: Callable[[int], Workflow], *, fewer: int, more: int, **limits: Any) -> float:
    """What each branch adds, between two widths."""
    counts = [await calls_of(_run(make(width), limits)) for width in (fewer, more)]
    return (counts[1] - counts[0]) / (more - fewer)


async def _run(workflow: Workflow, limits: Mapping[str, Any]) -> WorkflowRunResult:
    return await workflow.run(1, budget=limits.get("budget"))


@pytest.mark.parametrize("work", [lambda: at_once, Baton], ids=["all at once", "one after the other"])
@pytest.mark.parametrize("limits", [{}, {"budget": {"activations": 1000}}], ids=["free", "with a budget"])
async def test_a_branch_costs_the_same_however_many_there_are(
    work: Callable[[], Any], limits: Mapping[str, Any]
) -> None:
    def make(width: int) -> Workflow:
        return fan(width, work())

    await make(3).run(1, **limits)
    few = await calls_per_branch(make, fewer=10, more=30, **limits)
    many = await calls_per_branch(make, fewer=60, more=120, **limits)
    assert many <= few * 1.05


async def test_a_message_that_names_its_target_costs_the_same_however_many_there_are() -> None:
    def named(_: int) -> Callable[[Any, Context], Coroutine[Any, Any, None]]:
        async def do(message: int, ctx: Context) -> None:
            await ctx.send_message(message, target_id="end")

        return do

    def make(width: int) -> Workflow:
        return fan(width, named)

    await make(3).run(1)
    few = await calls_per_branch(make, fewer=10, more=30)
    assert await calls_per_branch(make, fewer=60, more=120) <= few * 1.05


async def test_a_lone_message_is_handled_in_one_task_and_two_turns_of_the_loop() -> None:
    loop, tasks, turns = asyncio.get_running_loop(), 0, 0

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        nonlocal tasks
        tasks += 1
        return asyncio.Task(coro, loop=loop, **options)

    def turn() -> None:
        nonlocal turns
        turns += 1
        tick[0] = loop.call_soon(turn)

    loop.set_task_factory(factory)
    tick = [loop.call_soon(turn)]
    try:
        await ring(SUPERSTEPS).run(1)
    finally:
        tick[0].cancel()
        loop.set_task_factory(None)
    assert tasks == SUPERSTEPS
    assert turns <= 2 * SUPERSTEPS + 2


async def test_each_handler_is_called_in_a_task_of_its_own() -> None:
    seen: set[asyncio.Task[Any] | None] = set()

    async def do(number: int, ctx: Context) -> None:
        seen.add(asyncio.current_task())
        if number < SUPERSTEPS:
            await ctx.send_message(number + 1)

    one, other = node("one", do, takes=int), node("other", do, takes=int)
    builder = WorkflowBuilder(start_executor=one, output_from=[one])
    await builder.add_edge(one, other).add_edge(other, one).build().run(1)
    assert len(seen) == SUPERSTEPS
    assert asyncio.current_task() not in seen


async def test_what_a_superstep_costs_does_not_depend_on_the_executors_that_do_not_run() -> None:
    async def cost(bystanders: int) -> float:
        counts: list[int] = []
        for length in (10, 30):
            workflow = with_bystanders(length, bystanders)
            await workflow.run(1)
            counts.append(await calls_of(_run(workflow, {})))
        return (counts[1] - counts[0]) / 20

    assert await cost(100) <= await cost(2)


def with_bystanders(length: int, bystanders: int) -> Workflow:
    """The ring, and executors that are connected to it and never get a message."""

    async def do(number: int, ctx: Context) -> None:
        if number < length:
            await ctx.send_message(number + 1, target_id="other" if number % 2 else "one")

    one, other, end = node("one", do, takes=int), node("other", do, takes=int), ending("end")
    idle = [passing(f"idle{number}") for number in range(bystanders)]
    builder = WorkflowBuilder(start_executor=one, max_iterations=length + 1, output_from=[end])
    builder = builder.add_edge(one, other).add_edge(other, one)
    return builder.add_fan_out_edges(one, idle).add_fan_in_edges(idle, end).build()
