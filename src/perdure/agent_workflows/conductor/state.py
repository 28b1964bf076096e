"""The persistent state of an execution, in the conductor's scope: its progress, and the tasks and outputs of nodes.

The keys of the scope and the fields of the classes are stored, so they keep their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from perdure import register_type
from perdure.agent_workflows.conductor.scheduling import Progress, denial_text
from perdure.agent_workflows.definition.values import END
from perdure.agent_workflows.messages import AgentWorkflowResult, NodeOutput, WorkflowAgentCompletedEvent

if TYPE_CHECKING:
    from perdure import Clock, State
    from perdure.agent_workflows.plan import Plan

T = TypeVar("T")

_PROGRESS: Final = "progress"
_RECORD: Final = "record"
_REQUEST: Final = "request"
_EDGES: Final = "ways"
_REQUIREMENTS: Final = "terms"


@dataclass(frozen=True, slots=True)
class ActiveTask:
    """A task that a node has now. `actor` is the node itself, or the fallback that replaces it.

    Attributes:
        error: For a fallback: the error of the node that it replaces.
    """

    node_id: str
    actor: str
    visit: int = 0
    since: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """Facts about an execution, beside its progress.

    Attributes:
        digest: The digest of the edges that it began with.
        terms: The digest of the conditions of edges, as they were last.
        forked_from: The executions that it is a fork of, the first one first.
        waiting: Tasks for a fallback that works for another node first.
        failures: The errors, by actor and by the node that it worked for.
        layers: The start times of layers that have started and not ended, by number.
        unchanged: The back edges that were followed, if nothing has changed in their loop since.
        unread: The missing inputs of nodes that could not get a task.
        is_called: The conductor has sent itself a message to continue in a superstep of its own.
        ended_at: The time of the end. Executions that ended under earlier versions have none.
    """

    execution_id: str
    begun_at: str
    digest: str = ""
    terms: str = ""
    forked_from: tuple[str, ...] = ()
    waiting: tuple[ActiveTask, ...] = ()
    failures: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    layers: Mapping[str, str] = field(default_factory=dict[str, str])
    unchanged: tuple[tuple[str, str], ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    is_called: bool = False
    is_finished: bool = False
    ended_at: str | None = None

    @property
    def failed(self) -> dict[str, str]:
        """Return the errors by actor."""
        return {actor: "; ".join(dict.fromkeys(errors.values())) for actor, errors in self.failures.items()}


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The latest task of a node. `is_in_thread` means that its thread already had the text."""

    text: str
    is_in_thread: bool = False
    digest: str | None = None


register_type(ActiveTask, name="perdure:AgentWorkflowActing")
register_type(ExecutionRecord, name="perdure:AgentWorkflowRecord")
register_type(TaskRecord, name="perdure:AgentWorkflowTask")


