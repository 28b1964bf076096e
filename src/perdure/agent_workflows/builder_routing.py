"""The edges that routers bring with them: one to each node that they may choose, taken if it was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.agent_workflows.builder_edges import with_condition
from perdure.agent_workflows.conditions import Equals
from perdure.agent_workflows.definition import HANDOFF_TARGET, Edge, Handoffs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.agent_workflows.definition import Node


def with_router_edges(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[Edge]:
    """The declared edges, those to chosen nodes with their condition, and behind them those that nobody declared."""
    choices = {node.id: node.output for node in nodes if isinstance(node.output, Handoffs)}
    declared = [_conditioned(edge, choices) for edge in edges]
    return [*declared, *_implied(choices, declared)]


def _conditioned(edge: Edge, choices: Mapping[str, Handoffs]) -> Edge:
    router = choices.get(edge.source)
    if router is None or edge.target not in router.targets or edge.is_default:
        return edge
    is_said = edge.condition is not None and HANDOFF_TARGET in edge.condition.fields()
    return edge if is_said else with_condition(edge, Equals(HANDOFF_TARGET, edge.target))


def _implied(choices: Mapping[str, Handoffs], declared: Sequence[Edge]) -> Iterator[Edge]:
    joined = {(edge.source, edge.target) for edge in declared}
    for router, output in choices.items():
        for target in output.targets:
            if (router, target) not in joined:
                yield Edge(router, target, condition=Equals(HANDOFF_TARGET, target))
