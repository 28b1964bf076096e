"""Messages that are sent with a delay: routed at once, delivered when they are due, and part of the checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import HOUR, RUN_ID, ended, record_of
from tests.workflow.nodes import Context, MaybeStorage, ending, keeping, live_and_checkpointed, node

from perdure import Case, Default, WorkflowBuilder, WorkflowExecutor, WorkflowRunState
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from datetime import datetime

    from tests.waiting.scenes import Storage

    from perdure import Workflow


def chained(clock: ManualClock, storage: Any, *delays: int) -> tuple[Workflow, list[tuple[str, datetime]]]:
    """A start that sends a message for each delay, in hours, to one that notes when it comes."""
    heard: list[tuple[str, datetime]] = []

    async def send(_: Any, ctx: Context) -> None:
        for hours in delays:
            await ctx.send_message(f"{hours}", delay=hours * HOUR)

    async def hear(message: Any, _: Context) -> None:
        heard.append((message, clock.now()))

    start, end = node("start", send), node("end", hear)
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=clock)
    return builder.add_edge(start, end).build(), heard


@live_and_checkpointed
async def test_messages_arrive_in_the_order_of_their_times(storage: MaybeStorage) -> None:
    clock = ManualClock(skips=True)
    begun = clock.now()
    workflow, heard = chained(clock, storage(), 3, 1, 2)
    assert ended(await workflow.run("go")) is WorkflowRunState.IDLE
    assert [(message, moment - begun) for message, moment in heard] == [("1", HOUR), ("2", 2 * HOUR), ("3", 3 * HOUR)]


async def test_messages_that_are_all_overdue_arrive_in_the_order_of_their_times(storage: Storage) -> None:
    clock = ManualClock()
    await chained(clock, storage, 3, 1, 2)[0].run("go", run_id=RUN_ID, wait_for_timers=False)
    record = await record_of(storage)
    assert (record.status, record.wake_at) == ("sleeping", (clock.now() + HOUR).isoformat())
    clock.advance(5 * HOUR)
    workflow, heard = chained(clock, storage)
    await workflow.run(run_id=RUN_ID)
    assert [message for message, _ in heard] == ["1", "2", "3"]


async def test_conditions_are_asked_when_the_message_is_sent() -> None:
    clock, asked, heard = ManualClock(skips=True), list["datetime"](), list[Any]()

    def is_wanted(_: Any) -> bool:
        asked.append(clock.now())
        return len(asked) == 1

    async def send(_: Any, ctx: Context) -> None:
        await ctx.send_message("later", delay=HOUR)

    start, wanted, other = node("start", send), keeping("wanted", heard), keeping("other", list[Any]())
    begun = clock.now()
    cases = [Case(condition=is_wanted, target=wanted), Default(target=other)]
    builder = WorkflowBuilder(name="w", start_executor=start, clock=clock)
    await builder.add_switch_case_edge_group(start, cases).build().run("go")
    assert (asked, heard) == ([begun], ["later"])


async def test_a_fan_in_waits_for_the_delayed_one(storage: Storage) -> None:
    clock = ManualClock()

    def built() -> Workflow:
        async def start(_: Any, ctx: Context) -> None:
            await ctx.send_message("x")

        async def late(_: Any, ctx: Context) -> None:
            await ctx.send_message("late", delay=HOUR)

        async def prompt(_: Any, ctx: Context) -> None:
            await ctx.send_message("prompt")

        first, a, b, end = node("start", start), node("late", late), node("prompt", prompt), ending("end")
        builder = WorkflowBuilder(name="w", start_executor=first, checkpoint_storage=storage, clock=clock)
        return builder.add_fan_out_edges(first, [a, b]).add_fan_in_edges([a, b], end).build()

    first = await built().run("go", run_id=RUN_ID, wait_for_timers=False)
    assert (ended(first), first.get_outputs()) == (WorkflowRunState.SLEEPING, [])
    clock.advance(HOUR)
    assert (await built().run(run_id=RUN_ID)).get_outputs() == [["late", "prompt"]]


@pytest.mark.parametrize("hours", [0, 1])
async def test_a_message_inside_a_sub_workflow_arrives_when_its_parent_is_woken(storage: Storage, hours: int) -> None:
    clock = ManualClock(skips=True)

    async def send(_: Any, ctx: Context) -> None:
        await ctx.send_message("inside", delay=hours * HOUR)

    start, end = node("start", send), ending("end")
    inner = WorkflowBuilder(name="inner", start_executor=start, clock=clock).add_edge(start, end).build()
    sub = WorkflowExecutor(inner, "sub", allow_direct_output=True)
    workflow = WorkflowBuilder(name="w", start_executor=sub, checkpoint_storage=storage, clock=clock).build()
    result = await workflow.run("go", run_id=RUN_ID)
    assert (ended(result), result.get_outputs()) == (WorkflowRunState.IDLE, ["inside"])
    assert (await record_of(storage)).wake_at is None


async def test_a_delayed_message_that_nobody_takes_is_told_when_it_is_sent() -> None:
    clock = ManualClock()

    async def send(_: Any, ctx: Context) -> None:
        await ctx.send_message(1, delay=HOUR)

    start, end = node("start", send), keeping("end", list[Any](), takes=str)
    workflow = WorkflowBuilder(name="w", start_executor=start, clock=clock)
    result = await workflow.add_edge(start, end).build().run("go")
    assert "undelivered" in [event.type for event in result]
    assert ended(result) is WorkflowRunState.IDLE
