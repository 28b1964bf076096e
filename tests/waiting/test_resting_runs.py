"""Runs that are told something while they rest: nothing that had finished is lost, no wish outlives its reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import HOUR, RUN_ID, Work, alone, ended, record_of, side_by_side, until
from tests.workflow.nodes import Context, node

from perdure import WorkflowBuilder, WorkflowExecutor, WorkflowRunState
from perdure.errors import BudgetExceededError
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage

    from perdure import Workflow

IDLE, CANCELLED = WorkflowRunState.IDLE, WorkflowRunState.CANCELLED


@pytest.mark.parametrize("limits", [{"deadline": HOUR}, {"budget": {"usd": 1}}])
async def test_new_limits_after_a_failure_lose_nothing_that_had_finished(
    storage: Storage, limits: dict[str, Any]
) -> None:
    clock, work, broken = ManualClock(), Work(), [True]

    async def works(_: Any, ctx: Context) -> None:
        await ctx.yield_output(work("worked"))

    async def fails(_: Any, ctx: Context) -> None:
        await ctx.step("work", work, "step")
        if broken.pop() if broken else False:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await side_by_side(clock, storage, works, fails).run("go", run_id=RUN_ID)
    again = side_by_side(clock, storage, works, fails).run(run_id=RUN_ID, stream=False, **limits)
    result = await again
    assert (ended(result), result.get_outputs(), sorted(work.done)) == (IDLE, ["WORKED"], ["step", "worked"])


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_larger_budget_goes_on_inside_a_sub_workflow_where_the_smaller_one_ended(
    storage: Storage, levels: int
) -> None:
    entered: list[int] = []

    async def do(message: int, ctx: Context) -> None:
        entered.append(message)
        ctx.spend(usd=1)
        if message < 6:
            await ctx.send_message(message + 1)

    def built() -> Workflow:
        one = node("node", do)
        workflow = WorkflowBuilder(name="w", start_executor=one).add_edge(one, one).build()
        for _ in range(levels):
            workflow = WorkflowBuilder(name="w", start_executor=WorkflowExecutor(workflow, "sub")).build()
        return workflow

    with pytest.raises(BudgetExceededError):
        await built().run(1, run_id=RUN_ID, budget={"usd": 3}, checkpoint_storage=storage)
    workflow = built()
    await workflow.run(run_id=RUN_ID, budget={"usd": 6}, checkpoint_storage=storage)
    assert entered == [1, 2, 3, 4, 5, 6]
    assert workflow.loaded_run is not None
    assert workflow.loaded_run.snapshot.limits.spent == {"usd": 6}


async def quick(_: Any, ctx: Context) -> None:
    await ctx.yield_output("quick")


async def test_a_cancel_of_a_run_that_has_ended_does_not_stop_its_next_turn(storage: Storage) -> None:
    clock = ManualClock()
    workflow = alone(quick, clock, storage)
    await workflow.run("go", run_id=RUN_ID)
    await storage.cancel(RUN_ID)
    result = await workflow.run("again")
    assert (ended(result), result.get_outputs()) == (IDLE, ["quick"])


async def test_a_run_that_is_cancelled_twice_goes_on_when_it_is_told_to(storage: Storage) -> None:
    clock, is_waiting = ManualClock(), list[bool]()

    async def do(_: Any, ctx: Context) -> None:
        if not is_waiting:
            is_waiting.append(True)
            await asyncio.get_running_loop().create_future()
        await ctx.yield_output("through")

    running = asyncio.ensure_future(alone(do, clock, storage).run("go", run_id=RUN_ID))
    await until(lambda: bool(is_waiting), running)
    await storage.cancel(RUN_ID)
    assert ended(await running) is CANCELLED
    head = (await record_of(storage)).head
    await storage.cancel(RUN_ID)
    assert (await record_of(storage)).head == head
    assert (await alone(do, clock, storage).run(run_id=RUN_ID)).get_outputs() == ["through"]
