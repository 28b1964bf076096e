"""Events of agent workflows, beside those of every run: one data class for each.

They are emitted as `WorkflowEvent`s: `event.type` is the `type` of the class, `event.data` the instance. They are
numbered and stored like all others.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the codec reads the fields
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

from perdure import register_type

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
    """All nodes of a layer have ended or are skipped."""

    type: ClassVar[str] = "layer_completed"
    layer: int
    nodes: tuple[str, ...]
    iteration: int = 0
    duration: float = 0.0
    """In seconds."""


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
