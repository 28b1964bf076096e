"""Histories that are written after each call of the model: a turn that ends early has left what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.stub_model import Model

from perdure.agents import Agent, InMemoryHistoryProvider, Message
from perdure.errors import AgentInvalidRequestException
from perdure.testing.scripted import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from perdure.agents import AgentSession


def look() -> str:
    """Look."""
    return "seen"


def agent_of(*replies: Any, per_call: bool = True) -> Agent[Any]:
    return Agent(
        ScriptedChatClient(list(replies)),
        "be brief",
        name="a",
        tools=look,
        context_providers=[InMemoryHistoryProvider()],
        require_per_service_call_history_persistence=per_call,
    )


def kinds(session: AgentSession) -> list[str]:
    return [message.contents[0].type for message in session.state["in_memory"]["messages"]]


async def run(agent: Agent[Any], session: AgentSession, *, stream: bool) -> None:
    answer: Any = agent.run("hi", session=session, stream=stream)
    await (answer.get_final_response() if stream else answer)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_said_is_written_once_and_in_order(stream: bool) -> None:  # noqa: FBT001
    histories: list[list[str]] = []
    for per_call in (True, False):
        agent = agent_of(ToolCall("look"), "done", "again", per_call=per_call)
        session = agent.create_session()
        await run(agent, session, stream=stream)
        await run(agent, session, stream=stream)
        histories.append(kinds(session))
    assert histories[0] == histories[1] == ["text", "function_call", "function_result", "text", "text", "text"]


@pytest.mark.parametrize("per_call", [False, True], ids=["per turn", "per call"])
async def test_a_transcript_that_is_passed_again_is_stored_and_shown_once(per_call: bool) -> None:  # noqa: FBT001
    agent = agent_of("hello", "hello", "bye", per_call=per_call)
    session = agent.create_session()
    transcript = [Message("user", "hi")]
    for said in ("hi", "leave"):
        response = await agent.run(transcript, session=session)
        transcript += [*(Message.from_dict(each.to_dict()) for each in response.messages), Message("user", said)]
    await agent.run(transcript, session=session)
    stored = [message.text for message in session.state["in_memory"]["messages"]]
    assert stored == ["hi", "hello", "hi", "hello", "leave", "bye"]
    assert isinstance(agent.client, ScriptedChatClient)
    assert [message.text for message in agent.client.calls[-1].messages[1:]] == stored[:-1]


async def test_a_user_who_says_the_same_twice_is_heard_twice() -> None:
    agent = agent_of("hello", "hello", per_call=False)
    session = agent.create_session()
    for _ in range(2):
        await agent.run("hi", session=session)
    assert [message.text for message in session.state["in_memory"]["messages"]] == ["hi", "hello"] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_fails_in_its_second_call_has_written_the_first(stream: bool) -> None:  # noqa: FBT001
    agent = agent_of(ToolCall("look"), ValueError("no"))
    session = agent.create_session()
    with pytest.raises(ValueError, match="no"):
        await run(agent, session, stream=stream)
    assert kinds(session) == ["text", "function_call"]


async def test_a_conversation_is_kept_by_one_of_the_two() -> None:
    agent = Agent(
        Model(), context_providers=[InMemoryHistoryProvider()], require_per_service_call_history_persistence=True
    )
    with pytest.raises(AgentInvalidRequestException, match="let only one of them store it"):
        await agent.run("hi", session=agent.get_session("c1"))
