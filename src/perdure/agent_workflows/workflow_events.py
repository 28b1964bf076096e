"""What an execution has told, as a result; and what is told in place of nodes that had no chance to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure import AgentResponse, WorkflowEvent, WorkflowRunState
from perdure.agent_workflows.conductor import RESULT_PROPERTY
from perdure.agent_workflows.result import AgentWorkflowResult
from perdure.agent_workflows.timing import seconds_since

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure import Clock
    from perdure.agent_workflows.result import ExecutionState
    from perdure.agent_workflows.workflow_known import Known


_DEADLINE: Final = "its deadline"
"""Who cancels an execution whose time is up."""


def state_of(events: Sequence[WorkflowEvent[Any]]) -> ExecutionState:
    """Where an execution stands that has told these events until it rested."""
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


def given_result(events: Iterable[WorkflowEvent[Any]], execution_id: str) -> AgentWorkflowResult | None:
    """The result that an execution has given at its end, in whichever form."""
    found: AgentWorkflowResult | None = None
    for event in events:
        if event.type == "output":
            found = _result_in(event.data) or found
    # One that runs inside of another, or that was begun under another name, has its own id for itself.
    return None if found is None else replace(found, execution_id=execution_id)


def _result_in(data: object) -> AgentWorkflowResult | None:
    if isinstance(data, AgentResponse):
        data = cast("AgentResponse[Any]", data).additional_properties.get(RESULT_PROPERTY)
    if isinstance(data, Mapping):
        return AgentWorkflowResult(**cast("Mapping[str, Any]", data))
    return data if isinstance(data, AgentWorkflowResult) else None


def known_result(
    execution_id: str, known: Known, events: Sequence[WorkflowEvent[Any]], requests: Mapping[str, Any]
) -> AgentWorkflowResult:
    """What is known of an execution that has given no result, or that goes on: by what it has told."""
    state = state_of(events)
    result = AgentWorkflowResult(
        execution_id=execution_id,
        success=False,
        outputs=known.outputs,
        failed=dict(known.failed),
        skipped=dict(known.skipped),
        state=state,
        requests=dict(requests) if state == "waiting" else {},
        error=_why(state, events, has_requests=bool(requests)),
    )
    ended = known.completed
    if state != "completed" or ended is None:
        return result
    answer = known.final_answer if ended.success else None
    return replace(result, success=ended.success, final_answer=answer, error=ended.error, duration=ended.duration)


def _why(state: ExecutionState, events: Sequence[WorkflowEvent[Any]], *, has_requests: bool) -> str:
    match state:
        case "waiting" if not has_requests:
            return "what it has asked is answered: resume() goes on with it"
        case "waiting":
            return "it waits for answers: give them to resume(responses={id: ...}), the ids are those of `requests`"
        case "sleeping":
            return "it waits for its time: resume() goes on with it"
        case "cancelled":
            return _cancelled(events)
        case _:
            return "it has ended without a result"


def _cancelled(events: Sequence[WorkflowEvent[Any]]) -> str:
    about: dict[str, Any] = {}
    for event in events:
        if event.type == "cancelled" and event.data:
            about = dict(event.data)
    reason = f" ({about['reason']})" if about.get("reason") else ""
    if about.get("by") == _DEADLINE:
        return f"its time was up{reason}: resume(timeout=...) goes on with it, with more time"
    by = f" by {about['by']}" if about.get("by") else ""
    return f"it was cancelled{by}{reason}: resume() goes on with it"


def told_requests(events: Iterable[WorkflowEvent[Any]]) -> dict[str, Any]:
    """By id what was asked and not answered, by what was told."""
    found: dict[str, Any] = {}
    for event in events:
        if event.type == "request_info":
            found[event.request_id] = event.data
        elif event.type == "answered":
            found.pop(event.request_id, None)
    return found


class Failures:
    """The nodes that have failed and stop the run: the conductor is not called any more, and can't tell of them."""

    def __init__(self, clock: Clock, stopping: Iterable[str]) -> None:
        self._clock = clock
        self._stopping = frozenset(stopping)
        self._since: dict[str, str] = {}
        self._failed: dict[str, WorkflowEvent[Any]] = {}

    def note(self, event: WorkflowEvent[Any]) -> None:
        """Take in an event."""
        actor = event.executor_id
        if actor not in self._stopping or event.path:
            return
        if event.type == "executor_invoked":
            # It may be tried again: then it has not failed for good.
            self._failed.pop(actor, None)
            self._since.setdefault(actor, self._clock.now().isoformat())
        elif event.type == "executor_failed":
            self._failed[actor] = event

    def told(self, known: Known) -> list[WorkflowEvent[Any]]:
        """What there is to tell of them."""
        return [self._completed(actor, event, known) for actor, event in self._failed.items()]

    def __bool__(self) -> bool:
        return bool(self._failed)

    def _completed(self, actor: str, failed: WorkflowEvent[Any], known: Known) -> WorkflowEvent[Any]:
        details = failed.details
        error = "" if details is None else f"{details.error_type}: {details.message}"
        duration = seconds_since(self._clock, self._since.get(actor, self._clock.now().isoformat()))
        data = known.failure_of(actor, error, duration=duration)
        return WorkflowEvent(data.type, data, executor_id=actor)
