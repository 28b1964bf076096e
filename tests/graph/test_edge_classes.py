"""Edges and groups of edges, used directly."""

from collections.abc import Callable
from typing import Any

import pytest

from perdure import (
    Edge,
    FanInEdgeGroup,
    FanOutEdgeGroup,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
    SwitchCaseEdgeGroupCase,
    SwitchCaseEdgeGroupDefault,
)
from perdure.graph import EdgeGroup, InternalEdgeGroup


def is_big(number: int) -> bool:
    return number > 10


async def is_small(number: int) -> bool:
    return number <= 10


class Odd:
    def __call__(self, number: int) -> bool:
        return number % 2 == 1


def first(_: object, ids: list[str]) -> list[str]:
    return ids[:1]


@pytest.mark.parametrize(("source", "target"), [("", "b"), ("a", "")])
def test_an_edge_without_one_of_its_ends_is_refused(source: str, target: str) -> None:
    with pytest.raises(ValueError, match="two executors"):
        Edge(source, target)


def test_an_edge_is_known_by_its_ends() -> None:
    assert Edge("a", "b").id == "a->b"
    assert Edge("a", "b").id.split(Edge.ID_SEPARATOR) == ["a", "b"]


NAMED: list[tuple[Callable[[Any], bool], str]] = [
    (is_big, "is_big"),
    (lambda _: True, "<lambda>"),
    (Odd(), "<callable>"),
]


@pytest.mark.parametrize(("condition", "name"), NAMED)
def test_an_edge_names_its_condition(condition: Callable[[Any], bool], name: str) -> None:
    edge = Edge("a", "b", condition)
    assert edge.has_condition
    assert edge.condition_name == name


def test_the_name_of_a_condition_can_be_given() -> None:
    assert Edge("a", "b", is_big, condition_name="large").condition_name == "large"


async def test_an_edge_routes_what_its_condition_holds_for_sync_or_async() -> None:
    assert await Edge("a", "b").should_route(1)
    assert [await Edge("a", "b", is_big).should_route(n) for n in (1, 11)] == [False, True]
    assert [await Edge("a", "b", is_small).should_route(n) for n in (1, 11)] == [True, False]


def test_an_edge_as_a_dict_has_the_name_of_its_condition_but_not_the_condition() -> None:
    assert Edge("a", "b").to_dict() == {"source_id": "a", "target_id": "b"}
    told = Edge("a", "b", is_big).to_dict()
    assert told == {"source_id": "a", "target_id": "b", "condition_name": "is_big"}
    again = Edge.from_dict(told)
    assert (again.id, again.condition_name, again.condition) == ("a->b", "is_big", None)


def test_a_group_has_an_id_with_its_kind_and_a_type() -> None:
    group = SingleEdgeGroup("a", "b")
    assert group.id.startswith("SingleEdgeGroup/")
    assert group.type == "SingleEdgeGroup"
    assert SingleEdgeGroup("a", "b", id="mine").id == "mine"


def test_groups_list_their_ends_in_order_and_once() -> None:
    fan_out = FanOutEdgeGroup("a", ["c", "b"])
    assert (fan_out.source_executor_ids, fan_out.target_executor_ids) == (["a"], ["c", "b"])
    fan_in = FanInEdgeGroup(["c", "b"], "a")
    assert (fan_in.source_executor_ids, fan_in.target_executor_ids) == (["c", "b"], ["a"])


def test_a_fan_out_has_its_targets_and_its_selection() -> None:
    group = FanOutEdgeGroup("a", ["b", "c"], first)
    assert (group.target_ids, group.selection_func, group.selection_func_name) == (["b", "c"], first, "first")
    assert FanOutEdgeGroup("a", ["b", "c"]).selection_func_name is None
    assert FanOutEdgeGroup("a", ["b", "c"], first, selection_func_name="one").selection_func_name == "one"


def test_groups_of_several_edges_need_two_ends() -> None:
    with pytest.raises(ValueError, match="two targets"):
        FanOutEdgeGroup("a", ["b"])
    with pytest.raises(ValueError, match="two sources"):
        FanInEdgeGroup(["a"], "b")


def test_a_switch_is_a_fan_out_without_a_named_selection() -> None:
    switch = SwitchCaseEdgeGroup("a", [SwitchCaseEdgeGroupCase(is_big, "b"), SwitchCaseEdgeGroupDefault("c")])
    assert isinstance(switch, FanOutEdgeGroup)
    assert switch.selection_func_name is None
    assert switch.to_dict()["cases"] == [
        {"target_id": "b", "type": "Case", "condition_name": "is_big"},
        {"target_id": "c", "type": "Default"},
    ]


def test_a_switch_needs_two_entries_and_exactly_one_default() -> None:
    case, default = SwitchCaseEdgeGroupCase(is_big, "b"), SwitchCaseEdgeGroupDefault("c")
    for cases in ([default], [case, case], [default, default]):
        with pytest.raises(ValueError, match="switch needs"):
            SwitchCaseEdgeGroup("a", cases)


async def test_a_group_comes_back_from_its_dict_without_its_functions() -> None:
    switch = SwitchCaseEdgeGroup("a", [SwitchCaseEdgeGroupCase(is_big, "b"), SwitchCaseEdgeGroupDefault("c")])
    selection = FanOutEdgeGroup("a", ["b", "c"], first)
    for group in (
        SingleEdgeGroup("a", "b"),
        FanInEdgeGroup(["a", "b"], "c"),
        selection,
        switch,
        InternalEdgeGroup("a"),
    ):
        again = EdgeGroup.from_dict(group.to_dict())
        assert type(again) is type(group)
        assert again.to_dict() == group.to_dict()
    gone = EdgeGroup.from_dict(selection.to_dict())
    assert isinstance(gone, FanOutEdgeGroup)
    assert gone.selection_func is not None
    with pytest.raises(RuntimeError, match="'first' is not part of the stored definition"):
        gone.selection_func(1, ["b", "c"])


def test_an_unknown_kind_of_group_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown type of edge group: 'Star'"):
        EdgeGroup.from_dict({"type": "Star", "id": "x", "edges": []})
