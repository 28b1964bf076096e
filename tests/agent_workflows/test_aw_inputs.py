"""Inputs of nodes: resolved by `build()`, rendered when the node runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.nodes import DESKS, TICKET, clerk

from perdure import Message
from perdure.agent_workflows import (
    START,
    Definition,
    Edge,
    MissingInputError,
    Node,
    OnError,
    StructuredOutput,
    TextOutput,
)
from perdure.agent_workflows.inputs import KnownValues, input_problems, task_text
from perdure.agent_workflows.messages import NodeOutput
from perdure.agent_workflows.plan import Plan
from perdure.agent_workflows.validation import find_problems

if TYPE_CHECKING:
    from collections.abc import Sequence


AGENT = clerk([])[1]
ANYTHING = StructuredOutput({"type": "object"})


def node(node_id: str, **more: Any) -> Node:
    return Node(id=node_id, agent=AGENT, **more)


def plan(nodes: Sequence[Node], *edges: str) -> Plan:
    """A plan; edges are written as `a>b`."""
    joined = tuple(Edge(source, target) for source, target in (each.split(">") for each in edges))
    return Plan(Definition(name="w", nodes=tuple(nodes), edges=joined))


def read(made: Plan, node_id: str, *, request: Any = "the request", **known: Any) -> str:
    """The task of a node, if the plan is fine."""
    assert input_problems(made) == []
    outputs, texts = known.pop("outputs", {}), known.pop("texts", {})
    written = {id_: NodeOutput(outputs.get(id_, {}), texts.get(id_, "")) for id_ in {**outputs, **texts}}
    return task_text(made, node_id, KnownValues(request, written, **known))


def one_problem(made: Plan) -> str:
    [problem] = input_problems(made)
    return problem


def test_a_first_node_reads_the_request() -> None:
    assert read(plan([node("a")]), "a") == "the request"


def test_a_node_after_one_other_reads_what_that_has_put_out() -> None:
    made = plan([node("a"), node("b")], "a>b")
    assert read(made, "b", outputs={"a": {"answer": "said"}}, texts={"a": "said"}, taken=("a",)) == "said"


@pytest.mark.parametrize("edges", [("a>c", "b>c"), ("START>c", "a>c")])
def test_a_node_after_several_has_to_say_what_it_reads(edges: tuple[str, ...]) -> None:
    nodes = [node("a"), node("c")] if "START>c" in edges else [node("a"), node("b"), node("c")]
    assert "node 'c' has to say what it reads, as several lead to it" in one_problem(plan(nodes, *edges))


@pytest.mark.parametrize("edges", [("b>a",), ("b>b",)])
def test_a_node_in_a_loop_has_to_say_what_it_reads(edges: tuple[str, ...]) -> None:
    looped = edges[0][-1]
    found = one_problem(plan([node("a"), node("b")], "a>b", *edges))
    assert found.startswith(f"node '{looped}' has to say what it reads, as 'b' leads back to it")


FORM = StructuredOutput({"type": "object", "properties": {"input": {"type": "object"}, "n": {"type": "integer"}}})


@pytest.mark.parametrize("reads", [{"template": "about {{input.x}}"}, {"input_key": "input.x"}])
def test_the_request_is_not_read_where_a_node_before_puts_out_the_same_name(reads: dict[str, str]) -> None:
    made = plan([node("a", output=FORM), node("m"), node("b", **reads)], "a>m", "m>b")
    assert one_problem(made) == (
        "node 'b' reads 'input.x', and 'a' before it writes that, too; write 'a.input.x' for what was made of the "
        "request, or 'START.input.x' for the request itself"
    )


def test_the_request_and_an_output_of_its_name_are_read_by_whole_names() -> None:
    made = plan([node("a", output=FORM), node("b", template="{{a.input.x}} of {{START.input.x}}")], "a>b")
    assert read(made, "b", request={"x": "old"}, outputs={"a": {"input": {"x": "new"}}}) == "new of old"


def test_an_output_of_that_name_elsewhere_does_not_hide_the_request() -> None:
    made = plan([node("a", output=FORM, template="{{input}}"), node("b", template="{{input}}")], "b>a")
    assert read(made, "a") == read(made, "b") == "the request"


def test_a_node_after_a_router_has_to_say_what_it_reads() -> None:
    made = plan([node("r", output=DESKS), node("billing")], "r>billing")
    assert "node 'billing' has to say what it reads, as it comes after a router" in one_problem(made)
    made = plan([node("r", output=DESKS), node("billing", reads="request")], "r>billing")
    assert read(made, "billing", taken=("r",)) == "the request"


def test_a_node_says_what_it_reads_in_one_way() -> None:
    made = plan([node("a", template="x", reads="request")])
    assert "in several ways: template, reads; keep one" in one_problem(made)


def test_a_fallback_is_given_the_task_of_another_and_reads_nothing_itself() -> None:
    failing = node("a", on_error=OnError("fallback", "f"))
    assert input_problems(plan([failing, node("f")])) == []
    # What is wrong with this is told by who looks at fallbacks, and once.
    told = plan([failing, node("f", reads="request", template="{{nothing}}")])
    assert input_problems(told) == []
    [problem] = find_problems(told.definition)
    assert "leave out its template, input_key and reads" in problem


def test_what_a_fallback_puts_out_is_read_of_the_node_that_it_stands_in_for() -> None:
    failing = node("a", on_error=OnError("fallback", "f"))
    fallback = node("f", output=TICKET)
    made = plan([failing, fallback, node("b", template="{{a.answer?}}{{a.title?}}")], "a>b")
    assert read(made, "b", outputs={"a": {"title": "Lamp", "answer": ""}}) == "Lamp"
    made = plan([failing, fallback, node("b", template="{{f.title}}")], "a>b")
    assert "'f' does not come before it" in one_problem(made)


def test_a_template_is_filled_once() -> None:
    template = "{{ input }}: {{a.draft}} and {{draft}}"
    made = plan([node("a", output=TextOutput("draft")), node("b", template=template)], "a>b")
    assert read(made, "b", outputs={"a": {"draft": "{{input}}"}}) == "the request: {{input}} and {{input}}"


def test_a_value_that_is_no_text_is_told_as_json() -> None:
    made = plan([node("a", output=TICKET), node("b", template="{{result}} {{urgency}} {{a.result.title}}")], "a>b")
    value = {"title": "Größe", "urgency": 2}
    outputs = {"a": {**value, "result": value}}
    assert read(made, "b", outputs=outputs) == '{"title": "Größe", "urgency": 2} 2 Größe'


@pytest.mark.parametrize(
    ("name", "request_", "text"),
    [
        ("input", {"topic": "owls"}, '{"topic": "owls"}'),
        ("input.topic", {"topic": "owls"}, "owls"),
        ("input.by.name", {"by": {"name": "Ann"}}, "Ann"),
        ("input", Message("user", ["hello"]), "hello"),
        ("input", [Message("user", ["one"]), "two"], "one\ntwo"),
        ("input", ["one", "two"], '["one", "two"]'),
        ("input.nothing?", "a text", ""),
    ],
)
def test_the_request_is_read_as_a_whole_or_by_entry(name: str, request_: Any, text: str) -> None:
    assert read(plan([node("a", input_key=name)]), "a", request=request_) == text


def test_an_entry_that_the_request_has_not_is_missing() -> None:
    made = plan([node("a", input_key="input.topic")])
    with pytest.raises(MissingInputError, match=r"node 'a' reads 'input.topic'.*the request has no 'topic'"):
        read(made, "a", request={"other": 1})


def test_a_key_is_that_of_the_one_node_before_that_writes_it() -> None:
    nodes = [node("a", output=TextOutput("draft")), node("b"), node("c", input_key="draft")]
    assert read(plan(nodes, "a>b", "b>c"), "c", outputs={"a": {"draft": "far"}, "b": {"answer": "near"}}) == "far"


def test_a_key_that_several_write_is_that_of_the_one_that_leads_to_the_node() -> None:
    nodes = [node("a"), node("b"), node("c", input_key="answer")]
    assert read(plan(nodes, "a>b", "b>c"), "c", outputs={"a": {"answer": "far"}, "b": {"answer": "near"}}) == "near"


def test_a_key_that_several_write_and_lead_to_the_node_has_to_be_named() -> None:
    made = plan([node("a"), node("b"), node("c", input_key="answer")], "a>c", "b>c")
    assert "several nodes before it write that; write which one is meant: 'a.answer', 'b.answer'" in one_problem(made)
    made = plan([node("a"), node("b"), node("c", input_key="b.answer")], "a>c", "b>c")
    assert read(made, "c", outputs={"a": {"answer": "one"}, "b": {"answer": "two"}}) == "two"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"input_key": "drafft"}, "nobody before it writes that; there is 'a.draft', 'input'"),
        ({"template": "{{drafft?}}"}, "nobody before it writes that"),
        ({"template": "{{a.answer}}"}, "'a' does not write that; it writes 'draft'"),
        ({"input_key": "c.answer"}, "'c' does not come before it"),
        ({"template": "{{draft"}, "starts a name that has no end"),
        ({"template": "{{ }}"}, "names nothing"),
        ({"input_key": ""}, "names nothing"),
        ({"input_key": "a."}, "names nothing"),
    ],
)
def test_what_nobody_could_have_written_is_seen_when_it_is_built(more: dict[str, Any], why: str) -> None:
    made = plan([node("a", output=TextOutput("draft")), node("b", **more), node("c", reads="request")], "a>b", "b>c")
    found = one_problem(made)
    assert found.startswith("node 'b' ")
    assert why in found


def test_all_that_is_wrong_is_told_at_once() -> None:
    made = plan([node("a", template="{{x}} {{y}}"), node("b", input_key="z")], "a>b")
    assert len(input_problems(made)) == 3


def test_in_a_loop_a_node_reads_what_comes_after_it_once_that_has_acted() -> None:
    nodes = [node("a", template="{{input}}{{b.note?}}"), node("b", output=TextOutput("note"), input_key="a.answer")]
    made = plan(nodes, "a>b", "b>a")
    assert read(made, "a") == "the request"
    assert read(made, "a", outputs={"b": {"note": ", shorter"}}) == "the request, shorter"


def test_a_node_may_read_what_it_has_put_out_itself_the_last_time_by_its_name() -> None:
    made = plan([node("a", template="{{a.answer?}}|")], "a>a")
    assert read(made, "a") == "|"
    assert read(made, "a", outputs={"a": {"answer": "before"}}) == "before|"


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"skipped": {"a": "no edge was taken"}}, "'a' was skipped: no edge was taken"),
        ({}, "'a' has not acted yet"),
        (
            {"outputs": {"a": {"error": "no line"}}, "texts": {"a": ""}, "failed": {"a": "no line"}},
            "'a' has failed: no line",
        ),
    ],
)
@pytest.mark.parametrize("more", [{}, {"input_key": "answer"}, {"template": "{{a.answer}}"}])
def test_a_missing_value_is_named_with_why_it_is_missing(more: dict[str, Any], known: Any, why: str) -> None:
    made = plan([node("a", on_error=OnError("isolate")), node("b", **more)], "a>b")
    with pytest.raises(MissingInputError) as caught:
        read(made, "b", taken=("a",), **known)
    assert "node 'b' reads" in str(caught.value)
    assert why in str(caught.value)


def test_the_error_of_an_isolated_node_can_be_read() -> None:
    made = plan([node("a", on_error=OnError("isolate")), node("b", template="{{a.answer?}}{{a.error?}}")], "a>b")
    assert read(made, "b", outputs={"a": {"error": "no line"}}) == "no line"
    made = plan([node("a"), node("b", template="{{a.error?}}")], "a>b")
    assert "'a' does not write that" in one_problem(made)


def test_a_field_that_is_not_there_is_missing_though_its_node_has_acted() -> None:
    made = plan([node("a", output=TICKET), node("b", input_key="a.urgency")], "a>b")
    with pytest.raises(MissingInputError, match="'a' has put out only 'title'"):
        read(made, "b", outputs={"a": {"title": "Lamp"}})


def test_keys_that_are_not_known_before_are_looked_for_when_the_node_acts() -> None:
    nodes = [node("a", output=ANYTHING), node("b", output=ANYTHING), node("c", input_key="size.x")]
    made = plan(nodes, "a>b", "b>c")
    assert read(made, "c", outputs={"a": {"size": {"x": 1}}, "b": {}}) == "1"
    assert read(made, "c", outputs={"a": {"size": {"x": 1}}, "b": {"size": {"x": 2}}}) == "2"
    with pytest.raises(MissingInputError, match="none of 'a', 'b' has written it"):
        read(made, "c", outputs={"a": {}, "b": {}})
    side_by_side = plan(nodes, "a>c", "b>c")
    with pytest.raises(MissingInputError, match=r"'a', 'b' have written it; write 'node.size'"):
        read(side_by_side, "c", outputs={"a": {"size": {"x": 1}}, "b": {"size": {"x": 2}}})


def test_all_that_was_said_before_is_told_under_the_names_of_its_nodes() -> None:
    made = plan([node("a"), node("b"), node("c", reads="upstream")], "a>c", "b>c")
    outputs = {"a": {"answer": "one"}, "b": {"answer": "two"}}
    texts = {"a": "one", "b": "two"}
    assert read(made, "c", outputs=outputs, texts=texts, taken=("a", "b")) == "a:\none\n\nb:\ntwo"
    assert read(made, "c", outputs=outputs, texts=texts, taken=("b",)) == "two"


def test_the_request_is_upstream_of_a_first_node() -> None:
    made = plan([node("a", reads="upstream"), node("b")], f"{START}>a", "a>b", "b>a")
    assert read(made, "a", taken=(START,)) == "the request"
    known = {"outputs": {"b": {"answer": "more"}}, "texts": {"b": "more"}}
    assert read(made, "a", taken=(START, "b"), **known) == "input:\nthe request\n\nb:\nmore"


def test_upstream_that_has_said_nothing_is_missing() -> None:
    made = plan([node("a"), node("b", reads="upstream")], "a>b")
    with pytest.raises(MissingInputError, match="'a' has said nothing"):
        read(made, "b", outputs={"a": {"answer": ""}}, texts={"a": ""}, taken=("a",))
