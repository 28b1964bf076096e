"""Values of the wrong kind: each is an error of `build()` that says so, and none hides the others."""

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
    (lambda it: it.with_name(5), "the name of the workflow is a text that is not empty, not 5"),
    (lambda it: it.with_name(""), "the name of the workflow is a text that is not empty, not ''"),
    (lambda it: it.with_description(["x"]), "the description of the workflow is a text, not a list"),
    (lambda it: it.with_max_iterations("3"), "the limit of loops is a whole number, not '3'"),
    (lambda it: it.with_max_iterations(True), "the limit of loops is a whole number, not True"),  # noqa: FBT003 - it is wrong
    (lambda it: it.with_max_iterations(2, then="stop"), "at the limit of loops is 'fail' or 'leave', not 'stop'"),
    (lambda it: it.with_max_iterations(2, converges="no"), "converges is True or False, not 'no'"),
    (lambda it: it.with_max_iterations(2, ignored_keys="at"), "ignored_keys is a list of keys, not 'at'"),
    (lambda it: it.with_timeout(5), "the timeout of the workflow is a timedelta, as timedelta(minutes=5), not 5"),
    (lambda it: it.with_workflow_store(5), "with_workflow_store: 5 is no storage and no URL of one"),
    (
        lambda it: it.with_workflow_store(InMemoryCheckpointStorage(), LatestOnly()),
        "an InMemoryCheckpointStorage keeps what it was made to keep",
    ),
    (lambda it: it.with_checkpointing("no").with_in_memory_workflow_store(), "takes True or False, not 'no'"),
    (
        lambda it: it.with_session_store("postgresql://me:hush@here/db"),
        "with_session_store takes a session store, as SqliteSessionStore(path) of perdure.threads, not a text",
    ),
    (lambda it: it.with_session_store(5), "with_session_store takes a session store"),
    (lambda it: it.with_workflow_store(object()), "an object is no storage and no URL of one: it has no save()"),
    (lambda it: it.with_conversation("shared"), "the conversation policy is one of ConversationPolicies, called"),
    (lambda it: it.with_conversation(ConversationPolicies.shared_thread), "not the function shared_thread"),
    (
        lambda it: it.with_conversation(Conversation(cast("Any", "shard"))),
        "the kind of the conversation policy is 'none' or",
    ),
    (lambda it: it.with_tools(["t"]), "with_tools takes a dict, by name the tools, not a list"),
    (lambda it: it.from_("a"), "from_('a') leads nowhere: call to('node') after it, or leave it out"),
    (lambda it: it.from_("a").from_("a").to("END"), "from_('a') leads nowhere"),
    (lambda it: it.from_(["a"]).to("END"), "from_ takes the ids of nodes, as from_('a', 'b'), not a list"),
    (lambda it: it.add_agent(3, writers()["drafter"]), "the id of a node is a text, not 3"),
]


@pytest.mark.parametrize(("say", "problem"), WRONG)
def test_a_setting_of_the_wrong_kind_is_named(say: Callable[[Any], Any], problem: str) -> None:
    builder = one()
    say(builder)
    [found] = problems(builder)
    assert problem in found


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": "5"}, "its timeout is a timedelta or a number of seconds, not '5'"),
    ({"timeout": True}, "its timeout is a timedelta or a number of seconds, not True"),
    ({"template": 7}, "template is a text, not 7"),
    ({"input_key": ["x"]}, "input_key is a text, not a list"),
    ({"instructions": b"x"}, "instructions is a text, not a bytes"),
    ({"output_key": 5}, "output_key is a text that is not empty, not 5"),
    ({"output_key": "a.b"}, "its output 'a.b' could not be read as '{{node.key}}'"),
    ({"output_key": " a"}, "its output ' a' could not be read as '{{node.key}}'"),
    ({"structured_output": {"properties": {"a.b": {}}}}, "its output 'a.b' could not be read as '{{node.key}}'"),
    ({"union_output": Bill}, "union_output is a list of pydantic models and JSON schemas, not the class Bill"),
    ({"union_output": [5]}, "a structured output is a pydantic model or a JSON schema, not 5"),
    ({"structured_output": {"properties": [1]}}, "its JSON schema is none: properties is to be an object"),
    ({"on_error": ["stop"]}, "on_error is 'stop', 'skip_dependents', 'isolate' or fallback('node'), not a list"),
    ({"on_error": OnError("fallback", cast("Any", 5))}, "its fallback is a text, not 5"),
    ({"approval": 5}, "approval is True, what to ask or an Approval, not 5"),
    (
        {"approval": Approval(when=cast("Any", "amount"))},
        "when of its approval is a condition or a function of the outputs",
    ),
    (
        {"approval": Approval(timeout=cast("Any", 5))},
        "the timeout of its approval is a timedelta, as timedelta(minutes=5), not 5",
    ),
    ({"approval": Approval(message=cast("Any", 5))}, "the message of its approval is a text, not 5"),
    ({"reads": "all"}, "reads is 'request' or 'upstream', not 'all'"),
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
    assert [each.split(" is ")[0].split(", and")[0] for each in problems(builder)] == [
        "node 'a': on_error",
        "the name of the workflow",
        "node 'a': its timeout",
        "the limit of loops",
        "the conversation policy",
        "edge 'a' -> 'c': there",
        "node 'b' reads 'zz'",
    ]


def test_handoffs_are_texts_by_node() -> None:
    cast = writers()
    wrong: list[Any] = [["a"], {"a": 5}, {5: "x", "a": "it"}]
    for handoffs in wrong:
        router = AgentWorkflow.create().add_router_agent("r", cast["drafter"], handoffs=handoffs)
        builder = router.add_agent("a", cast["reviewer"], reads="request")
        assert [each for each in problems(builder) if "handoffs" in each]


def test_a_text_is_no_list_of_values() -> None:
    with pytest.raises(TypeError, match="give a list"):
        one().from_("a").to("END").when_contains_any("answer", "abc")


def test_what_is_of_its_kind_stays_as_it_is() -> None:
    iterations = Iterations(3, "leave", converges=False, ignored_keys=frozenset({"at"}), change_aware=True)
    approval = Approval("May it?", timeout=timedelta(days=2))
    builder = one(approval=approval, timeout=2.5, output_key="draft").with_timeout(timedelta(hours=1))
    builder.with_max_iterations(3, then="leave", converges=False, ignored_keys=["at"], change_aware=True)
    definition = builder.build().definition
    assert (definition.iterations, definition.timeout) == (iterations, timedelta(hours=1))
    assert (definition.nodes[0].approval, definition.nodes[0].timeout) == (approval, 2.5)
