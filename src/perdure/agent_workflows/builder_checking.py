"""What can be wrong with what a builder was told. Each function finds all that it looks for, and raises nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure import InMemoryCheckpointStorage, SupportsAgentRun, WorkflowException
from perdure.agent_workflows import checking
from perdure.agent_workflows.agents import AgentConfig, made_agent
from perdure.agent_workflows.definition import END, START, UnionOutput
from perdure.agent_workflows.errors import AgentWorkflowBuildError, AgentWorkflowError
from perdure.agent_workflows.inputs_sources import input_problems
from perdure.agent_workflows.node import AgentNode
from perdure.agent_workflows.outputs import title_of
from perdure.agent_workflows.plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from perdure import SupportsChatGetResponse
    from perdure.agent_workflows.definition import Definition, Node
    from perdure.agent_workflows.workflow_graph import Parts


def made_agents(
    nodes: Sequence[Node], client: SupportsChatGetResponse | None, tools: Mapping[str, Any]
) -> tuple[dict[str, SupportsAgentRun], list[str]]:
    """The agents by node, those that are data made now; and what is wrong with them."""
    agents: dict[str, SupportsAgentRun] = {}
    problems: list[str] = []
    for node in nodes:
        try:
            agents[node.id] = _agent(node, client, tools)
        except AgentWorkflowBuildError as error:
            problems += error.problems
        except TypeError as error:
            problems.append(f"node {node.id!r}: {error}")
    return agents, problems


def node_problems(nodes: Sequence[Node], agents: Mapping[str, SupportsAgentRun], known: Sequence[str]) -> Iterator[str]:
    """What agents can't do that their nodes want of them, but for nodes of which something is known to be wrong."""
    for node in nodes:
        if node.id not in agents or any(repr(node.id) in problem for problem in known):
            continue
        try:
            AgentNode(node, agents[node.id])
        except (AgentWorkflowError, TypeError, ValueError) as error:
            yield f"node {node.id!r}: {error}"


def graph_problems(parts: Parts) -> list[str]:
    """Why no execution could begin, though all that was said is sound."""
    try:
        parts.graph("result")
    except (WorkflowException, TypeError, ValueError) as error:
        return [f"no execution can begin: {error}"]
    return []


def _agent(node: Node, client: SupportsChatGetResponse | None, tools: Mapping[str, Any]) -> SupportsAgentRun:
    agent: object = node.agent
    if isinstance(agent, AgentConfig):
        return made_agent(agent, name=node.id, client=client, tools=tools)
    if not isinstance(agent, SupportsAgentRun):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
        raise TypeError(f"its agent has to be an agent or an AgentConfig, not a {type(agent).__name__}")
    return agent


def structure_problems(definition: Definition, types: Iterable[tuple[str, str]]) -> list[str]:
    """What is wrong with nodes and edges, and with what nodes are to read."""
    problems = [*checking.problems(definition), *_type_problems(definition, types)]
    ids = [node.id for node in definition.nodes]
    if len(set(ids)) < len(ids) or not all(edge.source in {*ids, START} for edge in definition.edges):
        # Who comes before whom is not known, so nobody can be said to read what is not there.
        return problems
    known = tuple(edge for edge in definition.edges if edge.target in {*ids, END})
    return [*problems, *input_problems(plan_of(replace(definition, edges=known)))]


def _type_problems(definition: Definition, types: Iterable[tuple[str, str]]) -> Iterator[str]:
    nodes = {node.id: node for node in definition.nodes}
    for source, name in types:
        if source not in nodes:
            continue
        output = nodes[source].output
        known = [title_of(each) or "" for each in output.types] if isinstance(output, UnionOutput) else []
        if not known:
            yield f"node {source!r} has no types to route by: give it union_output=[...]"
        elif name not in known:
            has = ", ".join(known)
            yield f"node {source!r} never puts out a {name!r}, so no edge can be routed by it; it has {has}"


def store_problems(parts: Parts) -> Iterator[str]:
    """What is promised of keeping, and can't be kept."""
    if parts.is_checkpointed and parts.storage is None:
        yield (
            "with_checkpointing() needs a place for checkpoints: add with_json_workflow_store(...), "
            "with_sqlite_workflow_store(...) or with_in_memory_workflow_store()"
        )
    kind = parts.definition.conversation.kind
    if kind == "none":
        return
    if parts.session_store is None:
        yield (
            f"the conversation policy {kind!r} needs a place for conversations: add with_json_session_store(...), "
            "with_sqlite_session_store(...) or with_in_memory_session_store()"
        )
    elif _forgets_sooner(parts):
        yield (
            "executions outlast this process and their conversations don't, so a resumed one would not know what was "
            "said: add with_json_session_store(...) or with_sqlite_session_store(...)"
        )


def _forgets_sooner(parts: Parts) -> bool:
    from perdure.threads import InMemorySessionStore  # noqa: PLC0415 - loaded where there are conversations

    kept_in = parts.kept_in
    is_lasting = kept_in is not None and not isinstance(kept_in, InMemoryCheckpointStorage)
    return is_lasting and isinstance(parts.session_store, InMemorySessionStore)
