"""Budgets and sub-workflows side by side: what is left to the run is shared by all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import RUN_ID
from tests.workflow.nodes import Context, node, passing, sending

from perdure import Workflow, WorkflowBuilder, WorkflowExecutor
from perdure.engine import BudgetTracker
from perdure.errors import BudgetExceededError
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage
    from tests.workflow.nodes import Doing

CLOCK = ManualClock()


class Countdown:
    """Counts to nought inside of sub-workflows, and spends something for each number."""

    def __init__(self, *, levels: int = 1) -> None:
        self.entered = 0
        self._levels = levels

    async def __call__(self, number: int, ctx: Context) -> None:
        self.entered += 1
        ctx.spend(usd=1)
        if number > 1:
            await ctx.send_message(number - 1)

    def sub(self, name: str) -> WorkflowExecutor:
        """One of those who count, so many levels deep."""
        one = node("node", self)
        workflow = WorkflowBuilder(name="w", start_executor=one, clock=ManualClock()).add_edge(one, one).build()
        for _ in range(self._levels - 1):
            workflow = WorkflowBuilder(name="w", start_executor=WorkflowExecutor(workflow, "sub")).build()
        return WorkflowExecutor(workflow, name)

    def side_by_side(self, storage: Storage, *beside: Doing) -> Workflow:
        """Three of them at once, and others."""
        start = passing("start")
        others = [node(f"n{number}", do) for number, do in enumerate(beside)]
        builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=CLOCK)
        return builder.add_fan_out_edges(start, [*others, *(self.sub(name) for name in "abc")]).build()


@pytest.mark.parametrize("levels", [1, 2])
async def test_sub_workflows_side_by_side_begin_no_activation_beyond_the_budget(storage: Storage, levels: int) -> None:
    countdown, own = Countdown(levels=levels), 1 + 3 * levels
    with pytest.raises(BudgetExceededError) as caught:
        await countdown.side_by_side(storage).run(5, run_id=RUN_ID, budget={"activations": own + 7})
    error = caught.value
    assert (error.run_id, error.spent, error.limit) == (RUN_ID, own + 7, own + 7)
    assert countdown.entered == 7
    with pytest.raises(BudgetExceededError):
        await countdown.side_by_side(storage).run(run_id=RUN_ID, budget={"activations": own + 14})
    await countdown.side_by_side(storage).run(run_id=RUN_ID, budget={"activations": own + 15})
    assert countdown.entered == 15


@pytest.mark.parametrize("levels", [1, 2])
async def test_what_one_of_them_reports_is_not_left_to_the_others(storage: Storage, levels: int) -> None:
    countdown = Countdown(levels=levels)
    with pytest.raises(BudgetExceededError) as caught:
        await countdown.side_by_side(storage).run(5, run_id=RUN_ID, budget={"usd": 4})
    assert (caught.value.name, caught.value.limit) == ("usd", 4)
    # What is reported is known when it is spent: those who had begun are over it, nobody else.
    assert countdown.entered <= 4 + 3


async def test_what_an_executor_beside_them_has_spent_is_not_left_to_them(storage: Storage) -> None:
    countdown = Countdown()

    async def spends(_: Any, ctx: Context) -> None:
        ctx.spend(usd=9)

    with pytest.raises(BudgetExceededError):
        await countdown.side_by_side(storage, spends).run(5, run_id=RUN_ID, budget={"usd": 8})
    assert countdown.entered <= 3


async def test_the_messages_of_one_superstep_share_what_is_left(storage: Storage) -> None:
    countdown, start = Countdown(), sending("start", 5, 5)
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=CLOCK)
    with pytest.raises(BudgetExceededError):
        await builder.add_edge(start, countdown.sub("a")).build().run("go", budget={"activations": 3 + 8})
    assert countdown.entered == 8


def test_what_was_spent_inside_is_counted_once() -> None:
    run = BudgetTracker()
    one, other = run.child("1.0/one#0"), run.child("1.0/other#0")
    inner = one.child("1.0/inner#0")
    one.report({"usd": 1})
    inner.report({"usd": 2})
    assert (
        run.spent_by_siblings("usd"),
        one.spent_by_siblings("usd"),
        inner.spent_by_siblings("usd"),
        other.spent_by_siblings("usd"),
    ) == (0, 0, 0, 3)
    one.report({"usd": 3})
    assert other.spent_by_siblings("usd") == 3
    run.report({"usd": 5})
    assert (one.spent_by_siblings("usd"), other.spent_by_siblings("usd")) == (0, 0)
