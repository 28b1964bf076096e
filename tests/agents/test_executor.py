"""Agents as nodes: what they are told, what they say, and what they send on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from tests.agents.talkers import Model, Stranger, agent
from tests.workflow.nodes import Context, node

from perdure import (
    Case,
    Default,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowExecutor,
    WorkflowInvocationKwargs,
)
from perdure.agents import (
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    AgentResponseUpdate,
    Message,
    resolve_agent_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure import Workflow
    from perdure.agents import SupportsAgentRun


def alone(executor: AgentExecutor | SupportsAgentRun, storage: Any = None) -> Workflow:
    return WorkflowBuilder(name="w", start_executor=executor, checkpoint_storage=storage).build()


def texts(response: AgentResponse[Any] | AgentExecutorResponse) -> list[str]:
    messages = response.messages if isinstance(response, AgentResponse) else response.full_conversation
    return [message.text for message in messages]


def catching(caught: list[Any]) -> Any:
    async def catch(message: Any, _: Context) -> None:
        caught.append(message)

    return node("catch", catch)


@pytest.mark.parametrize(
    "said",
    ["hi", Message("user", ["hi"]), ["hi"], [Message("user", ["hi"])], AgentExecutorRequest([Message("user", ["hi"])])],
)
async def test_an_agent_answers_whatever_form_a_message_has(said: Any) -> None:
    result = await alone(agent()).run(said)
    assert [output.text for output in result.get_outputs()] == ["1:hi"]
    assert isinstance(result.get_outputs()[0], AgentResponse)


async def test_what_only_informs_is_told_with_the_next_message() -> None:
    workflow = alone(AgentExecutor(agent()))
    quiet = await workflow.run(AgentExecutorRequest([Message("user", ["first"])], should_respond=False))
    assert quiet.get_outputs() == []
    result = await workflow.run("second")
    assert [output.text for output in result.get_outputs()] == ["2:second"]


async def test_what_only_informs_survives_a_restart(open_on_disk: Callable[..., Any]) -> None:
    async with open_on_disk() as storage:
        quiet = AgentExecutorRequest([Message("user", ["first"])], should_respond=False)
        await alone(agent(), storage).run(quiet, run_id="r")
    async with open_on_disk() as storage:
        run = alone(agent(), storage).start(run_id="r")
        await run.result()
        await run.send("second")
        assert [output.text for output in (await run.result()).get_outputs()] == ["2:second"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("full", ["user says", "1:user says"]), ("last_agent", ["1:user says"]), ("custom", ["user says"])],
)
async def test_the_context_mode_says_what_an_agent_is_told_of_another(mode: Any, expected: list[str]) -> None:
    model = Model()

    def only_users(conversation: list[Message]) -> list[Message]:
        return [message for message in conversation if message.role == "user"]

    second = AgentExecutor(agent("second", model), context_mode=mode, context_filter=only_users)
    first = agent("first")
    await WorkflowBuilder(start_executor=first).add_edge(first, second).build().run("user says")
    assert model.shown == [expected]


async def test_what_is_sent_on_has_the_whole_conversation() -> None:
    caught: list[AgentExecutorResponse] = []
    first, second, last = agent("first"), agent("second"), catching(caught)
    workflow = WorkflowBuilder(start_executor=first).add_chain([first, second, last]).build()
    await workflow.run("hi")
    (response,) = caught
    assert (response.executor_id, response.agent_response.text) == ("second", "2:1:hi")
    assert texts(response) == ["hi", "1:hi", "2:1:hi"]
    changed = response.with_text("other")
    assert (texts(changed), changed.agent_response.text) == (["hi", "1:hi", "other"], "other")


async def test_a_stream_is_told_the_updates_and_the_run_keeps_the_whole(storage: Any) -> None:
    stream = alone(agent(), storage).run("hi", run_id="r", stream=True)
    told = [event.data async for event in stream if event.type == "output"]
    assert all(isinstance(each, AgentResponseUpdate) for each in told)
    assert [each.text for each in told] == ["1", ":hi"]
    kept = [event.data async for event in storage.events("r") if event.type == "output"]
    assert [(type(each), each.text) for each in kept] == [(AgentResponse, "1:hi")]


async def test_a_turn_that_is_told_again_is_one_update_for_each_message(storage: Any) -> None:
    await alone(agent(), storage).run("hi", run_id="r")
    again = alone(agent(), storage).run(run_id="r", stream=True)
    told = [event.data async for event in again if event.type == "output"]
    assert [(type(each), each.text) for each in told] == [(AgentResponseUpdate, "1:hi")]
    whole = await alone(agent(), storage).run(run_id="r")
    assert [(type(each), each.text) for each in whole.get_outputs()] == [(AgentResponse, "1:hi")]


async def test_an_agent_whose_output_is_intermediate_streams_intermediate_updates() -> None:
    first, second = agent("first"), agent("second")
    builder = WorkflowBuilder(start_executor=first, output_from=[second], intermediate_output_from=[first])
    told = [
        (event.type, event.executor_id, event.data.text)
        async for event in builder.add_edge(first, second).build().run("hi", stream=True)
        if event.type in {"output", "intermediate"}
    ]
    assert told == [
        ("intermediate", "first", "1"),
        ("intermediate", "first", ":hi"),
        ("output", "second", "2"),
        ("output", "second", ":1:hi"),
    ]


async def test_a_bare_text_of_another_executor_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def shout(message: AgentExecutorResponse, ctx: Context) -> None:
        await ctx.send_message(message.agent_response.text.upper())

    first, second, between = agent("first"), agent("second"), node("shout", shout)
    with caplog.at_level(logging.WARNING):
        await WorkflowBuilder(start_executor=first).add_chain([first, between, second]).build().run("hi")
    assert [record.getMessage() for record in caplog.records if "with_text" in record.getMessage()] != []


async def test_a_turn_without_a_message_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await alone(agent("quiet", Model(lambda _: "nothing"))).run(AgentExecutorRequest([]))
    assert "agent 'quiet' runs without a message" in caplog.text


class Verdict(BaseModel):
    is_spam: bool


async def test_a_structured_answer_is_one_on_edges_and_in_another_process(open_on_disk: Callable[..., Any]) -> None:
    def flow(storage: Any, caught: list[Any]) -> Workflow:
        judge = agent("judge", Model(lambda _: '{"is_spam": true}'), default_options={"response_format": Verdict})
        builder = WorkflowBuilder(name="w", start_executor=judge, checkpoint_storage=storage)
        return builder.add_edge(judge, catching(caught), lambda message: message.agent_response.value.is_spam).build()

    caught: list[Any] = []
    async with open_on_disk() as storage:
        await flow(storage, caught).run("buy now", run_id="r")
    assert [message.agent_response.value for message in caught] == [Verdict(is_spam=True)]
    async with open_on_disk() as storage:
        again = await flow(storage, []).run(run_id="r")
    assert [output.value for output in again.get_outputs()] == [Verdict(is_spam=True)]


async def test_kwargs_are_for_one_executor_or_for_all() -> None:
    one, other = Stranger("one"), Stranger("other")
    workflow = WorkflowBuilder(start_executor=one).add_edge(one, other).build()
    await workflow.run("hi", function_invocation_kwargs={"one": {"user": "eve"}}, client_kwargs={"trace": 1})
    assert one.given == [{"function_invocation_kwargs": {"user": "eve"}, "client_kwargs": {"trace": 1}}]
    assert other.given == [{"function_invocation_kwargs": None, "client_kwargs": {"trace": 1}}]


async def test_an_agent_gets_the_kwargs_for_all_overlaid_by_its_own() -> None:
    one, other = Stranger("one"), Stranger("other")
    first = AgentExecutor(one, id="first")
    workflow = WorkflowBuilder(start_executor=first).add_edge(first, other)
    given = WorkflowInvocationKwargs({"user": "eve", "depth": 1}, {"one": {"depth": 2}})
    legacy = {"__global__": {"trace": 1}, "other": {"level": 3}}
    await workflow.build().run("hi", function_invocation_kwargs=given, client_kwargs=legacy)
    assert one.given == [{"function_invocation_kwargs": {"user": "eve", "depth": 2}, "client_kwargs": {"trace": 1}}]
    own = {"function_invocation_kwargs": {"user": "eve", "depth": 1}, "client_kwargs": {"trace": 1, "level": 3}}
    assert other.given == [own]


async def test_a_name_of_two_agents_is_refused_and_so_are_two_entries_for_one_executor() -> None:
    first, second = AgentExecutor(Stranger("same"), id="first"), AgentExecutor(Stranger("same"), id="second")
    workflow = WorkflowBuilder(start_executor=first).add_edge(first, second).build()
    with pytest.raises(ValueError, match=r"several agents are called 'same'; use the ids .*: first, second"):
        await workflow.run("hi", client_kwargs=WorkflowInvocationKwargs(executor_kwargs={"same": {}}))
    storage = InMemoryCheckpointStorage()
    lone = alone(AgentExecutor(Stranger("agent"), id="id"), storage)
    twice = WorkflowInvocationKwargs(executor_kwargs={"agent": {}, "id": {}})
    with pytest.raises(ValueError, match="two entries for executor 'id'"):
        await lone.run("hi", run_id="r", client_kwargs=twice)
    assert len((await lone.run("hi", run_id="r")).get_outputs()) == 1


@pytest.mark.parametrize(
    ("given", "middle", "inside"),
    [
        ({"sub": {"a": 1}}, None, None),
        ({"inner": {"a": 1}}, {"inner": {"a": 1}}, {"a": 1}),
        ({"outer": {"a": 1}, "b": 2}, {"b": 2}, {"b": 2}),
        ({"sub": {"a": 1}, "__global__": {"b": 2}, "inner": {"c": 3}}, {"b": 2}, {"b": 2, "c": 3}),
        (WorkflowInvocationKwargs({"b": 2}, {"outer": {"a": 1}, "sub": {"a": 1}}), {"b": 2}, {"b": 2}),
        (WorkflowInvocationKwargs(executor_kwargs={"inner": {"c": 3}}), {}, {"c": 3}),
    ],
)
async def test_kwargs_for_executors_of_a_workflow_are_no_kwargs_of_its_sub_workflows(
    given: Any, middle: Any, inside: Any
) -> None:
    seen: dict[str, Any] = {}

    def nested(storage: Any = None) -> Workflow:
        agents = {name: Stranger(name) for name in ("outer", "middle", "inner")}
        seen.update(agents)
        inmost = WorkflowExecutor(alone(agents["inner"]), "subsub")
        inner = WorkflowBuilder(start_executor=agents["middle"]).add_edge(agents["middle"], inmost).build()
        sub = WorkflowExecutor(inner, "sub")
        builder = WorkflowBuilder(name="w", start_executor=agents["outer"], checkpoint_storage=storage)
        return builder.add_edge(agents["outer"], sub).build()

    def kwargs() -> list[Any]:
        return [seen[name].given[-1]["client_kwargs"] for name in ("middle", "inner")]

    await nested().run("hi", client_kwargs=given)
    assert kwargs() == [middle, inside]
    # The same after a resume: what was stored means the same.
    storage = InMemoryCheckpointStorage()
    started = nested(storage).start("hi", run_id="r", client_kwargs=given)
    await started
    del started
    await nested(storage).run(run_id="r")
    assert kwargs() == [middle, inside]


async def test_reset_forgets_what_the_agent_was_not_told_yet() -> None:
    executor = AgentExecutor(agent())
    workflow = alone(executor)
    await workflow.run(AgentExecutorRequest([Message("user", ["first"])], should_respond=False))
    executor.reset()
    assert [output.text for output in (await workflow.run("second")).get_outputs()] == ["1:second"]


def test_an_agent_in_a_workflow_is_called_by_its_name_or_its_id() -> None:
    named, unnamed = Stranger("ann"), Stranger("bob")
    unnamed.name = None
    assert (resolve_agent_id(named), resolve_agent_id(unnamed)) == ("ann", "id of bob")
    executor = AgentExecutor(named, id="other")
    assert (executor.id, executor.agent, executor.description) == ("other", named, None)
    unnamed.id = ""
    with pytest.raises(ValueError, match="needs a name"):
        AgentExecutor(unnamed)


def test_an_agent_handles_one_message_at_a_time() -> None:
    with pytest.raises(ValueError, match="max_concurrency must be 1"):
        AgentExecutor(agent(), max_concurrency=2)


@pytest.mark.parametrize(("mode", "reason"), [("some", "'some'"), ("custom", "context_filter")])
def test_a_context_mode_that_makes_no_sense_is_refused(mode: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AgentExecutor(agent(), context_mode=mode)


async def test_agents_may_stand_wherever_executors_do() -> None:
    start, red, blue, last = agent("start"), agent("red"), agent("blue"), agent("last")
    builder = WorkflowBuilder(start_executor=start, output_from=[last])
    builder.add_switch_case_edge_group(
        start, [Case(lambda message: "red" in message.agent_response.text, red), Default(blue)]
    )
    workflow = builder.add_edge(red, last).add_edge(blue, last).build()
    assert list(workflow.executors) == ["start", "red", "blue", "last"]
    assert [output.text for output in (await workflow.run("red")).get_outputs()] == ["3:2:1:red"]


async def test_an_agent_is_one_node_however_often_it_is_named() -> None:
    start, other = agent("start"), agent("other")
    workflow = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [other, other_one := agent("third")])
    built = workflow.add_fan_in_edges([other, other_one], catching([])).build()
    assert list(built.executors) == ["start", "other", "third", "catch"]


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two agents are called 'agent'"):
        WorkflowBuilder(start_executor=agent()).add_edge(first := agent("first"), agent()).add_edge(first, agent())


def test_what_is_no_agent_is_no_node() -> None:
    builder: Any = WorkflowBuilder(start_executor=agent())
    with pytest.raises(TypeError, match="an Executor or an agent, not a str"):
        builder.add_edge("agent", "other")
    with pytest.raises(TypeError, match="a node must be an Executor or an agent, not a str"):
        WorkflowBuilder(start_executor=agent(), output_from=["agent"]).build()  # pyright: ignore[reportArgumentType]
