"""The checks of `build()`, in their order."""

import logging
from typing import Any

import pytest

from perdure import (
    Case,
    Default,
    EdgeDuplicationError,
    Executor,
    GraphConnectivityError,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
    TypeCompatibilityError,
    ValidationTypeEnum,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowValidationError,
    executor,
    handler,
    validate_workflow_graph,
)
from perdure.graph import EdgeGroup


class Base: ...


class Derived(Base): ...


def typed(name: str, takes: Any, sends: Any = None, yields: Any = None) -> Executor:
    class Typed(Executor):
        @handler(input=takes, output=sends, workflow_output=yields)
        async def go(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None: ...

    return Typed(name)


def test_a_start_executor_outside_of_the_graph_is_refused() -> None:
    a, b, stray = typed("a", int, int), typed("b", int), typed("stray", int)
    with pytest.raises(GraphConnectivityError, match="'stray' is not part of the graph"):
        validate_workflow_graph([SingleEdgeGroup("a", "b")], {"a": a, "b": b}, stray)


def test_two_edges_between_the_same_executors_are_refused_and_named() -> None:
    a, b = typed("a", int, int), typed("b", int)
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(a, b, lambda _: True)
    with pytest.raises(EdgeDuplicationError, match=r"\[EDGE_DUPLICATION\].*a->b") as caught:
        builder.build()
    assert caught.value.edge_id == "a->b"
    assert caught.value.validation_type is ValidationTypeEnum.EDGE_DUPLICATION


def test_edges_are_distinct_over_all_groups() -> None:
    a, b, c = typed("a", int, int), typed("b", int, int), typed("c", int | list[int])
    builder = WorkflowBuilder(start_executor=a).add_fan_out_edges(a, [b, c]).add_fan_in_edges([a, b], c)
    with pytest.raises(EdgeDuplicationError, match="a->c"):
        builder.build()


def test_two_cases_of_a_switch_may_have_one_target_but_a_further_edge_to_it_is_refused() -> None:
    a, b, c = typed("a", int, int), typed("b", int), typed("c", int)
    cases = [Case(lambda n: n > 1, b), Case(lambda n: n > 2, b), Default(c)]
    builder = WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, cases)
    (group,) = [group for group in builder.build().edge_groups if isinstance(group, SwitchCaseEdgeGroup)]
    assert [edge.id for edge in group.edges] == ["a->b", "a->c"]
    again = EdgeGroup.from_dict(group.to_dict())
    assert isinstance(again, SwitchCaseEdgeGroup)
    assert (again.target_ids, again.to_dict()) == (["b", "c"], group.to_dict())
    with pytest.raises(EdgeDuplicationError, match="a->b"):
        builder.add_edge(a, b).build()


def test_types_that_do_not_fit_are_refused_naming_both_ends_and_both_types() -> None:
    a, b = typed("a", int, str | bytes), typed("b", int | list[str])
    with pytest.raises(TypeCompatibilityError) as caught:
        WorkflowBuilder(start_executor=a).add_edge(a, b).build()
    text = str(caught.value)
    assert text.startswith("[TYPE_COMPATIBILITY]")
    assert "'a' -> 'b'" in text
    assert "[str, bytes]" in text
    assert "int | list[str]" in text
    error = caught.value
    assert (error.source_executor_id, error.target_executor_id) == ("a", "b")
    assert (error.source_types, error.target_types) == ([str, bytes], [int | list[str]])


@pytest.mark.parametrize(
    ("sends", "takes"),
    [
        (int, int),
        (Derived, Base),
        (int | str, str),
        (int, int | str),
        (list[Derived], list[Base]),
        (list, list[int]),
        (list[int], list),
        (dict[str, int], dict[str, Any]),
        (tuple[int, str], tuple[int, str]),
        (tuple[int, int], tuple[int, ...]),
        (str, Any),
        (str, object),
        (Any, str),
        (None, str),
    ],
)
def test_an_edge_is_accepted_if_one_sent_type_fits_one_taken_type(sends: Any, takes: Any) -> None:
    a, b = typed("a", int, sends), typed("b", takes)
    assert WorkflowBuilder(start_executor=a).add_edge(a, b).build().name


@pytest.mark.parametrize(
    ("sends", "takes"),
    [
        (int, str),
        (Base, Derived),
        (list[int], list[str]),
        (list[int], set[int]),
        (list[int], int),
        (tuple[int, str], tuple[str, int]),
        (dict[str, int], dict[int, int]),
    ],
)
def test_an_edge_is_refused_if_no_sent_type_fits(sends: Any, takes: Any) -> None:
    a, b = typed("a", int, sends), typed("b", takes)
    with pytest.raises(TypeCompatibilityError):
        WorkflowBuilder(start_executor=a).add_edge(a, b).build()


