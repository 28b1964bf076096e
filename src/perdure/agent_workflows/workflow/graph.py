"""The graph of an agent workflow: a conductor, and an executor for each node, connected both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from perdure import SystemClock, Workflow, WorkflowBuilder
from perdure.agent_workflows.conductor.conductor import Conductor
from perdure.agent_workflows.conductor.conversations import Conversations
from perdure.agent_workflows.definition.document import to_config
from perdure.agent_workflows.node.node import AgentNode
from perdure.agent_workflows.plan import plan_of
from perdure.agent_workflows.workflow.adapters import AgentOfWorkflow
from perdure.agent_workflows.workflow.history import definitions_in, origins_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import CheckpointStorage, Clock, SupportsAgentRun
    from perdure.agent_workflows.conductor.conductor import OutputForm
    from perdure.agent_workflows.definition.values import Definition
    from perdure.agent_workflows.plan import Plan
    from perdure.threads import SessionStore

SUPERSTEPS_MAX: Final = 1_000_000_000
"""The engine's limit is out of reach: the definition limits the passes of loops."""


@dataclass(slots=True)
class _Cache:
    """Values that are computed once for all executions."""

    plan: Plan | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a built workflow: its definition, an agent for each node, and its stores."""

    definition: Definition
    agents: Mapping[str, SupportsAgentRun]
    storage: CheckpointStorage | None = None
    is_checkpointed: bool = False
    session_store: SessionStore | None = None
    clock: Clock | None = None
    _cache: _Cache = field(default_factory=_Cache, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Return the name of the workflow."""
        assert self.definition.name is not None, "the builder gives every workflow a name"
        return self.definition.name

    @property
    def execution_storage(self) -> CheckpointStorage | None:
        """Return the storage of executions; None without checkpointing."""
        return self.storage if self.is_checkpointed else None

    @property
    def active_clock(self) -> Clock:
        """Return the given clock, or the system's."""
        return self.clock or SystemClock()

    @property
    def stopping(self) -> frozenset[str]:
        """Return the nodes whose failure stops the run."""
        return frozenset(node.id for node in self.definition.nodes if node.on_error.mode == "stop")

    @property
    def plan(self) -> Plan:
        """Return the plan of the definition."""
        self._cache.plan = self._cache.plan or plan_of(self.definition)
        return self._cache.plan

    async def save_definition(self) -> int | None:
        """Save the definition in the workflow store and return its version; None if there is no store for it."""
        definitions = None if self.storage is None else definitions_in(self.storage)
        if definitions is not None and self._cache.version is None:
            self._cache.version = await definitions.save(to_config(self.definition).config)
        return self._cache.version

    def graph(
        self, gives: OutputForm, *, storage: CheckpointStorage | None = None, author_name: str | None = None
    ) -> Workflow:
        """Build a workflow of the engine with its own executors. `author_name` is the author of its responses."""
        conversations = None
        if self.session_store is not None:
            # Nodes get them even if the policy is "none": a node may have a task from before the policy changed.
            conversations = Conversations(self.session_store, self.definition.conversation, workflow_name=self.name)
        conductor = Conductor(
            self.plan,
            conversations=None if self.definition.conversation.kind == "none" else conversations,
            gives=gives,
            clock=self.clock,
            name=self.name,
            on_begin=self.save_definition,
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
            # An agent or a node of a graph gives only its answer; a result also has the outputs on the way.
            intermediate_output_from="all_other" if gives == "result" else None,
            clock=self.clock,
        )
        builder.add_edge(conductor, conductor)  # For the conductor's messages to itself.
        for node in self.definition.nodes:
            agent = self.agents[node.id]
            # A nested agent workflow serves one run at a time, so each graph gets its own copy.
            own = agent.copy_for_run() if isinstance(agent, AgentOfWorkflow) else agent
            executor = AgentNode(node, own, conductor_id=conductor.id, conversations=conversations)
            builder.add_edge(conductor, executor).add_edge(executor, conductor)
        return builder.build()
