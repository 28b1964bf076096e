"""Definitions as JSON and back: round trips, named omissions, and all problems at once."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.config_samples import Invoice, Known, RateLimitedError, Refund, is_urgent, live, plain

from perdure import Retry
from perdure.agent_workflows import (
    AgentConfig,
    AgentWorkflowBuildError,
    Condition,
    Conversation,
    Definition,
    Edge,
    Equals,
    Iterations,
    Node,
    StructuredOutput,
    UnionOutput,
)
from perdure.agent_workflows.definition import definition_of, to_config

if TYPE_CHECKING:
    from collections.abc import Mapping


def problems_of(config: Any, **given: Any) -> list[str]:
    with pytest.raises(AgentWorkflowBuildError) as caught:
        definition_of(config, **given)
    return list(caught.value.problems)


def through_text(config: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(config, allow_nan=False))


def test_a_definition_that_json_can_hold_is_read_back_as_it_was() -> None:
    exported = to_config(plain())
    assert exported.left_out == ()
    assert definition_of(through_text(exported.config)) == plain()


def test_what_is_as_usual_is_not_written() -> None:
    definition = Definition(name=None, nodes=(Node(id="a", agent=AgentConfig()),), edges=(Edge("START", "a"),))
    written: dict[str, Any] = {"agents": {"a": {"agent": {}}}, "edges": [{"from": ["START"], "to": ["a"]}]}
    assert to_config(definition).config == written
    assert definition_of(written) == definition


def test_durations_are_seconds() -> None:
    node = Node(id="a", agent=AgentConfig(), timeout=timedelta(minutes=1), retry=Retry(longest=timedelta(minutes=2)))
    written = to_config(Definition(name="x", nodes=(node,), edges=(), timeout=timedelta(milliseconds=1500))).config
    assert written["agents"]["a"]["timeout"] == 60
    assert written["agents"]["a"]["retry"] == {"longest": 120}
    assert written["settings"] == {"timeout": 1.5}


def test_settings_are_written_in_a_fixed_order() -> None:
    # A store compares definitions as texts: another order would be saved as a new version.
    settings: Any = {"conversation": Conversation("shared"), "iterations": Iterations(3), "timeout": timedelta(1)}
    written = to_config(Definition(name="x", nodes=(), edges=(), **settings)).config
    assert list(written["settings"]) == ["timeout", "iterations", "conversation"]


def test_an_edge_joins_each_of_its_sources_with_each_of_its_targets() -> None:
    config: dict[str, Any] = {
        "agents": {name: {"agent": {}} for name in "abxy"},
        "edges": [{"from": ["a", "b"], "to": ["x", "y"], "when": Equals("answer", 1).to_dict()}],
    }
    ways = [(edge.source, edge.target, edge.condition) for edge in definition_of(config).edges]
    assert ways == [(source, target, Equals("answer", 1)) for source in "ab" for target in "xy"]


def test_what_is_left_out_is_named_and_read_back_when_it_is_given_anew() -> None:
    sample = live()
    exported = to_config(sample.definition)
    assert [each.split(":")[0] for each in exported.left_out] == [
        "agents.triage.agent",
        "agents.triage.output.schema",
        "agents.triage.retry.backoff",
        "agents.triage.retry.on",
        "agents.triage.approval.when",
        "agents.next.agent.tools[0]",
        "agents.next.agent.options.hook",
        "agents.next.output.types[0]",
        "agents.next.output.types[1]",
        "agents.next.retry.on[1]",
        "edges[0].when",
        "edges[1].when",
    ]
    again = definition_of(through_text(exported.config), **sample.given())
    anew = replace(sample.definition.nodes[1], agent=sample.agents["next"])
    assert again == replace(sample.definition, nodes=(sample.definition.nodes[0], anew, sample.definition.nodes[2]))


def test_reading_without_what_was_left_out_names_each_of_it() -> None:
    problems = problems_of(to_config(live().definition).config)
    assert [problem.split(":")[0] for problem in problems] == [
        "agents.triage.agent",
        "agents.triage.retry.backoff",
        "agents.triage.retry.on",
        "agents.triage.approval.when",
        "agents.next.agent.options_left_out",
        "agents.next.retry.on[1]",
        "edges[0].when",
        "edges[1].when",
    ]
    assert "give it as agents['triage']" in problems[0]
    assert "give it as predicates['edges[0].when'], or as predicates['is_urgent']" in problems[6]
    assert problems[7].endswith("predicates['edges[1].when']")  # A lambda has no name of its own.


def test_a_prebuilt_agent_is_described_and_nothing_more_of_it_is_told() -> None:
    written = to_config(live().definition).config
    described = {"prebuilt": True, "name": "known", "description": "knows", "instructions": "Write."}
    assert written["agents"]["triage"]["agent"] == described
    assert "sk-secret" not in json.dumps(written)


def test_classes_are_read_back_as_json_schemas_with_the_keys_that_they_put_out() -> None:
    sample = live()
    given = sample.given()
    given["types"] = {"RateLimitedError": RateLimitedError}
    first, second, _ = definition_of(to_config(sample.definition).config, **given).nodes
    assert isinstance(first.output, StructuredOutput)
    assert isinstance(second.output, UnionOutput)
    schemas: list[Any] = [first.output.type, *second.output.types]
    assert [schema["title"] for schema in schemas] == ["Invoice", "Invoice", "Refund", "Note"]
    assert list(schemas[0]["properties"]) == ["total", "lines"]


def test_a_class_is_given_by_path_or_by_name() -> None:
    config = to_config(live().definition).config
    given = live().given()
    given["types"] = {
        "agents.triage.output.schema": Invoice,
        "agents.next.output.types[1]": Refund,
        "agents.next.retry.on[1]": RateLimitedError,
    }
    first, second, _ = definition_of(config, **given).nodes
    assert isinstance(second.output, UnionOutput)
    assert first.output == StructuredOutput(Invoice)
    assert second.output.types[1] is Refund
    assert isinstance(second.output.types[0], dict)


def test_functions_of_one_name_are_not_mixed_up() -> None:
    def other() -> Any:
        def is_urgent(_: Any) -> bool:
            return False

        return is_urgent

    nodes = tuple(Node(id=name, agent=AgentConfig()) for name in "abc")
    edges = (Edge("a", "b", predicate=is_urgent), Edge("a", "c", predicate=other()))
    written = to_config(Definition(name="x", nodes=nodes, edges=edges)).config
    assert [edge["when"] for edge in written["edges"]] == [{"type": "function"}] * 2
    assert len(problems_of(written, predicates={"is_urgent": is_urgent})) == 3  # It is used for neither of them.


def test_a_condition_of_a_users_own_class_is_left_out_and_given_anew() -> None:
    class Odd(Condition):
        type = "odd"

        def holds(self, outputs: Mapping[str, Any]) -> bool:
            return len(outputs) % 2 == 1

        def describe(self) -> str:
            return "an odd number of outputs"

        def to_dict(self) -> dict[str, Any]:
            return {"type": "odd"}

        def fields(self) -> frozenset[str]:
            return frozenset()

    condition = Odd() & Equals("answer", 1)
    nodes = tuple(Node(id=name, agent=AgentConfig()) for name in "ab")
    exported = to_config(Definition(name="x", nodes=nodes, edges=(Edge("a", "b", condition),)))
    assert [each.split(":")[0] for each in exported.left_out] == ["edges[0].when"]
    again = definition_of(exported.config, predicates={"edges[0].when": condition})
    assert again.edges == (Edge("a", "b", condition),)


def test_an_error_that_only_has_the_name_of_a_known_one_is_not_taken_for_it() -> None:
    mine = type("TimeoutError", (Exception,), {})
    nodes = (Node(id="a", agent=AgentConfig(), retry=Retry(on=mine)),)
    written = to_config(Definition(name="x", nodes=nodes, edges=())).config
    assert problems_of(written)[0].startswith("agents.a.retry.on[0]: it is a class of errors, which JSON can't hold")
    retry = definition_of(written, types={"TimeoutError": mine}).nodes[0].retry
    assert retry is not None
    assert retry.on == (mine,)


def test_an_agent_may_be_given_in_place_of_a_written_one() -> None:
    agent = Known(name="known")
    assert definition_of({"agents": {"a": {"agent": {"name": "x"}}}}, agents={"a": agent}).nodes[0].agent is agent


def test_what_is_given_for_nothing_is_told() -> None:
    config: dict[str, Any] = {"agents": {"a": {"agent": {}}}}
    problems = problems_of(config, agents={"b": Known()}, types={"T": Invoice}, predicates={"p": is_urgent})
    assert [problem.split(" was given")[0] for problem in problems] == ["agents['b']", "types['T']", "predicates['p']"]


def test_what_is_given_is_of_the_right_kind() -> None:
    config = to_config(live().definition).config
    given = live().given()
    given["agents"] = {"triage": "no agent", "next": Known()}
    given["types"] = {**given["types"], "Invoice": "no class"}
    given["predicates"] = {**given["predicates"], "is_urgent": "no function"}
    problems = problems_of(config, **given)
    assert [problem.split(":")[0] for problem in problems] == [
        *("agents.triage.agent", "agents.triage.output.schema", "agents.next.output.types[0]", "edges[0].when")
    ]


def test_all_that_is_wrong_is_told_at_once_with_its_path() -> None:
    wrong: dict[str, Any] = {
        "name": "",
        "nmae": "x",
        "agents": {
            "draft": {
                "agent": {"tools": ["a", 1], "colour": "red", "options": []},
                "retry": {"attempts": 0, "backoff": -1, "longest": 10**400, "on": ["Nope", "KeyboardInterrupt", 5]},
                "timeout": "long",
                "output": {"type": "structured"},
                "on_error": {"mode": "panic"},
                "approval": {"when": {"type": "equals", "key": "a"}, "timeout": 0},
                "reads": "mind",
            },
            "": {"agent": {}},
            "list": [],
            "none": {},
        },
        "edges": [{"from": ["a"]}, {"from": [], "to": 5}, {"from": ["a"], "to": ["b"], "when": 5}, "a -> b"],
        "settings": {"timeout": 1e300, "iterations": {"limit": True}, "conversation": {"kind": "loud"}, "x": 1},
    }
    paths = [problem.split(":")[0] for problem in problems_of(wrong)]
    assert sorted(paths) == sorted(
        [
            *("name", "nmae", "agents.", "agents.list", "agents.none.agent"),
            *("agents.draft.agent.tools[1]", "agents.draft.agent.colour", "agents.draft.agent.options"),
            *("agents.draft.retry.attempts", "agents.draft.retry.backoff", "agents.draft.retry.longest"),
            *("agents.draft.retry.on[0]", "agents.draft.retry.on[1]", "agents.draft.retry.on[2]"),
            *("agents.draft.timeout", "agents.draft.output.schema", "agents.draft.on_error.mode"),
            *("agents.draft.approval.when.value", "agents.draft.approval.timeout", "agents.draft.reads"),
            *("edges[0].to", "edges[1].from", "edges[1].to", "edges[2].when", "edges[3]"),
            *("settings.timeout", "settings.iterations.limit", "settings.conversation.kind", "settings.x"),
        ]
    )


@pytest.mark.parametrize("config", [None, [], "text", 1, {1: 2}], ids=repr)
def test_what_is_no_object_is_refused(config: Any) -> None:
    assert problems_of(config)


def test_nothing_is_imported_by_a_name_in_json() -> None:
    config = {"agents": {"a": {"agent": {}, "retry": {"on": ["os.error", "subprocess.SubprocessError"]}}}}
    assert len(problems_of(config)) == 2


def test_deep_json_is_refused_and_never_overflows() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(100_000):
        deep = {"properties": deep}
    config = {"agents": {"a": {"agent": {}, "output": {"type": "structured", "schema": deep}}}}
    assert problems_of(config)[0].startswith("agents.a.output.schema: ")
