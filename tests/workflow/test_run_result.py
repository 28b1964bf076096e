"""`WorkflowRunResult`: a list of events, with the questions that are usually asked of it."""

import pytest

from perdure import WorkflowEvent, WorkflowRunResult, WorkflowRunState

EVENTS = [
    WorkflowEvent("output", 1, executor_id="a"),
    WorkflowEvent("intermediate", 2, executor_id="a"),
    WorkflowEvent.request_info("r", "a", "?", str),
    WorkflowEvent("output", None, executor_id="a"),
]
STATUSES = [WorkflowEvent.status(WorkflowRunState.IN_PROGRESS), WorkflowEvent.status(WorkflowRunState.IDLE)]


def test_a_result_is_the_list_of_its_events() -> None:
    result = WorkflowRunResult(EVENTS, STATUSES)
    assert isinstance(result, list)
    assert result == EVENTS


def test_outputs_intermediates_and_requests_are_picked_out_in_order() -> None:
    result = WorkflowRunResult(EVENTS, STATUSES)
    assert result.get_outputs() == [1, None]
    assert result.get_intermediate_outputs() == [2]
    assert [event.request_id for event in result.get_request_info_events()] == ["r"]


def test_the_final_state_is_the_last_status() -> None:
    assert WorkflowRunResult(EVENTS, STATUSES).get_final_state() is WorkflowRunState.IDLE


def test_without_a_status_there_is_no_final_state() -> None:
    with pytest.raises(RuntimeError, match="no status"):
        WorkflowRunResult(EVENTS).get_final_state()


def test_the_timeline_is_a_copy() -> None:
    result = WorkflowRunResult(EVENTS, STATUSES)
    result.status_timeline().clear()
    assert result.status_timeline() == STATUSES
