"""The conductor: tasks, events and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.agent_workflows.conducting import Troupe, defined, node, otherwise, when

from perdure import AgentExecutorResponse, AgentResponse, InMemoryCheckpointStorage, Message
from perdure.agent_workflows import (
    END,
    START,
    AgentWorkflowError,
    AgentWorkflowResult,
    Edge,
    MissingInputError,
    TextOutput,
)
from perdure.agent_workflows.conductor.conductor import RESULT_PROPERTY
from perdure.agent_workflows.messages import NodeResult

if TYPE_CHECKING:
    from perdure.agent_workflows import Definition, EdgeContext
    from perdure.agent_workflows.messages import NodeTask


def _pipeline() -> Definition:
    nodes = [node("draft", output=TextOutput("draft")), node("review", input_key="draft")]
    return defined(nodes, "draft>review")


async def test_each_node_is_given_what_it_reads_and_the_last_one_answers() -> None:
    played = await Troupe(_pipeline(), execution_id="e1").run("a poem")
    assert played.texts("review") == ["draft(a poem)"]
    assert played.result.final_answer == "review(draft(a poem))"
    assert played.result.outputs == {"draft.draft": "draft(a poem)", "review.answer": "review(draft(a poem))"}
    assert played.result.success
    assert played.result.execution_id == "e1"
    assert str(played.result) == "review(draft(a poem))"


async def test_what_happens_is_told_in_order() -> None:
    played = await Troupe(_pipeline(), execution_id="e1").run("a poem")
    kinds = ("workflow_started", "agent_started", "agent_completed", "edge_traversed", "layer_started")
    told = [type(each).__name__ for each in played.told(*kinds, "layer_completed", "workflow_completed")]
    assert told == [
        "WorkflowStartedEvent",
        "WorkflowEdgeTraversedEvent",
        "WorkflowLayerStartedEvent",
        "WorkflowAgentStartedEvent",
        "WorkflowAgentCompletedEvent",
        "WorkflowEdgeTraversedEvent",
        "WorkflowLayerCompletedEvent",
        "WorkflowLayerStartedEvent",
        "WorkflowAgentStartedEvent",
        "WorkflowAgentCompletedEvent",
        "WorkflowEdgeTraversedEvent",
        "WorkflowLayerCompletedEvent",
        "WorkflowCompletedEvent",
    ]
    (started,) = played.told("workflow_started")
    assert (started.workflow_name, started.node_count, started.layer_count) == ("Test", 2, 2)
    one, two = played.told("agent_completed")
    assert (one.node_id, one.progress, two.progress) == ("draft", 0.5, 1.0)
    assert one.outputs == {"draft": "draft(a poem)"}
    first = played.told("agent_started")[0]
    assert (first.agent_name, first.input, first.layer) == ("draft-agent", "a poem", 0)
    (completed,) = played.told("workflow_completed")
    assert completed.successful_nodes == ("draft", "review")


async def test_an_edge_is_told_with_the_condition_that_held() -> None:
    troupe = Troupe(defined("a b c", when("a>b"), otherwise("a>c")), {"a": lambda _: "yes"})
    played = await troupe.run()
    told = {(each.source, each.target): (each.has_condition, each.condition) for each in played.told("edge_traversed")}
    assert told == {(START, "a"): (False, None), ("a", "b"): (True, "answer == 'yes'"), ("b", END): (False, None)}
    (skipped,) = played.told("agent_skipped")
    assert (skipped.node_id, skipped.reason) == ("c", "'a' -> 'c' was not needed: another condition of 'a' holds")
    assert played.result.skipped == {"c": skipped.reason}


async def test_several_ends_answer_one_after_the_other() -> None:
    played = await Troupe(defined("a b c", "a>b", "a>c"), {"b": lambda _: "one", "c": lambda _: "two"}).run()
    assert played.result.final_answer == "one\n\ntwo"


async def test_nodes_that_were_given_tasks_together_act_in_one_superstep() -> None:
    played = await Troupe(defined("a b c", "a>b", "a>c")).run()
    of = [event for event in played.events if event.type in {"superstep_started", "executor_invoked"}]
    names = [event.executor_id or "|" for event in of]
    assert " ".join(names) == "| conductor | a | conductor | b c | conductor conductor"


async def test_an_end_that_nobody_reaches_is_no_success_and_says_so() -> None:
    troupe = Troupe(defined("a b", when("a>b"), when(f"a>{END}", "maybe")), {"a": lambda _: "no"})
    played = await troupe.run()
    assert not played.result.success
    assert played.result.final_answer is None
    assert played.result.error == "no end was reached: no edge to END was taken"
    (diagnostic,) = played.told("diagnostic")
    assert (diagnostic.level, diagnostic.message) == ("warning", played.result.error)
    assert not played.told("workflow_completed")[0].success


async def test_predicates_see_a_copy_of_the_outputs_and_may_be_asynchronous() -> None:
    async def later(context: EdgeContext) -> bool:
        cast("dict[str, Any]", context.outputs).clear()
        return context.input == "go"

    edges = [
        Edge("a", "b", predicate=later),
        Edge("a", "c", predicate=lambda context: "x" in context.outputs["answer"]),
    ]
    played = await Troupe(defined("a b c", *edges)).run("go")
    assert played.result.outputs["a.answer"] == "a(go)"
    assert list(played.result.skipped) == ["c"]
    taken = [each.condition for each in played.told("edge_traversed") if each.has_condition]
    assert taken == ["later() holds"]


async def test_a_predicate_that_raises_is_named() -> None:
    def broken(_: EdgeContext) -> bool:
        raise ZeroDivisionError("oh")

    with pytest.raises(AgentWorkflowError, match="the predicate of edge 'a' -> 'b' raised ZeroDivisionError: oh"):
        await Troupe(defined("a b", Edge("a", "b", predicate=broken))).run()


async def test_edges_from_the_start_may_have_conditions() -> None:
    edges = [when(f"{START}>a", "sums", key="input.topic"), when(f"{START}>b", "poems", key="input.topic")]
    played = await Troupe(defined([node("a", input_key="input.topic"), node("b")], *edges)).run({"topic": "sums"})
    assert played.result.final_answer == "a(sums)"
    assert played.result.skipped == {"b": "'START' -> 'b' was not taken: it needs input.topic == 'poems'"}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Message("user", ["hello"]), "hello"),
        (["one", "two"], "one\n\ntwo"),
        ([Message("user", ["old"]), Message("assistant", ["said"]), Message("user", ["new"])], "new"),
        ([Message("user", ["old"]), Message("assistant", ["said"])], "said"),
        (AgentExecutorResponse("x", AgentResponse(messages=[Message("assistant", ["from x"])]), []), "from x"),
    ],
)
async def test_a_request_has_many_forms(request_: Any, text: str) -> None:
    assert (await Troupe(defined("a")).run(request_)).texts("a") == [text]


async def test_a_request_without_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with a request"):
        await Troupe(defined("a")).run([Message("user", [" "])])


async def test_it_can_give_a_text_or_a_response() -> None:
    assert (await Troupe(_pipeline(), gives="text").run("x")).outputs == ["review(draft(x))"]
    (response,) = (await Troupe(_pipeline(), gives="response").run("x")).outputs
    assert isinstance(response, AgentResponse)
    assert (response.text, response.messages[0].author_name) == ("review(draft(x))", "Test")


async def test_what_is_no_success_says_why_and_the_next_request_begins_anew() -> None:
    definition = defined("a", when(f"a>{END}", "a(two)"))
    said = "no end was reached: no edge to END was taken"
    workflow = Troupe(definition, gives="text").workflow()
    assert (await workflow.run("one")).get_outputs() == [said]
    assert (await workflow.run("two")).get_outputs() == ["a(two)"]
    (response,) = (await Troupe(definition, gives="response", execution_id="e1").run("one")).outputs
    assert response.text == said
    carried = AgentWorkflowResult(**response.additional_properties[RESULT_PROPERTY])
    assert (carried.success, carried.error, carried.execution_id) == (False, said, "e1")
    assert carried.outputs == {"a.answer": "a(one)"}


async def test_who_begins_an_execution_is_asked_for_the_version_once() -> None:
    storage = InMemoryCheckpointStorage()
    calls: list[str] = []

    async def version() -> int:
        calls.append("asked")
        return 7

    def boom(_: NodeTask) -> str:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await Troupe(_pipeline(), {"review": boom}, storage=storage, on_begin=version).workflow().run("x", run_id="r")
    await Troupe(_pipeline(), storage=storage, on_begin=version).workflow().run(run_id="r")
    assert calls == ["asked"]
    (started,) = [event.data async for event in storage.events("r") if event.type == "workflow_started"]
    assert (started.execution_id, started.version) == ("r", 7)


async def test_a_value_that_nobody_has_written_stops_the_run_and_says_why() -> None:
    nodes = [node("a"), node("b"), node("c", template="{{b.answer}}")]
    with pytest.raises(MissingInputError, match="'b'"):
        await Troupe(defined(nodes, when("a>b"), "a>c", "b>c")).run()


async def test_the_next_request_of_a_run_begins_anew() -> None:
    troupe = Troupe(_pipeline())
    workflow = troupe.workflow()
    await workflow.run("one")
    (second,) = (await workflow.run("two")).get_outputs()
    assert second.final_answer == "review(draft(two))"
    assert [task.visit for task in troupe.actors["draft"].tasks] == [0, 1]


async def test_something_that_nobody_waits_for_is_ignored_with_a_warning() -> None:
    workflow = Troupe(_pipeline()).workflow()
    await workflow.run("one")
    told = [event.data for event in await workflow.run(NodeResult("draft", 0)) if event.type == "diagnostic"]
    assert [each.message for each in told] == [
        "a late or repeated result of node 'draft' is ignored; nothing needs to be done"
    ]
