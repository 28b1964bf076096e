"""Handoffs: all agents get all messages, one speaks, and the run continues in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.orchestrations.handoffs import NAMES, agents, answering, asked, desk, handed, said, shown

from perdure import (
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    Content,
    FileCheckpointStorage,
    Message,
    SqliteCheckpointStorage,
    WorkflowAgent,
    WorkflowRunState,
)
from perdure.orchestrations import (
    HandoffAgentUserRequest,
    HandoffBuilder,
    TextMentioned,
    clean_conversation_for_handoff,
)
from perdure.testing import ToolCall

if TYPE_CHECKING:
    from pathlib import Path

TO_BILLING = ["I fetch billing.", ToolCall("handoff_to_billing")]


async def test_a_handoff_lets_the_other_agent_speak_and_then_the_user_is_asked() -> None:
    client, workflow = desk({"triage": [TO_BILLING], "billing": ["Which bill?"]})
    result = await workflow.run("My bill is wrong.")
    assert said(result) == ["triage: I fetch billing.", "billing: Which bill?"]
    assert handed(result) == [("triage", "billing")]
    request = asked(result)
    assert (request.source_executor_id, request.response_type) == ("billing", list[Message])
    assert request.data.agent_response.text == "Which bill?"
    assert [call.agent for call in client.calls] == ["triage", "billing"]
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


async def test_all_agents_hear_words_and_nobody_hears_calls_of_another() -> None:
    script = {
        "triage": [TO_BILLING],
        "billing": ["Which bill?", ["Ask tech.", ToolCall("handoff_to_tech")]],
        "tech": ["Try again."],
    }
    client, workflow = desk(script)
    first = await workflow.run("My bill is wrong.")
    result = await workflow.run(responses=answering(first, "the last one"))
    assert handed(result) == [("billing", "tech")]
    assert shown(client.calls[-1]) == [
        "user: My bill is wrong.",
        "triage: I fetch billing.",
        "billing: Which bill?",
        "user: the last one",
        "billing: Ask tech.",
    ]


async def test_an_agent_that_gets_the_conversation_back_knows_that_it_had_handed_over() -> None:
    script = {"triage": [TO_BILLING, "Welcome back."], "billing": [ToolCall("handoff_to_triage")]}
    client, workflow = desk(script)
    result = await workflow.run("My bill is wrong.")
    assert said(result)[-1] == "triage: Welcome back."
    assert shown(client.calls[-1]) == [
        "user: My bill is wrong.",
        "triage: I fetch billing. handoff_to_billing",
        'triage: {"handoff_to": "billing"}',
    ]


@pytest.mark.parametrize("kind", [FileCheckpointStorage, SqliteCheckpointStorage])
async def test_the_conversation_goes_on_where_nothing_is_left_but_the_storage(kind: type, tmp_path: Path) -> None:
    script = {"triage": [TO_BILLING], "billing": ["Which bill?", "It is paid."]}
    first = await desk(script, checkpoint_storage=kind(tmp_path / "runs"))[1].run("My bill is wrong.", run_id="r")
    client, again = desk(script, checkpoint_storage=kind(tmp_path / "runs"))
    waiting = await again.run(run_id="r")
    assert asked(waiting).data == asked(first).data
    result = await again.run(run_id="r", responses=answering(waiting, "the last one"))
    assert said(result)[-1] == "billing: It is paid."
    assert [call.agent for call in client.calls] == ["billing"]
    assert shown(client.calls[0])[-2:] == ["billing: Which bill?", "user: the last one"]


async def test_events_of_a_handoff_can_be_read_from_the_storage(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    _, workflow = desk({"triage": [TO_BILLING], "billing": ["Which bill?"]}, checkpoint_storage=storage)
    await workflow.run("My bill is wrong.", run_id="r")
    run = await workflow.start(run_id="r")
    assert handed([event async for event in run.events(from_seq=1)]) == [("triage", "billing")]


async def test_a_stream_tells_pieces_of_each_agent() -> None:
    _, workflow = desk({"triage": [TO_BILLING], "billing": ["Which bill?"]})
    told = [event async for event in workflow.run("My bill is wrong.", stream=True)]
    outputs = [event for event in told if event.type == "output"]
    assert all(isinstance(event.data, AgentResponseUpdate) for event in outputs)
    words = {name: "".join(event.data.text for event in outputs if event.executor_id == name) for name in NAMES}
    assert words == {"triage": "I fetch billing.", "billing": "Which bill?", "tech": ""}
    assert handed(told) == [("triage", "billing")]


async def test_a_user_who_says_nothing_more_ends_the_conversation() -> None:
    client, workflow = desk({"triage": ["Hello."]})
    first = await workflow.run("Hi.")
    result = await workflow.run(responses={asked(first).request_id: HandoffAgentUserRequest.terminate()})
    assert result.get_final_state() is WorkflowRunState.IDLE
    assert (said(result), len(client.calls)) == ([], 1)


async def test_a_later_turn_begins_with_the_start_agent_and_all_hear_it(tmp_path: Path) -> None:
    client, workflow = desk(
        {"triage": ["Hello.", ToolCall("handoff_to_tech")], "tech": ["Try again."]},
        checkpoint_storage=SqliteCheckpointStorage(tmp_path / "runs.db"),
    )
    first = await workflow.run("Hi.", run_id="r")
    await workflow.run(run_id="r", responses={asked(first).request_id: HandoffAgentUserRequest.terminate()})
    result = await workflow.run("It broke.")
    assert handed(result) == [("triage", "tech")]
    assert shown(client.calls[-1]) == ["user: Hi.", "triage: Hello.", "user: It broke."]


async def test_a_condition_ends_the_conversation_before_the_user_is_asked() -> None:
    script = {"triage": [TO_BILLING], "billing": ["Goodbye."]}
    _, workflow = desk(script, termination_condition=TextMentioned("Goodbye"))
    result = await workflow.run("My bill is wrong.")
    assert result.get_request_info_events() == []
    assert said(result) == ["triage: I fetch billing.", "billing: Goodbye."]


async def test_a_condition_that_holds_for_the_input_lets_nobody_speak() -> None:
    async def is_rude(conversation: list[Message]) -> bool:
        return "fool" in conversation[-1].text

    client, workflow = desk({}, termination_condition=is_rude)
    result = await workflow.run("You fool.")
    assert (client.calls, result.get_outputs(), result.get_request_info_events()) == ([], [], [])


async def test_a_condition_sees_the_conversation_of_all_agents() -> None:
    seen: list[list[str]] = []

    def note(conversation: list[Message]) -> bool:
        seen.append([message.text for message in conversation])
        return False

    _, workflow = desk({"triage": [TO_BILLING], "billing": ["Which bill?"]}, termination_condition=note)
    await workflow.run("My bill is wrong.")
    assert seen[-1] == ["My bill is wrong.", "I fetch billing.", "Which bill?"]


async def test_answers_go_to_the_start_agent_if_that_is_wished() -> None:
    client, made = agents({"triage": [TO_BILLING, ToolCall("handoff_to_tech")], "billing": ["Which bill?"]})
    builder = HandoffBuilder(participants=made).with_start_agent(made[0]).enable_return_to_previous(False)  # noqa: FBT003 - the documented form
    workflow = builder.build()
    first = await workflow.run("My bill is wrong.")
    result = await workflow.run(responses=answering(first, "the last one"))
    assert handed(result) == [("triage", "tech")]
    assert shown(client.calls[2])[-2:] == ["billing: Which bill?", "user: the last one"]


async def test_an_answer_without_words_is_asked_for_again() -> None:
    client, workflow = desk({"triage": ["Hello.", "Fine."]})
    first = await workflow.run("Hi.")
    empty = [Message("user", [Content.from_function_result("c", result="x")])]
    again = await workflow.run(responses={asked(first).request_id: empty})
    assert [event.type for event in again if event.type == "warning"] == ["warning"]
    result = await workflow.run(responses=answering(again, "well"))
    assert (said(result), len(client.calls)) == (["triage: Fine."], 2)


async def test_a_message_without_words_is_refused() -> None:
    _, workflow = desk({})
    with pytest.raises(ValueError, match="got no input"):
        await workflow.run([Message("user", [])])


async def test_whoever_uses_a_desk_as_an_agent_reads_what_it_asks() -> None:
    _, workflow = desk({"triage": ["Who are you?"]})
    response = await workflow.as_agent("desk").run("hi")
    [call] = [content for content in response.messages[-1].contents if content.type == "function_call"]
    asked_for = WorkflowAgent.RequestInfoFunctionArgs.from_dict(call.parse_arguments() or {}).request_event
    assert isinstance(asked_for.data, HandoffAgentUserRequest)
    assert asked_for.response_type == list[Message]


async def test_a_handoff_is_talked_to_as_an_agent() -> None:
    client, workflow = desk({"triage": [TO_BILLING], "billing": ["Which bill?"]})
    agent = workflow.as_agent("desk")
    session = AgentSession()
    response = await agent.run("My bill is wrong.", session=session)
    assert "Which bill?" in response.text
    assert response.user_input_requests or any(
        content.type == "function_call" for message in response.messages for content in message.contents
    )
    assert [call.agent for call in client.calls] == ["triage", "billing"]


async def test_a_user_chats_with_a_handoff_in_plain_text() -> None:
    script = {"triage": [TO_BILLING], "billing": ["Which bill?", "From when?", "It is paid."]}
    client, workflow = desk(script, termination_condition=TextMentioned("paid", by="billing"))
    agent, session = workflow.as_agent("desk"), AgentSession()
    said = [(await agent.run(text, session=session)).text for text in ("My bill is wrong.", "Number 17.", "May.")]
    assert said == ["I fetch billing.Which bill?", "From when?", "It is paid."]
    assert shown(client.calls[-1])[-3:] == ["user: Number 17.", "billing: From when?", "user: May."]


async def test_a_conversation_that_is_told_again_is_known_once() -> None:
    seen: list[list[str]] = []

    def is_answered(conversation: list[Message]) -> bool:
        seen.append([message.text for message in conversation])
        return conversation[-1].role == "assistant"

    client, workflow = desk({"triage": ["Hello.", "Fine."]}, termination_condition=is_answered)
    agent, session = workflow.as_agent("desk"), AgentSession()
    await agent.run("Hi.", session=session)
    await agent.run("How are you?", session=session)
    assert seen[-1] == ["Hi.", "Hello.", "How are you?", "Fine."]
    assert shown(client.calls[-1]) == ["user: Hi.", "triage: Hello.", "user: How are you?"]


def test_what_others_hear_are_words_and_what_users_send() -> None:
    picture = Content.from_uri("https://example.org/a.png", media_type="image/png")
    call = Content.from_function_call("c", "look", arguments={})
    conversation = [
        Message("user", ["see", picture], author_name="ada", additional_properties={"a": 1}),
        Message("assistant", ["I look.", call, picture], author_name="tech"),
        Message("tool", [Content.from_function_result("c", result="x")]),
        Message("assistant", [""]),
    ]
    cleaned = clean_conversation_for_handoff(conversation)
    assert [[content.type for content in message.contents] for message in cleaned] == [["text", "uri"], ["text"]]
    assert [message.author_name for message in cleaned] == ["ada", "tech"]
    assert cleaned[0].additional_properties == {"a": 1}
    assert len(conversation[1].contents) == 3


def test_an_answer_is_made_of_texts_and_messages() -> None:
    request = HandoffAgentUserRequest(AgentResponse())
    hello = Message("user", ["hello"])
    assert [request.create_response(each) for each in ("hello", hello, ["hello"], [hello])] == [[hello]] * 4
    with pytest.raises(TypeError, match="a Message or a list of these, not 7"):
        request.create_response(7)  # pyright: ignore[reportArgumentType] - it is refused
