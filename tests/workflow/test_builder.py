"""`WorkflowBuilder`: what it takes, what it refuses, what it makes."""

import inspect
import logging
from typing import Any

import pytest
from tests.workflow.nodes import ending, passing

from perdure import (
    Case,
    Default,
    FanInEdgeGroup,
    FanOutEdgeGroup,
    InMemoryCheckpointStorage,
    Migration,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
    Workflow,
    WorkflowBuilder,
)
from perdure.graph import InternalEdgeGroup


def edges(workflow: Workflow) -> list[str]:
    groups = [group for group in workflow.edge_groups if not isinstance(group, InternalEdgeGroup)]
    return [edge.id for group in groups for edge in group.edges]


def test_limit_name_and_description_may_be_given_by_position() -> None:
    workflow = WorkflowBuilder(7, "n", "d", start_executor=ending("a")).build()
    assert (workflow.max_iterations, workflow.name, workflow.description) == (7, "n", "d")


def test_the_rest_is_given_by_keyword() -> None:
    parameters = inspect.signature(WorkflowBuilder).parameters
    positional = [name for name, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional == ["max_iterations", "name", "description"]


def test_the_defaults_are_a_hundred_supersteps_and_no_description() -> None:
    workflow = WorkflowBuilder(start_executor=ending("a")).build()
    assert (workflow.max_iterations, workflow.description) == (100, None)


def test_a_workflow_without_a_start_executor_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="start executor"):
        WorkflowBuilder().build()


@pytest.mark.parametrize("stranger", ["a", 3, None, object()])
def test_a_node_that_is_no_executor_is_a_type_error(stranger: Any) -> None:
    with pytest.raises(TypeError, match="Executor or an agent"):
        WorkflowBuilder(start_executor=passing("a")).add_edge(passing("b"), stranger)


def test_a_start_executor_that_is_none_of_ours_is_a_type_error() -> None:
    stranger: Any = "a"
    with pytest.raises(TypeError, match="Executor or an agent"):
        WorkflowBuilder(start_executor=stranger)


def test_another_executor_with_a_known_id_is_refused_by_the_very_call() -> None:
    builder = WorkflowBuilder(start_executor=passing("a"))
    with pytest.raises(ValueError, match="duplicate executor id 'a'"):
        builder.add_edge(passing("a"), ending("b"))


def test_the_same_executor_may_be_named_again_and_again() -> None:
    a, b, c = passing("a"), passing("b"), ending("c")
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(b, c).build()
    assert list(workflow.executors) == ["a", "b", "c"]


def test_every_method_but_build_returns_the_builder() -> None:
    a, b, c, d, e = passing("a"), passing("b"), passing("c"), passing("d"), ending("e")
    builder = WorkflowBuilder(start_executor=a)
    assert builder.add_edge(a, b) is builder
    assert builder.add_fan_out_edges(b, [c, d]) is builder
    assert builder.add_fan_in_edges([c, d], e) is builder
    assert builder.add_chain([c, d]) is builder
    assert builder.add_multi_selection_edge_group(d, [a, b], lambda _, ids: ids) is builder
    assert builder.add_switch_case_edge_group(e, [Case(lambda _: True, a), Default(b)]) is builder
    assert builder.set_start_executor(a) is builder
    assert builder.with_checkpointing(InMemoryCheckpointStorage()) is builder
    assert builder.set_max_iterations(3) is builder
    assert isinstance(builder.build(), Workflow)


def test_each_kind_of_edge_becomes_its_kind_of_group() -> None:
    a, b, c, d, e, f = (passing(name) for name in "abcdef")
    workflow = (
        WorkflowBuilder(start_executor=a)
        .add_edge(a, b)
        .add_fan_out_edges(b, [c, d])
        .add_fan_in_edges([c, d], e)
        .add_switch_case_edge_group(e, [Case(lambda _: False, f), Default(a)])
        .build()
    )
    kinds = [type(group) for group in workflow.edge_groups if not isinstance(group, InternalEdgeGroup)]
    assert kinds == [SingleEdgeGroup, FanOutEdgeGroup, FanInEdgeGroup, SwitchCaseEdgeGroup]
    assert edges(workflow) == ["a->b", "b->c", "b->d", "c->e", "d->e", "e->f", "e->a"]


def test_each_executor_has_one_way_in_from_outside() -> None:
    a, b = passing("a"), ending("b")
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, b).add_edge(b, a).build()
    ways = [group for group in workflow.edge_groups if isinstance(group, InternalEdgeGroup)]
    assert [way.edges[0].id for way in ways] == ["internal:a->a", "internal:b->b"]


