"""Stored executions: finding them, their origins, their requests, and the results of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure import (
    AgentResponse,
    RunExistsError,
    RunInfo,
    RunNotFoundError,
    WorkflowEvent,
    WorkflowRunState,
)
from perdure.agent_workflows.conductor.conductor import RESULT_PROPERTY
from perdure.agent_workflows.errors import AgentWorkflowError, ExecutionNotFoundError
from perdure.agent_workflows.messages import AgentWorkflowResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure import CheckpointStorage, PendingRequest
    from perdure.agent_workflows.messages import ExecutionStatus

# The name under which the engine cancels a run whose time is up.
_DEADLINE: Final = "its deadline"


async def latest_execution(storage: CheckpointStorage, name: str) -> str:
    """Return the execution that was advanced last. Raises ExecutionNotFoundError."""
    checkpoint = await storage.get_latest(workflow_name=name)
    if checkpoint is None:
        raise ExecutionNotFoundError(
            name, None, reason=f"there is no execution of workflow {name!r} in its store: begin one with run(...)"
        )
    return checkpoint.run_id


async def find_run(storage: Any, run_id: str) -> RunInfo | None:
    """Return a run of a storage that ships with perdure; None if there is none, or for a user's own storage."""
    store: Any = getattr(storage, "store", None)
    record = await store.run(run_id) if hasattr(store, "run") else None
    return None if record is None else RunInfo.of(record)


async def require_execution(storage: Any, name: str, execution_id: str) -> None:
    """Raise ExecutionNotFoundError if this workflow has no such execution."""
    if not hasattr(storage, "store"):
        return  # The engine asks a user's own storage, and only about this workflow.
    info = await find_run(storage, execution_id)
    if info is None:
        reason = f"there is no execution {execution_id!r} in the store of workflow {name!r}; executions() lists all"
        raise ExecutionNotFoundError(name, execution_id, reason=reason)
    if info.workflow_name != name:
        raise ExecutionNotFoundError(
            name,
            execution_id,
            reason=f"execution {execution_id!r} is one of workflow {info.workflow_name!r}, not of {name!r}: resume it "
            "with that one",
        )


async def has_execution(storage: Any, name: str, execution_id: str) -> bool:
    """Return True if there is such an execution. Raises RunExistsError if it is one of another workflow."""
    info = await find_run(storage, execution_id)
    if info is not None and info.workflow_name != name:
        raise RunExistsError(execution_id, workflow_name=info.workflow_name)
    return info is not None


async def answered_requests(storage: Any, execution_id: str) -> set[str]:
    """Return the ids of the requests whose answers are stored; none if the storage keeps no requests."""
    try:
        asked: list[PendingRequest] = await storage.requests(execution_id) if hasattr(storage, "requests") else []
    except RunNotFoundError:
        return set()
    return {each.request_id for each in asked if each.answered_by is not None}


async def executions_of(storage: Any, name: str) -> list[RunInfo]:
    """Return the executions of a workflow in the order of their start. Raises AgentWorkflowError."""
    store: Any = getattr(storage, "store", None)
    if store is None:
        raise AgentWorkflowError(
            f"a {type(storage).__name__} keeps checkpoints but cannot list executions: use a storage that ships with "
            "perdure"
        )
    return [RunInfo.of(record) for record in await store.runs(workflow_name=name)]


async def origins_of(storage: Any, execution_id: str) -> tuple[str, ...]:
    """Return the executions that one is a fork of, the first one first. A user's own storage knows none."""
    found: list[str] = []
    info = await find_run(storage, execution_id)
    while info is not None and info.parent_checkpoint_id is not None:
        run_id, _, number = info.parent_checkpoint_id.rpartition("@")
        # A checkpoint made by hand is a run of its own.
        found.insert(0, run_id if run_id and number.isdecimal() else info.parent_checkpoint_id)
        info = await find_run(storage, found[0])
    return tuple(found)


_STATUS: Final[Mapping[WorkflowRunState, ExecutionStatus]] = {
    WorkflowRunState.IDLE_WITH_PENDING_REQUESTS: "waiting",
    WorkflowRunState.IN_PROGRESS_PENDING_REQUESTS: "waiting",
    WorkflowRunState.SLEEPING: "sleeping",
    WorkflowRunState.CANCELLED: "cancelled",
}


def result_in(events: Iterable[WorkflowEvent[Any]], execution_id: str) -> AgentWorkflowResult | None:
    """Return the result that an execution yielded, in whichever form."""
    found: AgentWorkflowResult | None = None
    for event in events:
        if event.type != "output":
            continue
        data: object = event.data
        if isinstance(data, AgentResponse):
            data = cast("AgentResponse[Any]", data).additional_properties.get(RESULT_PROPERTY)
        if isinstance(data, Mapping):
            found = AgentWorkflowResult(**cast("Mapping[str, Any]", data))
        elif isinstance(data, AgentWorkflowResult):
            found = data
    # Inside another run, an execution knows itself by another id.
    return None if found is None else replace(found, execution_id=execution_id)


def partial_result(known: AgentWorkflowResult, events: Sequence[WorkflowEvent[Any]]) -> AgentWorkflowResult:
    """Return the result of an execution that has yielded none. `known` is what follows from its state."""
    states = [event.state for event in events if event.state is not None]
    status: ExecutionStatus = _STATUS.get(states[-1], "completed") if states else "completed"
    requests = _open_requests(events) if status == "waiting" else {}
    reasons = {
        "waiting": "it waits for answers: give them to resume(responses={id: ...}), the ids are those of `requests`"
        if requests
        else "what it has asked is answered: resume() goes on with it",
        "sleeping": "it waits for its time: resume() goes on with it",
        "cancelled": _cancellation_text(events),
        "completed": "it has ended without a result",
    }
    error = reasons[status]
    return replace(known, success=False, final_answer=None, state=status, requests=requests, error=error)


def _cancellation_text(events: Sequence[WorkflowEvent[Any]]) -> str:
    found = [dict(event.data) for event in events if event.type == "cancelled" and event.data]
    about: dict[str, Any] = found[-1] if found else {}
    reason = f" ({about['reason']})" if about.get("reason") else ""
    if about.get("by") == _DEADLINE:
        return f"its time was up{reason}: resume(timeout=...) goes on with it, with more time"
    by = f" by {about['by']}" if about.get("by") else ""
    return f"it was cancelled{by}{reason}: resume() goes on with it"


def _open_requests(events: Iterable[WorkflowEvent[Any]]) -> dict[str, Any]:
    """Return the requests by id that these events ask and do not answer."""
    found: dict[str, Any] = {}
    for event in events:
        if event.type == "request_info":
            found[event.request_id] = event.data
        elif event.type == "answered":
            found.pop(event.request_id, None)
    return found
