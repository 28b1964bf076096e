"""Ids of calls: whatever models call them, each question, answer and result is about one call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from perdure import WorkflowBuilder
from perdure.agents import (
    Agent,
    AgentExecutor,
    AgentSession,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    InMemoryHistoryProvider,
    Message,
    tool,
)
from perdure.agents.turn.call_ids import CallIds
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.conftest import Storage

    from perdure import Workflow

both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def paying(to: str, call_id: Any) -> Content:
    return Content.from_function_call(call_id, "pay", arguments={"to": to})


def calling(*calls: Any) -> Any:
    """What a model says that makes calls, or what a text makes calls of, and is done when it is told the results."""

    def say(said: Sequence[Message], _: Mapping[str, Any]) -> Any:
        if said[-1].role == "tool":
            return "done"
        return [each(said[-1].text) if callable(each) else each for each in calls]

    return say


class Till:
    """Counts payments, each of which has to be approved."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    @tool(approval_mode="always_require")
    def pay(self, to: str) -> str:
        """Pay."""
        self.paid.append(to)
        return f"paid {to}"

    def agent(self, say: Any, name: str = "clerk", **more: Any) -> Agent[Any]:
        return Agent(ScriptedChatClient(say), name=name, tools=[self.pay], **more)


def answers(*asked: Content, approved: bool = True) -> Message:
    return Message("user", [each.to_function_approval_response(approved) for each in asked])


@pytest.mark.parametrize("call_id", ["", None, "same"])
async def test_calls_that_the_model_does_not_tell_apart_are_asked_about_each(call_id: Any) -> None:
    till, session = Till(), AgentSession()
    agent = till.agent(calling(paying("ada", call_id), paying("eve", call_id)))
    asked = (await agent.run("pay", session=session)).user_input_requests
    assert [each.function_call and each.function_call.arguments for each in asked] == [{"to": "ada"}, {"to": "eve"}]
    assert len({each.id for each in asked}) == 2
    await agent.run(answers(asked[0]), session=session)
    assert till.paid == ["ada"]
    await agent.run(answers(asked[1], approved=False), session=session)
    assert till.paid == ["ada"]


@pytest.mark.parametrize("call_id", ["", "same"])
async def test_in_a_workflow_no_call_is_made_that_was_not_asked_about(call_id: str, storage: Storage) -> None:
    till = Till()

    def build() -> Workflow:
        agent = till.agent(calling(paying("ada", call_id), paying("eve", call_id)))
        return WorkflowBuilder(name="w", start_executor=agent, checkpoint_storage=storage).build()

    asked = (await build().run("pay", run_id="r")).get_request_info_events()
    given = {event.request_id: event.data.function_call.arguments["to"] == "ada" for event in asked}
    assert list(given.values()) == [True, False]
    await build().run(run_id="r", responses=given)
    assert till.paid == ["ada"]


@both_modes
@pytest.mark.parametrize("is_per_call", [False, True], ids=["at the end", "after each call"])
async def test_a_model_that_counts_its_calls_anew_is_shown_each_with_its_result(
    stream: bool,  # noqa: FBT001
    is_per_call: bool,  # noqa: FBT001
) -> None:
    till, session = Till(), AgentSession()
    agent = till.agent(
        calling(partial(paying, call_id="functions.pay:0")),
        context_providers=[InMemoryHistoryProvider()],
        require_per_service_call_history_persistence=is_per_call,
    )

    async def run(said: Any) -> Any:
        found: Any = agent.run(said, stream=stream, session=session)
        return await (found.get_final_response() if stream else found)

    for name in ("ada", "eve"):
        (asked,) = (await run(name)).user_input_requests
        await run(answers(asked, approved=name == "eve"))
    assert till.paid == ["eve"]
    client: Any = agent.client
    shown = [content for message in client.calls[-1].messages for content in message.contents]
    calls = [content.call_id for content in shown if content.type == "function_call"]
    assert len(set(calls)) == 2
    assert [content.call_id for content in shown if content.type == "function_result"] == calls
    assert shown[-1].result == "paid eve"


async def test_an_old_answer_does_not_answer_a_new_question() -> None:
    till, session = Till(), AgentSession()
    agent = till.agent(calling(paying("ada", "c")))
    (first,) = (await agent.run("pay", session=session)).user_input_requests
    await agent.run(answers(first), session=session)
    (second,) = (await agent.run("pay", session=session)).user_input_requests
    assert second.id != first.id
    with pytest.raises(Exception, match="there is no question for approval"):
        await agent.run(answers(first), session=session)
    assert till.paid == ["ada"]


async def test_a_question_that_is_open_is_not_replaced_by_one_under_its_id(storage: Storage) -> None:
    till = Till()

    def build() -> Workflow:
        def say(said: Sequence[Message], _: Mapping[str, Any]) -> Any:
            return paying(said[-1].text, "c") if said[-1].text in {"ada", "eve"} else "done"

        return WorkflowBuilder(name="w", start_executor=till.agent(say), checkpoint_storage=storage).build()

    await build().run("ada", run_id="r")
    await storage.send("r", "eve")
    asked = (await build().run(run_id="r")).get_request_info_events()
    given = {event.request_id: event.data.function_call.arguments["to"] == "ada" for event in asked}
    assert len(given) == 2
    await build().run(run_id="r", responses=given)
    assert till.paid == ["ada"]


