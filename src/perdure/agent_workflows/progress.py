"""How far an execution has come: which edges are decided, and what has become of each node. It decides nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Decision: TypeAlias = Literal["taken", "not_taken", "blocked", "spent"]
"""`spent` was taken in an earlier pass, and its target has acted then: what its source has said is still known, and it
lets nobody act anew."""
Standing: TypeAlias = Literal["acting", "completed", "isolated", "failed", "skipped", "blocked"]
"""`isolated` has failed, and all goes on; `failed` has, and what depends on it is skipped: that is `blocked`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an execution has come. A node or an edge that is not there is not decided yet."""

    passes: Mapping[str, int] = field(default_factory=dict[str, int])
    """By the number of a loop: how often something went back in it."""
    rounds: Mapping[str, int] = field(default_factory=dict[str, int])
    """By the number of a circle: how often its edges went back."""
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    edges: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """By source and target: the decision."""
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    """By node: why it does not act."""
    held: tuple[tuple[str, str], ...] = ()
    """The edges that go back and hold, and were not followed yet."""
    followed: tuple[tuple[str, str], ...] = ()
    """The edges that went back to begin the pass that each loop is in."""
    denied: Mapping[str, str] = field(default_factory=dict[str, str])
    """By node that has failed since a person said no: who was denied, and why, in words."""
    halted: str | None = None
    """Why nobody else is given a task."""

    def decision(self, source: str, target: str) -> str | None:
        """What was decided about an edge; None if nothing was yet."""
        return self.edges.get(source, {}).get(target)

    def iteration(self, loop: int | None) -> int:
        """In which pass a loop is, from 0; without a loop, always the first."""
        return 0 if loop is None else self.passes.get(str(loop), 0)

    def round(self, circle: int) -> int:
        """How often the edges of a circle went back."""
        return self.rounds.get(str(circle), 0)

    def has_acted(self, node_id: str) -> bool:
        """Whether a node has ended, in whatever way, and was not skipped."""
        return self.nodes.get(node_id) in {"completed", "isolated", "failed"}

    @property
    def acting(self) -> frozenset[str]:
        """The nodes that have a task and have not ended."""
        return frozenset(node_id for node_id, standing in self.nodes.items() if standing == "acting")

    def to_text(self) -> str:
        """As JSON. It is kept after each result: one text is kept far more quickly than so many small values."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, ensure_ascii=False)

    @classmethod
    def of_text(cls, text: str) -> Progress:
        """What `to_text` has made."""
        found: dict[str, Any] = json.loads(text)
        for name in ("held", "followed"):
            found[name] = tuple((source, target) for source, target in found[name])
        return cls(**found)
