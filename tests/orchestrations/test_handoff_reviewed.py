"""Reviews in a handoff: a turn takes effect when it is approved, in any process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.handoffs import agents, always, asked, handed, said, shown

from perdure import (
    AgentExecutorResponse,
    AgentResponse,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Message,
    SqliteCheckpointStorage,
    WorkflowRunState,
    tool,
)
from perdure.orchestrations import AgentRequestInfoResponse, HandoffAgentUserRequest, HandoffBuilder, TextMentioned
from perdure.testing import ToolCall
from perdure.testing.crash import sweep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from perdure import Workflow, WorkflowRunResult
    from perdure.storage import StoreStorage
    from perdure.testing import ScriptedChatClient

APPROVED = AgentRequestInfoResponse.approve()
TO_BILLING = ["I fetch billing.", ToolCall("handoff_to_billing")]
TO_TECH = ["I fetch tech.", ToolCall("handoff_to_tech")]
TO_BOTH = ["Both!", ToolCall("handoff_to_billing"), ToolCall("handoff_to_tech")]


def builder(
    script: Mapping[str, Any], *, tools: Mapping[str, Sequence[Any]] | None = None, **more: Any
) -> tuple[ScriptedChatClient, HandoffBuilder]:
    client, made = agents(script, tools=tools)
    return client, HandoffBuilder(participants=made, **more).with_start_agent("triage")


def desk(
    script: Mapping[str, Any], reviewed: Sequence[str] | None = None, **more: Any
) -> tuple[ScriptedChatClient, Workflow]:
    client, made = builder(script, **more)
    return client, made.with_request_info(agents=reviewed).build()


def more(text: str) -> AgentRequestInfoResponse:
    return AgentRequestInfoResponse.from_strings([text])


def to_one(result: WorkflowRunResult, answer: Any) -> dict[str, Any]:
    """An answer to the one question."""
    return {asked(result).request_id: answer}


async def test_nobody_takes_over_before_the_turn_has_passed() -> None:
    client, workflow = desk({"triage": [TO_BILLING], "billing": ["Which bill?"]})
    first = await workflow.run("My bill is wrong.")
    request = asked(first)
    assert (request.source_executor_id, request.response_type) == ("triage", AgentRequestInfoResponse)
    assert isinstance(request.data, AgentExecutorResponse)
    assert request.data.agent_response.text == "I fetch billing."
    assert (said(first), handed(first), len(client.calls)) == ([], [], 1)
    second = await workflow.run(responses=to_one(first, APPROVED))
    assert (said(second), handed(second)) == (["triage: I fetch billing."], [("triage", "billing")])
    assert asked(second).source_executor_id == "billing"
    third = await workflow.run(responses=to_one(second, APPROVED))
    assert said(third) == ["billing: Which bill?"]
    assert isinstance(asked(third).data, HandoffAgentUserRequest)


async def test_a_turn_that_was_sent_back_hands_over_to_nobody_and_only_the_last_one_is_heard() -> None:
    client, workflow = desk({"triage": [TO_BILLING, TO_TECH], "tech": ["Try again."]}, ["triage"])
    first = await workflow.run("It is wrong.")
    second = await workflow.run(responses=to_one(first, more("Tech knows better.")))
    assert (said(second), handed(second)) == ([], [])
    texts = [message.text for message in asked(second).data.full_conversation if message.text]
    assert texts == ["It is wrong.", "I fetch billing.", "Tech knows better.", "I fetch tech."]
    third = await workflow.run(responses=to_one(second, APPROVED))
    assert handed(third) == [("triage", "tech")]
    assert said(third) == ["triage: I fetch tech.", "tech: Try again."]
    assert shown(client.calls[-1]) == ["user: It is wrong.", "triage: I fetch tech."]


async def test_a_turn_that_was_sent_back_may_ask_the_user_in_place_of_a_handoff() -> None:
    client, workflow = desk({"triage": [TO_BILLING, "What is wrong?"]})
    first = await workflow.run("It is wrong.")
    second = await workflow.run(responses=to_one(first, more("Ask first.")))
    third = await workflow.run(responses=to_one(second, APPROVED))
    assert (said(third), handed(third)) == (["triage: What is wrong?"], [])
    assert asked(third).data.agent_response.text == "What is wrong?"
    assert shown(client.calls[-1])[-1] == "user: Ask first."


async def test_the_user_is_asked_when_the_turn_has_passed_and_the_answer_is_heard() -> None:
    client, workflow = desk({"triage": ["Hello.", "Fine."]})
    first = await workflow.run("Hi.")
    second = await workflow.run(responses=to_one(first, APPROVED))
    third = await workflow.run(responses=to_one(second, HandoffAgentUserRequest.create_response("How are you?")))
    assert [message.text for message in asked(third).data.full_conversation] == ["How are you?", "Fine."]
    assert shown(client.calls[-1]) == ["user: Hi.", "triage: Hello.", "user: How are you?"]
    assert said(await workflow.run(responses=to_one(third, APPROVED))) == ["triage: Fine."]


@pytest.mark.parametrize("kind", [FileCheckpointStorage, SqliteCheckpointStorage])
async def test_each_answer_may_be_given_where_nothing_is_left_but_the_storage(kind: type, tmp_path: Path) -> None:
    script = {"triage": [TO_TECH, TO_BILLING], "billing": ["Which bill?"]}
    spoken: list[str | None] = []
    told: list[str] = []

    async def lived(message: str | None = None, responses: dict[str, Any] | None = None) -> WorkflowRunResult:
        """A process: all objects are new."""
        client, workflow = desk(script, checkpoint_storage=kind(tmp_path / "runs"))
        result = await workflow.run(message, run_id="r", responses=responses)
        spoken.extend(call.agent for call in client.calls)
        told.extend(said(result))
        return result

    result = await lived("My bill is wrong.")
    for answer in (more("Billing knows better."), APPROVED, APPROVED):
        waiting = await lived()
        assert asked(waiting).data == asked(result).data
        result = await lived(responses=to_one(waiting, answer))
    assert isinstance(asked(result).data, HandoffAgentUserRequest)
    assert spoken == ["triage", "triage", "billing"]
    assert told == ["triage: I fetch billing.", "billing: Which bill?"]


async def test_an_agent_that_goes_on_by_itself_is_asked_about_each_time() -> None:
    client, made = builder({"triage": ["One.", "Two.", "Three."]})
    made.with_autonomous_mode(turn_limits={"triage": 1}, prompts={"triage": "Go on."}).with_request_info()
    workflow = made.build()
    first = await workflow.run("Count.")
    second = await workflow.run(responses=to_one(first, APPROVED))
    assert shown(client.calls[-1])[-1] == "user: Go on."
    again = await workflow.run(responses=to_one(second, more("Count on.")))
    assert again.get_outputs() == []
    # A turn that was sent back is none that it has gone on by itself.
    last = await workflow.run(responses=to_one(again, APPROVED))
    assert said(last) == ["triage: Three."]
    assert isinstance(asked(last).data, HandoffAgentUserRequest)


@tool(approval_mode="always_require", if_interrupted="rerun")
def refund(euros: int) -> str:
    """Give money back."""
    return f"refunded {euros}"


async def test_a_tool_is_approved_first_and_then_the_turn() -> None:
    script = {"triage": [[ToolCall("refund", euros=7), ToolCall("handoff_to_billing")]], "billing": ["Well."]}
    _, workflow = desk(script, ["triage"], tools={"triage": [refund]})
    first = await workflow.run("My money!")
    assert asked(first).data.function_call.name == "refund"
    second = await workflow.run(responses=to_one(first, True))  # noqa: FBT003 - an answer
    assert (asked(second).response_type, handed(second)) == (AgentRequestInfoResponse, [])
    third = await workflow.run(responses=to_one(second, APPROVED))
    assert (handed(third), said(third)[-1]) == ([("triage", "billing")], "billing: Well.")


async def test_a_turn_that_was_sent_back_may_need_a_tool() -> None:
    script = {"triage": ["No.", ToolCall("refund", euros=7), "Done."]}
    _, workflow = desk(script, tools={"triage": [refund]})
    first = await workflow.run("My money!")
    call = await workflow.run(responses=to_one(first, more("Be kind.")))
    turn = await workflow.run(responses=to_one(call, True))  # noqa: FBT003 - an answer
    texts = [message.text for message in asked(turn).data.full_conversation if message.text]
    assert texts == ["My money!", "No.", "Be kind.", "Done."]
    assert said(await workflow.run(responses=to_one(turn, APPROVED))) == ["triage: Done."]


async def test_a_condition_looks_at_turns_that_have_passed_alone() -> None:
    seen: list[list[str]] = []

    def is_done(conversation: list[Message]) -> bool:
        seen.append([message.text for message in conversation])
        return "Goodbye" in conversation[-1].text

    _, workflow = desk({"triage": ["Goodbye, fool.", "Goodbye."]}, termination_condition=is_done)
    first = await workflow.run("Hi.")
    second = await workflow.run(responses=to_one(first, more("Be kind.")))
    last = await workflow.run(responses=to_one(second, APPROVED))
    assert (said(last), last.get_final_state()) == (["triage: Goodbye."], WorkflowRunState.IDLE)
    assert ["Hi.", "Goodbye."] in seen
    assert all("fool" not in text for conversation in seen for text in conversation)


async def test_one_that_is_sent_back_once_it_is_over_does_not_speak_again(tmp_path: Path) -> None:
    client, workflow = desk(
        {"triage": ["Hello.", "Hello again."]},
        termination_condition=TextMentioned("stop", by="user"),
        checkpoint_storage=SqliteCheckpointStorage(tmp_path / "runs.db"),
    )
    first = await workflow.run("Hi.", run_id="r")
    await workflow.run("stop")
    last = await workflow.run(responses=to_one(first, more("Louder.")))
    assert (last.get_outputs(), last.get_request_info_events(), len(client.calls)) == ([], [], 1)


async def test_nobody_is_asked_about_a_turn_that_can_not_be_taken() -> None:
    client, workflow = desk({"triage": [TO_BOTH, TO_BILLING], "billing": ["Which bill?"]}, ["triage"])
    first = await workflow.run("My bill is wrong.")
    assert len(client.calls) == 2
    assert asked(first).data.agent_response.text == "I fetch billing."
    assert "Both!" in [message.text for message in asked(first).data.full_conversation]
    second = await workflow.run(responses=to_one(first, APPROVED))
    assert handed(second) == [("triage", "billing")]
    # The others are told what has passed, and nothing else.
    assert shown(client.calls[-1]) == ["user: My bill is wrong.", "triage: I fetch billing."]


async def test_a_stream_has_approved_turns_as_responses_and_no_drafts() -> None:
    _, workflow = desk({"triage": ["Hello, fool.", "Hello."]})
    told = [event async for event in workflow.run("Hi.", stream=True)]
    assert [event for event in told if event.type in ("output", "intermediate")] == []
    [request] = [event for event in told if event.type == "request_info"]
    second = await workflow.run(responses={request.request_id: more("Be kind.")})
    told = [event async for event in workflow.run(responses=to_one(second, APPROVED), stream=True)]
    [output] = [event.data for event in told if event.type == "output"]
    assert isinstance(output, AgentResponse)
    assert output.text == "Hello."


async def test_drafts_of_those_whose_outputs_are_intermediate_are_told() -> None:
    _, workflow = desk({"triage": ["Hello, fool.", "Hello."]}, intermediate_output_from=["triage"])
    first = await workflow.run("Hi.")
    second = await workflow.run(responses=to_one(first, more("Be kind.")))
    third = await workflow.run(responses=to_one(second, APPROVED))
    told = [[output.text for output in result.get_intermediate_outputs()] for result in (first, second, third)]
    assert told == [["Hello, fool."], ["Hello."], ["Hello."]]
    assert first.get_outputs() == []


def test_only_agents_that_take_part_are_asked_about() -> None:
    _, made = builder({})
    with pytest.raises(ValueError, match="with_request_info names 'nobody', which is not a participant"):
        made.with_request_info(agents=["nobody"]).build()
    with pytest.raises(TypeError, match="agents must be a list of agents or names, not 'triage'"):
        made.with_request_info(agents="triage")


async def live(storage: StoreStorage) -> list[str]:
    """The run to its end: triage is sent back once, then its turn passes, and billing ends the conversation."""
    script = {"triage": always(TO_BILLING), "billing": always("Goodbye.")}
    condition = TextMentioned("Goodbye")
    _, workflow = desk(script, ["triage"], name="desk", checkpoint_storage=storage, termination_condition=condition)
    run = workflow.start("My bill is wrong.", run_id="r")
    await run.result()
    while run.requests:
        await run.respond({key: _reply(request.data) for key, request in run.requests.items()})
        await run.result()
    events = [event async for event in storage.events("r")]
    return [f"{event.executor_id}: {event.data.text}" for event in events if event.type == "output"]


def _reply(turn: AgentExecutorResponse) -> AgentRequestInfoResponse:
    drafts = sum(message.role == "assistant" for message in turn.full_conversation)
    return more("Are you sure?") if drafts == 1 else APPROVED


async def test_people_are_heard_whatever_store_call_the_program_dies_at() -> None:
    known: dict[str, StoreStorage] = {}
    swept = await sweep(
        live,
        storage=lambda name: known.setdefault(name, InMemoryCheckpointStorage()),
        expected=["triage: I fetch billing.", "billing: Goodbye."],
    )
    assert swept.points > len(swept.calls)
