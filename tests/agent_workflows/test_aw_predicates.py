"""Conditions and functions on one edge: evaluated, drawn, reported, written and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator
from tests.agent_workflows.building import review, writers

from perdure.agent_workflows import (
    AgentConfig,
    AgentWorkflow,
    AgentWorkflowBuildError,
    Contains,
    Definition,
    Edge,
    EdgeContext,
    Equals,
    Exists,
    Node,
)
from perdure.agent_workflows.definition import AllOf, all_of, config_schema, definition_of, to_config

if TYPE_CHECKING:
    from perdure.agent_workflows import Predicate

VALIDATOR: Any = Draft202012Validator(config_schema())


async def is_long(context: EdgeContext) -> bool:
    return len(context.outputs["draft"]) > 20


def is_asked_for(context: EdgeContext) -> bool:
    return context.input == "lamps that last"


def defined(edge: Edge) -> Definition:
    return Definition(name="x", nodes=tuple(Node(id=name, agent=AgentConfig()) for name in "ab"), edges=(edge,))


EDGES = [
    Edge("a", "b", Equals("answer", 1), is_long),
    Edge("a", "b", Equals("answer", 1) & Exists("answer"), is_long),
    Edge("a", "b", Equals("answer", 1) | Exists("answer"), AllOf((is_long, is_asked_for))),
    Edge("a", "b", None, AllOf((is_long, is_asked_for))),
    Edge("a", "b", None, is_long),
]


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.requirement)
def test_an_edge_that_is_written_down_is_read_back_with_all_that_has_to_hold(edge: Edge) -> None:
    exported = to_config(defined(edge))
    VALIDATOR.validate(exported.config)
    given: dict[str, Any] = {each.__name__: each for each in (is_long, is_asked_for)}
    used = {name: given[name] for name in given if any(f"predicates[{name!r}]" in each for each in exported.left_out)}
    assert definition_of(exported.config, predicates=used).edges == (edge,)


def test_what_is_left_out_of_an_edge_is_named_where_it_stands() -> None:
    exported = to_config(defined(EDGES[0]))
    [left_out] = exported.left_out
    assert left_out == (
        "edges[0].when.conditions[1]: the function; give it again as predicates['edges[0].when.conditions[1]'] or "
        "predicates['is_long']"
    )
    by_path: dict[str, Predicate] = {"edges[0].when.conditions[1]": is_long}
    assert definition_of(exported.config, predicates=by_path).edges == (EDGES[0],)
    with pytest.raises(AgentWorkflowBuildError, match=r"edges\[0\]\.when\.conditions\[1\]: it is a function"):
        definition_of(exported.config)


@pytest.mark.parametrize("kind", ["or", "not"])
def test_a_function_inside_of_other_conditions_is_refused(kind: str) -> None:
    mark = {"type": "function", "name": "is_long"}
    inner: dict[str, Any] = {"condition": mark} if kind == "not" else {"conditions": [mark]}
    config: Any = {
        "agents": {"a": {"agent": {}}},
        "edges": [{"from": "a", "to": "END", "when": {"type": kind, **inner}}],
    }
    assert not VALIDATOR.is_valid(config)
    with pytest.raises(
        AgentWorkflowBuildError, match="a function must be the whole condition, or stand in the outermost `and`"
    ):
        definition_of(config)


async def test_an_edge_that_was_read_back_is_not_taken_where_it_was_not_before() -> None:
    cast = writers()
    agents = {"draft": cast["drafter"], "review": cast["reviewer"]}

    def build(workflow: AgentWorkflow | None) -> AgentWorkflow:
        if workflow is None:
            return review(cast).when_contains("draft", "candles").when(is_long).build()
        again = AgentWorkflow.from_config(workflow.to_config(), agents=agents, predicates={"is_long": is_long})
        return again.build()

    first = build(None)
    for workflow in (first, build(first)):
        result = await workflow.run("lamps that last")
        assert dict(result.skipped) == {
            "review": "'draft' -> 'review' was not taken: it needs draft contains 'candles' and is_long() holds"
        }


async def test_all_of_several_functions_have_to_hold() -> None:
    cast = writers()
    workflow = review(cast).when(is_long).when_contains("draft", "lamps").when(is_asked_for).build()
    [edge] = workflow.definition.edges
    assert (edge.condition, edge.predicate) == (Contains("draft", "lamps"), AllOf((is_long, is_asked_for)))
    assert (await workflow.run("lamps that last")).skipped == {}
    assert set((await workflow.run("lamps that last long")).skipped) == {"review"}
    assert '-->|"draft contains ' in workflow.to_mermaid()
    assert 'and is_long and is_asked_for"|' in workflow.to_mermaid()


def test_one_function_stays_what_it_is() -> None:
    assert all_of(None, is_long) is is_long
    assert all_of() is None
