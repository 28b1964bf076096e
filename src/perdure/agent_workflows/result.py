"""What comes of an execution."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the codec follows the fields
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from perdure import register_type

ExecutionState: TypeAlias = Literal["completed", "waiting", "sleeping", "cancelled"]
"""Where an execution stands: it has ended, it waits for answers or for a time, it was stopped and can go on."""


@dataclass(frozen=True, slots=True)
class AgentWorkflowResult:
    """What an execution has come to.

    `final_answer` is what the nodes before END have said, several of them one after the other; None if none did.
    `outputs` are those of all nodes, as `node.key`. It is no success if a person has denied what a node with
    `on_error="stop"` has put out, or if no end was reached. Of an execution that waits, sleeps or was cancelled it says
    what is known so far.
    """

    execution_id: str
    success: bool
    final_answer: str | None = None
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """By node: why it has failed, though the execution went on."""
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    """By node: why it did not act."""
    error: str | None = None
    duration: float = 0.0
    """In seconds, waiting included."""
    state: ExecutionState = "completed"
    requests: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """By id what is asked, if the execution waits: most often `NodeApprovalRequest`s. `resume` takes the answers."""

    @property
    def is_waiting(self) -> bool:
        """Whether it goes on when `requests` are answered."""
        return self.state == "waiting"

    def __str__(self) -> str:
        return self.final_answer or self.error or ""


register_type(AgentWorkflowResult, name="perdure:AgentWorkflowResult")
