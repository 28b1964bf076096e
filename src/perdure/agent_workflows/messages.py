"""Messages, events and results of an execution.

An event is the `data` of a `WorkflowEvent` whose `type` is that of the class. Events are numbered and stored like all
others.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the codec reads the fields
from dataclasses import dataclass, field
from datetime import timedelta  # noqa: TC003 - the codec reads the fields
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

from perdure import Message, register_type


@dataclass(frozen=True, slots=True)
class ThreadPosition:
    """The messages of a thread up to an event. They never change."""

    session_id: str
    thread_id: str
    until: int


@dataclass(frozen=True, slots=True)
class NodeTask:
    """A task for a node: its text, after the messages at `past` and those in `history`.

    Attributes:
        visit: The number of tasks that the node had before in this execution.
        error: For a fallback: the error of the node that it replaces.
    """

    node_id: str
    visit: int
    text: str
    history: tuple[Message, ...] = ()
    error: str | None = None
    past: ThreadPosition | None = None


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The outputs of a node by key, or the denial of a person.

    `text` is the whole output as one text. `said` are the messages for the conversation.

    Attributes:
        denied: The reason of the denial.
    """

    node_id: str
    visit: int
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    text: str = ""
    said: tuple[Message, ...] = ()
    denied: str | None = None
    is_timed_out: bool = False


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """The latest output of a node: values by key, and the whole as one text."""

    outputs: Mapping[str, Any]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Continue:
    """The conductor's message to itself: do what may fail, now that all before it is committed."""


@dataclass(frozen=True, slots=True)
class NodeApprovalResponse:
    """The answer to an approval request. `resume_data` replaces outputs of the same keys."""

    approved: bool
    reason: str | None = None
    resume_data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_timed_out: bool = False


@dataclass(frozen=True, slots=True)
class NodeApprovalRequest:
    """Asks a person to approve the output of a node. Answer with `approve()` or `deny()`.

    Attributes:
        timeout: After this time the request counts as denied.
    """

    node_id: str
    agent_name: str
    message: str
    outputs: Mapping[str, Any]
    timeout: timedelta | None = None

    @staticmethod
    def approve(reason: str | None = None, *, resume_data: Mapping[str, Any] | None = None) -> NodeApprovalResponse:
        """Approve the output, as it is or with some outputs changed."""
        return NodeApprovalResponse(approved=True, reason=reason, resume_data=dict(resume_data or {}))

    @staticmethod
    def deny(reason: str | None = None) -> NodeApprovalResponse:
        """Deny the output."""
        return NodeApprovalResponse(approved=False, reason=reason)


ExecutionState: TypeAlias = Literal["completed", "waiting", "sleeping", "cancelled"]
"""The status of an execution: ended, waiting for answers, waiting for a time, or stopped so that it can be resumed."""


@dataclass(frozen=True, slots=True)
class AgentWorkflowResult:
    """The result of an execution.

    `final_answer` joins the texts of the nodes before END; None if there are none. `outputs` are those of all nodes, as
    `node.key`. `success` is False if a person denied the output of a node with `on_error="stop"`, or if no end was
    reached. For an execution that waits, sleeps or was cancelled, the result has what is known so far.

    Attributes:
        failed: The errors of nodes that failed while the execution went on.
        skipped: The reasons why nodes were skipped.
        duration: In seconds, waiting included.
        requests: The open requests by id, if the execution waits: mostly `NodeApprovalRequest`s. `resume` takes the
            answers.
    """

    execution_id: str
    success: bool
    final_answer: str | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str | None = None
    duration: float = 0.0
    state: ExecutionState = "completed"
    requests: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_waiting(self) -> bool:
        """Return True if the execution waits for answers to `requests`."""
        return self.state == "waiting"

    def __str__(self) -> str:
        return self.final_answer or self.error or ""


UNCHANGED: Final = "its task is the same as in the pass before"
"""The reason why a change-aware loop skips a node, which keeps its output."""


@dataclass(frozen=True, slots=True)
class WorkflowStartedEvent:
    """An execution begins. `version` is that of its definition in the workflow store; None without a store."""

    type: ClassVar[str] = "workflow_started"
    workflow_name: str
    execution_id: str
    node_count: int
    layer_count: int
    version: int | None = None


@dataclass(frozen=True, slots=True)
class WorkflowLayerStartedEvent:
    """The first node of a layer gets its task. `iteration` counts the passes of loops, from 0."""

    type: ClassVar[str] = "layer_started"
    layer: int
    nodes: tuple[str, ...]
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowLayerCompletedEvent:
    """All nodes of a layer have ended or are skipped.

    Attributes:
        duration: In seconds.
    """

    type: ClassVar[str] = "layer_completed"
    layer: int
    nodes: tuple[str, ...]
    iteration: int = 0
    duration: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkflowAgentStartedEvent:
    """A node gets its task."""

    type: ClassVar[str] = "agent_started"
    node_id: str
    agent_name: str
    layer: int
    iteration: int = 0
    input: str = ""


@dataclass(frozen=True, slots=True)
class WorkflowAgentCompletedEvent:
    """A node has ended. `progress` is the part of all nodes that have ended or are skipped."""

    type: ClassVar[str] = "agent_completed"
    node_id: str
    success: bool
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    progress: float = 0.0
    duration: float = 0.0
    iteration: int = 0
    fallback_for: str | None = None


@dataclass(frozen=True, slots=True)
class WorkflowAgentSkippedEvent:
    """A node is skipped, for this reason."""

    type: ClassVar[str] = "agent_skipped"
    node_id: str
    reason: str
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowEdgeTraversedEvent:
    """An edge was taken. `condition` describes what held."""

    type: ClassVar[str] = "edge_traversed"
    source: str
    target: str
    has_condition: bool = False
    condition: str | None = None
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowDiagnosticEvent:
    """A message without effect: a loop was left, or no end was reached."""

    type: ClassVar[str] = "diagnostic"
    message: str
    level: Literal["info", "warning"] = "info"
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class WorkflowCompletedEvent:
    """An execution has ended."""

    type: ClassVar[str] = "workflow_completed"
    execution_id: str
    success: bool
    successful_nodes: tuple[str, ...]
    failed_nodes: tuple[str, ...]
    skipped_nodes: tuple[str, ...]
    duration: float = 0.0
    error: str | None = None


AgentWorkflowEvent: TypeAlias = (
    WorkflowStartedEvent
    | WorkflowLayerStartedEvent
    | WorkflowLayerCompletedEvent
    | WorkflowAgentStartedEvent
    | WorkflowAgentCompletedEvent
    | WorkflowAgentSkippedEvent
    | WorkflowEdgeTraversedEvent
    | WorkflowDiagnosticEvent
    | WorkflowCompletedEvent
)
register_type(ThreadPosition, name="perdure:AgentWorkflowPast")
register_type(NodeOutput, name="perdure:AgentWorkflowSaid")
register_type(Continue, name="perdure:AgentWorkflowGoOn")
_BY_NAME = (NodeTask, NodeResult, NodeApprovalRequest, NodeApprovalResponse, AgentWorkflowResult)
for _class in (*_BY_NAME, *get_args(AgentWorkflowEvent)):
    register_type(_class, name=f"perdure:{_class.__name__}")
