"""The order of declaration has no effect: the shape of the graph decides which nodes run when."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.building import Cast
from tests.agent_workflows.conducting import Says, Troupe, defined, loops, node, otherwise, when

from perdure.agent_workflows import END, START, AgentWorkflow
from perdure.agent_workflows.plan import Plan
from perdure.testing import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.agent_workflows import Edge, Node
    from perdure.agent_workflows.messages import NodeTask

ORDERS_MAX = 25

ONE_ENTRANCE = (f"{START}>draft", "draft>review", when("review>draft", "no"), otherwise(f"review>{END}"))
TWO_ENTRANCES = (
    f"{START}>text",
    f"{START}>art",
    "text>edit",
    "art>edit",
    when("edit>art", "no"),
    otherwise(f"edit>{END}"),
)
ENTERED_BEFORE_AND_BEHIND = (f"{START}>a", f"{START}>b", "a>c", "b>c", "c>j", when("j>b", "no"), otherwise(f"j>{END}"))
BACK_OVER_ANOTHER_NODE = (
    f"{START}>text",
    f"{START}>art",
    "text>edit",
    "art>edit",
    when("edit>remarks", "no"),
    "remarks>art",
    otherwise(f"edit>{END}"),
)
NESTED = (
    f"{START}>plan",
    "plan>write",
    "write>check",
    when("check>write", "no"),
    otherwise("check>judge"),
    when("judge>plan", "no"),
    otherwise(f"judge>{END}"),
)
SIDE_BY_SIDE = (f"{START}>a", f"{START}>b", when("a>a", "no"), when("b>b", "no"), otherwise("a>j"), otherwise("b>j"))
CALLING_EACH_OTHER = (
    f"{START}>desk",
    when("desk>bills", 0, key="visit"),
    when("desk>help", 1, key="visit"),
    when("bills>help", "no"),
    otherwise(f"bills>{END}"),
    when("help>bills", "no"),
    otherwise(f"help>{END}"),
)
BEGINNING_TOGETHER = (f"{START}>a", f"{START}>b", when("a>b", "no"), when("b>a", "no"), "a>j", "b>j")
GRAPHS = {
    "one entrance": ONE_ENTRANCE,
    "two entrances": TWO_ENTRANCES,
    "entered before and behind": ENTERED_BEFORE_AND_BEHIND,
    "back over another node": BACK_OVER_ANOTHER_NODE,
    "nested": NESTED,
    "side by side": SIDE_BY_SIDE,
    "calling each other": CALLING_EACH_OTHER,
    "beginning together": BEGINNING_TOGETHER,
}


def _orders(edges: tuple[Edge | str, ...]) -> Iterator[list[Edge | str]]:
    """Orders of edges: all of them if they are few, else some, the same ones each time."""
    if len(edges) <= 4:
        yield from map(list, permutations(edges))
        return
    chance = Random(len(edges))
    yield list(edges)
    yield list(reversed(edges))
    for _ in range(ORDERS_MAX):
        yield chance.sample(edges, len(edges))


def _nodes(edges: tuple[Edge | str, ...]) -> list[Node]:
    ends = [each.split(">") if isinstance(each, str) else (each.source, each.target) for each in edges]
    ids = dict.fromkeys(id_ for way in ends for id_ in way if id_ not in {START, END})
    return [node(each, reads="request") for each in ids]


def _says(task: NodeTask) -> dict[str, Any]:
    """`no` twice, then something else."""
    return {"answer": "no" if task.visit < 2 else f"{task.node_id} {task.visit}", "visit": task.visit}


async def _acts(nodes: list[Node], edges: list[Edge | str], **options: Any) -> Any:
    """Return the tasks in order, and the result."""
    says: dict[str, Says] = {each.id: _says for each in nodes}
    played = await Troupe(defined(nodes, *edges, iterations=loops(**options)), says).run()
    acts = [(each.node_id, each.iteration, each.input) for each in played.told("agent_started")]
    result = played.result
    return acts, result.success, result.final_answer, dict(result.outputs), dict(result.skipped), result.error


@pytest.mark.parametrize("name", GRAPHS)
async def test_the_order_of_edges_means_nothing(name: str) -> None:
    edges = GRAPHS[name]
    nodes = _nodes(edges)
    expected = await _acts(nodes, list(edges))
    for order in _orders(edges):
        assert await _acts(nodes, order) == expected, order


@pytest.mark.parametrize("name", GRAPHS)
async def test_the_order_of_nodes_decides_only_who_is_told_first_of_those_who_act_together(name: str) -> None:
    edges = GRAPHS[name]
    acts, *expected = await _acts(_nodes(edges), list(edges))
    for nodes in permutations(_nodes(edges)):
        plan = Plan(defined(list(nodes), *edges))
        others, *found = await _acts(list(nodes), list(edges))
        assert sorted(others) == sorted(acts)
        assert found[0] == expected[0]
        assert found[2:] == expected[2:]
        assert plan.back_edges == Plan(defined(_nodes(edges), *edges)).back_edges


def test_of_two_entrances_the_one_that_a_condition_leads_back_to_begins() -> None:
    assert Plan(defined(_nodes(TWO_ENTRANCES), *TWO_ENTRANCES)).back_edges == {("edit", "art")}
    assert Plan(defined(_nodes(BACK_OVER_ANOTHER_NODE), *BACK_OVER_ANOTHER_NODE)).back_edges == {("remarks", "art")}


def test_of_two_entrances_that_conditions_lead_back_to_the_one_nearer_to_start_begins() -> None:
    edges = ["text>edit", when("art>edit"), when("edit>art", "no"), otherwise(f"edit>{END}")]
    assert Plan(defined("text art edit", f"{START}>text", f"{START}>art", *edges)).back_edges == {("edit", "art")}


def test_entrances_of_which_none_is_before_the_other_begin_side_by_side() -> None:
    plan = Plan(defined(_nodes(BEGINNING_TOGETHER), *BEGINNING_TOGETHER))
    assert plan.back_edges == {("a", "b"), ("b", "a")}
    assert plan.layers == (("a", "b"), ("j",))
    assert (plan.cycles, plan.loops) == (({"a", "b"},), ({"a", "b", "j"},))


async def test_two_who_call_each_other_at_once_both_act_in_the_next_pass() -> None:
    acts, *_ = await _acts(_nodes(BEGINNING_TOGETHER), list(BEGINNING_TOGETHER))
    assert [(id_, iteration) for id_, iteration, _ in acts] == [
        ("a", 0), ("b", 0), ("j", 0), ("a", 1), ("b", 1), ("j", 1), ("a", 2), ("b", 2), ("j", 2),
    ]  # fmt: skip


async def test_who_is_called_by_another_acts_in_the_next_pass_and_who_called_does_not() -> None:
    acts, success, answer, *_ = await _acts(_nodes(CALLING_EACH_OTHER), list(CALLING_EACH_OTHER))
    assert [id_ for id_, _, _ in acts] == ["desk", "bills", "help", "bills", "help", "bills"]
    assert (success, answer) == (True, "{'answer': 'bills 2', 'visit': 2}")


async def test_a_join_in_a_loop_is_complete_before_it_acts() -> None:
    cast = Cast(text=["words"] * 2, art=["picture"] * 2, edit=["fine"] * 2)
    for first in (("text", "art"), ("art", "text")):
        workflow = (
            AgentWorkflow.create()
            .add_agent("text", cast["text"], reads="request")
            .add_agent("art", cast["art"], reads="request")
            .add_agent("edit", cast["edit"], reads="upstream")
            .from_(START)
            .to(*first)
            .from_(*first)
            .to("edit")
            .from_("edit")
            .to("art")
            .when_starts_with("answer", "redo")
            .to(END)
            .as_default()
            .build()
        )
        cast.client.calls.clear()
        assert (await workflow.run("q")).final_answer == "fine"
        assert cast.asked == ["text", "art", "edit"]
        assert cast.client.calls[-1].messages[-1].text == "text:\nwords\n\nart:\npicture"


def test_an_unnamed_workflow_has_the_same_name_in_each_order_of_declaration() -> None:
    cast = Cast(worker=["x"])

    def name(*ids: str) -> str:
        builder = AgentWorkflow.create()
        for each in ids:
            builder.add_agent(each, cast["worker"], reads="request")
        return builder.from_(*(each for each in ids if each != "c")).to("c").build().name

    assert len({name(*ids) for ids in permutations("abc")}) == 1


async def test_the_order_of_handoffs_means_nothing() -> None:
    for handoffs in permutations(("write", "fix")):
        for chosen in ("write", "fix"):
            cast = Cast(
                desk=[ToolCall(f"handoff_to_{chosen}")],
                write=["new"],
                fix=["fixed"],
                test=lambda messages, _: "failed" if "new" in messages[-1].text else "passed",
            )
            workflow = (
                AgentWorkflow.create()
                .add_router_agent("desk", cast["desk"], handoffs=dict.fromkeys(handoffs, "."))
                .add_agent("write", cast["write"], reads="request")
                .add_agent("fix", cast["fix"], reads="request")
                .add_agent("test", cast["test"], template="{{fix.answer?}} {{write.answer?}}")
                .from_("write", "fix")
                .to("test")
                .from_("test")
                .to("fix")
                .when_starts_with("answer", "failed")
                .to(END)
                .as_default()
                .with_max_iterations(2, then="leave")
                .build()
            )
            await workflow.run("q")
            again = ["fix", "test"] if chosen == "write" else []
            assert cast.asked == ["desk", chosen, "test", *again]
