"""Budgets: part of the checkpoint, counted once however often a run is interrupted; nothing is begun beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import HOUR, RUN_ID, alone, ended, nested, side_by_side
from tests.workflow.nodes import Context, node

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowExecutor, WorkflowRunState
from perdure.errors import BudgetExceededError
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage

    from perdure import Workflow

CLOCK = ManualClock(skips=True)


def looping(storage: Any, *, rounds: int, entered: list[int] | None = None, usd: float = 0) -> Workflow:
    """Sends itself numbers, and spends something for each."""

    async def do(message: int, ctx: Context) -> None:
        if entered is not None:
            entered.append(message)
        if usd:
            ctx.spend(usd=usd)
        if message < rounds:
            await ctx.send_message(message + 1)
        else:
            await ctx.yield_output(message)

    one = node("node", do)
    return (
        WorkflowBuilder(name="w", start_executor=one, checkpoint_storage=storage, clock=CLOCK)
        .add_edge(one, one)
        .build()
    )


async def test_a_run_begins_no_superstep_beyond_its_budget_and_says_so(storage: Storage) -> None:
    entered: list[int] = []
    with pytest.raises(BudgetExceededError) as caught:
        await looping(storage, rounds=10, entered=entered).run(1, run_id=RUN_ID, budget={"supersteps": 3})
    error = caught.value
    assert (error.run_id, error.name, error.spent, error.limit) == (RUN_ID, "supersteps", 3, 3)
    assert entered == [1, 2, 3]


async def test_a_budget_outlasts_the_process_and_a_larger_one_lets_the_run_go_on(storage: Storage) -> None:
    entered: list[int] = []
    with pytest.raises(BudgetExceededError):
        await looping(storage, rounds=5, entered=entered).run(1, run_id=RUN_ID, budget={"supersteps": 3})
    with pytest.raises(BudgetExceededError):
        await looping(storage, rounds=5, entered=entered).run(run_id=RUN_ID)
    result = await looping(storage, rounds=5, entered=entered).run(run_id=RUN_ID, budget={"supersteps": 5})
    assert (result.get_outputs(), entered) == ([5], [1, 2, 3, 4, 5])


async def test_activations_are_counted_side_by_side(storage: Storage) -> None:
    clock, entered = ManualClock(), list[str]()

    async def do(message: Any, _: Context) -> None:
        entered.append(message)

    with pytest.raises(BudgetExceededError) as caught:
        await side_by_side(clock, storage, do, do, do).run("go", budget={"activations": 3})
    assert (caught.value.spent, caught.value.limit, entered) == (1, 3, [])
    await side_by_side(clock, storage, do, do, do).run("go", budget={"activations": 4})
    assert entered == ["go", "go", "go"]


async def test_an_activation_that_is_entered_again_counts_once(storage: Storage) -> None:
    clock = ManualClock(skips=True)

    async def do(_: Any, ctx: Context) -> None:
        ctx.spend(usd=1)
        await ctx.sleep(HOUR)
        ctx.spend(usd=1)
        await ctx.sleep(HOUR)

    workflow = alone(do, clock, storage)
    await workflow.run("go", run_id=RUN_ID, budget={"activations": 1, "usd": 2, "supersteps": 3})
    assert workflow.loaded_run is not None
    assert workflow.loaded_run.snapshot.limits.spent == {"activations": 1, "usd": 2, "supersteps": 3}


async def test_what_executors_spend_is_limited(storage: Storage) -> None:
    entered: list[int] = []
    with pytest.raises(BudgetExceededError) as caught:
        await looping(storage, rounds=9, entered=entered, usd=0.5).run(1, run_id=RUN_ID, budget={"usd": 1})
    assert (caught.value.name, caught.value.spent, entered) == ("usd", 1.5, [1, 2, 3])


async def test_what_a_failed_superstep_spent_counts_when_it_has_ended(storage: Storage) -> None:
    clock, broken = ManualClock(), [True]

    async def spends(_: Any, ctx: Context) -> None:
        ctx.spend(usd=1)

    async def fails(_: Any, ctx: Context) -> None:
        ctx.spend(usd=1)
        if broken.pop() if broken else False:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await side_by_side(clock, storage, spends, fails).run("go", run_id=RUN_ID)
    workflow = side_by_side(clock, storage, spends, fails)
    await workflow.run(run_id=RUN_ID)
    assert workflow.loaded_run is not None
    assert workflow.loaded_run.snapshot.limits.spent == {"usd": 2}


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_sub_workflow_has_what_is_left_to_its_parent(storage: Storage, levels: int) -> None:
    entered: list[int] = []
    workflow = looping(None, rounds=6, entered=entered, usd=1)
    for _ in range(levels):
        workflow = WorkflowBuilder(name="w", start_executor=WorkflowExecutor(workflow, "sub")).build()
    with pytest.raises(BudgetExceededError) as caught:
        await workflow.run(1, run_id=RUN_ID, budget={"usd": 3}, checkpoint_storage=storage)
    assert (caught.value.run_id, caught.value.spent, caught.value.limit) == (RUN_ID, 4, 3)
    assert entered == [1, 2, 3, 4]


async def test_the_supersteps_of_a_sub_workflow_are_supersteps_of_the_run() -> None:
    workflow = WorkflowBuilder(
        name="w",
        start_executor=WorkflowExecutor(looping(None, rounds=3), "sub"),
        checkpoint_storage=InMemoryCheckpointStorage(),
    ).build()
    with pytest.raises(BudgetExceededError) as caught:
        await workflow.run(1, budget={"supersteps": 3})
    assert (caught.value.spent, caught.value.limit) == (3, 3)
    assert ended(await workflow.run(run_id=workflow.run_id, budget={"supersteps": 4})) is WorkflowRunState.IDLE


async def test_what_a_sleeping_sub_workflow_spends_is_counted_once(storage: Storage) -> None:
    clock = ManualClock(skips=True)

    async def do(_: Any, ctx: Context) -> None:
        ctx.spend(usd=1)
        await ctx.sleep(HOUR)
        await ctx.sleep(HOUR)

    workflow = nested(do, clock, storage, levels=2)
    await workflow.run("go")
    await workflow.run("again")
    assert workflow.loaded_run is not None
    assert workflow.loaded_run.snapshot.limits.spent == {"usd": 2}


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), True, "much"])
async def test_a_budget_that_is_no_amount_is_refused(amount: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="the budget of 'usd' must be"):
        await looping(None, rounds=1).run(1, budget={"usd": amount})


async def test_what_a_step_has_spent_counts_though_a_later_entry_does_not_run_it(storage: Storage) -> None:
    calls = 0

    async def do(message: int, ctx: Context) -> None:
        def ask() -> str:
            nonlocal calls
            calls += 1
            ctx.spend(usd=2.5)
            return "answer"

        ctx.spend(calls=1)
        await ctx.step("ask", ask)
        await ctx.sleep(HOUR)
        await ctx.yield_output(message)

    workflow = alone(do, ManualClock(skips=True), storage)
    result = await workflow.run(1, run_id=RUN_ID)
    assert (calls, result.get_outputs()) == (1, [1])
    assert workflow.loaded_run is not None
    assert workflow.loaded_run.snapshot.limits.spent == {"usd": 2.5, "calls": 1}
