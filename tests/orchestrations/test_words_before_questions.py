"""Text that a participant sends before a question is part of its turn: all others get it once, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.chain_team import Team, team
from tests.orchestrations.magentic_team import DONE, ledger, team as magentic

from perdure import AgentExecutorResponse, AgentResponse, InMemoryCheckpointStorage, Message, tool
from perdure.orchestrations import (
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffAgentUserRequest,
    HandoffBuilder,
    SequentialBuilder,
    TextMentioned,
)
from perdure.testing import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perdure import Workflow, WorkflowRunResult

SAID = ["The refund is 40.", "Anything else?"]
MODES = [(False, False, False), (True, True, True), (True, False, True), (False, True, False)]
"""Streaming, for each of the three calls of a run."""
ANSWERS: list[Any] = [HandoffAgentUserRequest.create_response("thanks"), HandoffAgentUserRequest.terminate()]


def heard_in_chat(nodes: list[Any], **more: Any) -> Workflow:
    """One after the other, in one conversation."""
    return GroupChatBuilder(participants=nodes, selection_func="round_robin", max_rounds=2, **more).build()


def heard_in_team(nodes: list[Any], **more: Any) -> Workflow:
    """One after the other, as a manager says who remembers nothing."""

    def manage(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        spoke = {message.author_name for message in messages}
        if not messages[-1].text.startswith("PROGRESS?"):
            return "so be it"
        return DONE if "z" in spoke else ledger("z" if "p" in spoke else "desk", "go on")

    return magentic(manage, participants=nodes, **more)


def heard_in_row(nodes: list[Any], **more: Any) -> Workflow:
    """One after the other, each with what was said before."""
    return SequentialBuilder(participants=nodes, **more).build()


def heard_last(nodes: list[Any], **more: Any) -> Workflow:
    """One after the other, each with what the one before has said."""
    return SequentialBuilder(participants=nodes, chain_only_agent_responses=True, **more).build()


AROUND: dict[str, Callable[..., Workflow]] = {
    "sequential": heard_in_row,
    "only answers": heard_last,
    "group chat": heard_in_chat,
    "magentic": heard_in_team,
}


def cast_of_two() -> Team:
    """Return a speaker that asks in the middle of its turn, and a listener."""
    return team(p=list(SAID), z=["Heard."])


def desk(cast: Team) -> Any:
    """A handoff, whose agent asks the user after each turn."""
    return HandoffBuilder(participants=cast.agents[:1]).with_start_agent("p").build().as_agent("desk")


async def answered(
    build: Callable[[], Workflow], *, streams: tuple[bool, ...] = (False,) * 3, answers: Sequence[Any] = ANSWERS
) -> WorkflowRunResult:
    """The end of a run whose questions are answered by a new workflow each, as other processes would."""
    result = await _run(build(), streams[0], message="go", run_id="r")
    for answer, is_stream in zip(answers, streams[1:], strict=False):
        (event,) = result.get_request_info_events()
        result = await _run(build(), is_stream, run_id="r", responses={event.request_id: answer})
    return result


async def _run(workflow: Any, is_stream: bool, **how: Any) -> WorkflowRunResult:  # noqa: FBT001 - one of a row
    if is_stream:
        return await workflow.run(stream=True, **how).get_final_response()
    return await workflow.run(**how)


@pytest.mark.parametrize("streams", MODES)
@pytest.mark.parametrize("around", AROUND)
async def test_the_next_one_hears_all_that_a_workflow_says_between_its_questions(
    around: str, streams: tuple[bool, ...]
) -> None:
    cast, storage = cast_of_two(), InMemoryCheckpointStorage()
    await answered(lambda: AROUND[around]([desk(cast), cast.agents[1]], checkpoint_storage=storage), streams=streams)
    (heard,) = cast.told("z")
    assert [text for text in heard if text in SAID] == SAID


@pytest.mark.parametrize("streams", MODES)
async def test_words_are_an_output_when_they_are_said(streams: tuple[bool, ...]) -> None:
    cast, storage = cast_of_two(), InMemoryCheckpointStorage()

    def build() -> Workflow:
        nodes = [desk(cast), cast.agents[1]]
        return SequentialBuilder(participants=nodes, output_from="all", checkpoint_storage=storage).build()

    await answered(build, streams=streams)
    kept = [event.data.text async for event in storage.events("r") if event.type == "output"]
    assert [text for text in kept if text] == [*SAID, "Heard."]


@pytest.mark.parametrize("streams", MODES)
async def test_words_are_heard_through_two_depths(streams: tuple[bool, ...]) -> None:
    cast, storage = cast_of_two(), InMemoryCheckpointStorage()

    def build() -> Workflow:
        middle = SequentialBuilder(participants=[desk(cast)]).build().as_agent("middle")
        return SequentialBuilder(participants=[middle, cast.agents[1]], checkpoint_storage=storage).build()

    await answered(build, streams=streams)
    assert cast.told("z") == [["go", *SAID]]


@pytest.mark.parametrize("streams", [mode[:2] for mode in MODES])
async def test_words_beside_a_call_inside_of_a_workflow_are_heard_however_the_run_is_read(
    streams: tuple[bool, ...],
) -> None:
    cast, storage = payers(), InMemoryCheckpointStorage()

    def build() -> Workflow:
        inner = SequentialBuilder(participants=cast.agents[:1]).build().as_agent("inner")
        return SequentialBuilder(participants=[inner, cast.agents[1]], checkpoint_storage=storage).build()

    await answered(build, streams=streams, answers=[True])
    contents = [
        (content.type, content.text)
        for call in cast.model.calls
        if call.agent == "z"
        for message in call.messages
        if message.role != "system"
        for content in message.contents
    ]
    assert contents == [
        ("text", "go"),
        ("text", "It is cheap."),
        ("function_call", None),
        ("function_result", None),
        ("text", "It is paid. DONE"),
    ]


async def test_side_by_side_each_has_one_message_with_all_that_it_said() -> None:
    cast, storage = cast_of_two(), InMemoryCheckpointStorage()
    result = await answered(
        lambda: ConcurrentBuilder(participants=[desk(cast), cast.agents[1]], checkpoint_storage=storage).build()
    )
    (output,) = result.get_outputs()
    assert [message.text for message in output.messages] == [" ".join(SAID), "Heard."]
    assert [message.author_name for message in output.messages] == ["p", "z"]


@tool(approval_mode="always_require")
def pay(amount: int) -> str:
    """Pay so much."""
    return f"paid {amount}"


def payers() -> Team:
    """Return a speaker that sends text with an approval request, and a listener."""
    return team((pay,), p=[["It is cheap.", ToolCall("pay", amount=7)], "It is paid. DONE"], z=["Heard."])


@pytest.mark.parametrize("around", ["sequential", "only answers", "group chat"])
async def test_words_beside_a_call_that_is_asked_about_are_heard_as_if_nobody_had_asked(around: str) -> None:
    cast = payers()
    workflow = AROUND[around](cast.agents)
    (event,) = (await workflow.run("a lamp")).get_request_info_events()
    await workflow.run(responses={event.request_id: True})
    assert [text for text in cast.told("z")[0] if text] == ["a lamp", "It is cheap.", "It is paid. DONE"][
        around == "only answers" :
    ]


async def test_words_beside_a_call_that_is_asked_about_are_told_in_a_handoff() -> None:
    cast = payers()
    builder = HandoffBuilder(participants=cast.agents, termination_condition=TextMentioned("DONE"))
    workflow = builder.with_start_agent("p").build()
    first = await workflow.run("a lamp")
    (event,) = first.get_request_info_events()
    second = await workflow.run(responses={event.request_id: True})
    outputs = [*first.get_outputs(), *second.get_outputs()]
    assert [output.text for output in outputs] == ["It is cheap.", "It is paid. DONE"]
    assert [output.user_input_requests for output in outputs] == [[], []]


async def test_of_an_agent_side_by_side_the_words_before_its_question_count_too() -> None:
    cast = payers()
    workflow = ConcurrentBuilder(participants=cast.agents).build()
    (event,) = (await workflow.run("a lamp")).get_request_info_events()
    result = await workflow.run(responses={event.request_id: True})
    assert [message.text for message in result.get_outputs()[0].messages] == ["It is cheap. It is paid. DONE", "Heard."]


def test_a_turn_whose_parts_stand_apart_can_be_given_another_text() -> None:
    said = [Message("assistant", [text], author_name="p") for text in SAID]
    between = [Message("user", ["go"]), said[0], Message("user", ["and now?"]), said[1]]
    answer = AgentExecutorResponse("p", AgentResponse(messages=said), between).with_text("Sorry.")
    assert [message.text for message in answer.full_conversation] == ["go", "and now?", "Sorry."]
