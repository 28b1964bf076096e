"""What an execution has told, as a result; and what is told in place of a node that had no chance to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure import WorkflowEvent, WorkflowRunState
from perdure.agent_workflows.events import WorkflowAgentCompletedEvent
from perdure.agent_workflows.result import AgentWorkflowResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.agent_workflows.definition import Definition
    from perdure.agent_workflows.result import ExecutionState


def result_of(execution_id: str, events: Sequence[WorkflowEvent[Any]]) -> AgentWorkflowResult:
    """What an execution has come to, by what it has told until it rested."""
    for event in reversed(events):
        if event.type == "output" and isinstance(event.data, AgentWorkflowResult):
            # One that a host has begun does not know by which id others know it.
            return replace(event.data, execution_id=execution_id)
    state = _state(events)
    requests = _open_requests(events)
    return AgentWorkflowResult(
        execution_id=execution_id, success=False, state=state, requests=requests, error=_REASONS[state]
    )


_REASONS: dict[ExecutionState, str] = {
    "waiting": "it waits for answers: give them to resume(responses={id: ...}), the ids are those of `requests`",
    "sleeping": "it waits for its time: resume() goes on with it",
    "cancelled": "it was cancelled, or its time was up: resume() goes on with it, with timeout=... for more time",
    "completed": "it has ended without a result",
}


def _state(events: Sequence[WorkflowEvent[Any]]) -> ExecutionState:
    told = [event.state for event in events if event.state is not None]
    match told[-1] if told else None:
        case WorkflowRunState.IDLE_WITH_PENDING_REQUESTS | WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS:
            return "waiting"
        case WorkflowRunState.SLEEPING:
            return "sleeping"
        case WorkflowRunState.CANCELLED:
            return "cancelled"
        case _:
            return "completed"


def _open_requests(events: Iterable[WorkflowEvent[Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in events:
        if event.type == "request_info":
            found[event.request_id] = event.data
        elif event.type == "answered":
            found.pop(event.request_id, None)
    return found


class Narrator:
    """Adds what the conductor can't tell: that a node has failed which stops the run, and the conductor with it."""

    def __init__(self, definition: Definition) -> None:
        self._stopping = {node.id for node in definition.nodes if node.on_error.mode == "stop"}
        self._failed: WorkflowEvent[Any] | None = None

    def told(self, event: WorkflowEvent[Any]) -> Iterator[WorkflowEvent[Any]]:
        """The event, and before the news that the run has failed that of its node."""
        if event.type == "executor_failed" and event.executor_id in self._stopping:
            self._failed = event
        elif (
            self._failed is not None
            and event.type == "executor_invoked"
            and event.executor_id == self._failed.executor_id
        ):
            # It is tried again: it has not failed for good.
            self._failed = None
        if event.type == "failed" and self._failed is not None:
            yield _completed(self._failed)
        yield event

    def _is_failed(self, node_id: str | None) -> bool:
        return self._failed is not None and self._failed.executor_id == node_id


def _completed(failed: WorkflowEvent[Any]) -> WorkflowEvent[Any]:
    error = failed.details.message if failed.details is not None else None
    data = WorkflowAgentCompletedEvent(failed.executor_id or "", success=False, error=error)
    return WorkflowEvent(data.type, data, executor_id=failed.executor_id)
