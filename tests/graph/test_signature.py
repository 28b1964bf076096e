"""The signature of a graph and its hash."""

import hashlib
import json
from typing import Any

from hypothesis import given, strategies as st

from perdure import Case, Default, Executor, Workflow, WorkflowBuilder, WorkflowContext, WorkflowExecutor, handler


class Node(Executor):
    @handler
    async def go(self, message: int, ctx: WorkflowContext[int, int]) -> None: ...


class Gatherer(Executor):
    @handler
    async def go(self, message: list[int], ctx: WorkflowContext[int, int]) -> None: ...


def is_big(number: int) -> bool:
    return number > 10


def pick(_: int, ids: list[str]) -> list[str]:
    return ids


def build(**options: Any) -> Workflow:
    a, b, c, d = Node("a"), Node("b"), Node("c"), Gatherer("d")
    return (
        WorkflowBuilder(start_executor=a, **options)
        .add_edge(a, b, is_big)
        .add_edge(a, c)
        .add_fan_in_edges([c, b], d)
        .build()
    )


def test_the_signature_has_the_documented_shape() -> None:
    signature = build().graph_signature
    assert signature["start_executor"] == "a"
    name = f"{__name__}.Node"
    assert signature["executors"] == {"a": name, "b": name, "c": name, "d": f"{__name__}.Gatherer"}
    groups = {(group["group_type"], *group["sources"], *group["targets"]): group for group in signature["edge_groups"]}
    assert groups["SingleEdgeGroup", "a", "b"]["edges"] == [{"source": "a", "target": "b", "condition": "is_big"}]
    assert groups["SingleEdgeGroup", "a", "c"]["edges"] == [{"source": "a", "target": "c", "condition": None}]
    fan_in = groups["FanInEdgeGroup", "b", "c", "d"]
    assert [edge["source"] for edge in fan_in["edges"]] == ["b", "c"]
    assert ("InternalEdgeGroup", "internal:a", "a") in groups
    assert signature["edge_groups"] == sorted(
        signature["edge_groups"], key=lambda group: (group["group_type"], group["sources"], group["targets"])
    )


def test_the_hash_is_that_of_the_compact_json() -> None:
    workflow = build()
    text = json.dumps(workflow.graph_signature, sort_keys=True, separators=(",", ":"))
    assert workflow.graph_signature_hash == hashlib.sha256(text.encode()).hexdigest()


def test_equal_graphs_have_equal_hashes_whatever_the_instance() -> None:
    assert build().graph_signature_hash == build().graph_signature_hash


def test_names_limits_and_designation_are_not_part_of_it() -> None:
    other = build(name="other", description="d", max_iterations=3, output_from="all")
    assert other.graph_signature_hash == build().graph_signature_hash


def test_the_order_in_which_edges_were_added_is_not_part_of_it() -> None:
    def built(*, backwards: bool) -> str:
        a, b, c = Node("a"), Node("b"), Node("c")
        builder = WorkflowBuilder(start_executor=a)
        for target in (c, b) if backwards else (b, c):
            builder.add_edge(a, target)
        return builder.build().graph_signature_hash

    assert built(backwards=True) == built(backwards=False)


NAMES = st.text(min_size=1, max_size=4) | st.sampled_from(["a", "ab", "a b", 'a"', "a,", "a]", "\u00e4", "\U0001f600"])


@given(st.lists(NAMES, min_size=4, max_size=6, unique=True), st.lists(NAMES, min_size=3, max_size=6))
def test_groups_stand_in_the_order_of_their_json_texts(ids: list[str], conditions: list[str]) -> None:
    first, *others = list(map(Node, ids))
    builder = WorkflowBuilder(start_executor=first)
    for other, name in zip(others, conditions, strict=False):
        builder.add_edge(first, other, named(name))
        builder.add_multi_selection_edge_group(other, [first, other], named(name))
    builder.add_fan_in_edges(others, Gatherer("all of them"))
    builder.add_fan_in_edges(sorted(others, key=lambda other: other.id)[:2], Gatherer("the first two"))
    for other in others[len(conditions) :]:
        builder.add_edge(first, other)
    groups = builder.build().graph_signature["edge_groups"]
    assert groups == sorted(groups, key=texts_of)


def named(name: str) -> Any:
    def pick(*_: Any) -> Any:
        return True

    pick.__name__ = name
    return pick


def texts_of(group: dict[str, Any]) -> tuple[str, ...]:
    """What decides, as the standard library writes it: signatures that were stored were sorted so."""
    names = ("sources", "targets", "edges", "selection_func")
    return (group["group_type"], *[json.dumps(group.get(name), sort_keys=True) for name in names])


def test_a_selection_is_known_by_name_and_a_switch_has_none() -> None:
    a, b, c = Node("a"), Node("b"), Node("c")
    chosen = WorkflowBuilder(start_executor=a).add_multi_selection_edge_group(a, [b, c], pick).build()
    switch = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, [Case(is_big, b), Default(c)]).build()
    names = [
        [group["selection_func"] for group in workflow.graph_signature["edge_groups"] if "selection_func" in group]
        for workflow in (chosen, switch)
    ]
    assert names == [["pick"], [None]]


def test_a_sub_workflow_is_part_of_it() -> None:
    wrapped = WorkflowExecutor(build(), "sub")
    signature = WorkflowBuilder(start_executor=wrapped).build().graph_signature
    assert signature["executors"]["sub"]["type"] == "perdure.workflow.sub.WorkflowExecutor"
    assert signature["executors"]["sub"]["sub_workflow"] == build().graph_signature


def test_an_unnamed_workflow_is_named_by_its_graph() -> None:
    assert build().name == build().name
    assert build().name != WorkflowBuilder(start_executor=Node("a")).build().name
