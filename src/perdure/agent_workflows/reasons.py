"""Edges and decisions in words: for events, for the reasons of skipped nodes, for errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perdure.agent_workflows.definition import START
from perdure.agent_workflows.predicates import name_of, parts_of

if TYPE_CHECKING:
    from perdure.agent_workflows.definition import Edge
    from perdure.agent_workflows.plan import Plan
    from perdure.agent_workflows.progress import Progress

OTHERWISE: Final = "no other condition holds"
"""The condition of a default edge, in words."""
_NAMED_MAX: Final = 5
"""How many edges a reason names."""


def condition_in_words(edge: Edge) -> str | None:
    """What has to hold for an edge to be taken; None if it is taken always."""
    if edge.is_default:
        return OTHERWISE
    parts = [] if edge.condition is None else [edge.condition.describe()]
    names = map(name_of, parts_of(edge.predicate))
    parts += ["a predicate holds" if name is None else f"{name}() holds" for name in names]
    return " and ".join(parts) or None


def way_in_words(edge: Edge) -> str:
    """An edge as it is called in texts."""
    return f"{edge.source!r} -> {edge.target!r}"


def why_skipped(plan: Plan, progress: Progress, node_id: str) -> str:
    """Why a node does not act: what is the matter with its edges. It names the first few of them."""
    edges = plan.forward_to(node_id)
    blocked = [edge for edge in edges if progress.decision(edge.source, edge.target) == "blocked"]
    if blocked:
        reasons = [_why_blocked(plan, progress, edge) for edge in blocked[:_NAMED_MAX]]
    else:
        reasons = [_why_not_taken(progress, edge) for edge in edges[:_NAMED_MAX]]
    more = len(blocked or edges) - len(reasons)
    return "; ".join([*reasons, *([f"and the same with {more} more"] if more else [])]) or "nothing leads to it"


def _why_blocked(plan: Plan, progress: Progress, edge: Edge) -> str:
    if progress.nodes.get(edge.source) == "failed":
        return _how_failed(progress, edge.source)
    failed = _failed_before(plan, progress, edge.source)
    how = "a node before it has failed" if failed is None else _how_failed(progress, failed)
    return f"{edge.source!r} was skipped: {how}"


def _how_failed(progress: Progress, node_id: str) -> str:
    return progress.denied.get(node_id, f"{node_id!r} has failed")


def denied_in_words(actor: str, reason: str) -> str:
    """That a person said no to what somebody has put out."""
    return f"{actor!r} was denied: {reason}"


def _failed_before(plan: Plan, progress: Progress, node_id: str) -> str | None:
    """A node that has failed, for which one was skipped. It alone is named, and not what lies between the two."""
    here: str | None = node_id
    while here is not None and progress.nodes.get(here) != "failed":
        sources = (edge.source for edge in plan.forward_to(here))
        here = next((source for source in sources if progress.decision(source, here) == "blocked"), None)
    return here


def _why_not_taken(progress: Progress, edge: Edge) -> str:
    if progress.decision(edge.source, edge.target) == "spent":
        return f"{way_in_words(edge)} has counted in an earlier pass"
    if edge.source != START and progress.nodes.get(edge.source) == "skipped":
        return f"{edge.source!r} was skipped"
    if edge.is_default:
        return f"{way_in_words(edge)} was not needed: another condition of {edge.source!r} holds"
    return f"{way_in_words(edge)} was not taken: it needs {condition_in_words(edge)}"
