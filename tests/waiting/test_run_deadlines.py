"""The deadline of a run: when it has passed the run is cancelled, wherever it stands, and can go on with a new one."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import HOUR, RUN_ID, Work, alone, committed, ended, record_of, side_by_side, until
from tests.workflow.nodes import Context, node

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, WorkflowRunState, handler, response_handler
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage

CANCELLED, SLEEPING, IDLE = WorkflowRunState.CANCELLED, WorkflowRunState.SLEEPING, WorkflowRunState.IDLE
MINUTE = timedelta(minutes=1)


async def sleeper(_: Any, ctx: Context) -> None:
    await ctx.sleep(HOUR)
    await ctx.yield_output("slept")


async def test_a_run_that_ends_in_time_knows_nothing_of_its_deadline(storage: Storage) -> None:
    clock = ManualClock()

    async def do(_: Any, ctx: Context) -> None:
        await ctx.yield_output("in time")

    result = await alone(do, clock, storage).run("go", run_id=RUN_ID, deadline=HOUR)
    assert (ended(result), (await record_of(storage)).wake_at) == (IDLE, None)


async def test_a_deadline_that_passes_between_supersteps_cancels_the_run(storage: Storage) -> None:
    clock, work = ManualClock(), Work()

    async def first(_: Any, ctx: Context) -> None:
        clock.advance(HOUR)
        await ctx.send_message(work("first"))

    async def second(_: Any, ctx: Context) -> None:
        await ctx.yield_output(work("second"))

    def built() -> Workflow:
        a, b = node("a", first), node("b", second)
        builder = WorkflowBuilder(name="w", start_executor=a, checkpoint_storage=storage, clock=clock)
        return builder.add_edge(a, b).build()

    result = await built().run("go", run_id=RUN_ID, deadline=MINUTE)
    assert (ended(result), work.done) == (CANCELLED, ["first"])
    [why] = [event.data for event in await committed(storage) if event.type == "cancelled"]
    assert "deadline" in why["reason"]
    again = await built().run(run_id=RUN_ID, deadline=MINUTE)
    assert (ended(again), again.get_outputs(), work.done) == (IDLE, ["SECOND"], ["first", "second"])


async def test_a_deadline_that_passes_while_a_handler_waits_stops_it(storage: Storage) -> None:
    clock, work, has_cleaned_up, is_stuck = ManualClock(), Work(), list[bool](), list[bool]()

    async def quick(_: Any, ctx: Context) -> None:
        await ctx.yield_output(work("quick"))

    async def stuck(_: Any, ctx: Context) -> None:
        await ctx.step("work", work, "step")
        try:
            if not is_stuck:
                is_stuck.append(True)
                await asyncio.get_running_loop().create_future()
        finally:
            has_cleaned_up.append(True)

    running = asyncio.ensure_future(
        side_by_side(clock, storage, quick, stuck).run("go", run_id=RUN_ID, deadline=MINUTE)
    )
    await until(lambda: bool(is_stuck) and len(work.done) == 2 and clock.sleepers > 0, running)
    clock.advance(HOUR)
    assert (ended(await running), has_cleaned_up) == (CANCELLED, [True])
    assert (await record_of(storage)).status == "cancelled"
    again = await side_by_side(clock, storage, quick, stuck).run(run_id=RUN_ID, deadline=HOUR)
    assert (ended(again), again.get_outputs(), sorted(work.done)) == (IDLE, ["QUICK"], ["quick", "step"])


async def test_a_deadline_that_passes_while_the_run_sleeps_cancels_it_then(storage: Storage) -> None:
    clock = ManualClock(skips=True)
    begun = clock.now()
    result = await alone(sleeper, clock, storage).run("go", run_id=RUN_ID, deadline=MINUTE)
    assert (ended(result), clock.now() - begun) == (CANCELLED, MINUTE)


async def test_a_sleeping_run_has_to_be_looked_at_when_its_deadline_comes_first(storage: Storage) -> None:
    clock = ManualClock()
    await alone(sleeper, clock, storage).run("go", run_id=RUN_ID, deadline=MINUTE, wait_for_timers=False)
    assert (await record_of(storage)).wake_at == (clock.now() + MINUTE).isoformat()


async def test_a_deadline_outlasts_the_process_and_a_new_one_replaces_it(storage: Storage) -> None:
    clock = ManualClock()
    await alone(sleeper, clock, storage).run("go", run_id=RUN_ID, deadline=MINUTE, wait_for_timers=False)
    clock.advance(2 * MINUTE)
    assert ended(await alone(sleeper, clock, storage).run(run_id=RUN_ID)) is CANCELLED
    again = await alone(sleeper, clock, storage).run(run_id=RUN_ID, deadline=3 * HOUR, wait_for_timers=False)
    assert ended(again) is SLEEPING
    clock.advance(HOUR)
    assert (await alone(sleeper, clock, storage).run(run_id=RUN_ID)).get_outputs() == ["slept"]


class Asking(Executor):
    """Asks a person, and yields the answer."""

    def __init__(self) -> None:
        super().__init__(id="asking")

    @handler
    async def ask(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(message, str, request_id="question")

    @response_handler
    async def told(self, _: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(answer)


async def test_a_deadline_that_passes_while_a_person_is_asked_keeps_the_request(storage: Storage) -> None:
    clock = ManualClock()

    def built() -> Workflow:
        return WorkflowBuilder(name="w", start_executor=Asking(), checkpoint_storage=storage, clock=clock).build()

    await built().run("well?", run_id=RUN_ID, deadline=MINUTE)
    assert (await record_of(storage)).wake_at == (clock.now() + MINUTE).isoformat()
    clock.advance(HOUR)
    assert ended(await built().run(run_id=RUN_ID)) is CANCELLED
    assert [request.request_id for request in await storage.requests(RUN_ID)] == ["question"]
    again = await built().run(run_id=RUN_ID, responses={"question": "yes"}, deadline=HOUR)
    assert (ended(again), again.get_outputs()) == (IDLE, ["yes"])


async def test_without_a_storage_a_deadline_stops_a_run_as_well() -> None:
    clock = ManualClock()

    async def stuck(_: Any, __: Context) -> None:
        await asyncio.get_running_loop().create_future()

    running = asyncio.ensure_future(alone(stuck, clock).run("go", deadline=MINUTE))
    await until(lambda: clock.sleepers > 0, running)
    clock.advance(HOUR)
    assert ended(await running) is CANCELLED


async def test_a_deadline_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        await alone(sleeper, ManualClock()).run("go", deadline=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point