def test_groups_with_fewer_than_two_ends_are_refused() -> None:
    a, b = passing("a"), ending("b")
    builder = WorkflowBuilder(start_executor=a)
    with pytest.raises(ValueError, match="a fan-out needs at least two targets"):
        builder.add_fan_out_edges(a, [b])
    with pytest.raises(ValueError, match="a fan-out needs at least two targets"):
        builder.add_multi_selection_edge_group(a, [b], lambda _, ids: ids)
    with pytest.raises(ValueError, match="a fan-in needs at least two sources"):
        builder.add_fan_in_edges([a], b)
    with pytest.raises(ValueError, match="a chain needs at least two executors"):
        builder.add_chain([a])
    with pytest.raises(ValueError, match="a chain needs at least two executors"):
        builder.add_chain([])


def test_a_switch_needs_a_case_and_exactly_one_default() -> None:
    a, b, c = passing("a"), ending("b"), ending("c")
    builder = WorkflowBuilder(start_executor=a)
    with pytest.raises(ValueError, match="at least two entries"):
        builder.add_switch_case_edge_group(a, [Default(b)])
    with pytest.raises(ValueError, match="exactly one default, not 0"):
        builder.add_switch_case_edge_group(a, [Case(lambda _: True, b), Case(lambda _: True, c)])
    with pytest.raises(ValueError, match="exactly one default, not 2"):
        builder.add_switch_case_edge_group(a, [Default(b), Default(c)])


def test_a_refused_group_leaves_the_graph_as_it_was() -> None:
    a, b, c, stray = passing("a"), ending("b"), ending("c"), ending("stray")
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b)
    with pytest.raises(ValueError, match="exactly one default"):
        builder.add_switch_case_edge_group(a, [Case(lambda _: True, c), Case(lambda _: True, stray)])
    with pytest.raises(ValueError, match="at least two targets"):
        builder.add_fan_out_edges(c, [stray])
    assert list(builder.build().executors) == ["a", "b"]


def test_a_default_that_is_not_last_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    a, b, c = passing("a"), ending("b"), ending("c")
    with caplog.at_level(logging.WARNING):
        WorkflowBuilder(start_executor=a).add_switch_case_edge_group(a, [Default(b), Case(lambda _: True, c)])
    assert any("default of the switch from 'a' is not its last" in record.message for record in caplog.records)


def test_a_chain_may_come_back_to_where_it_was() -> None:
    a, b = passing("a"), passing("b")
    assert edges(WorkflowBuilder(start_executor=a).add_chain([a, b, a]).build()) == ["a->b", "b->a"]


async def test_two_workflows_of_one_builder_share_executors_but_nothing_else() -> None:
    a, b = passing("a"), ending("b")
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b)
    one, two = builder.build(), builder.build()
    assert one.executors["a"] is two.executors["a"]
    assert one.id != two.id
    one.executors.clear()
    one.edge_groups.clear()
    assert (await two.run(1)).get_outputs() == [1]


async def test_a_builder_that_goes_on_does_not_change_what_it_has_built() -> None:
    a, b, c = passing("a"), ending("b"), ending("c")
    builder = WorkflowBuilder(start_executor=a).add_edge(a, b)
    first = builder.build()
    second = builder.add_edge(a, c).build()
    assert list(first.executors) == ["a", "b"]
    assert (await first.run(1)).get_outputs() == [1]
    assert (await second.run(1)).get_outputs() == [1, 1]


@pytest.mark.parametrize("number", [0, -3])
def test_limits_below_one_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="max_iterations must be 1 or more"):
        WorkflowBuilder(number, start_executor=ending("a"))
    with pytest.raises(ValueError, match="max_concurrency must be 1 or more"):
        WorkflowBuilder(start_executor=ending("a"), max_concurrency=number)
    with pytest.raises(ValueError, match="max_iterations must be 1 or more"):
        WorkflowBuilder(start_executor=ending("a")).set_max_iterations(number)


@pytest.mark.parametrize("name", ["state_conflicts", "undelivered", "on_checkpoint_error"])
def test_an_unknown_word_for_a_rule_is_refused_with_those_that_are_known(name: str) -> None:
    options: dict[str, Any] = {name: "perhaps"}
    with pytest.raises(ValueError, match=f"{name} must be '.*' or '.*', not 'perhaps'"):
        WorkflowBuilder(start_executor=ending("a"), **options)


def test_a_version_older_than_its_migrations_is_refused() -> None:
    with pytest.raises(ValueError, match="version 1 is older than the migration to 2"):
        WorkflowBuilder(start_executor=ending("a"), version=1, migrations=[Migration(to=2)])


def test_a_reducer_that_can_not_be_called_is_refused() -> None:
    wrong: Any = {"total": 3}
    with pytest.raises(TypeError, match="reducer of 'total'"):
        WorkflowBuilder(start_executor=ending("a"), reducers=wrong)
