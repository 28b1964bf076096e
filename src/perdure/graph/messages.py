"""Messages as they appear in a checkpoint: the payload, its source and its target."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from perdure.events import WorkflowEvent  # noqa: TC001 - the codec follows the fields at run time

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERNAL_PREFIX = "internal:"


def INTERNAL_SOURCE_ID(executor_id: str) -> str:  # noqa: N802 - the documented name
    """Return the source id of inputs and answers from outside."""
    return f"{_INTERNAL_PREFIX}{executor_id}"


class MessageType(str, Enum):
    """A message of an executor, or the answer to a request."""

    STANDARD = "standard"
    RESPONSE = "response"


@dataclass
class WorkflowMessage:
    """A message between executors."""

    data: Any
    source_id: str
    target_id: str | None = None
    type: MessageType = MessageType.STANDARD
    trace_contexts: list[dict[str, str]] | None = None
    source_span_ids: list[str] | None = None
    original_request_info_event: WorkflowEvent[Any] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name. The payload is the object itself."""
        return {
            "data": self.data,
            "source_id": self.source_id,
            "target_id": self.target_id,
            "type": self.type.value,
            "trace_contexts": self.trace_contexts,
            "source_span_ids": self.source_span_ids,
            "original_request_info_event": self.original_request_info_event,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkflowMessage:
        """Create a message from `to_dict`. Raises KeyError if payload or source are missing."""
        return cls(
            data=data["data"],
            source_id=data["source_id"],
            target_id=data.get("target_id"),
            type=MessageType(data.get("type", MessageType.STANDARD.value)),
            trace_contexts=data.get("trace_contexts"),
            source_span_ids=data.get("source_span_ids"),
            original_request_info_event=data.get("original_request_info_event"),
        )


@dataclass(frozen=True, slots=True)
class TimersDue:
    """Tells a sub-workflow that its timers up to this moment are due."""

    moment: str
