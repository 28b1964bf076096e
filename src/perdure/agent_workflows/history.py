"""History of executions: finding them in a store, their origins, and their state as a summary of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure import (
    AgentResponse,
    EventsForgottenError,
    RunExistsError,
    RunInfo,
    RunNotFoundError,
    WorkflowEvent,
    WorkflowRunState,
)
from perdure.agent_workflows import messages
from perdure.agent_workflows.conductor.conductor import RESULT_PROPERTY
from perdure.agent_workflows.conductor.state import outputs_by_path
from perdure.agent_workflows.definition.values import ERROR, TextOutput
from perdure.agent_workflows.errors import AgentWorkflowError, ExecutionNotFoundError
from perdure.agent_workflows.messages import AgentWorkflowResult, WorkflowAgentCompletedEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from perdure import CheckpointStorage, PendingRequest
    from perdure.agent_workflows.messages import ExecutionStatus
    from perdure.agent_workflows.plan import Plan

_DEADLINE: Final = "its deadline"
"""The name under which the engine cancels a run whose time is up."""


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


async def requests_of(storage: Any, execution_id: str) -> list[PendingRequest] | None:
    """Return the requests of an execution, also answered ones; None if the storage keeps no requests."""
    if not hasattr(storage, "requests"):
        return None
    try:
        return await storage.requests(execution_id)
    except RunNotFoundError:
        return []


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
    return tuple(run_id for run_id, _ in await _fork_points(storage, execution_id))


async def start_time(storage: Any, execution_id: str) -> str | None:
    """Return the start of an execution, for a fork that of the first one; None if the storage does not know it."""
    for each in (*await origins_of(storage, execution_id), execution_id):
        info = await find_run(storage, each)
        if info is not None:
            return info.created_at.isoformat()
    return None


async def stored_events(storage: Any, execution_id: str) -> AsyncGenerator[WorkflowEvent[Any]]:
    """Yield the events of an execution; for a fork, first those of its parents up to the fork.

    It yields nothing if the storage keeps no events, or has deleted some.
    """
    if not hasattr(storage, "events"):
        return
    try:
        for run_id, number in await _fork_points(storage, execution_id):
            async for event in _events_until(storage, run_id, number):
                yield event
        async for event in storage.events(execution_id):
            yield event
    except (RunNotFoundError, EventsForgottenError):
        return


async def _events_until(storage: Any, run_id: str, number: int) -> AsyncGenerator[WorkflowEvent[Any]]:
    """Yield the events of a run up to one of its checkpoints."""
    pending: list[WorkflowEvent[Any]] = []
    async for event in storage.events(run_id):
        pending.append(event)
        if event.type == "checkpoint":
            if _split_checkpoint_id(event.data.checkpoint_id)[1] > number:
                return
            for each in pending:
                yield each
            pending.clear()


async def _fork_points(storage: Any, execution_id: str) -> list[tuple[str, int]]:
    """Return the checkpoints at which forks lead to an execution, as run and number, the first run first."""
    found: list[tuple[str, int]] = []
    info = await find_run(storage, execution_id)
    while info is not None and info.parent_checkpoint_id is not None:
        point = _split_checkpoint_id(info.parent_checkpoint_id)
        found.insert(0, point)
        info = await find_run(storage, point[0])
    return found


def _split_checkpoint_id(checkpoint_id: str) -> tuple[str, int]:
    """Return the run and the number in the id of a checkpoint. A checkpoint made by hand is a run of its own."""
    run_id, _, number = checkpoint_id.rpartition("@")
    return (run_id, int(number)) if run_id and number.isdecimal() else (checkpoint_id, 0)


@dataclass(slots=True)
class EventSummary:
    """The state of an execution, from its events. `has_begun` means that all events since its start were noted."""

    plan: Plan
    has_begun: bool = False
    failed: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    completed: messages.WorkflowCompletedEvent | None = None
    outputs: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    _started: dict[str, messages.WorkflowAgentStartedEvent] = field(
        default_factory=dict[str, messages.WorkflowAgentStartedEvent]
    )
    """The tasks that have not ended, by actor."""
    _ended: set[str] = field(default_factory=set[str])

    @property
    def final_answer(self) -> str | None:
        """Return the texts of the nodes before END, as far as they are texts."""
        ends = [(node_id, self.plan.nodes[node_id].output) for node_id in self.plan.ends if node_id in self.outputs]
        texts = [self.outputs[node_id].get(output.key) for node_id, output in ends if isinstance(output, TextOutput)]
        return "\n\n".join(str(each) for each in texts if each) or None

    def failure_event(self, actor: str, failure: WorkflowEvent[Any], *, duration: float) -> WorkflowAgentCompletedEvent:
        """Return the event of a node whose failure stops the run."""
        started, details = self._started.get(actor), failure.details
        replaced = self.plan.fallbacks.get(actor, (actor,))
        node_id = next((each for each in replaced if each in self.failed), replaced[0])
        return WorkflowAgentCompletedEvent(
            actor,
            success=False,
            error="" if details is None else f"{details.error_type}: {details.message}",
            progress=len(self._ended | {node_id}) / sum(len(layer) for layer in self.plan.layers),
            duration=duration,
            iteration=0 if started is None else started.iteration,
            fallback_for=None if node_id == actor else node_id,
        )

    def note(self, event: WorkflowEvent[Any]) -> None:  # noqa: C901 - one case per kind of event
        """Take in an event. Events of nested runs, and of nodes that do not exist any more, are ignored."""
        data: object = event.data
        named = (getattr(data, "node_id", None), getattr(data, "fallback_for", None))
        if event.path or not self.plan.nodes.keys() >= {*named} - {None}:
            return
        match data:
            case messages.WorkflowStartedEvent():
                for kept in (self.failed, self.skipped, self.outputs, self._started, self._ended):
                    kept.clear()
                self.has_begun, self.completed = True, None
            case messages.WorkflowAgentStartedEvent():
                self._started[data.node_id] = data
                self.skipped.pop(data.node_id, None)
            case WorkflowAgentCompletedEvent():
                self._note_completed(data)
            case messages.WorkflowAgentSkippedEvent():
                self._ended.add(data.node_id)
                if data.reason != messages.UNCHANGED:
                    self.skipped[data.node_id] = data.reason
                    self.outputs.pop(data.node_id, None)
                    self.failed.pop(data.node_id, None)
            case messages.WorkflowEdgeTraversedEvent():
                if (data.source, data.target) in self.plan.back_edges:
                    for node_id in self.plan.rerun_from(data.target):
                        self._ended.discard(node_id)
                        self.skipped.pop(node_id, None)
            case messages.WorkflowCompletedEvent():
                self.completed = data
            case _:
                pass

    def _note_completed(self, event: WorkflowAgentCompletedEvent) -> None:
        actor, node_id = event.node_id, event.fallback_for or event.node_id
        self._started.pop(actor, None)
        if event.success:
            self.failed.pop(actor, None)
            self.outputs[node_id] = self._outputs_in(event)
            self._ended.add(node_id)
            return
        error = event.error or ""
        self.failed[actor] = error
        self.outputs.pop(node_id, None)
        mode = self.plan.nodes[actor].on_error.mode
        if mode == "isolate":
            self.outputs[node_id] = {ERROR: error}
        if mode != "fallback":
            self._ended.add(node_id)

    def _outputs_in(self, event: WorkflowAgentCompletedEvent) -> Mapping[str, Any]:
        """Return the outputs of a node. The text of a fallback also stands under the key of the node."""
        output = None if event.fallback_for is None else self.plan.nodes[event.fallback_for].output
        own = self.plan.nodes[event.node_id].output
        if isinstance(output, TextOutput) and isinstance(own, TextOutput) and own.key in event.outputs:
            return {**event.outputs, output.key: event.outputs[own.key]}
        return event.outputs


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


def partial_result(
    execution_id: str, summary: EventSummary, events: Sequence[WorkflowEvent[Any]], requests: Mapping[str, Any]
) -> AgentWorkflowResult:
    """Return what is known of an execution that has yielded no result."""
    states = [event.state for event in events if event.state is not None]
    status: ExecutionStatus = _STATUS.get(states[-1], "completed") if states else "completed"
    reasons = {
        "waiting": "it waits for answers: give them to resume(responses={id: ...}), the ids are those of `requests`"
        if requests
        else "what it has asked is answered: resume() goes on with it",
        "sleeping": "it waits for its time: resume() goes on with it",
        "cancelled": _cancellation_text(events),
        "completed": "it has ended without a result",
    }
    ended = summary.completed if status == "completed" else None
    return AgentWorkflowResult(
        execution_id=execution_id,
        success=ended is not None and ended.success,
        final_answer=summary.final_answer if ended is not None and ended.success else None,
        outputs=outputs_by_path(summary.plan, summary.outputs),
        failed=dict(summary.failed),
        skipped=dict(summary.skipped),
        state=status,
        requests=dict(requests) if status == "waiting" else {},
        error=reasons[status] if ended is None else ended.error,
        duration=0.0 if ended is None else ended.duration,
    )


def _cancellation_text(events: Sequence[WorkflowEvent[Any]]) -> str:
    found = [dict(event.data) for event in events if event.type == "cancelled" and event.data]
    about: dict[str, Any] = found[-1] if found else {}
    reason = f" ({about['reason']})" if about.get("reason") else ""
    if about.get("by") == _DEADLINE:
        return f"its time was up{reason}: resume(timeout=...) goes on with it, with more time"
    by = f" by {about['by']}" if about.get("by") else ""
    return f"it was cancelled{by}{reason}: resume() goes on with it"


def open_requests(events: Iterable[WorkflowEvent[Any]]) -> dict[str, Any]:
    """Return the requests by id that these events ask and do not answer."""
    found: dict[str, Any] = {}
    for event in events:
        if event.type == "request_info":
            found[event.request_id] = event.data
        elif event.type == "answered":
            found.pop(event.request_id, None)
    return found
