"""A workflow as an agent: what it is told, what it answers, and how its sessions go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import lone
from tests.agents.desks import desk, echo, saved, talking
from tests.agents.talkers import Model, agent
from tests.workflow.nodes import ending, node

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext
from perdure.agents import AgentResponse, AgentResponseUpdate, AgentSession, Content, InMemoryHistoryProvider, Message
from perdure.errors import AgentInvalidRequestException

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.workflow.nodes import Context

    from perdure.workflows import WorkflowAgent


def yielding(*values: Any, **more: Any) -> WorkflowAgent:
    async def say(_: Any, ctx: Context) -> None:
        for value in values:
            await ctx.yield_output(value)

    return desk(talking("sayer", say), **more)


@pytest.mark.parametrize(
    "said", ["hi", Content.from_text("hi"), Message("user", ["hi"]), ["hi"], [Message("user", "hi")]]
)
async def test_a_message_in_any_form_is_a_turn_of_the_workflow(said: Any) -> None:
    assert (await desk(echo()).run(said)).text == "1: hi"


async def test_what_is_no_message_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="an agent takes"):
        desk(echo()).run(7)  # type: ignore[call-overload]


def test_a_workflow_that_takes_no_messages_is_no_agent() -> None:
    workflow = WorkflowBuilder(start_executor=ending("numbers", takes=int)).build()
    with pytest.raises(ValueError, match=r"'numbers'.*list\[Message\]"):
        workflow.as_agent()


def test_an_agent_is_called_what_its_workflow_is_called() -> None:
    workflow = WorkflowBuilder(name="tides", description="knows tides", start_executor=echo()).build()
    made = workflow.as_agent()
    assert (made.name, made.description, made.workflow) == ("tides", "knows tides", workflow)
    assert made.id.startswith("WorkflowAgent_")
    other = workflow.as_agent("ebb", description="", id="mine")
    assert (other.name, other.description, other.id) == ("ebb", "", "mine")


async def test_each_kind_of_output_becomes_messages() -> None:
    first, second = Message("assistant", ["b"], author_name="bo"), Message("assistant", ["c"])
    response = await yielding("a", first, [second, second], [1, Content.from_text("d")], []).run("hi")
    assert [message.text for message in response.messages] == ["a", "b", "c", "c", "1 d"]
    assert [message.author_name for message in response.messages] == ["sayer", "bo", None, None, "sayer"]
    assert {message.role for message in response.messages} == {"assistant"}


async def test_answers_of_agents_inside_are_put_together() -> None:
    one = AgentResponse(
        messages=[Message("assistant", ["a"])], created_at="2026-01-01", usage_details={"total_token_count": 2}
    )
    two = AgentResponse(
        messages=[Message("assistant", ["b"])], created_at="2025-01-01", usage_details={"total_token_count": 3}
    )
    response = await yielding(one, two).run("hi")
    assert response.text == "ab"
    assert response.usage_details == {"total_token_count": 5}
    assert response.created_at == "2026-01-01"
    assert response.response_id


async def test_a_piece_of_an_answer_needs_somebody_who_streams() -> None:
    talker = yielding(AgentResponseUpdate(contents=["piece"], role="assistant"))
    with pytest.raises(AgentInvalidRequestException, match=r"'sayer'.*stream=True"):
        await talker.run("hi")
    assert (await talker.run("hi", stream=True).get_final_response()).text == "piece"


async def test_a_stream_tells_who_speaks_and_ends_in_one_answer() -> None:
    response = AgentResponse(messages=[Message("assistant", ["b"], author_name="bo"), Message("assistant", ["c"])])
    stream = yielding("a", response, Message("assistant", ["d"])).run("hi", stream=True)
    updates = [update async for update in stream]
    assert [(update.text, update.author_name) for update in updates] == [
        ("a", "sayer"),
        ("b", "bo"),
        ("c", "sayer"),
        ("d", "sayer"),
    ]
    assert len({update.response_id for update in updates}) == 1
    assert all(update.message_id and update.created_at for update in updates)
    assert [message.text for message in (await stream.get_final_response()).messages] == ["a", "b", "c", "d"]


async def test_each_update_of_a_stream_has_the_object_that_was_yielded() -> None:
    message, texts = Message("assistant", ["a message"]), ["a", "list"]
    values = [17, None, texts, Content.from_text("a content"), message, [message, message]]
    said = [update.raw_representation async for update in yielding(*values).run("x", stream=True)]
    assert said == [*values[:-1], message, message]


async def test_agents_that_stream_one_after_the_other_stay_two_messages() -> None:
    talker = desk(agent("a"), agent("b"))
    stream = talker.run("hi", stream=True)
    assert [update.text async for update in stream] == ["1", ":hi", "2", ":1:hi"]
    final = await stream.get_final_response()
    assert [(message.author_name, message.text) for message in final.messages] == [("a", "1:hi"), ("b", "2:1:hi")]


async def test_intermediate_outputs_are_part_of_the_answer() -> None:
    async def pass_on(messages: list[Message], ctx: Context) -> None:
        await ctx.yield_output("on the way")
        await ctx.send_message(messages)

    first, last = talking("first", pass_on), echo()
    talker = desk(first, last, output_from=[last], intermediate_output_from=[first])
    assert [message.text for message in (await talker.run("hi")).messages] == ["on the way", "1: hi"]


async def test_kwargs_reach_the_workflow() -> None:
    seen: list[Any] = []

    async def look(_: Any, ctx: Context) -> None:
        seen.append(ctx.get_state("_workflow_run_kwargs"))

    await desk(talking("look", look)).run("hi", function_invocation_kwargs={"tenant": "t"}, client_kwargs={"user": "u"})
    assert seen == [
        {"function_invocation_kwargs": {"__global__": {"tenant": "t"}}, "client_kwargs": {"__global__": {"user": "u"}}}
    ]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_without_a_session_each_message_is_a_run_of_its_own(storage: Any) -> None:
    talker = desk(echo(), storage=storage)
    assert [(await talker.run(word)).text for word in ("a", "b")] == ["1: a", "1: b"]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_a_call_without_a_session_neither_reads_nor_changes_the_run_of_a_session(storage: Any) -> None:
    talker = desk(echo(), storage=storage)
    session = talker.create_session()
    assert (await talker.run("secret", session=session)).text == "1: secret"
    assert (await talker.run("b")).text == "1: b"
    assert (await talker.run()).text != "1: secret"
    assert (await talker.run("c", session=session)).text == "2: secret 1: secret c"


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_a_handler_without_a_session_gets_a_run_of_its_own(storage: Any) -> None:
    talker = desk(echo(), storage=storage)

    async def do(text: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output((await talker.run(text)).text)

    await talker.run("secret", session=talker.create_session())
    for _ in range(2):
        workflow = lone(do, storage=InMemoryCheckpointStorage())
        assert (await workflow.run("b")).get_outputs() == ["1: b"]


async def test_a_session_lets_the_workflow_receive_the_conversation() -> None:
    talker = desk(echo())
    session = talker.create_session()
    assert (await talker.run("a", session=session)).text == "1: a"
    assert (await talker.run("b", session=session)).text == "2: a 1: a b"
    assert [message.text for message in session.state["in_memory"]["messages"]] == ["a", "1: a", "b", "2: a 1: a b"]


async def test_what_a_stream_said_is_part_of_the_conversation_too() -> None:
    talker = desk(agent())
    session = talker.create_session()
    await talker.run("a", session=session, stream=True).get_final_response()
    assert [message.text for message in session.state["in_memory"]["messages"]] == ["a", "1:a"]


async def test_a_provider_that_loads_history_is_not_joined_by_another() -> None:
    workflow = WorkflowBuilder(start_executor=echo()).build()
    talker = workflow.as_agent(context_providers=[InMemoryHistoryProvider("mine")])
    session = talker.create_session()
    await talker.run("a", session=session)
    assert [message.text for message in session.state["mine"]["messages"]] == ["a", "1: a"]
    assert "in_memory" not in session.state


async def test_sessions_are_two_runs_that_never_meet(storage: Any) -> None:
    await _two_sessions(desk(echo(), storage=storage))


async def test_sessions_without_a_storage_are_two_runs_too() -> None:
    await _two_sessions(desk(echo()))


async def _two_sessions(talker: WorkflowAgent) -> None:
    ada, bob = talker.create_session(), talker.create_session()
    assert (await talker.run("a", session=ada)).text == "1: a"
    assert (await talker.run("b", session=bob)).text == "1: b"
    assert (await talker.run("c", session=ada)).text == "2: a 1: a c"
    assert (await talker.run("d", session=bob)).text == "2: b 1: b d"
    assert ada.state["workflow"]["run_id"] != bob.state["workflow"]["run_id"]


async def test_whoever_saved_only_the_session_goes_on_with_its_run(open_on_disk: Callable[..., Any]) -> None:
    async with open_on_disk() as storage:
        talker = desk(echo(), storage=storage)
        session = talker.create_session()
        await talker.run("a", session=session)
    async with open_on_disk() as storage:
        other, again = desk(echo(), storage=storage), saved(session)
        assert (await other.run("b", session=again)).text == "2: a 1: a b"
        assert again.state["workflow"]["run_id"] == session.state["workflow"]["run_id"]


async def test_the_storage_may_be_given_to_each_call() -> None:
    storage = InMemoryCheckpointStorage()
    session = AgentSession()
    await desk(echo()).run("a", session=session, checkpoint_storage=storage)
    response = await desk(echo()).run("b", session=saved(session), checkpoint_storage=storage)
    assert response.text == "2: a 1: a b"


async def test_a_session_whose_run_is_gone_begins_another_with_the_conversation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    talker = desk(echo())
    session = talker.create_session()
    await talker.run("a", session=session)
    assert (await desk(echo()).run("b", session=saved(session))).text == "1: a 1: a b"
    assert "a new run gets the conversation so far" in caplog.text


async def test_agents_that_share_a_session_have_a_run_each() -> None:
    one, two = desk(echo(), name="one"), desk(echo(), name="two")
    session = AgentSession()
    assert (await one.run("a", session=session)).text == "1: a"
    assert (await two.run("b", session=session)).text == "1: a 1: a b"
    assert (await one.run("c", session=session)).text.startswith("2: ")
    assert (await two.run("d", session=session)).text.startswith("2: ")


async def test_an_agent_inside_is_told_nothing_twice() -> None:
    model, late = Model(), Model()
    first, second = agent("first", model), agent("second", late)

    def is_for_second(message: Any) -> bool:
        return "second" in message.agent_response.messages[-1].text

    builder = WorkflowBuilder(name="desk", start_executor=first, checkpoint_storage=InMemoryCheckpointStorage())
    talker = builder.add_edge(first, second, condition=is_for_second).build().as_agent()
    session = talker.create_session()
    await talker.run("a", session=session)
    await talker.run("b", session=session)
    await talker.run("second", session=session)
    assert model.shown == [["a"], ["a", "1:a", "b"], ["a", "1:a", "b", "3:b", "second"]]
    assert late.shown == [["a", "1:a", "b", "3:b", "second", "5:second"]]


async def test_the_same_words_again_are_said_again() -> None:
    model = Model()
    talker = desk(agent("host", model))
    session = talker.create_session()
    for _ in range(3):
        await talker.run("yes", session=session)
    assert model.shown[-1] == ["yes", "1:yes", "yes", "3:yes", "yes"]


async def test_a_checkpoint_is_gone_on_from_and_tells_what_comes_of_it() -> None:
    storage = InMemoryCheckpointStorage()
    gates = [ConnectionError("no line")]

    async def fail_once(messages: list[Message], ctx: Context) -> None:
        if gates:
            raise gates.pop()
        await ctx.yield_output(f"got {len(messages)}")

    def build() -> WorkflowAgent:
        return desk(talking("start", _pass), node("end", fail_once))

    with pytest.raises(ConnectionError):
        await build().run("hi", checkpoint_storage=storage)
    last = (await storage.list_checkpoints(workflow_name="desk"))[-1].checkpoint_id
    talker = build()
    assert (await talker.run(checkpoint_id=last, checkpoint_storage=storage)).text == "got 1"
    assert (await talker.run("and", checkpoint_storage=storage)).text == "got 1"
    assert len(await storage.list_checkpoints(workflow_name="desk")) == 6


async def _pass(messages: list[Message], ctx: Context) -> None:
    await ctx.send_message(messages)


async def test_a_message_with_a_checkpoint_is_the_turn_after_it() -> None:
    storage = InMemoryCheckpointStorage()
    talker = desk(echo(), storage=storage)
    for word in ("a", "b"):
        await talker.run(word)
    first_turn = (await storage.list_checkpoints(workflow_name="desk"))[1].checkpoint_id
    assert (await desk(echo(), storage=storage).run("c", checkpoint_id=first_turn)).text == "2: c"


async def test_a_checkpoint_has_to_be_somewhere() -> None:
    with pytest.raises(AgentInvalidRequestException, match=r"'c1'.*checkpoint_storage"):
        await desk(echo()).run(checkpoint_id="c1")
