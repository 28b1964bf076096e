"""How far an execution has come: which edges are decided, and what has become of each node. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from perdure import register_type

Decision: TypeAlias = Literal["taken", "not_taken", "blocked"]
Standing: TypeAlias = Literal["acting", "completed", "isolated", "failed", "skipped", "blocked"]
"""`isolated` has failed, and all goes on; `failed` has, and what depends on it is skipped: that is `blocked`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an execution has come. A node or an edge that is not there is not decided yet."""

    iteration: int = 0
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    edges: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """By source and target: the decision."""
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    """By node: why it does not act."""
    held: tuple[tuple[str, str], ...] = ()
    """The edges that go back and hold, in this pass."""
    followed: tuple[tuple[str, str], ...] = ()
    """The edges that went back to begin this pass."""
    halted: str | None = None
    """Why nobody else is given a task."""

    def decision(self, source: str, target: str) -> str | None:
        """What was decided about an edge; None if nothing was yet."""
        return self.edges.get(source, {}).get(target)

    @property
    def acting(self) -> frozenset[str]:
        """The nodes that have a task and have not ended."""
        return frozenset(node_id for node_id, standing in self.nodes.items() if standing == "acting")


register_type(Progress, name="perdure:AgentWorkflowProgress")
