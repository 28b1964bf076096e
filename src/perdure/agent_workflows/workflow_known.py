"""What is known of an execution by what it has told: what its nodes have put out, who has failed, who was skipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.agent_workflows.definition import ERROR, TextOutput
from perdure.agent_workflows.events import (
    UNCHANGED,
    WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent,
    WorkflowAgentStartedEvent,
    WorkflowCompletedEvent,
    WorkflowEdgeTraversedEvent,
    WorkflowStartedEvent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import WorkflowEvent
    from perdure.agent_workflows.plan import Plan


@dataclass(slots=True)
class Known:
    """What an execution has told so far. Its events are noted in their order; one that begins forgets what was before.

    `has_begun` if all that it has told was noted, from its beginning on.
    """

    plan: Plan
    has_begun: bool = False
    failed: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    completed: WorkflowCompletedEvent | None = None
    _said: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    _started: dict[str, WorkflowAgentStartedEvent] = field(default_factory=dict[str, WorkflowAgentStartedEvent])
    """By who acts: its task, as long as it has not ended."""
    _ended: set[str] = field(default_factory=set[str])

    @property
    def outputs(self) -> dict[str, Any]:
        """The outputs of all nodes, as `node.key`, in the order of the plan."""
        nodes = (node_id for layer in self.plan.layers for node_id in layer if node_id in self._said)
        return {f"{node_id}.{key}": value for node_id in nodes for key, value in self._said[node_id].items()}

    @property
    def final_answer(self) -> str | None:
        """What the nodes before END have said, as far as that was told as a text."""
        keys = [(node_id, self.plan.node(node_id).output) for node_id in self.plan.ends]
        said = [
            self._said[node_id].get(output.key)
            for node_id, output in keys
            if isinstance(output, TextOutput) and node_id in self._said
        ]
        return "\n\n".join(str(each) for each in said if each) or None

    def failure_of(self, actor: str, error: str, *, duration: float) -> WorkflowAgentCompletedEvent:
        """What there is to tell of a node that has failed and stops the run."""
        started = self._started.get(actor)
        stands_for = self._node_of(actor)
        return WorkflowAgentCompletedEvent(
            actor,
            success=False,
            error=error,
            progress=len(self._ended | {stands_for}) / sum(len(layer) for layer in self.plan.layers),
            duration=duration,
            iteration=0 if started is None else started.iteration,
            fallback_for=None if stands_for == actor else stands_for,
        )

    def note(self, event: WorkflowEvent[Any]) -> None:
        """Take in an event. What runs inside of this one tell is none of it, nor what is of nodes that are no more."""
        data: object = event.data
        if event.path or not self._is_about_nodes(data):
            return
        match data:
            case WorkflowStartedEvent():
                self._begin()
            case WorkflowAgentStartedEvent():
                self._started[data.node_id] = data
                self.skipped.pop(data.node_id, None)
            case WorkflowAgentCompletedEvent():
                self._complete(data)
            case WorkflowAgentSkippedEvent():
                self._skip(data)
            case WorkflowEdgeTraversedEvent():
                self._follow(data)
            case WorkflowCompletedEvent():
                self.completed = data
            case _:
                pass

    def _is_about_nodes(self, data: object) -> bool:
        named = (getattr(data, "node_id", None), getattr(data, "fallback_for", None))
        return all(self.plan.has_node(node_id) for node_id in named if node_id is not None)

    def _begin(self) -> None:
        for kept in (self.failed, self.skipped, self._said, self._started, self._ended):
            kept.clear()
        self.has_begun, self.completed = True, None

    def _complete(self, event: WorkflowAgentCompletedEvent) -> None:
        actor, node_id = event.node_id, event.fallback_for or event.node_id
        self._started.pop(actor, None)
        if event.success:
            self.failed.pop(actor, None)
            self._said[node_id] = self._outputs(event)
            self._ended.add(node_id)
            return
        error = event.error or ""
        self.failed[actor] = error
        self._said.pop(node_id, None)
        match self.plan.node(actor).on_error.mode:
            case "isolate":
                self._said[node_id] = {ERROR: error}
                self._ended.add(node_id)
            case "fallback":
                pass
            case _:
                self._ended.add(node_id)

    def _outputs(self, event: WorkflowAgentCompletedEvent) -> Mapping[str, Any]:
        """What a node has put out. The text of who stands in for it stands where the node would have its own."""
        output = None if event.fallback_for is None else self.plan.node(event.fallback_for).output
        own = self.plan.node(event.node_id).output
        if isinstance(output, TextOutput) and isinstance(own, TextOutput) and own.key in event.outputs:
            return {**event.outputs, output.key: event.outputs[own.key]}
        return event.outputs

    def _skip(self, event: WorkflowAgentSkippedEvent) -> None:
        self._ended.add(event.node_id)
        if event.reason == UNCHANGED:
            return
        self.skipped[event.node_id] = event.reason
        self._said.pop(event.node_id, None)
        self.failed.pop(event.node_id, None)

    def _follow(self, event: WorkflowEdgeTraversedEvent) -> None:
        """An edge was taken: one that goes back lets its target, and what comes after it, be decided anew."""
        if (event.source, event.target) in self.plan.backs:
            for node_id in (event.target, *self.plan.after(event.target)):
                self._ended.discard(node_id)
                self.skipped.pop(node_id, None)

    def _node_of(self, actor: str) -> str:
        """For whom an actor acts, as far as that can be said."""
        stands_for = self.plan.fallbacks.get(actor, (actor,))
        return next((node_id for node_id in stands_for if node_id in self.failed), stands_for[0])
