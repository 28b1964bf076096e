"""A workflow as agent with a session: what its agents are told in each turn, and what is told of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.agents.desks import Asker, answer, calls, desk, saved
from tests.agents.talkers import Model, agent

from perdure import InMemoryCheckpointStorage, WorkflowBuilder
from perdure.agents import Agent, Content, Message, SessionContext, drop_known_messages, tool
from perdure.errors import AgentException
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents import AgentSession
    from perdure.workflows import WorkflowAgent


@tool(approval_mode="always_require")
def pay(who: str) -> str:
    return f"paid {who}"


class Cashier:
    """A model that pays everybody it is told of, and what it was shown in each call."""

    def __init__(self) -> None:
        self.shown: list[list[str]] = []

    def __call__(self, messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        self.shown.append([_in_short(content) for message in messages for content in message.contents])
        if messages[-1].role == "tool":
            return "done"
        names = messages[-1].text.split()
        return "hi" if names == ["hello"] else [ToolCall("pay", who=name) for name in names]

    def agent(self) -> Agent[Any]:
        return Agent(ScriptedChatClient(self), name="cashier", tools=pay)


def _in_short(content: Content) -> str:
    return content.text or f"{content.type} {content.result or ''}".strip()


async def approve(talker: WorkflowAgent, session: AgentSession, asked: Sequence[Content]) -> Any:
    given = [request.to_function_approval_response(approved=True) for request in asked]
    return await talker.run(Message("user", given), session=session)


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_calls_that_were_approved_are_not_told_to_their_agent_again(storage: Any) -> None:
    cashier = Cashier()
    talker = desk(cashier.agent(), storage=storage)
    session = talker.create_session()
    asked = (await talker.run("ada bob", session=session)).user_input_requests
    await approve(talker, session, asked)
    assert (await talker.run("hello", session=session)).text == "hi"
    results = ["function_result paid ada", "function_result paid bob"]
    assert cashier.shown[-1] == ["ada bob", "function_call", "function_call", *results, "done", "hello"]


async def test_calls_that_were_approved_are_not_told_again_inside_of_another_workflow() -> None:
    cashier, storage = Cashier(), InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(name="o", start_executor=desk(cashier.agent()), checkpoint_storage=storage).build()
    (asked,) = (await workflow.run("ada", run_id="r")).get_request_info_events()
    await workflow.run(responses={asked.request_id: True})
    await workflow.run("hello")
    assert cashier.shown[-1] == ["ada", "function_call", "function_result paid ada", "done", "hello"]


async def test_a_workflow_of_agents_is_given_what_is_new_and_no_more_with_each_turn() -> None:
    storage, first, second = InMemoryCheckpointStorage(), Model(lambda _: "one"), Model(lambda _: "two")
    talker = desk(agent("first", first), agent("second", second), storage=storage)
    session = talker.create_session()
    for number in range(4):
        await talker.run(f"q{number}", session=session)
    assert first.shown[-1] == ["q0", "one", "two", "q1", "one", "two", "q2", "one", "two", "q3"]
    assert second.shown[-1] == ["q0", "one", "two", "q1", "one", "two", "q2", "one", "two", "q3", "one"]
    given = [
        len(cast("list[Any]", message.data))
        for checkpoint in await storage.list_checkpoints(workflow_name="desk")
        for sent in checkpoint.messages.values()
        for message in sent
        if isinstance(message.data, list)
    ]
    assert sorted(set(given)) == [1, 4]


async def test_a_session_that_goes_on_from_an_older_checkpoint_tells_all_that_was_said() -> None:
    storage, model = InMemoryCheckpointStorage(), Model()
    talker = desk(agent("host", model), storage=storage)
    session = talker.create_session()
    await talker.run("a", session=session)
    first = (await storage.list_checkpoints(workflow_name="desk"))[-1].checkpoint_id
    await talker.run("b", session=session)
    await talker.run("c", session=session, checkpoint_id=first)
    assert model.shown[-1] == ["a", "1:a", "b", "3:b", "c"]


async def test_a_workflow_in_a_workflow_that_are_both_agents_keeps_what_was_said_once() -> None:
    model = Model(lambda _: "yes")
    talker = desk(desk(agent("host", model), name="inner"), name="outer")
    session = talker.create_session()
    for number in range(3):
        await talker.run(f"q{number}", session=session)
    assert model.shown[-1] == ["q0", "yes", "q1", "yes", "q2"]


def test_calls_and_results_are_known_by_their_ids_in_whatever_order() -> None:
    call = Content.from_function_call("1", "pay", arguments={"who": "ada"})
    results = [Content.from_function_result(key, result="paid") for key in ("1", "2")]
    told = SessionContext(input_messages=[])
    told.extend_messages("h", [Message("assistant", ["so", call]), Message("tool", results), Message("user", ["go"])])
    known = [Message("assistant", [Content.from_function_call("1", "pay")]), Message("tool", [results[1], results[0]])]
    heard = drop_known_messages(told.get_messages(), known)
    assert [(message.role, [_in_short(each) for each in message.contents]) for message in heard] == [
        ("assistant", ["so"]),
        ("user", ["go"]),
    ]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_what_still_waits_is_told_after_each_answer_and_kept_once(storage: Any) -> None:
    cashier = Cashier()
    talker = desk(cashier.agent(), storage=storage)
    session = talker.create_session()
    first, second = (await talker.run("ada bob", session=session)).user_input_requests
    (left,) = (await approve(talker, session, [first])).user_input_requests
    assert left.id == second.id
    assert (await approve(talker, session, [left])).text == "done"
    history = [content.type for each in session.state["in_memory"]["messages"] for content in each.contents]
    assert history.count("function_approval_request") == 2
    assert (await talker.run("hello", session=session)).text == "hi"
    assert cashier.shown[-1].count("function_call") == 2


async def test_a_stream_tells_what_still_waits_too() -> None:
    talker = desk(Asker("asker"))
    session = talker.create_session()
    first, second = calls(await talker.run("tea cake", session=session))
    told = await talker.run(answer(first, result=True), session=session, stream=True).get_final_response()
    assert [each.call_id for each in calls(told)] == [second.call_id]
    assert "tea: True" in told.text


async def test_an_answer_that_is_given_again_is_not_answered_with_another_turn() -> None:
    storage = InMemoryCheckpointStorage()
    talker = desk(Cashier().agent(), storage=storage)
    session = talker.create_session()
    asked = (await talker.run("ada", session=session)).user_input_requests
    before = saved(session)
    assert (await approve(talker, session, asked)).text == "done"
    known = list(session.state["in_memory"]["messages"])
    with pytest.raises(AgentException, match="the session has the result"):
        await approve(talker, session, asked)
    assert list(session.state["in_memory"]["messages"]) == known
    assert (await approve(talker, saved(before), asked)).text == "done"
    await talker.run("hello", session=session)
    with pytest.raises(AgentException, match="the run has gone on since"):
        await approve(talker, saved(before), asked)
