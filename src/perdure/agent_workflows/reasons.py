"""Edges and decisions in words: for events, for the reasons of skipped nodes, for errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perdure.agent_workflows.definition import START

if TYPE_CHECKING:
    from perdure.agent_workflows.definition import Edge
    from perdure.agent_workflows.plan import Plan
    from perdure.agent_workflows.progress import Progress

OTHERWISE: Final = "no other condition holds"
"""The condition of a default edge, in words."""


def condition_in_words(edge: Edge) -> str | None:
    """What has to hold for an edge to be taken; None if it is taken always."""
    if edge.is_default:
        return OTHERWISE
    parts = [] if edge.condition is None else [edge.condition.describe()]
    if edge.predicate is not None:
        name = getattr(edge.predicate, "__name__", type(edge.predicate).__name__)
        parts.append("a predicate holds" if name == "<lambda>" else f"{name}() holds")
    return " and ".join(parts) or None


def way_in_words(edge: Edge) -> str:
    """An edge as it is called in texts."""
    return f"{edge.source!r} -> {edge.target!r}"


def why_skipped(plan: Plan, progress: Progress, node_id: str) -> str:
    """Why a node does not act: what is the matter with each of its edges."""
    edges = plan.forward_to(node_id)
    blocked = [edge for edge in edges if progress.decision(edge.source, edge.target) == "blocked"]
    if blocked:
        return "; ".join(_why_blocked(progress, edge) for edge in blocked)
    return "; ".join(_why_not_taken(progress, edge) for edge in edges) or "nothing leads to it"


def _why_blocked(progress: Progress, edge: Edge) -> str:
    if progress.nodes.get(edge.source) == "failed":
        return f"{edge.source!r} has failed"
    return f"{edge.source!r} was skipped: {progress.skipped.get(edge.source, 'a node before it has failed')}"


def _why_not_taken(progress: Progress, edge: Edge) -> str:
    if edge.source != START and progress.nodes.get(edge.source) == "skipped":
        return f"{edge.source!r} was skipped"
    if edge.is_default:
        return f"{way_in_words(edge)} was not needed: another condition of {edge.source!r} holds"
    return f"{way_in_words(edge)} was not taken: it needs {condition_in_words(edge)}"
