"""Values of the wrong kind: `build()` names each, and none hides other problems."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import BaseModel
from tests.agent_workflows.building import writers

from perdure import InMemoryCheckpointStorage, LatestOnly
from perdure.agent_workflows import (
    AgentWorkflow,
    AgentWorkflowBuildError,
    Approval,
    Conversation,
    ConversationPolicies,
    Iterations,
    OnError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent_workflows import AgentWorkflowBuilder


class Bill(BaseModel):
    amount: float


def problems(builder: AgentWorkflowBuilder) -> tuple[str, ...]:
    with pytest.raises(AgentWorkflowBuildError) as refused:
        builder.build()
    return refused.value.problems


def one(**options: Any) -> AgentWorkflowBuilder:
    """A workflow of one node."""
    return AgentWorkflow.create().add_agent("a", writers()["drafter"], **options)


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda it: it.with_name(5), "name: input should be a valid string, not 5"),
    (lambda it: it.with_name(""), "name: string should have at least 1 character"),
    (lambda it: it.with_description(["x"]), "description: input should be a valid string, not a list"),
    (lambda it: it.with_max_iterations("3"), "iterations.limit: input should be a valid integer, not '3'"),
    (lambda it: it.with_max_iterations(True), "iterations.limit: input should be a valid integer, not True"),  # noqa: FBT003 - it is wrong
    (
        lambda it: it.with_max_iterations(2, then="stop"),
        "iterations.then: input should be 'fail' or 'leave', not 'stop'",
    ),
    (
        lambda it: it.with_max_iterations(2, converges="no"),
        "iterations.converges: input should be a valid boolean, not 'no'",
    ),
    (
        lambda it: it.with_max_iterations(2, ignored_keys="at"),
        "iterations.ignored_keys: input should be a valid frozenset, not 'at'",
    ),
    (lambda it: it.with_timeout("5"), "timeout: input should be a valid timedelta, not '5'"),
    (lambda it: it.with_workflow_store(5), "with_workflow_store: 5 is neither a storage nor the URL of one"),
    (
        lambda it: it.with_workflow_store(InMemoryCheckpointStorage(), LatestOnly()),
        "an InMemoryCheckpointStorage has its own: give the retention to its class",
    ),
    (
        lambda it: it.with_session_store("postgresql://me:hush@here/db"),
        "with_session_store takes a session store, such as SqliteSessionStore(path) of perdure.threads, not a text",
    ),
    (lambda it: it.with_session_store(5), "with_session_store takes a session store"),
    (
        lambda it: it.with_workflow_store(object()),
        "an object is neither a storage nor the URL of one: it has no save()",
    ),
    (
        lambda it: it.with_conversation("shared"),
        "conversation: input should be a dictionary or an instance of Conversation, not 'shared'",
    ),
    (lambda it: it.with_conversation(ConversationPolicies.shared_thread), "not the function shared_thread"),
    (
        lambda it: it.with_conversation(Conversation(cast("Any", "shard"))),
        "conversation.kind: input should be 'none', 'shared', 'per_agent' or",
    ),
    (lambda it: it.from_("a"), "from_('a') leads nowhere: call to('node') after it, or leave it out"),
    (lambda it: it.from_("a").from_("a").to("END"), "from_('a') leads nowhere"),
    (lambda it: it.add_agent(3, writers()["drafter"]), "node 3: id: input should be a valid string, not 3"),
]


@pytest.mark.parametrize(("say", "problem"), WRONG)
def test_a_setting_of_the_wrong_kind_is_named(say: Callable[[Any], Any], problem: str) -> None:
    builder = one()
    say(builder)
    [found] = problems(builder)
    assert problem in found


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": "5"}, "timeout: input should be a valid timedelta or a valid integer or a valid number, not '5'"),
    ({"timeout": True}, "timeout: input should be a valid timedelta or a valid integer or a valid number, not True"),
    ({"template": 7}, "template: input should be a valid string, not 7"),
    ({"input_key": ["x"]}, "input_key: input should be a valid string, not a list"),
    ({"instructions": b"x"}, "instructions: input should be a valid string, not a bytes"),
    ({"output_key": 5}, "output.key: input should be a valid string, not 5"),
    ({"output_key": "a.b"}, "its output 'a.b' could not be read as '{{node.key}}'"),
    ({"output_key": " a"}, "its output ' a' could not be read as '{{node.key}}'"),
    ({"structured_output": {"properties": {"a.b": {}}}}, "its output 'a.b' could not be read as '{{node.key}}'"),
    ({"union_output": Bill}, "output.types: input should be a valid tuple, not the class Bill"),
    ({"union_output": [5]}, "output.types[0]: input should be a valid dictionary, not 5"),
    ({"union_output": [{}]}, "output.types[0].title: it is missing; give it"),
    ({"union_output": []}, "union_output has no types; give at least one"),
    ({"structured_output": str}, "a structured output is a pydantic model or a JSON schema, not <class 'str'>"),
    ({"structured_output": {"type": "array"}}, "output.type.type: input should be 'object', not 'array'"),
    ({"structured_output": {"properties": [1]}}, "output.type.properties: input should be a valid dictionary"),
    ({"structured_output": {"required": [1]}}, 'its JSON schema is not valid: required[0] must satisfy type: "string"'),
    ({"on_error": ["stop"]}, "on_error: input should be a dictionary or an instance of OnError, not a list"),
    ({"on_error": "ignore"}, "on_error: input should be 'stop', 'skip_dependents', 'isolate' or 'fallback'"),
    ({"retry": "often"}, "retry: input should be a valid dictionary, not 'often'"),
    ({"on_error": OnError("fallback", cast("Any", 5))}, "on_error.fallback: input should be a valid string, not 5"),
    ({"approval": 5}, "approval: input should be a dictionary or an instance of Approval, not 5"),
    ({"approval": Approval(when=cast("Any", "amount"))}, "approval.when: it is not an object with a type; give it one"),
    ({"approval": Approval(timeout=cast("Any", "5"))}, "approval.timeout: input should be a valid timedelta, not '5'"),
    ({"approval": Approval(message=cast("Any", 5))}, "approval.message: input should be a valid string, not 5"),
    ({"reads": "all"}, "reads: input should be 'request' or 'upstream', not 'all'"),
]


@pytest.mark.parametrize(("options", "problem"), OPTIONS)
def test_what_is_said_of_a_node_is_of_its_kind(options: dict[str, Any], problem: str) -> None:
    found = problems(one(**options))
    assert [each for each in found if each.startswith("node 'a': ") and problem in each]


def test_nothing_of_the_wrong_kind_hides_what_else_is_wrong() -> None:
    drafter = writers()["drafter"]
    wrong: Any = {"timeout": "5", "on_error": "ignore"}
    builder: Any = AgentWorkflow.create()
    builder.with_name(5).with_max_iterations("3").with_conversation("shared")
    builder.add_agent("a", drafter, **wrong).add_agent("b", drafter, input_key="zz").from_("a").to("b", "c")
    assert [each.split(" is ")[0].split(": input")[0].split(", and")[0] for each in problems(builder)] == [
        "name",
        "node 'a': timeout",
        "node 'a': on_error",
        "iterations.limit",
        "conversation",
        "edge 'a' -> 'c': there",
        "node 'b' reads 'zz'",
    ]


def test_handoffs_are_texts_by_node() -> None:
    cast = writers()
    wrong: list[Any] = [{}, ["a"], {"a": 5}, {5: "x", "a": "it"}]
    for handoffs in wrong:
        router = AgentWorkflow.create().add_router_agent("r", cast["drafter"], handoffs=handoffs)
        builder = router.add_agent("a", cast["reviewer"], reads="request")
        assert [each for each in problems(builder) if "output.targets" in each]


def test_a_list_is_no_id() -> None:
    wrong: Any = ["a"]
    with pytest.raises(TypeError, match="takes the ids of nodes, as from_"):
        one().from_(wrong)


def test_a_text_is_no_list_of_values() -> None:
    with pytest.raises(ValueError, match="should be a valid tuple"):
        one().from_("a").to("END").when_contains_any("answer", "abc")


def test_what_is_of_its_kind_stays_as_it_is() -> None:
    iterations = Iterations(3, "leave", converges=False, ignored_keys=frozenset({"at"}), change_aware=True)
    approval = Approval("May it?", timeout=timedelta(days=2))
    builder = one(approval=approval, timeout=2.5, output_key="draft").with_timeout(timedelta(hours=1))
    builder.with_max_iterations(3, then="leave", converges=False, ignored_keys=["at"], change_aware=True)
    definition = builder.build().definition
    assert (definition.iterations, definition.timeout) == (iterations, timedelta(hours=1))
    assert (definition.nodes[0].approval, definition.nodes[0].timeout) == (approval, 2.5)
