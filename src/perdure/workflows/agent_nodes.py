"""Agents as nodes of a graph."""

from __future__ import annotations

from perdure.agents import AgentExecutor, SupportsAgentRun


def node_of(agent: object) -> AgentExecutor:
    """What an agent becomes in a graph. Raises TypeError for what is none."""
    if not isinstance(agent, SupportsAgentRun):
        raise TypeError(f"a node is an Executor or an agent, not a {type(agent).__name__}: {agent!r}")
    return AgentExecutor(agent)
