"""An orchestration as a participant of another: its questions reach people, and their answers reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.chain_team import Team, team
from tests.orchestrations.magentic_team import DONE, Model, team as magentic

from perdure import (
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Message,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowRunState,
)
from perdure.orchestrations import (
    AgentRequestInfoResponse,
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffAgentUserRequest,
    HandoffBuilder,
    MagenticPlanReviewRequest,
    SequentialBuilder,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure import Agent, Workflow

AROUND: dict[str, Callable[[list[Any]], Workflow]] = {
    "sequential": lambda nodes: SequentialBuilder(participants=nodes).build(),
    "concurrent": lambda nodes: ConcurrentBuilder(participants=nodes).build(),
    "group chat": lambda nodes: GroupChatBuilder(
        participants=nodes, selection_func="round_robin", max_rounds=2, output_from="all"
    ).build(),
    "a plain node": lambda nodes: WorkflowBuilder(start_executor=nodes[0]).add_edge(nodes[0], nodes[1]).build(),
}


def pair() -> Team:
    return team(p=["A line.", "A longer line."], z=["Heard."])


def critic(cast: Team) -> Agent[Any]:
    return cast.agents[1]


@pytest.mark.parametrize("around", AROUND)
async def test_a_plan_inside_is_reviewed_from_outside(around: str) -> None:
    cast = pair()
    inner = magentic(Model(DONE), enable_plan_review=True).as_agent("inner")
    workflow = AROUND[around]([inner, critic(cast)])
    first = await workflow.run("tides")
    assert first.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    (event,) = first.get_request_info_events()
    assert isinstance(event.data, MagenticPlanReviewRequest)
    second = await workflow.run(responses={event.request_id: event.data.revise("be brief")})
    (again,) = second.get_request_info_events()
    result = await workflow.run(responses={again.request_id: again.data.approve()})
    assert result.get_final_state() is WorkflowRunState.IDLE
    (heard,) = cast.told("z")
    assert heard == ["tides"] if around == "concurrent" else heard == ["tides", "the answer"]


@pytest.mark.parametrize("kind", [FileCheckpointStorage, SqliteCheckpointStorage])
async def test_whoever_has_the_storage_alone_answers_in_plain_data(kind: Any, tmp_path: Path) -> None:
    cast, storage = pair(), kind(tmp_path / "runs")

    def build() -> Workflow:
        inner = SequentialBuilder(participants=cast.agents[:1]).with_request_info().build().as_agent("inner")
        return SequentialBuilder(participants=[inner, critic(cast)], checkpoint_storage=storage).build()

    await build().run("Write.", run_id="r")
    [waiting] = await storage.requests("r")
    said = {"role": "user", "contents": [{"type": "text", "text": "Longer."}]}
    await storage.respond("r", {waiting.request_id: {"messages": [said, "Please."]}})
    await build().run(run_id="r")
    assert cast.told("p")[1] == ["Write.", "A line.", "Longer.", "Please."]
    [waiting] = await storage.requests("r")
    await storage.respond("r", {waiting.request_id: {"messages": []}})
    assert (await build().run(run_id="r")).get_outputs()[0].text == "Heard."
    assert cast.told("z") == [["Write.", "A longer line."]]


async def test_a_revision_of_a_plan_can_be_given_in_plain_data() -> None:
    model, storage = Model(DONE), InMemoryCheckpointStorage()
    await magentic(model, enable_plan_review=True, checkpoint_storage=storage).run("tides", run_id="r")
    [waiting] = await storage.requests("r")
    await storage.respond("r", {waiting.request_id: {"review": ["be brief"]}})
    await magentic(model, enable_plan_review=True, checkpoint_storage=storage).run(run_id="r")
    assert [message.text for message in model.seen[2]][:-1] == ["tides", waiting.data.plan.text, "be brief"]


async def test_the_user_of_a_handoff_inside_answers_from_outside_and_in_a_stream_no_question_is_an_output() -> None:
    cast = pair()
    handoff = HandoffBuilder(participants=cast.agents[:1]).with_start_agent("p").build()
    workflow = SequentialBuilder(participants=[handoff.as_agent("inner"), critic(cast)]).build()
    events = [event async for event in workflow.run("hi", stream=True)]
    (event,) = [event for event in events if event.type == "request_info"]
    assert isinstance(event.data, HandoffAgentUserRequest)
    contents = [each for event in events if event.type in {"output", "intermediate"} for each in event.data.contents]
    assert [content.type for content in contents] == ["text"] * len(contents)
    second = await workflow.run(responses={event.request_id: ["go on"]})
    assert cast.told("p")[1] == ["hi", "A line.", "go on"]
    (event,) = second.get_request_info_events()
    ended = await workflow.run(responses={event.request_id: []})
    assert ended.get_final_state() is WorkflowRunState.IDLE


async def test_questions_of_two_depths_reach_the_outside() -> None:
    cast = pair()
    inner = SequentialBuilder(participants=cast.agents[:1]).with_request_info().build().as_agent("inner")
    middle = SequentialBuilder(participants=[inner]).build().as_agent("middle")
    workflow = SequentialBuilder(participants=[middle, critic(cast)]).build()
    (event,) = (await workflow.run("Write.")).get_request_info_events()
    more = AgentRequestInfoResponse.from_messages([Message("user", ["Longer."])])
    (event,) = (await workflow.run(responses={event.request_id: more})).get_request_info_events()
    result = await workflow.run(responses={event.request_id: AgentRequestInfoResponse.approve()})
    assert [output.text for output in result.get_outputs()] == ["Heard."]