def test_a_fan_in_target_takes_lists_of_what_is_sent() -> None:
    a, b, c = typed("a", int, int), typed("b", int, int), typed("c", int, int)
    wrong, right = typed("t", int), typed("t", list[int])
    start = WorkflowBuilder(start_executor=a).add_fan_out_edges(a, [b, c])
    with pytest.raises(TypeCompatibilityError, match=r"'b' -> 't'.*list\[int\]"):
        start.add_fan_in_edges([b, c], wrong).build()
    ok = WorkflowBuilder(start_executor=a).add_fan_out_edges(a, [b, c]).add_fan_in_edges([b, c], right)
    assert ok.build().name


def test_an_edge_whose_source_declares_nothing_is_accepted_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    a, b = typed("a", int), typed("b", int)
    with caplog.at_level(logging.WARNING):
        WorkflowBuilder(start_executor=a).add_edge(a, b).build()
    assert any("a->b" in record.message and "'a'" in record.message for record in caplog.records)


def test_executors_that_can_not_be_reached_are_named_sorted() -> None:
    a, b, x, z = typed("a", int, int), typed("b", int), typed("x", int, int), typed("z", int, int)
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(z, x).add_edge(x, z)
    with pytest.raises(GraphConnectivityError, match="x, z") as caught:
        builder.build()
    assert caught.value.validation_type is ValidationTypeEnum.GRAPH_CONNECTIVITY


def test_the_start_executor_alone_is_a_workflow() -> None:
    assert WorkflowBuilder(start_executor=typed("a", int)).build().get_executors_list()[0].id == "a"


def test_an_isolated_start_executor_beside_others_leaves_them_unreachable() -> None:
    a, b, c = typed("a", int), typed("b", int, int), typed("c", int)
    with pytest.raises(GraphConnectivityError, match="b, c"):
        WorkflowBuilder(start_executor=a).add_edge(b, c).build()


def test_loops_and_cycles_are_legal() -> None:
    a, b = typed("a", int, int), typed("b", int, int)
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, a).add_edge(a, b).add_edge(b, a).build()
    assert len(workflow.executors) == 2


def test_the_first_broken_rule_is_told() -> None:
    a, b, lost, far = typed("a", int, int), typed("b", str), typed("lost", str, str), typed("far", str)
    everything = (
        WorkflowBuilder(start_executor=a, output_from=[a])
        .add_edge(a, b)
        .add_edge(a, b, lambda _: True)
        .add_edge(lost, far)
    )
    with pytest.raises(EdgeDuplicationError):
        everything.build()
    two = WorkflowBuilder(start_executor=a, output_from=[a]).add_edge(a, b).add_edge(lost, far)
    with pytest.raises(TypeCompatibilityError):
        two.build()
    c = typed("c", int)
    one = WorkflowBuilder(start_executor=a, output_from=[a]).add_edge(a, c).add_edge(lost, far)
    with pytest.raises(GraphConnectivityError):
        one.build()
    with pytest.raises(WorkflowValidationError, match="OUTPUT_VALIDATION"):
        WorkflowBuilder(start_executor=a, output_from=[a]).add_edge(a, c).build()


def test_the_functional_entry_takes_ids_for_the_designation() -> None:
    a, b = typed("a", int, int), typed("b", int, None, str)
    groups, executors = [SingleEdgeGroup("a", "b")], {"a": a, "b": b}
    validate_workflow_graph(groups, executors, a, ["b"])
    validate_workflow_graph(groups, executors, "a", [], ["b"])
    with pytest.raises(WorkflowValidationError, match="OUTPUT_VALIDATION"):
        validate_workflow_graph(groups, executors, a, ["b"], ["b"])


def test_the_functional_entry_takes_empty_lists_for_no_designation() -> None:
    a = typed("a", int, None, str)
    validate_workflow_graph([], {"a": a}, a, [])
    validate_workflow_graph([], {"a": a}, a, [], [])


def test_an_edge_to_an_executor_that_is_not_in_the_map_is_refused_by_name() -> None:
    a = typed("a", int, int)
    with pytest.raises(GraphConnectivityError, match="'b'"):
        validate_workflow_graph([SingleEdgeGroup("a", "b")], {"a": a}, a)


def test_a_function_is_checked_like_a_class() -> None:
    @executor
    async def words(message: int, ctx: WorkflowContext[str]) -> None: ...

    @executor
    async def numbers(message: int) -> None: ...

    with pytest.raises(TypeCompatibilityError, match=r"'words' -> 'numbers'"):
        WorkflowBuilder(start_executor=words).add_edge(words, numbers).build()
