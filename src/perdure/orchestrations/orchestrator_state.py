"""`OrchestrationState`: what a checkpoint has of an orchestrator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure import Log, Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class OrchestrationState:
    """The conversation, how many rounds it has had, and in `metadata` what the kind of orchestrator adds.

    `awaited` are the participants that were asked and have not answered yet.
    """

    conversation: Sequence[Message] = field(default_factory=Log[Message])
    round_index: int = 0
    orchestrator_name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    task: Message | None = None
    awaited: list[str] = field(default_factory=list[str])

    def to_dict(self) -> dict[str, Any]:
        """The fields by name; without a task, if there is none."""
        found: dict[str, Any] = {
            "conversation": self.conversation,
            "round_index": self.round_index,
            "orchestrator_name": self.orchestrator_name,
            "metadata": dict(self.metadata),
            "awaited": list(self.awaited),
        }
        return found if self.task is None else {**found, "task": self.task}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OrchestrationState:
        """The state of what `to_dict` gave. What is not there is as in the beginning."""
        return cls(
            conversation=data.get("conversation", Log()),
            round_index=data.get("round_index", 0),
            orchestrator_name=data.get("orchestrator_name", ""),
            metadata=dict(data.get("metadata", {})),
            task=data.get("task"),
            awaited=list(data.get("awaited", ())),
        )
