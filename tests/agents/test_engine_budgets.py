"""Budgets of tokens: a turn stops between two calls, and with a higher budget goes on without asking again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import lone
from tests.agents.talkers import Model, Stranger, agent
from tests.tracing.collected import EXPORTER, SAMPLER
from tests.workflow.nodes import node

from perdure import WorkflowBuilder, WorkflowExecutor
from perdure.errors import BudgetExceededError, ChatClientInvalidResponseException

if TYPE_CHECKING:
    from collections.abc import Callable

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
    assert [dict(event.data) for event in result if event.type == "superstep_completed"] == [{}]
    assert result.get_spent() == {}


def parallel(number: int, make: Callable[[int], Any], **options: Any) -> Any:
    """Build a workflow in which so many executors get the message in one superstep."""

    async def pass_on(message: Any, ctx: Any) -> None:
        await ctx.send_message(message)

    start = node("start", pass_on)
    builder = WorkflowBuilder(name="w", start_executor=start, **options)
    return builder.add_fan_out_edges(start, [make(each) for each in range(number)]).build()


class Slow(Model):
    """A model whose calls overlap."""

    def _inner_get_response(self, **given: Any) -> Any:
        answer = super()._inner_get_response(**given)

        async def wait() -> Any:
            for _ in range(5):
                await asyncio.sleep(0)
            return await answer

        return answer if given["stream"] else wait()


async def test_two_hundred_parallel_agents_stay_within_the_budget() -> None:
    model = Slow(tokens=10)
    workflow = parallel(200, lambda number: agent(f"agent{number}", model))
    with pytest.raises(BudgetExceededError) as caught:
        await workflow.run("hi", budget={_TOKENS: 500})
    assert (len(model.shown), caught.value.spent) == (50, 500)


async def test_parallel_calls_that_grow_overshoot_by_no_more_than_their_growth() -> None:
    model = Slow(tokens=10)

    def grow(_: Any) -> str:
        model.tokens = 10 + len(model.shown)
        return "ok"

    model.say = grow
    with pytest.raises(BudgetExceededError) as caught:
        await parallel(50, lambda number: agent(f"agent{number}", model)).run("hi", budget={_TOKENS: 100})
    assert 100 <= caught.value.spent <= 130


async def test_parallel_calls_of_agents_that_are_tools_share_the_budget() -> None:
    model = Slow(tokens=10)

    async def gather(message: Any, ctx: Any) -> None:
        async def one(number: int) -> str:
            return (await agent(f"agent{number}", model).run(message)).text

        await ctx.yield_output(await asyncio.gather(*(ctx.step(f"ask {number}", one, number) for number in range(20))))

    with pytest.raises(BudgetExceededError):
        await lone(gather).run("hi", budget={_TOKENS: 50})
    assert len(model.shown) == 5


async def test_parallel_sub_workflows_share_the_budget(storage: Any) -> None:
    model = Slow(tokens=10)

    def child(number: int) -> Any:
        return WorkflowExecutor(lone(talkative(model, 2)), f"child{number}", allow_direct_output=True)

    with pytest.raises(BudgetExceededError) as caught:
        await parallel(20, child, checkpoint_storage=storage).run("hi", budget={_TOKENS: 100})
    assert (len(model.shown), caught.value.spent) == (10, 100)


async def test_a_budget_error_cancels_no_call_that_is_in_flight(storage: Any) -> None:
    model = Slow(tokens=10)
    workflow = parallel(8, lambda number: agent(f"agent{number}", model), checkpoint_storage=storage)
    with pytest.raises(BudgetExceededError):
        await workflow.run("hi", run_id="r", budget={_TOKENS: 35})
    assert len(model.shown) == 4
    result = await workflow.run(run_id="r", budget={_TOKENS: 1000})
    assert (len(model.shown), result.get_spent()[_TOKENS]) == (8, 80)


def warnings_in(result: Any) -> list[str]:
    return [event.data for event in result if event.type == "warning"]


async def test_tokens_that_a_model_does_not_report_are_estimated_with_one_warning(storage: Any) -> None:
    model = Model(lambda _: "x" * 400)
    workflow = parallel(3, lambda number: agent(f"agent{number}", model), checkpoint_storage=storage)
    result = await workflow.run("hi", budget={_TOKENS: 1000})
    assert result.get_spent()[_TOKENS] == 3 * 101
    assert warnings_in(result) == ["a model reports no total_tokens, which the run's budget limits; they are estimated"]
    with pytest.raises(BudgetExceededError):
        await workflow.run("hi", budget={_TOKENS: 250})


async def test_estimates_count_instructions_streams_and_agents_of_others(storage: Any) -> None:
    model = Model(lambda _: "ok")
    streaming = lone(talkative(model, 1), storage=storage)
    events = [event async for event in streaming.run("x" * 400, budget={"input_tokens": 1000}, stream=True)]
    assert [event.data["input_tokens"] for event in events if event.type == "superstep_completed"] == [100]
    strange = WorkflowBuilder(name="s", start_executor=Stranger()).build()
    result = await strange.run("x" * 400, budget={"input_tokens": 1000})
    assert (result.get_spent()["input_tokens"], len(warnings_in(result))) == (100, 1)


async def test_a_tokenizer_of_the_client_makes_the_estimates() -> None:
    class Words:
        def count_tokens(self, text: str) -> int:
            return len(text.split())

    model = Model(lambda _: "three more words")
    model.tokenizer = Words()
    result = await lone(talkative(model, 1)).run("two words", budget={_TOKENS: 1000})
    assert result.get_spent()[_TOKENS] == 5


async def test_missing_token_counts_can_be_left_out_or_stop_the_run(storage: Any) -> None:
    model = Model()
    model.missing_usage = "warn"
    result = await lone(talkative(model, 1)).run("hi", budget={_TOKENS: 1})
    assert (result.get_spent(), len(warnings_in(result))) == ({}, 1)
    model.missing_usage = "raise"
    with pytest.raises(ChatClientInvalidResponseException, match="missing_usage"):
        await lone(talkative(model, 1), storage=storage).run("hi", run_id="r", budget={_TOKENS: 100})
    model.missing_usage = "estimate"
    calls = len(model.shown)
    result = await lone(talkative(model, 1), storage=storage).run(run_id="r")
    assert (len(model.shown), result.get_spent()[_TOKENS]) == (calls, 2)


async def test_without_a_token_budget_missing_counts_are_no_warning() -> None:
    result = await lone(talkative(Model(), 1)).run("hi", budget={"usd": 1})
    assert (warnings_in(result), result.get_spent()) == ([], {})


async def test_the_usage_of_all_agents_is_on_the_result(storage: Any) -> None:
    first, second = agent("first", Model(tokens=10)), agent("second", Model(tokens=5))
    builder = WorkflowBuilder(name="w", start_executor=first, output_from=[second], checkpoint_storage=storage)
    workflow = builder.add_edge(first, second).build()
    assert (await workflow.run("hi")).usage_details == {"total_token_count": 15}
    stream = workflow.run("ho", stream=True)
    assert (await stream.get_final_response()).usage_details == {"total_token_count": 30}
    assert (await lone(talkative(Model(), 1)).run("hi")).usage_details == {}
