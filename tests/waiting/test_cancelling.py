"""Cancelling: a durable wish that stops a run within a superstep, keeps what had finished, and can be taken back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import (
    HOUR,
    RUN_ID,
    Work,
    alone,
    committed,
    ended,
    nested,
    record_of,
    side_by_side,
    until,
    until_asleep,
)
from tests.workflow.nodes import Context, node, other_tasks

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowExecutor, WorkflowRunState
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.waiting.scenes import Storage

    from perdure import Workflow, WorkflowRunResult

CANCELLED, IDLE = WorkflowRunState.CANCELLED, WorkflowRunState.IDLE


class Stuck:
    """Does a step, and then waits for ever in its first lives; tells when it waits and when it has cleaned up."""

    def __init__(self, work: Work, *, lives: int = 1) -> None:
        self._work = work
        self._lives_left = lives
        self.waiting = 0
        self.cleaned_up = 0

    async def __call__(self, _: Any, ctx: Context) -> None:
        await ctx.step("work", self._work, "step")
        await self.wait()
        await ctx.yield_output("through")

    async def wait(self) -> None:
        """Wait, unless there were enough lives that did."""
        if not self._lives_left:
            return
        self._lives_left -= 1
        self.waiting += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            self.cleaned_up += 1


async def quick(_: Any, ctx: Context) -> None:
    await ctx.yield_output("quick")


async def cancelled_while(
    is_waiting: Callable[[], bool], workflow: Workflow, storage: Storage, *, first: bool = True
) -> WorkflowRunResult:
    """Run, cancel with the store alone when it waits, and see it end."""
    going = workflow.run("go", run_id=RUN_ID) if first else workflow.run(run_id=RUN_ID)
    running = asyncio.ensure_future(going)
    await until(is_waiting, running)
    await storage.cancel(RUN_ID, reason="enough", by="alice")
    return await running


async def test_a_run_that_is_cancelled_in_a_superstep_keeps_what_has_finished(storage: Storage) -> None:
    clock, work = ManualClock(), Work()
    stuck = Stuck(work)

    async def worker(_: Any, ctx: Context) -> None:
        await ctx.yield_output(work("worker"))

    def built() -> Workflow:
        return side_by_side(clock, storage, stuck, worker)

    result = await cancelled_while(lambda: stuck.waiting == 1 and len(work.done) == 2, built(), storage)
    assert (ended(result), stuck.cleaned_up) == (CANCELLED, 1)
    assert (await record_of(storage)).status == "cancelled"
    [why] = [event.data for event in await committed(storage) if event.type == "cancelled"]
    assert why == {"by": "alice", "reason": "enough"}
    again = await built().run(run_id=RUN_ID)
    assert (ended(again), sorted(again.get_outputs())) == (IDLE, ["WORKER", "through"])
    assert sorted(work.done) == ["step", "worker"]


async def test_records_outlast_two_cancels(storage: Storage) -> None:
    clock, work = ManualClock(), Work()
    stuck = Stuck(work, lives=2)

    async def worker(_: Any, __: Context) -> None:
        work("worker")

    def built() -> Workflow:
        return side_by_side(clock, storage, stuck, worker)

    await cancelled_while(lambda: stuck.waiting == 1 and len(work.done) == 2, built(), storage)
    assert ended(await cancelled_while(lambda: stuck.waiting == 2, built(), storage, first=False)) is CANCELLED
    assert (await built().run(run_id=RUN_ID)).get_outputs() == ["through"]
    assert sorted(work.done) == ["step", "worker"]


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_cancel_reaches_into_sub_workflows_and_loses_nothing_there(storage: Storage, levels: int) -> None:
    clock, work = ManualClock(), Work()
    stuck = Stuck(work, lives=2)

    def built() -> Workflow:
        return nested(stuck, clock, storage, levels=levels)

    result = await cancelled_while(lambda: stuck.waiting == 1, built(), storage)
    assert (ended(result), stuck.cleaned_up) == (CANCELLED, 1)
    await cancelled_while(lambda: stuck.waiting == 2, built(), storage, first=False)
    again = await built().run(run_id=RUN_ID)
    assert (again.get_outputs(), work.done) == (["through"], ["step"])


async def test_a_cancel_goes_on_inside_a_sub_workflow_where_it_stopped(storage: Storage) -> None:
    clock, work = ManualClock(), Work()
    stuck = Stuck(work)

    def built() -> Workflow:
        async def first(_: Any, ctx: Context) -> None:
            await ctx.send_message(work("first"))

        a, b = node("a", first), node("b", stuck)
        inner = WorkflowBuilder(name="inner", start_executor=a, clock=clock).add_edge(a, b).build()
        sub = WorkflowExecutor(inner, "sub", allow_direct_output=True)
        return WorkflowBuilder(name="w", start_executor=sub, clock=clock, checkpoint_storage=storage).build()

    await cancelled_while(lambda: stuck.waiting == 1, built(), storage)
    assert (await built().run(run_id=RUN_ID)).get_outputs() == ["through"]
    assert work.done == ["first", "step"]


async def test_a_cancel_stops_all_that_a_handler_has_gathered(storage: Storage) -> None:
    clock, work = ManualClock(), Work()
    stuck = Stuck(work, lives=2)

    async def do(_: Any, ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stuck.wait())
            group.create_task(stuck.wait())
            await ctx.step("work", work, "step")
        await ctx.yield_output("through")

    result = await cancelled_while(lambda: stuck.waiting == 2 and bool(work.done), alone(do, clock, storage), storage)
    assert (ended(result), stuck.cleaned_up) == (CANCELLED, 2)
    assert (await alone(do, clock, storage).run(run_id=RUN_ID)).get_outputs() == ["through"]
    assert work.done == ["step"]


async def test_a_cancel_stops_a_step_which_is_done_again_then(storage: Storage) -> None:
    clock, work = ManualClock(), Work()
    stuck = Stuck(work)

    async def do(_: Any, ctx: Context) -> None:
        await ctx.step("before", work, "before")
        await ctx.step("stuck", stuck.wait)
        await ctx.yield_output("through")

    result = await cancelled_while(lambda: stuck.waiting == 1, alone(do, clock, storage), storage)
    assert (ended(result), stuck.cleaned_up) == (CANCELLED, 1)
    assert (await alone(do, clock, storage).run(run_id=RUN_ID)).get_outputs() == ["through"]
    assert work.done == ["before"]


@pytest.mark.parametrize("by", ["cancel", "deadline"])
async def test_a_wish_to_stop_that_comes_while_the_reader_stands_before_a_superstep_is_not_lost(
    storage: Storage, by: str
) -> None:
    clock, work = ManualClock(), Work()
    never = asyncio.get_running_loop().create_future()

    async def do(message: Any, ctx: Context) -> None:
        if message == "go":
            await ctx.send_message("on")
        else:
            await ctx.step("work", work, "step")
            await ctx.yield_output("through")

    def built() -> Workflow:
        start = node("node", do)
        builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=clock)
        return builder.add_edge(start, start).build()

    async def come() -> None:
        """Let the wish come, and the run hear of it."""
        watchers = other_tasks()
        if by == "cancel":
            await storage.cancel(RUN_ID)
        else:
            clock.advance(HOUR)
        await until(lambda: not watchers <= other_tasks(), never)

    states: list[Any] = []
    async for event in built().run("go", run_id=RUN_ID, deadline=HOUR, stream=True):
        if event.type == "superstep_started" and event.iteration == 2:
            await until_asleep(clock, never)
            await come()
        states.append(event.state)
    assert (states[-1], work.done) == (CANCELLED, [])
    assert (await built().run(run_id=RUN_ID, deadline=HOUR)).get_outputs() == ["through"]


async def test_a_run_that_nobody_drives_is_cancelled_by_the_next_who_does(storage: Storage) -> None:
    clock, broken = ManualClock(), [True]

    async def do(_: Any, ctx: Context) -> None:
        if broken.pop() if broken else False:
            raise ValueError("broken")
        await ctx.yield_output("mended")

    with pytest.raises(ValueError, match="broken"):
        await alone(do, clock, storage).run("go", run_id=RUN_ID)
    await storage.cancel(RUN_ID)
    assert ended(await alone(do, clock, storage).run(run_id=RUN_ID)) is CANCELLED
    assert (await alone(do, clock, storage).run(run_id=RUN_ID)).get_outputs() == ["mended"]


async def test_a_cancel_of_a_settled_run_changes_nothing(storage: Storage) -> None:
    clock = ManualClock()
    await alone(quick, clock, storage).run("go", run_id=RUN_ID)
    await storage.cancel(RUN_ID)
    result = await alone(quick, clock, storage).run(run_id=RUN_ID)
    assert (ended(result), result.get_outputs()) == (IDLE, ["quick"])
    assert (await record_of(storage)).settled


async def test_a_handle_cancels_while_another_task_reads(storage: Storage) -> None:
    clock, work = ManualClock(), Work()
    stuck = Stuck(work)
    run = alone(stuck, clock, storage).start("go", run_id=RUN_ID)

    async def read() -> list[Any]:
        return [event.state async for event in run.events() if event.type == "status"]

    reading = asyncio.ensure_future(read())
    await until(lambda: stuck.waiting == 1, reading)
    await run.cancel("by hand")
    assert (await reading)[-1] is CANCELLED
    assert (run.status, stuck.cleaned_up) == (CANCELLED, 1)
    assert (await record_of(storage)).status == "cancelled"
    assert (await alone(stuck, clock, storage).run(run_id=RUN_ID)).get_outputs() == ["through"]
    assert work.done == ["step"]


async def test_a_handle_may_cancel_twice(storage: Storage) -> None:
    clock, work = ManualClock(), Work()
    stuck = Stuck(work)
    run = alone(stuck, clock, storage).start("go", run_id=RUN_ID)
    reading = asyncio.ensure_future(run.result())
    await until(lambda: stuck.waiting == 1, reading)
    await run.cancel()
    await reading
    await run.cancel()
    assert ended(await alone(stuck, clock, storage).run(run_id=RUN_ID)) is IDLE


async def test_a_cancelled_run_leaves_nothing_running() -> None:
    clock, work, storage = ManualClock(), Work(), InMemoryCheckpointStorage()
    stuck, before = Stuck(work), other_tasks()
    await cancelled_while(lambda: stuck.waiting == 1, alone(stuck, clock, storage), storage)
    assert other_tasks() == before
