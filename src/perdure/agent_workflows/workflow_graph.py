"""An agent workflow as a graph of the engine: a conductor, and a node for each agent, joined both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from perdure import SystemClock, Workflow, WorkflowBuilder
from perdure.agent_workflows.conductor import Conductor
from perdure.agent_workflows.config import to_config
from perdure.agent_workflows.conversations import Conversations
from perdure.agent_workflows.node import AgentNode
from perdure.agent_workflows.plan import plan_of
from perdure.agent_workflows.workflow_finding import definitions_in
from perdure.agent_workflows.workflow_origins import origins_of
from perdure.agent_workflows.workflow_shapes import AgentOfWorkflow

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


@dataclass(slots=True)
class Memo:
    """What is found out once, for all executions."""

    plan: Plan | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a workflow is made of: its definition, an agent for each node, and its stores."""

    definition: Definition
    agents: Mapping[str, SupportsAgentRun]
    storage: CheckpointStorage | None = None
    is_checkpointed: bool = False
    session_store: SessionStore | None = None
    clock: Clock | None = None
    memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

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

    @property
    def stopping(self) -> frozenset[str]:
        """The nodes whose failure stops the run."""
        return frozenset(node.id for node in self.definition.nodes if node.on_error.mode == "stop")

    def plan(self) -> Plan:
        """The definition with all that it implies."""
        self.memo.plan = self.memo.plan or plan_of(self.definition)
        return self.memo.plan

    async def keep_definition(self) -> int | None:
        """Keep the definition in the workflow store; its version, None if there is no place for it."""
        definitions = None if self.storage is None else definitions_in(self.storage)
        if definitions is not None and self.memo.version is None:
            self.memo.version = await definitions.save(to_config(self.definition).config)
        return self.memo.version

    def graph(
        self, gives: Gives, *, storage: CheckpointStorage | None = None, author_name: str | None = None
    ) -> Workflow:
        """A workflow of the engine, with executors of its own. What it says, as an agent, is of who is named."""
        plan, conversations = self.plan(), self._conversations()
        conductor = Conductor(
            plan,
            conversations=None if self.definition.conversation.kind == "none" else conversations,
            gives=gives,
            clock=self.clock,
            name=self.name,
            on_begin=self.keep_definition,
            origins=None if storage is None else partial(origins_of, storage),
            author_name=author_name,
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
        # What may fail it does in a superstep of its own, to which it calls itself.
        builder.add_edge(conductor, conductor)
        for node in self.definition.nodes:
            agent = self.agents[node.id]
            # Executors of a workflow serve one run at a time, and there may be several executions.
            own = agent.twin() if isinstance(agent, AgentOfWorkflow) else agent
            made = AgentNode(node, own, conductor_id=conductor.id, conversations=conversations)
            builder.add_edge(conductor, made).add_edge(made, conductor)
        return builder.build()

    def _conversations(self) -> Conversations | None:
        """The conversations, also where the policy has none: a node may have a task from when it had."""
        if self.session_store is None:
            return None
        return Conversations(self.session_store, self.definition.conversation, workflow_name=self.name)
