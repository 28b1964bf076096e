"""What a conductor leads by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

from perdure.agent_workflows.conductor_edges import terms_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from perdure import Clock
    from perdure.agent_workflows.conversations import Conversations
    from perdure.agent_workflows.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Score:
    """The plan of a workflow, and what else is the same in every handler call of its conductor."""

    plan: Plan
    conversations: Conversations | None
    clock: Clock
    name: str
    on_begin: Callable[[], Awaitable[int | None]] | None = None
    origins: Callable[[str], Awaitable[tuple[str, ...]]] | None = None

    @cached_property
    def digest(self) -> str:
        """Of the edges: an execution goes on with those that it has begun with."""
        return _digest(self.plan.ways)

    @cached_property
    def terms(self) -> Mapping[str, str]:
        """The conditions of the edges, in words."""
        return terms_of(self.plan)

    @cached_property
    def terms_digest(self) -> str:
        """Of the conditions: it is told if they have changed."""
        return _digest(f"{way} {words}" for way, words in sorted(self.terms.items()))


def _digest(lines: Iterable[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()
