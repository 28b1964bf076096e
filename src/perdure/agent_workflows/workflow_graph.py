"""An agent workflow as a graph of the engine: a conductor, and a node for each agent, joined both ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from perdure import SystemClock, Workflow, WorkflowBuilder
from perdure.agent_workflows.conductor import Conductor
from perdure.agent_workflows.conversations import Conversations
from perdure.agent_workflows.node import AgentNode
from perdure.agent_workflows.plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import CheckpointStorage, Clock, SupportsAgentRun
    from perdure.agent_workflows.definition import Definition
    from perdure.agent_workflows.plan import Plan
    from perdure.threads import SessionStore

SUPERSTEPS_MAX: Final = 1_000_000_000
"""The engine's own limit is out of reach: what ends a loop is what the definition says of loops."""

Gives: TypeAlias = Literal["result", "text", "response"]
"""What the graph yields at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a workflow is made of: its definition, an agent for each node, and its stores."""

    definition: Definition
    agents: Mapping[str, SupportsAgentRun]
    storage: CheckpointStorage | None = None
    is_checkpointed: bool = False
    session_store: SessionStore | None = None
    clock: Clock | None = None

    @property
    def name(self) -> str:
        """The name of the workflow, which every one that was built has."""
        assert self.definition.name is not None, "the builder names what has no name"
        return self.definition.name

    @property
    def kept_in(self) -> CheckpointStorage | None:
        """Where executions are kept, if they are."""
        return self.storage if self.is_checkpointed else None

    def time(self) -> Clock:
        """The clock."""
        return self.clock or SystemClock()

    def plan(self) -> Plan:
        """The definition with all that it implies."""
        return plan_of(self.definition)

    def graph(
        self, gives: Gives, *, storage: CheckpointStorage | None = None, execution_id: str | None = None
    ) -> Workflow:
        """A workflow of the engine, with executors of its own; for one execution, if its id is given."""
        plan = self.plan()
        conductor = Conductor(
            plan,
            conversations=self._conversations(),
            gives=gives,
            clock=self.clock,
            name=self.name,
            execution_id=execution_id,
        )
        builder = WorkflowBuilder(
            SUPERSTEPS_MAX,
            self.name,
            self.definition.description,
            start_executor=conductor,
            checkpoint_storage=storage,
            output_from=[conductor],
            # What single nodes say is told on the way, but an agent or a node of a graph gives its answer alone.
            intermediate_output_from="all_other" if gives == "result" else None,
            clock=self.clock,
        )
        for node in self.definition.nodes:
            agent = AgentNode(node, self.agents[node.id], conductor_id=conductor.id)
            builder.add_edge(conductor, agent).add_edge(agent, conductor)
        return builder.build()

    def _conversations(self) -> Conversations | None:
        if self.session_store is None or self.definition.conversation.kind == "none":
            return None
        return Conversations(self.session_store, self.definition.conversation, workflow_name=self.name)
