"""Effects of failures and denials on other nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest
from tests.agent_workflows.conducting import Says, Troupe, defined, node, otherwise, when

from perdure import InMemoryCheckpointStorage
from perdure.agent_workflows import (
    END,
    START,
    AgentWorkflowError,
    MissingInputError,
    OnError,
    StructuredOutput,
    TextOutput,
)
from perdure.agent_workflows.messages import NodeResult

if TYPE_CHECKING:
    from perdure.agent_workflows.messages import NodeTask


def boom(_: NodeTask) -> NoReturn:
    """Fail."""
    raise ValueError("boom")


def denied(task: NodeTask) -> NodeResult:
    """Return a denied result."""
    return NodeResult(task.node_id, task.visit, {"answer": "x"}, "x", denied="too dear")


def falls_back(fallback: str = "f") -> OnError:
    """Return the error mode with a fallback."""
    return OnError("fallback", fallback)


async def test_a_failure_that_stops_is_tried_again_by_a_resume_and_nobody_else_is() -> None:
    storage = InMemoryCheckpointStorage()
    nodes = [node("a"), node("b"), node("c"), node("d", reads="upstream")]
    first = Troupe(defined(nodes, "a>b", "a>c", "b>d", "c>d"), {"c": boom}, storage=storage)
    with pytest.raises(ValueError, match="boom"):
        await first.workflow().run("go", run_id="r1")
    second = Troupe(first.definition, storage=storage)
    (result,) = (await second.workflow().run(run_id="r1")).get_outputs()
    assert result.success
    acted = [each for each, actor in second.actors.items() if actor.tasks]
    assert acted == ["c", "d"]


async def test_a_resume_with_other_edges_is_refused_and_says_which() -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(ValueError, match="boom"):
        await Troupe(defined("a b c", "a>b"), {"b": boom}, storage=storage).workflow().run("go", run_id="r1")
    changed = Troupe(defined("a b c", "a>b", "b>c"), storage=storage)
    with pytest.raises(AgentWorkflowError, match=r"'b' -> 'END', 'b' -> 'c'; resume it with those"):
        await changed.workflow().run(run_id="r1")


async def test_what_depends_on_a_failed_node_is_skipped_and_the_rest_goes_on() -> None:
    nodes = [node("a"), node("b", on_error="skip_dependents"), node("c"), node("d"), node("e", reads="upstream")]
    troupe = Troupe(defined(nodes, "a>b", "a>c", "b>d", "c>e"), {"b": boom})
    played = await troupe.run()
    assert played.result.success
    assert played.result.failed == {"b": "ValueError: boom"}
    assert played.result.skipped == {"d": "'b' has failed"}
    assert played.result.final_answer == "e(c(a(go)))"
    failed = [each for each in played.told("agent_completed") if not each.success]
    assert [(each.node_id, each.error) for each in failed] == [("b", "ValueError: boom")]


async def test_no_end_because_of_a_failure_is_no_success_and_says_which() -> None:
    troupe = Troupe(defined([node("a", on_error="skip_dependents"), node("b")], "a>b"), {"a": boom})
    result = (await troupe.run()).result
    assert not result.success
    assert result.error == "no end was reached: 'a' has failed: ValueError: boom"


async def test_an_isolated_failure_is_an_output_that_edges_can_ask_for() -> None:
    nodes = [node("a", on_error="isolate"), node("b", template="{{a.error}}"), node("c")]
    edges = [when("a>b", "ValueError: boom", key="error"), otherwise("a>c")]
    result = (await Troupe(defined(nodes, *edges), {"a": boom}).run()).result
    assert result.outputs == {"a.error": "ValueError: boom", "b.answer": "b(ValueError: boom)"}
    assert result.failed == {"a": "ValueError: boom"}
    assert result.success


async def test_an_execution_at_whose_ends_all_have_failed_is_no_success() -> None:
    isolated = [node(each, on_error="isolate") for each in "ab"]
    alone = (await Troupe(defined(isolated[:1]), {"a": boom}).run()).result
    assert (alone.success, alone.final_answer) == (False, None)
    assert alone.error == "no end was reached: 'a' has failed: ValueError: boom"
    assert alone.outputs == {"a.error": "ValueError: boom"}
    both = (await Troupe(defined(isolated), {"a": boom}).run()).result
    assert (both.success, both.final_answer, both.error) == (True, "b(go)", None)


async def test_a_fallback_is_given_the_same_task_and_the_error_and_stands_for_the_node() -> None:
    nodes = [node("a", output=TextOutput("draft"), on_error=falls_back()), node("b", input_key="draft"), node("f")]
    troupe = Troupe(defined(nodes, "a>b"), {"a": boom})
    played = await troupe.run("a poem")
    (task,) = troupe.actors["f"].tasks
    assert (task.text, task.error) == ("a poem", "ValueError: boom")
    assert played.result.outputs == {"a.answer": "f(a poem)", "a.draft": "f(a poem)", "b.answer": "b(f(a poem))"}
    assert played.result.failed == {"a": "ValueError: boom"}
    assert played.result.success
    told = [(each.node_id, each.success, each.fallback_for) for each in played.told("agent_completed")]
    assert told == [("a", False, None), ("f", True, "a"), ("b", True, None)]


async def test_a_fallback_that_is_not_needed_does_nothing() -> None:
    troupe = Troupe(defined([node("a", on_error=falls_back()), node("f")]))
    result = (await troupe.run()).result
    assert (result.success, result.skipped, len(troupe.actors["f"].tasks)) == (True, {}, 0)


async def test_fallbacks_can_have_fallbacks() -> None:
    nodes = [node("a", on_error=falls_back("f")), node("f", on_error=falls_back("g")), node("g"), node("b")]
    played = await Troupe(defined(nodes, "a>b"), {"a": boom, "f": boom}).run()
    assert played.result.final_answer == "b(g(go))"
    assert list(played.result.failed) == ["a", "f"]


async def test_a_fallback_that_fails_does_what_it_says_itself() -> None:
    nodes = [node("a", on_error=falls_back()), node("f", on_error="skip_dependents"), node("b")]
    result = (await Troupe(defined(nodes, "a>b"), {"a": boom, "f": boom}).run()).result
    assert result.skipped == {"b": "'a' has failed"}
    assert not result.success


async def test_one_fallback_stands_in_for_several_one_after_the_other() -> None:
    nodes = [node("a", on_error=falls_back()), node("b", on_error=falls_back()), node("f")]
    troupe = Troupe(defined(nodes, "a>END", "b>END"), {"a": boom, "b": boom, "f": lambda task: f"f{task.visit}"})
    played = await troupe.run()
    assert played.result.final_answer == "f0\n\nf1"
    told = [(each.node_id, each.fallback_for) for each in played.told("agent_completed") if each.success]
    assert told == [("f", "a"), ("f", "b")]


async def test_a_fallback_that_others_wait_for_and_that_fails_is_given_the_next() -> None:
    nodes = [node("a", on_error=falls_back()), node("b", on_error=falls_back()), node("f", on_error=falls_back("g"))]
    says: dict[str, Says] = {"a": boom, "b": boom, "f": lambda task: boom(task) if task.visit == 0 else "f"}
    result = (await Troupe(defined([*nodes, node("g")]), says).run()).result
    assert result.outputs == {"a.answer": "g(go)", "b.answer": "f"}


async def test_what_can_not_be_read_is_a_failure_of_the_node() -> None:
    nodes = [node("a"), node("b"), node("c", template="{{b.answer}}", on_error="isolate")]
    result = (await Troupe(defined(nodes, when("a>b"), "a>c", "b>c")).run()).result
    assert "c.error" in result.outputs
    assert "'b'" in result.failed["c"]


async def test_what_can_not_be_read_stops_the_run_when_all_before_it_is_kept_and_can_be_mended() -> None:
    storage = InMemoryCheckpointStorage()

    def reading(template: str) -> Troupe:
        nodes = [node("a"), node("b"), node("c", template=template), node("d")]
        return Troupe(defined(nodes, when("a>b"), "a>c", "a>d", "b>c"), storage=storage)

    for given in ("go", None):
        with pytest.raises(MissingInputError, match=r"node 'c' reads 'b\.answer'"):
            await reading("{{b.answer}}").workflow().run(given, run_id="r1")
    told = [event.data async for event in storage.events("r1") if event.type == "agent_completed"]
    assert [(each.node_id, each.success) for each in told] == [("a", True), ("c", False)]
    mended = reading("{{b.answer?}}!")
    (result,) = (await mended.workflow().run(run_id="r1")).get_outputs()
    assert result.outputs == {"a.answer": "a(go)", "c.answer": "c(!)", "d.answer": "d(a(go))"}
    assert [each for each, actor in mended.actors.items() if actor.tasks] == ["c"]


async def test_after_a_denial_nobody_is_asked_to_mend_what_can_not_be_read() -> None:
    nodes = [node("a"), node("b"), node("x"), node("c", template="{{b.answer}}")]
    troupe = Troupe(defined(nodes, when("a>b"), "a>c", "b>c", "x>END"), {"x": denied})
    played = await troupe.run()
    assert played.result.error == "'x' was denied: too dear"
    assert len(troupe.actors["c"].tasks) == 0
    assert "reads 'b.answer'" in played.result.failed["c"]
    assert played.told("workflow_completed")[0].successful_nodes == ("a",)


async def test_nobody_stands_in_for_a_node_that_can_not_be_told_its_task_and_a_resume_with_it_mended_goes_on() -> None:
    storage = InMemoryCheckpointStorage()

    def reading(template: str) -> Troupe:
        nodes = [node("a"), node("b"), node("c", template=template, on_error=falls_back()), node("d"), node("f")]
        says: dict[str, Says] = {"c": boom}
        return Troupe(defined(nodes, when("a>b"), "a>c", "a>d", "b>c"), says, storage=storage)

    first = reading("{{b.answer}}")
    with pytest.raises(MissingInputError, match=r"node 'c' reads 'b\.answer', which is not there: 'b' was skipped"):
        await first.workflow().run("go", run_id="r1")
    assert len(first.actors["f"].tasks) == 0
    mended = reading("{{a.answer}}!")
    (result,) = (await mended.workflow().run(run_id="r1")).get_outputs()
    assert [(task.text, task.error) for task in mended.actors["f"].tasks] == [("a(go)!", "ValueError: boom")]
    assert result.outputs["c.answer"] == "f(a(go)!)"
    assert result.failed == {"c": "ValueError: boom"}


async def test_a_fallback_is_not_given_the_task_of_the_pass_before() -> None:
    nodes = [node("src", reads="request"), node("a", template="{{src.extra}}", on_error=falls_back()), node("f")]
    edges = [f"{START}>src", "src>a", when("a>src", "a(first)"), otherwise(f"a>{END}")]
    says: dict[str, Says] = {"src": lambda task: {"extra": "first"} if task.visit == 0 else {"answer": "x"}}
    nodes[0] = replace(nodes[0], output=StructuredOutput({"type": "object"}))
    troupe = Troupe(defined(nodes, *edges), says)
    with pytest.raises(MissingInputError, match=r"node 'a' reads 'src\.extra'"):
        await troupe.run()
    assert len(troupe.actors["f"].tasks) == 0


async def test_a_key_that_is_called_error_is_no_failure() -> None:
    nodes = [node("a", output=TextOutput("error")), node("b"), node("c", template="{{a.error}}")]
    result = (await Troupe(defined(nodes, "a>b", "a>c")).run()).result
    assert result.outputs == {"a.error": "a(go)", "b.answer": "b(a(go))", "c.answer": "c(a(go))"}


async def test_what_a_shared_fallback_was_denied_is_not_forgotten_when_it_stands_in_for_another() -> None:
    nodes = [node("a", on_error=falls_back()), node("b", on_error=falls_back()), node("f", on_error="isolate")]
    says: dict[str, Says] = {"a": boom, "b": boom, "f": lambda task: denied(task) if task.visit == 0 else "f"}
    result = (await Troupe(defined(nodes), says).run()).result
    assert result.failed == {"a": "ValueError: boom", "b": "ValueError: boom", "f": "too dear"}
    assert result.outputs == {"a.error": "too dear", "b.answer": "f"}


async def test_a_denial_ends_the_execution_orderly() -> None:
    nodes = [node("a"), node("b"), node("c"), node("d", reads="upstream")]
    troupe = Troupe(defined(nodes, "a>b", "a>c", "b>d", "c>d"), {"b": denied})
    played = await troupe.run()
    result = played.result
    assert not result.success
    assert result.error == "'b' was denied: too dear"
    assert result.failed == {"b": "too dear"}
    assert result.skipped == {"d": "'b' was denied: too dear"}
    assert result.outputs == {"a.answer": "a(go)", "c.answer": "c(a(go))"}
    assert played.told("workflow_completed")[0].failed_nodes == ("b",)
    (warning,) = played.told("diagnostic")
    assert warning.message.endswith("and the execution ends after 'c': answer open requests")


async def test_after_a_denial_no_fallback_begins() -> None:
    nodes = [node("a"), node("b", on_error=falls_back()), node("c", on_error=falls_back()), node("f")]
    troupe = Troupe(defined(nodes), {"a": denied, "b": boom, "c": boom})
    result = (await troupe.run()).result
    assert len(troupe.actors["f"].tasks) == 0
    assert list(result.failed) == ["a", "b", "c"]


async def test_nobody_waits_for_a_fallback_after_a_denial() -> None:
    nodes = [node("b", on_error=falls_back()), node("c", on_error=falls_back()), node("a"), node("f")]
    troupe = Troupe(defined(nodes), {"a": denied, "b": boom, "c": boom})
    result = (await troupe.run()).result
    assert len(troupe.actors["f"].tasks) == 1
    assert result.error == "'a' was denied: too dear"
    assert result.outputs == {"b.answer": "f(go)"}


async def test_who_depends_on_a_denied_node_is_told_that_it_was_denied_and_why() -> None:
    nodes = [node("a", on_error="skip_dependents"), node("b"), node("c")]
    result = (await Troupe(defined(nodes, "a>b", "b>c"), {"a": denied}).run()).result
    assert result.skipped == {"b": "'a' was denied: too dear", "c": "'b' was skipped: 'a' was denied: too dear"}
    assert result.error == "no end was reached: 'a' was denied: too dear"


async def test_a_denial_of_who_stands_in_is_told_under_its_name() -> None:
    nodes = [node("a", on_error=falls_back()), node("b"), node("f", on_error="skip_dependents")]
    result = (await Troupe(defined(nodes, "a>b"), {"a": boom, "f": denied}).run()).result
    assert result.skipped == {"b": "'f' was denied: too dear"}
    assert result.error == "no end was reached: 'a' has failed: ValueError: boom; 'f' was denied: too dear"


async def test_a_denial_of_an_earlier_pass_is_not_told_when_a_node_has_failed_in_a_later_one() -> None:
    nodes = [node("a", reads="request", on_error="skip_dependents"), node("b"), node("c", reads="request")]
    edges = [f"{START}>a", f"{START}>c", "a>b", when("a>c"), when("c>a"), otherwise(f"c>{END}")]
    says: dict[str, Says] = {"a": lambda task: boom(task) if task.visit else denied(task), "c": lambda _: "yes"}
    result = (await Troupe(defined(nodes, *edges), says).run()).result
    assert result.skipped == {"b": "'a' has failed"}


@pytest.mark.parametrize(
    ("on_error", "outputs"),
    [
        ("isolate", {"a.error": "too dear", "b.answer": "b()"}),
        (falls_back(), {"a.answer": "f(go)", "b.answer": "b(f(go))"}),
        ("skip_dependents", {}),
    ],
)
async def test_a_denial_is_like_a_failure_if_the_node_does_not_stop(
    on_error: str | OnError, outputs: dict[str, str]
) -> None:
    nodes = [node("a", on_error=on_error), node("b", template="{{a.answer?}}"), node("f")]
    edges = ["a>b", f"b>{END}", *([] if isinstance(on_error, OnError) else [f"f>{END}"])]
    result = (await Troupe(defined(nodes, *edges), {"a": denied}).run()).result
    assert {key: value for key, value in result.outputs.items() if not key.startswith("f.")} == outputs
    assert result.failed == {"a": "too dear"}
