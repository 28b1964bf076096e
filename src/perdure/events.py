"""Events that a run emits. There is one public class; its `type` says what happened."""

from __future__ import annotations

import os
import traceback as tracebacks
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, cast

from typing_extensions import TypeVar

from perdure.typenames import dotted_name, type_named

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator

DataT = TypeVar("DataT", default=Any)

WorkflowEventType: TypeAlias = Literal[
    "started",
    "status",
    "failed",
    "superstep_started",
    "superstep_completed",
    "checkpoint",
    "executor_invoked",
    "executor_completed",
    "executor_failed",
    "executor_bypassed",
    "executor_suspended",
    "attempt_discarded",
    "attempt_failed",
    "step_completed",
    "model_call_completed",
    "tool_call_completed",
    "output",
    "intermediate",
    "data",
    "request_info",
    "answered",
    "received",
    "woken",
    "cancelled",
    "taken_over",
    "undelivered",
    "sub_workflow",
    "warning",
    "error",
    "group_chat",
    "handoff_sent",
    "magentic_orchestrator",
    "workflow_started",
    "workflow_completed",
    "layer_started",
    "layer_completed",
    "agent_started",
    "agent_completed",
    "agent_skipped",
    "edge_traversed",
    "diagnostic",
]


class WorkflowRunState(str, Enum):
    """The state of a run."""

    STARTED = "STARTED"
    IN_PROGRESS = "IN_PROGRESS"
    IN_PROGRESS_PENDING_REQUESTS = "IN_PROGRESS_PENDING_REQUESTS"
    IDLE = "IDLE"
    IDLE_WITH_PENDING_REQUESTS = "IDLE_WITH_PENDING_REQUESTS"
    SLEEPING = "SLEEPING"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class WorkflowEventSource(str, Enum):
    """The origin of an event: the engine, or an executor through its context."""

    FRAMEWORK = "FRAMEWORK"
    EXECUTOR = "EXECUTOR"


