"""The persistent state of an execution, in the conductor's scope: its progress, and the tasks and outputs of nodes.

The keys of the scope and the fields of the classes are stored, so they keep their names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from perdure import register_type
from perdure.agent_workflows.conductor.scheduling import Progress
from perdure.agent_workflows.definition.values import RESULT

if TYPE_CHECKING:
    from perdure import Clock, State

T = TypeVar("T")

_PROGRESS: Final = "progress"
_RECORD: Final = "record"
_REQUEST: Final = "request"
_EDGES: Final = "ways"
_REQUIREMENTS: Final = "terms"
_ACTIVE: Final = "acting "
_VISITS: Final = "visits "
_OUTPUT: Final = "said "
_TASK: Final = "task "
_THREAD: Final = "thread "


@dataclass(frozen=True, slots=True)
class ActiveTask:
    """A task that a node has now. `actor` is the node itself, or the fallback that replaces it."""

    node_id: str
    actor: str
    visit: int = 0
    since: str = ""
    error: str | None = None
    """For a fallback: the error of the node that it replaces."""


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """Facts about an execution, beside its progress."""

    execution_id: str
    begun_at: str
    digest: str = ""
    """The digest of the edges that it began with."""
    terms: str = ""
    """The digest of the conditions of edges, as they were last."""
    forked_from: tuple[str, ...] = ()
    """The executions that it is a fork of, the first one first."""
    waiting: tuple[ActiveTask, ...] = ()
    """Tasks for a fallback that works for another node first."""
    failures: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """The errors, by actor and by the node that it worked for."""
    layers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The start times of layers that have started and not ended, by number."""
    unchanged: tuple[tuple[str, str], ...] = ()
    """The back edges that were followed, if nothing has changed in their loop since."""
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    """The missing inputs of nodes that could not get a task."""
    is_called: bool = False
    """The conductor has sent itself a message to continue in a superstep of its own."""
    is_finished: bool = False

    @property
    def failed(self) -> dict[str, str]:
        """Return the errors by actor."""
        return {actor: "; ".join(dict.fromkeys(errors.values())) for actor, errors in self.failures.items()}


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """The latest output of a node."""

    outputs: Mapping[str, Any]
    text: str = ""

    def without(self, keys: Collection[str]) -> dict[str, Any]:
        """Return the outputs without some keys, also inside the whole value."""
        whole = self.outputs.get(RESULT)
        kept = {key: value for key, value in self.outputs.items() if key not in keys}
        if RESULT in kept and isinstance(whole, Mapping):
            inside = cast("Mapping[str, Any]", whole)
            kept[RESULT] = {key: value for key, value in inside.items() if key not in keys}
        return kept


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The latest task of a node. `is_in_thread` means that its thread already had the text."""

    text: str
    is_in_thread: bool = False
    digest: str | None = None


register_type(ActiveTask, name="perdure:AgentWorkflowActing")
register_type(ExecutionRecord, name="perdure:AgentWorkflowRecord")
register_type(NodeOutput, name="perdure:AgentWorkflowSaid")
register_type(TaskRecord, name="perdure:AgentWorkflowTask")


class ExecutionState:
    """The state of one execution during a handler call. `save` writes the progress and the record."""

    def __init__(self, scope: State) -> None:
        self._scope = scope
        record: ExecutionRecord | None = scope.get(_RECORD)
        self._record = record
        text: str | None = scope.get(_PROGRESS)
        self.progress = Progress() if text is None else Progress.from_text(text)

    def start(
        self, record: ExecutionRecord, request: Any, *, edges: tuple[str, ...], requirements: Mapping[str, str]
    ) -> None:
        """Start an execution. Of an earlier one only the numbers of visits stay."""
        for key in self._keys(_OUTPUT, _TASK, _THREAD):
            self._scope.delete(key)
        self.progress = Progress()
        self._record = record
        self._scope.set(_REQUEST, request)
        self._scope.set(_EDGES, edges)
        self._scope.set(_REQUIREMENTS, dict(requirements))

    def save(self) -> None:
        """Write the progress and the record."""
        self._scope.set(_PROGRESS, self.progress.to_text())
        self._scope.set(_RECORD, self.record)

    def _keys(self, *prefixes: str) -> list[str]:
        keys = self._scope.keys()
        return [key for key in keys if key.startswith(prefixes)]

    @property
    def edges(self) -> tuple[str, ...]:
        """Return the edges that the execution began with, as texts."""
        return self._scope.get(_EDGES, ())

    @property
    def requirements(self) -> Mapping[str, str]:
        """Return the conditions of edges, as they were last."""
        return self._scope.get(_REQUIREMENTS, {})

    def set_requirements(self, digest: str, requirements: Mapping[str, str]) -> None:
        """Record that the conditions of edges have changed."""
        self._scope.set(_REQUIREMENTS, dict(requirements))
        self.update(terms=digest)

    @property
    def has_started(self) -> bool:
        """Return True if there is an execution, even a finished one."""
        return self._record is not None

    @property
    def is_running(self) -> bool:
        """Return True if an execution has started and not finished."""
        return self._record is not None and not self._record.is_finished

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

    def mark_succeeded(self, task: ActiveTask) -> None:
        """Forget failures of earlier passes. A node that a fallback replaces has failed all the same."""
        if task.actor == task.node_id:
            self.clear_failures(task.node_id)
        elif task.actor in self.record.failures:
            self._drop_failures(lambda actor, node_id: (actor, node_id) == (task.actor, task.node_id))

    def clear_failures(self, node_id: str) -> None:
        """Forget all failures of actors that worked for a node."""
        if self.record.failures:
            self._drop_failures(lambda _, failed: failed == node_id)

    def _drop_failures(self, is_dropped: Callable[[str, str], bool]) -> None:
        left = {
            actor: {node_id: error for node_id, error in errors.items() if not is_dropped(actor, node_id)}
            for actor, errors in self.record.failures.items()
        }
        self.update(failures={actor: errors for actor, errors in left.items() if errors})

    def active_task(self, actor: str) -> ActiveTask | None:
        """Return the task that an actor has now."""
        return self._scope.get(f"{_ACTIVE}{actor}")

    def visits(self, actor: str) -> int:
        """Return the number of tasks that an actor has had."""
        return self._scope.get(f"{_VISITS}{actor}", 0)

    def activate(self, task: ActiveTask) -> None:
        """Record that an actor has a task, and count the visit."""
        self._scope.set(f"{_ACTIVE}{task.actor}", task)
        self._scope.set(f"{_VISITS}{task.actor}", task.visit + 1)

    def deactivate(self, actor: str) -> None:
        """Record that an actor has no task."""
        if self.active_task(actor) is not None:
            self._scope.delete(f"{_ACTIVE}{actor}")

    def output(self, node_id: str) -> NodeOutput | None:
        """Return the latest output of a node."""
        return self._scope.get(f"{_OUTPUT}{node_id}")

    def set_output(self, node_id: str, output: NodeOutput | None) -> None:
        """Record the output of a node; with None, forget it."""
        if output is not None:
            self._scope.set(f"{_OUTPUT}{node_id}", output)
        elif self.output(node_id) is not None:
            self._scope.delete(f"{_OUTPUT}{node_id}")

    def nodes_with_output(self) -> list[str]:
        """Return the nodes that have an output."""
        return [key.removeprefix(_OUTPUT) for key in self._keys(_OUTPUT)]

    def task(self, node_id: str) -> TaskRecord | None:
        """Return the latest task of a node."""
        return self._scope.get(f"{_TASK}{node_id}")

    def set_task(self, node_id: str, task: TaskRecord) -> None:
        """Record the task of a node."""
        self._scope.set(f"{_TASK}{node_id}", task)

    def forget_task(self, node_id: str) -> None:
        """Forget the task of a node."""
        if self.task(node_id) is not None:
            self._scope.delete(f"{_TASK}{node_id}")

    def threads(self) -> list[str]:
        """Return the threads that the execution has joined."""
        return [key.removeprefix(_THREAD) for key in self._keys(_THREAD)]

    def sequence(self, thread_id: str) -> int | None:
        """Return the number of the last event of a thread that the execution knows; None if it has not joined it."""
        return self._scope.get(f"{_THREAD}{thread_id}")

    def set_sequence(self, thread_id: str, sequence: int) -> None:
        """Record the number of the last event of a thread."""
        self._scope.set(f"{_THREAD}{thread_id}", sequence)


class OutputView(Mapping[str, T]):
    """One aspect of the outputs of all nodes, read from the state when it is needed."""

    def __init__(self, state: ExecutionState, read: Callable[[NodeOutput], T]) -> None:
        self._state = state
        self._read = read

    def __getitem__(self, node_id: str) -> T:
        output = self._state.output(node_id)
        if output is None:
            raise KeyError(node_id)
        return self._read(output)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.nodes_with_output())

    def __len__(self) -> int:
        return len(self._state.nodes_with_output())


def seconds_since(clock: Clock, moment: str) -> float:
    """Return the seconds since a moment; 0 if the clock was set back."""
    return max((clock.now() - datetime.fromisoformat(moment)).total_seconds(), 0.0)