class Entries(Mapping[str, T]):
    """The entries of a scope whose keys have a prefix, without that prefix. Each is read when it is needed."""

    def __init__(self, scope: State, prefix: str) -> None:
        self._scope = scope
        self._prefix = prefix

    def __getitem__(self, key: str) -> T:
        value: T | None = self._scope.get(f"{self._prefix}{key}")
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        keys = self._scope.keys()
        return iter([key.removeprefix(self._prefix) for key in keys if key.startswith(self._prefix)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def set(self, key: str, value: T | None) -> None:
        """Write an entry; with None, delete it."""
        if value is not None:
            self._scope.set(f"{self._prefix}{key}", value)
        elif key in self:
            self._scope.delete(f"{self._prefix}{key}")

    def clear(self) -> None:
        """Delete all entries."""
        for key in self:
            self.set(key, None)


class ExecutionState:
    """The state of one execution during a handler call. `save` writes the progress and the record."""

    def __init__(self, scope: State) -> None:
        self._scope = scope
        self._record: ExecutionRecord | None = scope.get(_RECORD)
        text: str | None = scope.get(_PROGRESS)
        self.progress = Progress() if text is None else Progress.from_text(text)
        # The tasks that actors have now.
        self.active = Entries[ActiveTask](scope, "acting ")
        # The numbers of tasks that actors have had.
        self.visits = Entries[int](scope, "visits ")
        # The latest outputs of nodes.
        self.outputs = Entries[NodeOutput](scope, "said ")
        # The latest tasks of nodes.
        self.tasks = Entries[TaskRecord](scope, "task ")
        # The threads that the execution has joined, each with the number of the last event that it knows.
        self.threads = Entries[int](scope, "thread ")

    def start(self, record: ExecutionRecord, request: Any, plan: Plan) -> None:
        """Start an execution. Of an earlier one only the numbers of visits stay."""
        for entries in (self.outputs, self.tasks, self.threads):
            entries.clear()
        self.progress = Progress()
        self._record = record
        self._scope.set(_REQUEST, request)
        self._scope.set(_EDGES, plan.edge_names)
        self.requirements = plan.requirements

    def save(self) -> None:
        """Write the progress and the record."""
        self._scope.set(_PROGRESS, self.progress.to_text())
        self._scope.set(_RECORD, self.record)

    @property
    def edges(self) -> tuple[str, ...]:
        """Return the edges that the execution began with, as texts."""
        return self._scope.get(_EDGES, ())

    @property
    def requirements(self) -> Mapping[str, str]:
        """The conditions of edges, as they were last."""
        return self._scope.get(_REQUIREMENTS, {})

    @requirements.setter
    def requirements(self, requirements: Mapping[str, str]) -> None:
        self._scope.set(_REQUIREMENTS, dict(requirements))

    @property
    def has_started(self) -> bool:
        """Return True if there is an execution, even a finished one."""
        return self._record is not None

    @property
    def record(self) -> ExecutionRecord:
        """Return the record of the execution."""
        assert self._record is not None, "an execution has started"
        return self._record

    @property
    def request(self) -> Any:
        """Return the request of the execution."""
        return self._scope.get(_REQUEST)

    def update(self, **changes: Any) -> None:
        """Change fields of the record."""
        self._record = replace(self.record, **changes)

    def mark_failed(self, task: ActiveTask, error: str) -> None:
        """Record the failure of a task."""
        failures = self.record.failures
        self.update(failures={**failures, task.actor: {**failures.get(task.actor, {}), task.node_id: error}})

    def forget_failures(self, node_id: str, actor: str | None = None) -> None:
        """Forget the failures of actors that worked for a node, or of one of them."""
        left = {
            each: {failed: error for failed, error in errors.items() if failed != node_id or actor not in {None, each}}
            for each, errors in self.record.failures.items()
        }
        self.update(failures={each: errors for each, errors in left.items() if errors})


def make_result(plan: Plan, state: ExecutionState, clock: Clock) -> AgentWorkflowResult:
    """Return the result of an execution in which no node has a task any more."""
    progress, record, outputs = state.progress, state.record, dict(state.outputs)
    ends = [node_id for node_id in plan.ends if progress.decision(node_id, END) == "taken"]
    texts = [outputs[node_id].text for node_id in ends if node_id in outputs and outputs[node_id].text]
    # An isolated failure lets all go on, even to END, but it is no answer.
    is_reached = any(progress.nodes.get(node_id) != "isolated" for node_id in ends)
    error = progress.halted or (None if is_reached else _no_end_reason(state))
    return AgentWorkflowResult(
        execution_id=record.execution_id,
        success=error is None,
        final_answer="\n\n".join(texts) if texts else None,
        outputs={
            f"{node_id}.{key}": value
            for layer in plan.layers
            for node_id in layer
            if node_id in outputs
            for key, value in outputs[node_id].outputs.items()
        },
        failed=dict(record.failed),
        skipped=dict(progress.skipped),
        error=error,
        duration=seconds_since(clock, record.begun_at, until=record.ended_at),
    )


def completion_event(
    plan: Plan,
    progress: Progress,
    task: ActiveTask,
    clock: Clock,
    *,
    outputs: Mapping[str, Any] | None = None,
    error: str | None = None,
) -> WorkflowAgentCompletedEvent:
    """Return the event of a task that has ended, with outputs or an error."""
    ended = len(progress.nodes) - len(progress.active - {task.node_id})
    return WorkflowAgentCompletedEvent(
        task.actor,
        success=error is None,
        outputs=dict(outputs or {}),
        error=error,
        progress=ended / sum(len(layer) for layer in plan.layers),
        duration=seconds_since(clock, task.since),
        iteration=progress.iteration(plan.loop_of(task.node_id)),
        fallback_for=None if task.actor == task.node_id else task.node_id,
    )


def _no_end_reason(state: ExecutionState) -> str:
    denials = set(state.progress.denied.values())
    texts = [
        (denial_text(actor, error), f"{actor!r} has failed: {error}") for actor, error in state.record.failed.items()
    ]
    failed = "; ".join(denial if denial in denials else failure for denial, failure in texts)
    return f"no end was reached: {failed or 'no edge to END was taken'}"


def seconds_since(clock: Clock, moment: str, *, until: str | None = None) -> float:
    """Return the seconds from a moment until another, or until now; 0 if the clock was set back."""
    end = clock.now() if until is None else datetime.fromisoformat(until)
    return max((end - datetime.fromisoformat(moment)).total_seconds(), 0.0)
