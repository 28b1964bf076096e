"""The fluent builder: definitions from method calls, and all problems at once."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import BaseModel
from tests.agent_workflows.building import Cast, review, writers

from perdure import FullHistory, InMemoryCheckpointStorage, KeepFor, KeepLast, Retention, Retry, tool
from perdure.agent_workflows import (
    END,
    AgentConfig,
    AgentWorkflow,
    AgentWorkflowBuilder,
    AgentWorkflowBuildError,
    Approval,
    Contains,
    Conversation,
    ConversationPolicies,
    EdgeContext,
    Equals,
    GreaterThan,
    Iterations,
    OnError,
    StructuredOutput,
    TextOutput,
    UnionOutput,
    fallback,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Bill(BaseModel):
    amount: float


class Question(BaseModel):
    text: str


def problems(builder: AgentWorkflowBuilder) -> tuple[str, ...]:
    with pytest.raises(AgentWorkflowBuildError) as refused:
        builder.build()
    for problem in refused.value.problems:
        assert problem in str(refused.value)
    return refused.value.problems


def edges(workflow: AgentWorkflow) -> dict[tuple[str, str], str | None]:
    return {
        (edge.source, edge.target): None if edge.condition is None else edge.condition.describe()
        for edge in workflow.definition.edges
    }


def test_what_is_said_of_nodes_is_what_the_definition_says() -> None:
    cast = writers()
    workflow = (
        AgentWorkflow.create()
        .with_name("Review")
        .with_description("Reviews.")
        .with_version("2.1")
        .with_timeout(timedelta(hours=1))
        .with_max_iterations(3, then="leave", converges=False, ignored_keys=["at"], change_aware=True)
        .add_agent(
            "draft",
            cast["drafter"],
            output_key="text",
            template="About {{input}}",
            instructions="Be brief.",
            retry=2,
            timeout=5,
            on_error="isolate",
            approval="Good?",
        )
        .add_agent("bill", cast["drafter"], structured_output=Bill, structured_mode="tool", retry=Retry(4))
        .add_agent("both", cast["drafter"], union_output=[Bill, Question], approval=True)
        .build()
    )
    definition = workflow.definition
    draft, bill, both = definition.nodes
    assert (definition.name, definition.description, definition.version) == ("Review", "Reviews.", "2.1")
    assert definition.timeout == timedelta(hours=1)
    assert definition.iterations == Iterations(3, "leave", False, frozenset({"at"}), True)  # noqa: FBT003
    assert (draft.output, draft.template, draft.instructions) == (TextOutput("text"), "About {{input}}", "Be brief.")
    assert (draft.retry, draft.timeout, draft.on_error) == (Retry(2), 5, OnError("isolate"))
    assert draft.approval == Approval("Good?")
    assert (bill.output, bill.retry) == (StructuredOutput(Bill, "tool"), Retry(4))
    assert (both.output, both.approval) == (UnionOutput((Bill, Question)), Approval())


def test_edges_go_from_each_to_each_and_conditions_are_about_those_just_added() -> None:
    cast = writers()
    builder = AgentWorkflow.create()
    for name in ("a", "b", "c", "d", "e"):
        builder.add_agent(name, cast["drafter"], reads="request")
    workflow = (
        builder.from_("a", "b")
        .to("c", "d")
        .when_equals("answer", "yes")
        .when_not_empty("answer")
        .to("e")
        .as_default()
        .build()
    )
    both = "answer == 'yes' and answer is not empty"
    assert edges(workflow) == {
        ("a", "c"): both,
        ("a", "d"): both,
        ("b", "c"): both,
        ("b", "d"): both,
        ("a", "e"): None,
        ("b", "e"): None,
    }
    assert [edge.target for edge in workflow.definition.edges if edge.is_default] == ["e", "e"]


@pytest.mark.parametrize(
    ("method", "arguments", "holds", "fails"),
    [
        ("when_equals", ("k", 1), {"k": 1}, {"k": 2}),
        ("when_not_equals", ("k", 1), {"k": 2}, {"k": 1}),
        ("when_exists", ("k",), {"k": 1}, {}),
        ("when_not_exists", ("k",), {}, {"k": 1}),
        ("when_greater_than", ("k", 1), {"k": 2}, {"k": 1}),
        ("when_less_than", ("k", 1), {"k": 0}, {"k": 1}),
        ("when_at_least", ("k", 1), {"k": 1}, {"k": 0}),
        ("when_at_most", ("k", 1), {"k": 1}, {"k": 2}),
        ("when_contains", ("k", "b"), {"k": "abc"}, {"k": "ac"}),
        ("when_starts_with", ("k", "a"), {"k": "abc"}, {"k": "ba"}),
        ("when_ends_with", ("k", "c"), {"k": "abc"}, {"k": "ca"}),
        ("when_matches", ("k", "^a.c$"), {"k": "abc"}, {"k": "ac"}),
        ("when_empty", ("k",), {"k": ""}, {"k": "a"}),
        ("when_not_empty", ("k",), {"k": "a"}, {"k": ""}),
        ("when_contains_any", ("k", ["a", "b"]), {"k": "xb"}, {"k": "x"}),
        ("when_contains_all", ("k", ["a", "b"]), {"k": "ab"}, {"k": "a"}),
    ],
)
def test_each_method_makes_the_condition_of_its_name(
    method: str, arguments: tuple[Any, ...], holds: dict[str, Any], fails: dict[str, Any]
) -> None:
    builder = AgentWorkflow.create().from_("a").to("b")
    getattr(builder, method)(*arguments)
    builder.add_agent("a", writers()["drafter"], structured_output={"type": "object"}).add_agent(
        "b", writers()["reviewer"]
    )
    [edge] = builder.build().definition.edges
    assert edge.condition is not None
    assert edge.condition.holds(holds)
    assert not edge.condition.holds(fails)


async def test_predicates_and_conditions_on_one_edge_have_to_hold_both() -> None:
    cast = writers()

    async def is_long(context: EdgeContext) -> bool:
        return len(context.outputs["draft"]) > 20

    builder = review(cast).when_contains("draft", "lamps").when(is_long)
    [edge] = builder.build().definition.edges
    assert edge.condition == Contains("draft", "lamps")
    assert edge.predicate is is_long
    assert (await builder.build().run("lamps")).skipped.keys() == {"review"}
    assert (await builder.build().run("all of the tables")).skipped.keys() == {"review"}
    assert (await builder.build().run("all of the lamps")).final_answer == "A draft of all of the lamps, reviewed"


def test_a_router_brings_its_edges_with_it() -> None:
    cast = Cast(router=["a"], other=["b"])
    workflow = (
        AgentWorkflow.create()
        .add_router_agent("router", cast["router"], handoffs={"a": "When a."})
        .with_handoff("b", "When b.")
        .with_handoff("c", "When c.")
        .with_default_handoff("c")
        .add_agent("a", cast["other"], reads="request")
        .add_agent("b", cast["other"], reads="request")
        .add_agent("c", cast["other"], reads="request")
        .from_("router")
        .to("b")
        .to("c")
        .when_not_empty("answer")
        .build()
    )
    assert edges(workflow) == {
        ("router", "b"): "handoff_target == 'b'",
        ("router", "c"): "answer is not empty and handoff_target == 'c'",
        ("router", "a"): "handoff_target == 'a'",
    }


def test_routing_by_type_is_by_the_name_of_the_type() -> None:
    cast = Cast(one=["x"])
    workflow = (
        AgentWorkflow.create()
        .add_agent("sort", cast["one"], union_output=[Bill, Question])
        .add_agent("pay", cast["one"])
        .add_agent("ask", cast["one"])
        .from_("sort")
        .route_by_type()
        .when_type(Bill, "pay")
        .default("ask")
        .build()
    )
    assert edges(workflow) == {("sort", "pay"): "matched_type == 'Bill'", ("sort", "ask"): None}


def test_all_that_is_wrong_is_said_at_once() -> None:
    cast = writers()
    found = problems(
        AgentWorkflow.create()
        .with_checkpointing()
        .with_conversation(ConversationPolicies.shared_thread())
        .with_max_iterations(0)
        .add_agent("draft", AgentConfig(tools=("search",)), output_key="a", structured_output=Bill)
        .add_agent("review", cast["reviewer"], input_key="nowhere", retry=0, on_error=cast_any("never"))
        .add_agent("odd", cast_any("no agent"), reads=cast_any("all"), approval=cast_any(3), structured_mode="tool")
        .from_("draft")
        .to("review", "nobody")
    )
    for expected in (
        "node 'draft': its output is given by output_key and structured_output: give one of them",
        "node 'review': retry: input should be greater than or equal to 1, not 0",
        "node 'review': on_error: input should be 'stop', 'skip_dependents', 'isolate' or 'fallback', not 'never'",
        "node 'odd': reads: input should be 'request' or 'upstream', not 'all'",
        "node 'odd': approval: input should be a dictionary or an instance of Approval, not 3",
        "node 'odd': structured_mode goes with structured_output",
        "node 'odd': agent: input should be a dictionary or an instance of AgentConfig, not",
        "'nobody'",
        "'nowhere'",
        "agent 'draft' is data and needs a chat client",
        "with_checkpointing() needs a place for checkpoints",
        "the conversation policy 'shared' needs a place for conversations",
        "iterations.limit: input should be greater than or equal to 1, not 0",
    ):
        assert any(expected in problem for problem in found), expected


def cast_any(value: object) -> Any:
    return cast("Any", value)


def test_what_nobody_writes_can_not_be_read_and_the_error_says_what_there_is() -> None:
    cast = writers()
    [problem] = problems(
        AgentWorkflow.create()
        .add_agent("draft", cast["drafter"], output_key="draft")
        .add_agent("review", cast["reviewer"], input_key="drift")
        .from_("draft")
        .to("review")
    )
    assert "'drift'" in problem
    assert "draft" in problem


def test_a_conversation_that_is_gone_with_the_process_is_refused_where_executions_outlast_it(tmp_path: Path) -> None:
    builder = (
        review(writers()).with_conversation(ConversationPolicies.thread_per_agent()).with_in_memory_session_store()
    )
    builder.build()
    builder.with_checkpointing().with_in_memory_workflow_store().build()
    [problem] = problems(builder.with_json_workflow_store(tmp_path))
    assert "executions outlast this process and their conversations don't" in problem
    builder.with_sqlite_session_store(tmp_path / "sessions.db").build()


def test_types_that_a_node_never_puts_out_route_nowhere() -> None:
    cast = writers()
    builder = (
        AgentWorkflow.create().add_agent("a", cast["drafter"], union_output=[Bill]).add_agent("b", cast["drafter"])
    )
    [unknown] = problems(builder.from_("a").route_by_type().when_type(Question, "b").default(END))
    assert "never puts out a 'Question'" in unknown
    texts = AgentWorkflow.create().add_agent("a", cast["drafter"]).add_agent("b", cast["drafter"])
    found = problems(texts.from_("a").when_type(Bill, "b").default(END))
    assert any("has no types to route by" in problem for problem in found)


MISUSES: list[tuple[Callable[[AgentWorkflowBuilder], object], str]] = [
    (lambda builder: builder.when_equals("a", 1), "when is about edges that were just added"),
    (lambda builder: builder.as_default(), "as_default is about edges that were just added"),
    (lambda builder: builder.to("a"), "to has to know where its edges begin"),
    (lambda builder: builder.from_("a").when(Equals("a", 1)), "when is about edges that were just added"),
    (lambda builder: builder.from_(), "from_ needs the id of a node"),
    (lambda builder: builder.from_("a").to(), "to needs the id of a node"),
    (lambda builder: builder.from_("a", "b").route_by_type(), "route_by_type is about the output of one node"),
    (lambda builder: builder.with_handoff("a", "b"), "call it right after add_router_agent"),
    (lambda builder: builder.with_default_handoff("a"), "call it right after add_router_agent"),
]


@pytest.mark.parametrize(("misuse", "text"), MISUSES)
def test_a_call_that_means_nothing_is_refused_at_once(
    misuse: Callable[[AgentWorkflowBuilder], object], text: str
) -> None:
    with pytest.raises(AgentWorkflowBuildError, match=text):
        misuse(AgentWorkflow.create())


def test_an_option_that_nodes_do_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="inputkey"):
        AgentWorkflow.create().add_agent("a", writers()["drafter"], **cast_any({"inputkey": "x"}))
    with pytest.raises(TypeError, match="when takes a condition or a function"):
        review(writers()).when(cast_any("draft == 1"))


def test_a_workflow_without_a_name_has_the_same_one_in_every_process() -> None:
    def named(second: str) -> str:
        cast = writers()
        return (
            AgentWorkflow.create()
            .add_agent("draft", cast["drafter"])
            .add_agent(second, cast["reviewer"])
            .from_("draft")
            .to(second)
            .build()
            .name
        )

    assert named("review") == named("review") != named("other")
    assert named("review").startswith("agent-workflow-")


def test_conversation_policies_say_what_their_names_say() -> None:
    assert ConversationPolicies.none() == Conversation()
    assert ConversationPolicies.shared_thread(session_id="s", thread_id="t") == Conversation("shared", "s", "t")
    assert ConversationPolicies.thread_per_agent(thread_prefix="p") == Conversation("per_agent", thread_prefix="p")
    assert ConversationPolicies.fork_thread_per_agent(
        session_id="s", root_thread_id="r", thread_prefix="p"
    ) == Conversation("fork_per_agent", "s", "r", "p")
    assert fallback("other") == OnError("fallback", "other")


async def test_a_store_keeps_what_its_retention_says(tmp_path: Path) -> None:
    async def kept(builder: AgentWorkflowBuilder) -> int:
        workflow = builder.with_checkpointing().build()
        await workflow.run("lamps")
        assert workflow.storage is not None
        count = len(await workflow.storage.list_checkpoints(workflow_name="Review"))
        await cast_any(workflow.storage).close()
        return count

    assert await kept(review(writers()).with_in_memory_workflow_store()) == 1
    assert await kept(review(writers()).with_json_workflow_store(tmp_path / "one")) == 1
    assert await kept(review(writers()).with_sqlite_workflow_store(tmp_path / "runs.db", KeepLast(2))) == 2
    assert await kept(review(writers()).with_json_workflow_store(tmp_path / "all", FullHistory())) > 2
    own = Retention(checkpoints=FullHistory())
    assert await kept(review(writers()).with_in_memory_workflow_store(own)) > 2


def test_any_storage_or_its_url_is_a_workflow_store() -> None:
    storage = InMemoryCheckpointStorage()
    assert review(writers()).with_workflow_store(storage).build().storage is storage
    by_url = review(writers()).with_workflow_store("memory:by-url").build().storage
    assert isinstance(by_url, InMemoryCheckpointStorage)
    with pytest.raises(TypeError, match="retention is LatestOnly"):
        review(writers()).with_in_memory_workflow_store(cast_any("all"))


async def test_agents_that_are_data_are_made_with_the_client_and_the_tools() -> None:
    @tool
    def search(words: str) -> str:
        """Search."""
        return f"found {words}"

    cast = Cast(finder=["I have nothing to search for."])
    workflow = (
        AgentWorkflow.create()
        .with_chat_client(cast.client)
        .with_tools({"search": search})
        .add_agent("find", AgentConfig(name="finder", instructions="You find.", tools=("search",)))
        .build()
    )
    assert (await workflow.run("Lamps?")).final_answer == "I have nothing to search for."
    [call] = cast.client.calls
    assert call.messages[0].text == "You find."
    assert [each.name for each in call.options["tools"]] == ["search"]


def test_a_condition_of_several_is_kept_as_one() -> None:
    rich = GreaterThan("amount", 100) & ~Equals("amount", 500)
    workflow = (
        AgentWorkflow.create()
        .add_agent("bill", writers()["drafter"], structured_output=Bill)
        .add_agent("boss", writers()["reviewer"])
        .from_("bill")
        .to("boss", when=rich)
        .build()
    )
    [edge] = workflow.definition.edges
    assert edge.condition == rich


async def test_the_stores_that_a_builder_makes_have_its_clock() -> None:
    clock = ManualClock()
    workflow = (
        AgentWorkflow.create(clock=clock)
        .with_checkpointing()
        .with_in_memory_workflow_store(KeepFor(timedelta(hours=1)))
        .with_in_memory_session_store()
        .with_conversation(ConversationPolicies.shared_thread(session_id="s"))
        .add_agent("draft", writers()["drafter"])
        .build()
    )
    await workflow.run("lamps", execution_id="e")
    storage, sessions = workflow.storage, workflow.session_store
    assert storage is not None
    assert sessions is not None
    # By another clock all but the last of them were too old to be kept.
    assert len(await storage.list_checkpoint_ids(workflow_name=workflow.name)) > 1
    assert {event.at for event in await sessions.read("s", "main")} == {clock.now().isoformat()}


def test_a_store_on_disk_that_a_builder_makes_has_its_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    builder = AgentWorkflow.create(clock=clock).add_agent("draft", writers()["drafter"])
    for made in (
        builder.with_json_workflow_store(tmp_path / "json").build(),
        builder.with_sqlite_workflow_store(tmp_path / "w.db").build(),
    ):
        assert cast_any(made.storage).clock is clock


def test_what_was_built_is_not_changed_from_outside() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    either: dict[str, Any] = {**copy.deepcopy(schema), "title": "Either"}
    options: dict[str, Any] = {"stop": ["."]}
    choices = {"a": "for a"}
    workflow = (
        AgentWorkflow.create()
        .with_chat_client(writers().client)
        .add_router_agent("r", AgentConfig(), handoffs=choices)
        .add_agent("a", AgentConfig(options=options), structured_output=schema, reads="request")
        .add_agent("b", AgentConfig(), union_output=[either], template="{{a.x}}")
        .from_("a")
        .to("b")
        .build()
    )
    before = workflow.to_json()
    schema["required"].append("y")
    either["required"].append("y")
    options["stop"] = []
    choices["b"] = "for b"
    exported = workflow.to_config().config
    exported["agents"]["a"]["output"]["schema"]["required"].append("z")
    assert workflow.to_json() == before
