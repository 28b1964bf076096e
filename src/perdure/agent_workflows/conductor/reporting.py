"""Reports of the conductor: its events, and the result of an execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from perdure import WorkflowEvent
from perdure.agent_workflows.conductor.scheduling import denial_text
from perdure.agent_workflows.conductor.state import seconds_since
from perdure.agent_workflows.definition.values import END
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
from perdure.agent_workflows.messages import AgentWorkflowResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import Clock, WorkflowContext
    from perdure.agent_workflows.conductor.scheduling import Progress
    from perdure.agent_workflows.conductor.state import ActiveTask, ExecutionState
    from perdure.agent_workflows.definition.values import Edge
    from perdure.agent_workflows.events import AgentWorkflowEvent
    from perdure.agent_workflows.plan import Plan


class EventEmitter:
    """Emits the events of an execution during a handler call."""

    def __init__(self, plan: Plan, state: ExecutionState, clock: Clock, ctx: WorkflowContext[Any, Any]) -> None:
        self._plan = plan
        self._state = state
        self._clock = clock
        self._ctx = ctx

    async def _emit(self, data: AgentWorkflowEvent) -> None:
        await self._ctx.add_event(WorkflowEvent(data.type, data))

    async def started(self, workflow_name: str, version: int | None) -> None:
        """Emit that the execution begins, with the version of its definition."""
        nodes, layers = self._plan.definition.nodes, self._plan.layers
        execution_id = self._state.record.execution_id
        await self._emit(WorkflowStartedEvent(workflow_name, execution_id, len(nodes), len(layers), version))

    async def agent_started(self, task: ActiveTask, text: str) -> None:
        """Emit that a node gets a task; before it, that its layer starts."""
        layer = self._plan.layer_of(task.node_id)
        layers = self._state.record.layers
        if str(layer) not in layers:
            self._state.update(layers={**layers, str(layer): self._clock.now().isoformat()})
            nodes = self._plan.layers[layer]
            await self._emit(WorkflowLayerStartedEvent(layer, nodes, self._iteration(*nodes)))
        name = self._plan.node(task.actor).agent.name or task.actor
        await self._emit(WorkflowAgentStartedEvent(task.actor, name, layer, self._iteration(task.node_id), text))

    async def agent_completed(
        self, task: ActiveTask, *, outputs: Mapping[str, Any] | None = None, error: str | None = None
    ) -> None:
        """Emit that a task has ended."""
        nodes = self._state.progress.nodes
        ended = len(nodes) - len(self._state.progress.active - {task.node_id})
        await self._emit(
            WorkflowAgentCompletedEvent(
                task.actor,
                success=error is None,
                outputs=dict(outputs or {}),
                error=error,
                progress=ended / sum(len(layer) for layer in self._plan.layers),
                duration=seconds_since(self._clock, task.since),
                iteration=self._iteration(task.node_id),
                fallback_for=None if task.actor == task.node_id else task.node_id,
            )
        )

    async def agent_skipped(self, node_id: str, reason: str) -> None:
        """Emit that a node is skipped."""
        await self._emit(WorkflowAgentSkippedEvent(node_id, reason, self._iteration(node_id)))

    async def edge_traversed(self, edge: Edge, *, before: Progress) -> None:
        """Emit that an edge was taken, with the pass in which its source ran."""
        iteration = before.iteration(self._plan.loop_of(edge.source))
        await self._emit(
            WorkflowEdgeTraversedEvent(edge.source, edge.target, edge.is_conditional, edge.requirement, iteration)
        )

    async def diagnostic(
        self, message: str, *, level: Literal["info", "warning"] = "info", node_id: str | None = None
    ) -> None:
        """Emit a message that is worth knowing."""
        await self._emit(WorkflowDiagnosticEvent(message, level, node_id))

    async def layers_completed(self, *, is_pass_over: bool = False) -> None:
        """Emit that layers have ended: those with all nodes decided; at the end of a pass, those where no node runs."""
        status = self._state.progress.nodes
        undecided = "skipped" if is_pass_over else "acting"
        for number, since in self._state.record.layers.items():
            nodes = self._plan.layers[int(number)]
            if all(status.get(node_id, undecided) != "acting" for node_id in nodes):
                left = {each: at for each, at in self._state.record.layers.items() if each != number}
                self._state.update(layers=left)
                duration, iteration = seconds_since(self._clock, since), self._iteration(*nodes)
                await self._emit(WorkflowLayerCompletedEvent(int(number), nodes, iteration, duration))

    async def completed(self, result: AgentWorkflowResult) -> None:
        """Emit that the execution has ended."""
        known = self._plan.in_order(self._state.progress.nodes)
        await self._emit(
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
        """Return the pass that nodes are in; of several, the latest."""
        progress = self._state.progress
        return max(progress.iteration(self._plan.loop_of(node_id)) for node_id in node_ids)


def make_result(plan: Plan, state: ExecutionState, clock: Clock) -> AgentWorkflowResult:
    """Return the result of an execution in which no node has a task any more."""
    progress, record = state.progress, state.record
    ends = [node_id for node_id in plan.ends if progress.decision(node_id, END) == "taken"]
    texts = [output.text for node_id in ends if (output := state.output(node_id)) is not None and output.text]
    # An isolated failure lets all go on, even to END, but it is no answer.
    is_reached = any(progress.nodes.get(node_id) != "isolated" for node_id in ends)
    error = progress.halted or (None if is_reached else _no_end_reason(state))
    nodes = [(node_id, state.output(node_id)) for layer in plan.layers for node_id in layer]
    return AgentWorkflowResult(
        execution_id=record.execution_id,
        success=error is None,
        final_answer="\n\n".join(texts) if texts else None,
        outputs={
            f"{node_id}.{key}": value for node_id, output in nodes if output for key, value in output.outputs.items()
        },
        failed=dict(record.failed),
        skipped=dict(progress.skipped),
        error=error,
        duration=seconds_since(clock, record.begun_at),
    )


def _no_end_reason(state: ExecutionState) -> str:
    denials = set(state.progress.denied.values())
    texts = [
        (denial_text(actor, error), f"{actor!r} has failed: {error}") for actor, error in state.record.failed.items()
    ]
    failed = "; ".join(denial if denial in denials else failure for denial, failure in texts)
    return f"no end was reached: {failed}" if failed else "no end was reached: no edge to END was taken"
