"""`AgentWorkflowBuilder`: agents, edges and settings put together, and checked as a whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.agent_workflows.builder_checking import (
    graph_problems,
    made_agents,
    node_problems,
    store_problems,
    structure_problems,
)
from perdure.agent_workflows.builder_edges import EdgesBuilder, with_router_edges
from perdure.agent_workflows.builder_nodes import NodesBuilder
from perdure.agent_workflows.builder_settings import SettingsBuilder
from perdure.agent_workflows.checking_kinds import sound
from perdure.agent_workflows.definition import Definition
from perdure.agent_workflows.errors import AgentWorkflowBuildError
from perdure.agent_workflows.workflow import AgentWorkflow
from perdure.agent_workflows.workflow_graph import Parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Clock
    from perdure.agent_workflows.definition import Edge, Node


class AgentWorkflowBuilder(SettingsBuilder, NodesBuilder, EdgesBuilder):
    """Describe an agent workflow, one thing after the other: every method returns the builder.

    `AgentWorkflow.create()` gives an empty one, `from_config` and `from_json` one that says all that a definition says.
    `build()` looks at all of it, and says all that is wrong at once.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)

    def include(self, definition: Definition) -> AgentWorkflowBuilder:
        """Say all that a definition says, in place of what was said of the same before."""
        self._name, self._description, self._version = definition.name, definition.description, definition.version
        self._iterations, self._timeout = definition.iterations, definition.timeout
        self._conversation = definition.conversation
        self._nodes += definition.nodes
        self._edges += definition.edges
        return self

    def build(self) -> AgentWorkflow:
        """Check all of it and make a workflow. Raises AgentWorkflowBuildError, which says all that is wrong."""
        definition, wrong = self._definition()
        agents, problems = made_agents(definition.nodes, self._client, self._tools)
        parts = Parts(
            definition=definition,
            agents=agents,
            storage=self._storage,
            is_checkpointed=self._is_checkpointed,
            session_store=self._session_store,
            clock=self._clock,
        )
        found = [*self._problems, *self._dangling(), *wrong]
        found += [*structure_problems(definition, self._types), *problems]
        found += [*node_problems(definition.nodes, agents, found), *store_problems(parts)]
        found = found or graph_problems(parts)
        if found:
            raise AgentWorkflowBuildError(found)
        return AgentWorkflow(parts)

    def _definition(self) -> tuple[Definition, list[str]]:
        """All that was said, and what of it is of the wrong kind."""
        said, wrong = sound(self._said())
        edges = with_router_edges(said.nodes, said.edges)
        return replace(said, name=said.name or _drawn_name(said.nodes, edges), edges=tuple(edges)), wrong

    def _said(self) -> Definition:
        return Definition(
            name=self._name,
            nodes=tuple(self._nodes),
            edges=tuple(self._edges),
            description=self._description,
            version=self._version,
            iterations=self._iterations,
            timeout=self._timeout,
            conversation=self._conversation,
        )


def _drawn_name(nodes: Sequence[Node], edges: Sequence[Edge]) -> str:
    """The name of one that was given none: the same for the same nodes and edges, in every process and order."""
    ways = sorted((edge.source, edge.target) for edge in edges)
    shape = json.dumps([sorted(node.id for node in nodes), ways])
    return f"agent-workflow-{hashlib.blake2b(shape.encode(), digest_size=6).hexdigest()}"
