"""Messages as they stand in a checkpoint: the payload, where it came from, where it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from perdure.data import frozen
from perdure.events import WorkflowEvent  # noqa: TC001 - trust follows the fields of a dataclass at run time

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERNAL_PREFIX = "internal:"


def INTERNAL_SOURCE_ID(executor_id: str) -> str:  # noqa: N802 - the documented name
    """The source of what reaches an executor from outside: the first input and answers."""
    return f"{_INTERNAL_PREFIX}{executor_id}"


class MessageType(str, Enum):
    """A message of an executor, or the answer to a request."""

    STANDARD = "standard"
    RESPONSE = "response"


@dataclass
class WorkflowMessage:
    """A message on its way."""

    data: Any
    source_id: str
    target_id: str | None = None
    type: MessageType = MessageType.STANDARD
    trace_contexts: list[dict[str, str]] | None = None
    source_span_ids: list[str] | None = None
    original_request_info_event: WorkflowEvent[Any] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The fields by name; the payload is the object itself."""
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
        """The message of `to_dict`. Raises KeyError for a missing payload or source."""
        return cls(
            data=data["data"],
            source_id=data["source_id"],
            target_id=data.get("target_id"),
            type=MessageType(data.get("type", MessageType.STANDARD.value)),
            trace_contexts=data.get("trace_contexts"),
            source_span_ids=data.get("source_span_ids"),
            original_request_info_event=data.get("original_request_info_event"),
        )


@frozen
class TimersDue:
    """Tells a sub-workflow that what waits inside of it is due up to this moment."""

    moment: str
