"""What an agent workflow tells beside the events that every run tells: the data of its events, one class for each.

They come as `WorkflowEvent`s: `event.type` is the `type` of the class, `event.data` the instance. They are numbered and
kept like all others.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the codec follows the fields
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

from perdure import register_type

UNCHANGED: Final = "its task is the same as in the pass before"
"""The reason of a node that need not act again: it stands with what it has put out."""


@dataclass(frozen=True, slots=True)
class WorkflowStartedEvent:
    """An execution begins. `version` is that of its definition in the workflow store, None if there is no store."""

    type: ClassVar[str] = "workflow_started"
    workflow_name: str
    execution_id: str
    node_count: int
    layer_count: int
    version: int | None = None


@dataclass(frozen=True, slots=True)
class WorkflowLayerStartedEvent:
    """The first node of a layer is given its task. `iteration` counts the passes of loops, from 0."""

    type: ClassVar[str] = "layer_started"
    layer: int
    nodes: tuple[str, ...]
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowLayerCompletedEvent:
    """Of every node of a layer it is known what became of it."""

    type: ClassVar[str] = "layer_completed"
    layer: int
    nodes: tuple[str, ...]
    iteration: int = 0
    duration: float = 0.0
    """In seconds."""


@dataclass(frozen=True, slots=True)
class WorkflowAgentStartedEvent:
    """A node is given its task."""

    type: ClassVar[str] = "agent_started"
    node_id: str
    agent_name: str
    layer: int
    iteration: int = 0
    input: str = ""


@dataclass(frozen=True, slots=True)
class WorkflowAgentCompletedEvent:
    """A node has ended, well or not. `progress` is the part of all nodes of which it is known what became of them."""

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
    """A node does not act, and why."""

    type: ClassVar[str] = "agent_skipped"
    node_id: str
    reason: str
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowEdgeTraversedEvent:
    """An edge was taken. `condition` is what held, in words."""

    type: ClassVar[str] = "edge_traversed"
    source: str
    target: str
    has_condition: bool = False
    condition: str | None = None
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowDiagnosticEvent:
    """Something worth knowing that changes nothing: a loop that was left, an end that nobody reached."""

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
EVENT_CLASSES: tuple[type[AgentWorkflowEvent], ...] = (
    WorkflowStartedEvent,
    WorkflowLayerStartedEvent,
    WorkflowLayerCompletedEvent,
    WorkflowAgentStartedEvent,
    WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent,
    WorkflowEdgeTraversedEvent,
    WorkflowDiagnosticEvent,
    WorkflowCompletedEvent,
)

for _class in EVENT_CLASSES:
    register_type(_class, name=f"perdure:{_class.__name__}")
