"""A functional workflow as an agent: it finds answers where they are, and a stream that was left is in no one's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure import Content, Message, RunContext, step, workflow

if TYPE_CHECKING:
    from perdure.storage import StoreStorage as Storage

entered: list[object] = []


@step
async def look() -> str:
    """Some work."""
    return "seen"


@workflow
async def permission(message: object, ctx: RunContext) -> str:
    """Asks twice."""
    if message not in entered:
        entered.append(message)
    await look()
    return f"{await ctx.request_info('may I?', bool)} {await ctx.request_info('really?', bool)}"


@pytest.fixture(autouse=True)
def forget() -> None:
    """Nobody was asked."""
    entered.clear()


def request_in(messages: list[Message]) -> Content:
    """What was asked last."""
    (content,) = (each for each in messages[-1].contents if each.type == "function_approval_request")
    return content


async def test_an_approval_is_found_behind_a_conversation() -> None:
    agent = permission.twin().as_agent()
    told = [Message("user", ["may you?"])]
    for _ in range(2):
        told += (await agent.run(told)).messages
        told.append(Message("user", [request_in(told).to_function_approval_response(approved=True)]))
    assert (await agent.run(told)).text == "True True"
    assert len(entered) == 1


async def test_an_approval_is_found_beside_a_text(caplog: pytest.LogCaptureFixture) -> None:
    agent = permission.twin().as_agent()
    first = await agent.run("may you?")
    approval = request_in(first.messages).to_function_approval_response(approved=True)
    second = await agent.run(Message("user", [approval, Content.from_text("thanks")]))
    assert list(agent.pending_requests) == ["auto::1"]
    assert request_in(second.messages).id == "auto::1"
    assert entered == ["may you?"]
    assert "does not get the rest of the messages" in caplog.text


async def test_an_approval_is_found_behind_a_conversation_by_an_agent_that_did_not_ask(storage: Storage) -> None:
    agent = permission.twin().as_agent()
    first = await agent.run("may you?", run_id="r", checkpoint_storage=storage)
    approval = request_in(first.messages).to_function_approval_response(approved=True)
    told = [Message("user", ["may you?"]), *first.messages, Message("user", [approval])]
    other = permission.twin().as_agent()
    await other.run(told, run_id="r", checkpoint_storage=storage)
    assert list(other.pending_requests) == ["auto::1"]


async def test_a_message_without_an_answer_begins_a_run() -> None:
    agent = permission.twin().as_agent()
    await agent.run("may you?")
    await agent.run(Message("user", ["never mind"]))
    assert len(entered) == 2


async def test_a_stream_that_was_left_blocks_nothing() -> None:
    agent = permission.twin().as_agent()
    async for _ in agent.run("may you?", stream=True):
        break
    assert (await agent.run("and now?")).messages
    updates = agent.run("again?", stream=True)
    async for _ in updates:
        break
    await updates.aclose()
    assert [update async for update in agent.run("at last?", stream=True)]
