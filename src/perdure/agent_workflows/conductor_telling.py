"""What the conductor tells of an execution, as events of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from perdure import WorkflowEvent
from perdure.agent_workflows.events import (
    WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent,
    WorkflowAgentStartedEvent,
    WorkflowCompletedEvent,
    WorkflowDiagnosticEvent,
    WorkflowEdgeTraversedEvent,
    WorkflowLayerCompletedEvent,
    WorkflowLayerStartedEvent,
    WorkflowStartedEvent,
)
from perdure.agent_workflows.reasons import condition_in_words
from perdure.agent_workflows.timing import seconds_since

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import Clock, WorkflowContext
    from perdure.agent_workflows.conductor_state import Acting, Book
    from perdure.agent_workflows.definition import Edge
    from perdure.agent_workflows.events import AgentWorkflowEvent
    from perdure.agent_workflows.plan import Plan
    from perdure.agent_workflows.progress import Progress
    from perdure.agent_workflows.result import AgentWorkflowResult


class Telling:
    """Tells what happens, in one handler call."""

    def __init__(self, plan: Plan, book: Book, clock: Clock, ctx: WorkflowContext[Any, Any]) -> None:
        self._plan = plan
        self._book = book
        self._clock = clock
        self._ctx = ctx

    async def tell(self, data: AgentWorkflowEvent) -> None:
        """Tell one event."""
        await self._ctx.add_event(WorkflowEvent(data.type, data))

    async def started(self, workflow_name: str, version: int | None) -> None:
        """The execution begins, with this version of its definition."""
        nodes, layers = self._plan.definition.nodes, self._plan.layers
        execution_id = self._book.record.execution_id
        await self.tell(WorkflowStartedEvent(workflow_name, execution_id, len(nodes), len(layers), version))

    async def agent_started(self, acting: Acting, text: str) -> None:
        """A node is given its task, and so its layer begins if it has not."""
        layer = self._plan.layer_of(acting.node_id)
        name = self._plan.node(acting.actor).agent.name or acting.actor
        await self._layer_started(layer)
        await self.tell(WorkflowAgentStartedEvent(acting.actor, name, layer, self._iteration(acting.node_id), text))

    async def agent_completed(
        self, acting: Acting, *, outputs: Mapping[str, Any] | None = None, error: str | None = None
    ) -> None:
        """Who acted for a node has ended."""
        await self.tell(
            WorkflowAgentCompletedEvent(
                acting.actor,
                success=error is None,
                outputs=dict(outputs or {}),
                error=error,
                progress=self._part_known(acting.node_id),
                duration=seconds_since(self._clock, acting.since),
                iteration=self._iteration(acting.node_id),
                fallback_for=None if acting.actor == acting.node_id else acting.node_id,
            )
        )

    async def agent_skipped(self, node_id: str, reason: str) -> None:
        """A node does not act."""
        await self.tell(WorkflowAgentSkippedEvent(node_id, reason, self._iteration(node_id)))

    async def edge_traversed(self, edge: Edge, *, before: Progress) -> None:
        """An edge was taken, in the pass that its source has acted in."""
        words, iteration = condition_in_words(edge), before.iteration(self._plan.loop_of(edge.source))
        await self.tell(WorkflowEdgeTraversedEvent(edge.source, edge.target, edge.is_conditional, words, iteration))

    async def diagnostic(
        self, message: str, *, level: Literal["info", "warning"] = "info", node_id: str | None = None
    ) -> None:
        """Something is worth knowing."""
        await self.tell(WorkflowDiagnosticEvent(message, level, node_id))

    async def layers_completed(self, *, is_pass_over: bool = False) -> None:
        """Layers have ended: those of which everything is known; at the end of a pass, all where nobody acts."""
        standing = self._book.progress.nodes
        undecided = "skipped" if is_pass_over else "acting"
        for number, since in self._book.record.layers.items():
            nodes = self._plan.layers[int(number)]
            if all(standing.get(node_id, undecided) != "acting" for node_id in nodes):
                left = {each: at for each, at in self._book.record.layers.items() if each != number}
                self._book.note(layers=left)
                duration, iteration = seconds_since(self._clock, since), self._iteration(*nodes)
                await self.tell(WorkflowLayerCompletedEvent(int(number), nodes, iteration, duration))

    async def completed(self, result: AgentWorkflowResult) -> None:
        """The execution has ended."""
        known = self._plan.in_order(self._book.progress.nodes)
        await self.tell(
            WorkflowCompletedEvent(
                result.execution_id,
                success=result.success,
                successful_nodes=tuple(
                    each for each in known if each not in result.failed and each not in result.skipped
                ),
                failed_nodes=tuple(result.failed),
                skipped_nodes=tuple(each for each in known if each in result.skipped),
                duration=result.duration,
                error=result.error,
            )
        )

    def _iteration(self, *node_ids: str) -> int:
        """The pass that nodes are in; of several, the latest."""
        progress = self._book.progress
        return max(progress.iteration(self._plan.loop_of(node_id)) for node_id in node_ids)

    async def _layer_started(self, layer: int) -> None:
        layers = self._book.record.layers
        if str(layer) not in layers:
            self._book.note(layers={**layers, str(layer): self._clock.now().isoformat()})
            nodes = self._plan.layers[layer]
            await self.tell(WorkflowLayerStartedEvent(layer, nodes, self._iteration(*nodes)))

    def _part_known(self, node_id: str) -> float:
        """The part of all nodes of which it is known what became of them, this one included."""
        nodes = self._book.progress.nodes
        ended = len(nodes) - len(self._book.progress.acting - {node_id})
        return ended / sum(len(layer) for layer in self._plan.layers)
