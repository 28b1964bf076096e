"""Budgets of tokens: a turn stops between two calls, and with a higher budget goes on without asking again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.activation.solo import lone
from tests.agents.talkers import Model, agent
from tests.tracing.collected import EXPORTER, SAMPLER
from tests.workflow.nodes import node

from perdure import WorkflowBuilder, WorkflowExecutor
from perdure.errors import BudgetExceededError

_TOKENS = "total_tokens"


def talkative(model: Model, turns: int) -> Any:
    """Asks a model so many times in one activation."""

    async def do(message: Any, ctx: Any) -> None:
        said = [(await agent("agent", model).run(message)).text for _ in range(turns)]
        await ctx.yield_output(said)

    return do


async def test_a_budget_of_tokens_stops_a_turn_between_two_calls(storage: Any) -> None:
    model = Model(tokens=10)
    with pytest.raises(BudgetExceededError) as caught:
        await lone(talkative(model, 3), storage=storage).run("hi", run_id="r", budget={_TOKENS: 20})
    assert (len(model.shown), caught.value.spent, caught.value.limit) == (2, 20, 20)
    with pytest.raises(BudgetExceededError):
        await lone(talkative(model, 3), storage=storage).run(run_id="r")
    result = await lone(talkative(model, 3), storage=storage).run(run_id="r", budget={_TOKENS: 21})
    assert (len(model.shown), result.get_outputs()) == (3, [["1:hi", "1:hi", "1:hi"]])
    assert result.get_spent()[_TOKENS] == 30


async def test_without_a_storage_a_budget_stops_a_turn_as_well() -> None:
    model = Model(tokens=10)
    with pytest.raises(BudgetExceededError):
        await lone(talkative(model, 3)).run("hi", budget={_TOKENS: 15})
    assert len(model.shown) == 2


async def test_a_budget_counts_what_runs_beside(storage: Any) -> None:
    model = Model(tokens=10)

    async def pass_on(message: Any, ctx: Any) -> None:
        await ctx.send_message(message)

    start = node("start", pass_on)
    others = [node(name, talkative(model, 3)) for name in ("one", "other")]
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage)
    with pytest.raises(BudgetExceededError) as caught:
        await builder.add_fan_out_edges(start, others).build().run("hi", budget={_TOKENS: 30})
    assert (caught.value.limit, 30 <= caught.value.spent <= 40, len(model.shown) <= 4) == (30, True, True)


async def test_a_budget_holds_inside_of_a_sub_workflow(storage: Any) -> None:
    model = Model(tokens=10)

    def nested() -> Any:
        child = WorkflowExecutor(lone(talkative(model, 3)), "child", allow_direct_output=True)
        first = node("first", spending)
        builder = WorkflowBuilder(name="w", start_executor=first, checkpoint_storage=storage)
        return builder.add_edge(first, child).build()

    async def spending(message: Any, ctx: Any) -> None:
        ctx.spend(total_tokens=5)
        await ctx.send_message(message)

    with pytest.raises(BudgetExceededError) as caught:
        await nested().run("hi", run_id="r", budget={_TOKENS: 25})
    assert (caught.value.run_id, caught.value.spent, caught.value.limit) == ("r", 25, 25)
    assert len(model.shown) == 2
    result = await nested().run(run_id="r", budget={_TOKENS: 26})
    assert (len(model.shown), result.get_spent()[_TOKENS]) == (3, 35)


async def test_a_budget_of_supersteps_does_not_stop_a_turn() -> None:
    result = await lone(talkative(Model(tokens=1), 2)).run("hi", budget={"supersteps": 1, "activations": 1})
    assert len(result.get_outputs()) == 1


async def test_what_a_run_has_spent_is_told_kept_and_summed_without_a_budget(storage: Any) -> None:
    workflow = lone(talkative(Model(tokens=10), 2), storage=storage)
    first = await workflow.run("hi", run_id="r")
    second = await workflow.run("ho")
    assert (first.get_spent()[_TOKENS], second.get_spent()[_TOKENS]) == (20, 40)
    told = [event.data async for event in storage.events("r") if event.type == "superstep_completed"]
    assert [each[_TOKENS] for each in told] == [20, 40]
    run = lone(talkative(Model(), 1), storage=storage).start(run_id="r")
    again = await run.result()
    assert (run.spent[_TOKENS], again.get_spent()) == (40, {})


async def test_what_a_run_has_spent_is_traced() -> None:
    EXPORTER.clear()
    SAMPLER.is_asked = True
    try:
        await lone(talkative(Model(tokens=10), 2)).run("hi")
    finally:
        SAMPLER.is_asked = False
    (span,) = [each for each in EXPORTER.get_finished_spans() if each.name == "perdure.run"]
    assert (span.attributes or {})["perdure.spent.total_tokens"] == 20


async def test_a_superstep_that_spends_nothing_says_nothing_of_it(storage: Any) -> None:
    result = await lone(talkative(Model(), 1), storage=storage).run("hi")
    assert [event.data for event in result if event.type == "superstep_completed"] == [None]
    assert result.get_spent() == {}