async def test_agents_that_share_a_session_and_ask_under_one_id_are_both_answered(storage: Storage) -> None:
    till = Till()

    def build() -> Workflow:
        session = AgentSession(session_id="s")
        ada, bob = (
            AgentExecutor(till.agent(calling(paying(name, "c")), name), session=session) for name in ("ada", "bob")
        )
        first = Agent(ScriptedChatClient(["go"]), name="first")
        builder = WorkflowBuilder(name="w", start_executor=first, checkpoint_storage=storage)
        return builder.add_fan_out_edges(first, [ada, bob]).build()

    asked = (await build().run("pay", run_id="r")).get_request_info_events()
    given = {event.request_id: event.data.function_call.arguments["to"] == "bob" for event in asked}
    assert sorted(given.values()) == [False, True]
    await build().run(run_id="r", responses=given)
    assert till.paid == ["bob"]


@pytest.mark.parametrize("inner_id", ["functions.pay:0", "outer:0"], ids=["like each other", "like the outer call"])
async def test_questions_of_two_calls_of_an_inner_agent_are_two(inner_id: str, storage: Storage) -> None:
    till = Till()

    def build() -> Workflow:
        inner = till.agent(calling(paying("ada", inner_id)), "expert")

        tasks = [Content.from_function_call(f"outer:{n}", "expert", arguments={"task": "x"}) for n in range(2)]

        chief = Agent(ScriptedChatClient(calling(*tasks)), name="chief", tools=[inner.as_tool()])
        return WorkflowBuilder(name="w", start_executor=chief, checkpoint_storage=storage).build()

    asked = (await build().run("pay", run_id="r")).get_request_info_events()
    assert len(asked) == 2
    result = await build().run(
        run_id="r", responses=dict(zip([e.request_id for e in asked], (True, False), strict=True))
    )
    assert till.paid == ["ada"]
    assert [output.text for output in result.get_outputs()] == ["done"]


async def test_a_question_goes_through_agents_in_agents_and_its_answer_back() -> None:
    till, session = Till(), AgentSession()
    innermost = till.agent(calling(paying("ada", "c")), "innermost")
    middle = Agent(
        ScriptedChatClient(calling(ToolCall("innermost", task="x"))), name="middle", tools=[innermost.as_tool()]
    )
    outer = Agent(ScriptedChatClient([ToolCall("middle", task="x"), "done"]), name="outer", tools=[middle.as_tool()])
    (asked,) = (await outer.run("go", session=session)).user_input_requests
    assert (await outer.run(answers(asked), session=session)).text == "done"
    assert till.paid == ["ada"]


def test_ids_of_a_conversation_that_the_provider_keeps_stay() -> None:
    ids = CallIds("clerk", {"c"}, is_stored_by_provider=True)
    answer: ChatResponse[Any] = ChatResponse(messages=Message("assistant", [paying("ada", "c"), paying("eve", "c")]))
    first, second = ids.assign(answer).messages[0].contents
    assert first.call_id == "c"
    assert second.call_id not in {"c", ""}


def test_a_call_that_is_said_twice_is_one_and_an_answer_that_is_well_is_the_very_same() -> None:
    twice: ChatResponse[Any] = ChatResponse(messages=Message("assistant", [paying("ada", "c"), paying("ada", "c")]))
    assert CallIds("clerk", set(), is_stored_by_provider=False).assign(twice) == twice
    renamed = CallIds("clerk", {"c"}, is_stored_by_provider=False).assign(twice).messages[0].contents
    assert [content.call_id for content in renamed] == ["c-2", "c-2"]
    assert [content.call_id for content in twice.messages[0].contents] == ["c", "c"], "what was given is not changed"


def test_pieces_have_the_ids_that_the_whole_will_have() -> None:
    pieces = [ChatResponseUpdate(contents=[paying(name, call_id)]) for name, call_id in (("ada", "c"), ("eve", "c-2"))]
    of_pieces, of_whole = (CallIds("clerk", {"c"}, is_stored_by_provider=False) for _ in range(2))
    told = [of_pieces.assign_update(piece).contents[0].call_id for piece in pieces]
    whole = of_whole.assign(ChatResponse(messages=Message("assistant", [each.contents[0] for each in pieces])))
    assert [content.call_id for content in whole.messages[0].contents] == told == ["c-2", "c-2-2"]


def test_an_id_that_is_made_is_one_that_every_provider_takes() -> None:
    ids = CallIds("Müller & Co, the clerk " * 9, set(), is_stored_by_provider=False)
    answer: ChatResponse[Any] = ChatResponse(messages=Message("assistant", [paying("ada", "")]))
    made = ids.assign(answer).messages[0].contents[0].call_id or ""
    assert 0 < len(made) <= 64
    assert all(character.isascii() and (character.isalnum() or character in "_-") for character in made)
