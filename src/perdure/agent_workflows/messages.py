"""What passes between the conductor of an agent workflow and its nodes."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the codec follows the fields
from dataclasses import dataclass, field
from typing import Any

from perdure import Message, register_type


@dataclass(frozen=True, slots=True)
class Past:
    """What was said before in a conversation, by where it stands: a thread, up to an event. That never changes."""

    session_id: str
    thread_id: str
    until: int


@dataclass(frozen=True, slots=True)
class NodeTask:
    """What a node is to do: its task as a text, and what was said before: in its conversation, then in `history`."""

    node_id: str
    visit: int
    """How often the node has acted before in this execution."""
    text: str
    history: tuple[Message, ...] = ()
    error: str | None = None
    """Of a fallback: why the node that it stands in for has failed."""
    past: Past | None = None


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What a node has put out, by key; or that a person has denied it.

    `text` is the output as one text: what the agent said, or a value as JSON. `said` goes into the conversation.
    """

    node_id: str
    visit: int
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    text: str = ""
    said: tuple[Message, ...] = ()
    denied: str | None = None
    """The reason, if it was denied."""
    is_timed_out: bool = False


@dataclass(frozen=True, slots=True)
class GoOn:
    """The conductor's word to itself: to go on where the next thing may fail, once what came before is kept."""


register_type(GoOn, name="perdure:AgentWorkflowGoOn")
register_type(Past, name="perdure:AgentWorkflowPast")
register_type(NodeTask, name="perdure:NodeTask")
register_type(NodeResult, name="perdure:NodeResult")
