"""Which edges hold, as the conductor asks it; and their conditions in words, to see whether they have changed."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Final

from perdure.agent_workflows.definition import EdgeContext
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.reasons import condition_in_words, way_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agent_workflows.definition import Edge
    from perdure.agent_workflows.plan import Plan

_ALWAYS: Final = "nothing"


async def holding(plan: Plan, source: str, outputs: Mapping[str, Any], request: Any) -> set[str]:
    """The targets of those edges of a node whose conditions hold, asked in the order of their declaration."""
    edges = [edge for edge in plan.outgoing(source) if edge.is_conditional]
    return {edge.target for edge in edges if await _holds(edge, outputs, request)}


async def _holds(edge: Edge, outputs: Mapping[str, Any], request: Any) -> bool:
    if edge.condition is not None and not edge.condition.holds(outputs):
        return False
    if edge.predicate is None:
        return True
    # It is users' code, and might change what it is shown.
    shown = EdgeContext(edge.source, edge.target, copy.deepcopy(dict(outputs)), copy.deepcopy(request))
    try:
        answer = edge.predicate(shown)
        return bool(await answer if inspect.isawaitable(answer) else answer)
    except Exception as error:
        raise AgentWorkflowError(
            f"the predicate of edge {way_in_words(edge)} raised {type(error).__name__}: {error}"
        ) from error


def terms_of(plan: Plan) -> dict[str, str]:
    """By edge, in words: what it needs to be taken. Predicates are known by their names alone."""
    found = {way_in_words(edge): condition_in_words(edge) for edge in plan.edges}
    return {way: words for way, words in found.items() if words is not None}


def changes_in(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What has changed about conditions, in words."""
    changed = [way for way in sorted({*before, *now}) if before.get(way) != now.get(way)]
    return "; ".join(
        f"{way} needs {now.get(way, _ALWAYS)} now, and {before.get(way, _ALWAYS)} before" for way in changed
    )