@dataclass(frozen=True, slots=True)
class WorkflowErrorDetails:
    """An exception as data.

    With the environment variable `ENABLE_SENSITIVE_DATA=false` the message is the name of the class, and there is no
    traceback.
    """

    error_type: str
    message: str
    traceback: str | None = None
    executor_id: str | None = None
    extra: dict[str, Any] | None = None

    @classmethod
    def from_exception(
        cls,
        exc: BaseException,
        *,
        include_sensitive_data: bool | None = None,
        executor_id: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> WorkflowErrorDetails:
        """Describe an exception. `include_sensitive_data` overrides the environment variable."""
        if include_sensitive_data is None:
            include_sensitive_data = os.environ.get("ENABLE_SENSITIVE_DATA", "true").lower() not in {"false", "0"}
        if not include_sensitive_data:
            return cls(type(exc).__name__, type(exc).__name__, None, executor_id, extra)
        text = "".join(tracebacks.format_exception(type(exc), exc, exc.__traceback__))
        return cls(type(exc).__name__, str(exc), text, executor_id, extra)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The data of a `checkpoint` event: the committed checkpoint and its predecessor."""

    checkpoint_id: str
    previous_checkpoint_id: str | None
    run_id: str
    workflow_name: str
    iteration_count: int
    timestamp: str


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The data of a `taken_over` event: the process that had the run, and the one that has replaced it."""

    previous_owner: str
    owner: str


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The data of a `step_completed`, `model_call_completed` or `tool_call_completed` event.

    Attributes:
        name: The name of the step or of the tool; "model" for a model call.
        duration: The seconds that its last attempt took. Equality ignores it.
        attempt: The number of its last attempt.
        outcome: "completed"; "interrupted" if its process died, and `if_interrupted` decided what it gave; for a tool
            call also "failed", or "asked" if the tool has asked a question.
        digest: The digest of the arguments, if it was computed.
        spent: The amounts that it has spent, such as tokens, with those of steps inside it.
        model: The model that answered.
        call_id: The id that the model gave to a tool call.
        arguments: The arguments, if the workflow records payloads.
        result: The result, if the workflow records payloads.
    """

    name: str
    duration: float = field(default=0, compare=False, repr=False)
    attempt: int = 1
    outcome: str = "completed"
    digest: str | None = None
    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    model: str | None = None
    call_id: str | None = None
    arguments: Any = None
    result: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class SuperstepInfo(Mapping[str, float]):
    """The data of a `superstep_completed` event. As a mapping, which decides equality, it is the spending by name.

    Attributes:
        spent: The run's total spending; empty if this superstep has spent nothing.
        duration: The seconds from the start of the superstep until its commit.
        commit_duration: The seconds that a commit took: in a live stream the commit of this superstep, in the log the
            commit before it in the same process, because a commit can't contain its own duration.
        bytes_written: The size of the checkpoint and its new blobs, without the events.
        process: The process that committed the superstep.
    """

    spent: Mapping[str, float] = field(default_factory=dict[str, float])
    duration: float = field(default=0, repr=False)
    commit_duration: float | None = field(default=None, repr=False)
    bytes_written: int | None = field(default=None, repr=False)
    process: str | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> float:
        return self.spent[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spent)

    def __len__(self) -> int:
        return len(self.spent)


@dataclass(frozen=True, slots=True)
class UndeliveredMessage:
    """The data of an `undelivered` event: a message without a receiver, and the reason."""

    message: Any
    source_id: str
    target_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Replaces a value in a committed event that this program can't decode.

    `json` is the stored tree in the checkpoint format; None if the value was not stored.
    """

    reason: str
    json: Any = None


class WorkflowEvent(Generic[DataT]):
    """An event.

    `seq`, `at`, `superstep`, `data`, `origin`, `state`, `details`, `executor_id`, `iteration` and `path` can be read on
    every event. `seq` is the number that the commit gave it, starting at 1, and `at` the time of that commit, in UTC as
    ISO 8601; both are None in a live stream. `superstep` is the number of the superstep that the event belongs to; for
    one between two supersteps, of the one before it. `path` names the sub-workflows that the event came through,
    outermost first; it is empty for the run's own events.
    """

    __slots__ = (
        "_request_id",
        "_request_type",
        "_response_type",
        "_source_executor_id",
        "at",
        "data",
        "details",
        "executor_id",
        "iteration",
        "origin",
        "path",
        "seq",
        "state",
        "superstep",
        "type",
    )

    def __init__(
        self,
        type: WorkflowEventType | str,  # noqa: A002 - the documented name
        data: DataT | None = None,
        *,
        origin: WorkflowEventSource | None = None,
        state: WorkflowRunState | None = None,
        details: WorkflowErrorDetails | None = None,
        executor_id: str | None = None,
        request_id: str | None = None,
        source_executor_id: str | None = None,
        request_type: Any = None,
        response_type: Any = None,
        iteration: int | None = None,
        path: tuple[str, ...] = (),
        seq: int | None = None,
        at: str | None = None,
        superstep: int | None = None,
    ) -> None:
        self.type: str = type
        self.data: DataT = data  # pyright: ignore[reportAttributeAccessIssue] - None if the event has no data
        self.origin = origin if origin is not None else WorkflowEventSource.EXECUTOR
        self.state = state
        self.details = details
        self.executor_id = executor_id
        self.iteration = iteration
        self.path = path
        self.seq = seq
        self.at = at
        self.superstep = iteration if superstep is None else superstep
        self._request_id = request_id
        self._source_executor_id = source_executor_id
        self._request_type = request_type
        self._response_type = response_type

    @property
    def request_id(self) -> str:
        """The id of the request, on 'request_info' and 'answered' events."""
        if self.type != "answered":
            self._require_request("request_id")
        return self._request_id or ""

    @property
    def source_executor_id(self) -> str:
        """The executor that asks."""
        self._require_request("source_executor_id")
        return self._source_executor_id or ""

    @property
    def request_type(self) -> Any:
        """The type of the request."""
        self._require_request("request_type")
        return self._request_type

    @property
    def response_type(self) -> Any:
        """The type that an answer must have."""
        self._require_request("response_type")
        return self._response_type

    @property
    def innermost(self) -> WorkflowEvent[Any]:
        """The event of the sub-workflow that a 'sub_workflow' event contains; any other event itself."""
        is_outer = self.type == "sub_workflow" and isinstance(self.data, WorkflowEvent)
        return cast("WorkflowEvent[Any]", self.data if is_outer else self)

    @property
    def discards(self) -> tuple[WorkflowEvent[Any], ...]:
        """The earlier events of the stream that an 'attempt_discarded' event takes back; empty for other events."""
        event = self.innermost
        return event.data or () if event.type == "attempt_discarded" else ()

    def _require_request(self, name: str) -> None:
        if self.type != "request_info":
            raise RuntimeError(f"{name} can be read on 'request_info' events only, this is a {self.type!r} event")

    def __repr__(self) -> str:
        shown = [f"type={self.type!r}"]
        for name, value in (
            ("seq", self.seq),
            ("state", self.state.value if self.state else None),
            ("executor_id", self.executor_id),
            ("iteration", self.iteration),
            ("request_id", self._request_id),
            ("path", "/".join(self.path) or None),
            ("data", self.data),
        ):
            if value is not None:
                shown.append(f"{name}={value if name == 'state' else repr(value)}")
        return f"WorkflowEvent({', '.join(shown)})"

    @classmethod
    def started(cls, data: Any = None) -> WorkflowEvent[Any]:
        """Create the first event of each call."""
        return WorkflowEvent("started", data)

    @classmethod
    def status(cls, state: WorkflowRunState, data: Any = None) -> WorkflowEvent[Any]:
        """Create an event about a new state of the run."""
        return WorkflowEvent("status", data, state=state)

    @classmethod
    def failed(cls, details: WorkflowErrorDetails, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event of a run that ends with an exception."""
        return WorkflowEvent("failed", data, details=details)

    @classmethod
    def warning(cls, message: str) -> WorkflowEvent[str]:
        """Create a warning."""
        return WorkflowEvent("warning", message)

    @classmethod
    def error(cls, exception: Exception) -> WorkflowEvent[Exception]:
        """Create the event of an error that did not end the run."""
        return WorkflowEvent("error", exception)

    @classmethod
    def emit(cls, executor_id: str, data: Any) -> WorkflowEvent[Any]:
        """Create a 'data' event of an executor. Deprecated: construct an event with your own type."""
        warnings.warn(
            "WorkflowEvent.emit is deprecated; construct WorkflowEvent('my_type', data)",
            DeprecationWarning,
            stacklevel=2,
        )
        return WorkflowEvent("data", data, executor_id=executor_id)

    @classmethod
    def request_info(
        cls, request_id: str, source_executor_id: str, request_data: Any, response_type: Any, request_type: Any = None
    ) -> WorkflowEvent[Any]:
        """Create the event of a request to the outside."""
        return WorkflowEvent(
            "request_info",
            request_data,
            request_id=request_id,
            source_executor_id=source_executor_id,
            executor_id=source_executor_id,
            request_type=request_type if request_type is not None else type(request_data),
            response_type=response_type,
        )

    @classmethod
    def superstep_started(cls, iteration: int, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event of a starting superstep."""
        return WorkflowEvent("superstep_started", data, iteration=iteration)

    @classmethod
    def superstep_completed(cls, iteration: int, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event of a committed superstep."""
        return WorkflowEvent("superstep_completed", data, iteration=iteration)

    @classmethod
    def executor_invoked(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event of a handler call."""
        return WorkflowEvent("executor_invoked", data, executor_id=executor_id)

    @classmethod
    def executor_completed(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event of a handler that returned; `data` is what it sent and yielded."""
        return WorkflowEvent("executor_completed", data, executor_id=executor_id)

    @classmethod
    def executor_failed(cls, executor_id: str, details: WorkflowErrorDetails) -> WorkflowEvent[WorkflowErrorDetails]:
        """Create the event of a handler that raised."""
        return WorkflowEvent("executor_failed", details, executor_id=executor_id, details=details)

    @classmethod
    def executor_bypassed(cls, executor_id: str, data: Any = None) -> WorkflowEvent[Any]:
        """Create the event of a recorded result that replaced a call."""
        return WorkflowEvent("executor_bypassed", data, executor_id=executor_id)

    def to_dict(self) -> dict[str, Any]:
        """Return a request as a dict. Raises ValueError for other events."""
        if self.type != "request_info":
            raise ValueError(f"only 'request_info' events have a dict form, this is a {self.type!r} event")
        return {
            "type": self.type,
            "data": self.data,
            "request_id": self.request_id,
            "source_executor_id": self.source_executor_id,
            "request_type": dotted_name(self.request_type),
            "response_type": dotted_name(self.response_type),
        }

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], *, allowed_types: Mapping[str, builtins.type[Any]] | None = None
    ) -> WorkflowEvent[Any]:
        """Create a request from `to_dict`.

        Types are looked up in `allowed_types` and among loaded classes; nothing is imported or called.
        """
        allowed = allowed_types or {}
        for name in ("data", "request_id", "source_executor_id", "request_type", "response_type"):
            if name not in data:
                raise KeyError(f"a request needs {name!r}")
        request_data: object = data["data"]
        found, response_type = dotted_name(type(request_data)), data["response_type"]
        is_named = found == data["request_type"] or allowed.get(data["request_type"]) is type(request_data)
        if not is_named and not _is_named(request_data, data["request_type"]):
            raise TypeError(f"the request is a {found}, not the {data['request_type']} it is said to be")
        if isinstance(response_type, str):
            response_type = allowed.get(response_type) or type_named(response_type)
        return cls.request_info(data["request_id"], data["source_executor_id"], request_data, response_type)


def _is_named(value: object, name: str) -> bool:
    """Return True if `name` is a present or former name of the value's class."""
    try:
        return type_named(name) is type(value)
    except TypeError:
        return False
