"""Plan reviews: an approved plan is followed; a rejected one is replaced and reviewed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.magentic_team import DONE, STUCK, Model, ledger, team, told

from perdure import FileCheckpointStorage, Message, SqliteCheckpointStorage, WorkflowRunState
from perdure.orchestrations import MagenticPlanReviewRequest, MagenticPlanReviewResponse

if TYPE_CHECKING:
    from pathlib import Path

    from perdure import WorkflowRunResult


def request_of(result: WorkflowRunResult) -> MagenticPlanReviewRequest:
    """Return the open requests of a run."""
    [event] = result.get_request_info_events()
    assert event.request_id == event.data.request_id
    return event.data


async def test_nobody_acts_before_the_plan_is_approved() -> None:
    model = Model()
    workflow = team(model, enable_plan_review=True)
    result = await workflow.run("tides")
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert model.asked == ["FACTS?", "PLAN?"]
    request = request_of(result)
    assert (request.plan.text, request.current_progress) == ("tides / the facts / the plan", None)
    assert not request.is_stalled
    result = await workflow.run(responses={request.request_id: request.approve()})
    assert result.get_outputs()[0].text == "the answer"
    assert model.asked[2:] == ["PROGRESS?", "PROGRESS?", "ANSWER?"]


async def test_a_revised_plan_is_asked_about_again() -> None:
    model = Model(DONE)
    workflow = team(model, enable_plan_review=True)
    request = request_of(await workflow.run("tides"))
    result = await workflow.run(responses={request.request_id: request.revise("be brief")})
    assert told(result) == ["replanned"]
    second = request_of(result)
    assert second.request_id != request.request_id
    assert second.plan.text == "tides / new facts / a new plan"
    result = await workflow.run(responses={second.request_id: second.approve()})
    assert result.get_outputs()[0].text == "the answer"


async def test_a_manager_is_shown_each_plan_that_it_is_to_revise_before_what_a_person_says_of_it() -> None:
    model = Model(DONE, new_facts=["second facts", "third facts"], new_plan=["a second plan", "a third plan"])
    workflow = team(model, enable_plan_review=True)
    request = request_of(await workflow.run("tides"))
    for feedback in ("be brief", "briefer"):
        request = request_of(await workflow.run(responses={request.request_id: request.revise(feedback)}))
    said = ["tides", "tides / the facts / the plan", "be brief"]
    assert [message.text for message in model.seen[2]] == [*said, "NEW FACTS? the facts"]
    assert [message.text for message in model.seen[3]][:3] == said
    said += ["tides / second facts / a second plan", "briefer"]
    assert [message.text for message in model.seen[4]] == [*said, "NEW FACTS? second facts"]
    await workflow.run(responses={request.request_id: request.approve()})
    assert [message.text for message in model.seen[6]] == [*said, request.plan.text, "PROGRESS? ada, bob"]


async def test_a_manager_is_shown_the_plan_of_a_team_that_was_stuck_which_a_person_wants_changed() -> None:
    model = Model(STUCK, DONE)
    workflow = team(model, max_stall_count=0, enable_plan_review=True)
    request = request_of(await workflow.run("tides"))
    request = request_of(await workflow.run(responses={request.request_id: request.approve()}))
    await workflow.run(responses={request.request_id: request.revise("ask Bob")})
    shown = [message.text for message in model.seen[-2]]
    assert shown == ["tides / new facts / a new plan", "ask Bob", "NEW FACTS? new facts"]


async def test_a_new_plan_of_a_team_that_was_stuck_is_asked_about_with_the_reason() -> None:
    model = Model(STUCK, ledger("bob", "write"), DONE)
    workflow = team(model, max_stall_count=0, enable_plan_review=True)
    request = request_of(await workflow.run("tides"))
    request = request_of(await workflow.run(responses={request.request_id: request.approve()}))
    assert request.is_stalled
    assert request.current_progress is not None
    assert request.current_progress.is_progress_being_made.answer is False
    request = request_of(await workflow.run(responses={request.request_id: request.revise("ask Bob")}))
    assert request.is_stalled
    result = await workflow.run(responses={request.request_id: request.approve()})
    assert result.get_outputs()[0].text == "the answer"


@pytest.mark.parametrize("kind", [FileCheckpointStorage, SqliteCheckpointStorage])
async def test_whoever_has_the_storage_alone_can_approve(kind: Any, tmp_path: Path) -> None:
    storage = kind(tmp_path / "runs")
    model = Model()
    await team(model, enable_plan_review=True, checkpoint_storage=storage).run("tides", run_id="r")
    [waiting] = await storage.requests("r")
    assert isinstance(waiting.data, MagenticPlanReviewRequest)
    approves = {waiting.request_id: waiting.approves}
    await storage.respond("r", {waiting.request_id: waiting.data.approve()}, by="alice", approves=approves)
    result = await team(model, enable_plan_review=True, checkpoint_storage=storage).run(run_id="r")
    assert result.get_outputs()[0].text == "the answer"
    assert model.asked[:3] == ["FACTS?", "PLAN?", "PROGRESS?"]


async def test_an_answer_may_be_plain_values() -> None:
    workflow = team(enable_plan_review=True)
    request = request_of(await workflow.run("tides"))
    result = await workflow.run(responses={request.request_id: {"review": []}})
    assert result.get_outputs()[0].text == "the answer"


@pytest.mark.parametrize("nothing", ["", "  ", [], [""], [Message("user", [])]])
def test_a_revision_that_says_nothing_is_no_approval(nothing: Any) -> None:
    with pytest.raises(ValueError, match="feedback is empty"):
        MagenticPlanReviewResponse.revise(nothing)


def test_a_revision_is_a_text_a_message_or_several() -> None:
    request = MagenticPlanReviewRequest(Message("assistant", ["a plan"]), None, is_stalled=False)
    message = Message("user", ["two"])
    assert request.revise(["one", message]).review == [Message("user", ["one"]), message]
    assert request.revise(message).review == [message]
    assert request.approve().review == []
