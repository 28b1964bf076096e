"""The types of our own that stand in checkpoints, made known to the codec."""

from __future__ import annotations

from typing import Any

from perdure.codec import register_type
from perdure.events import (
    CheckpointInfo,
    UndeliveredMessage,
    WorkflowErrorDetails,
    WorkflowEvent,
    WorkflowEventSource,
    WorkflowRunState,
)
from perdure.graph import FailedMessage, MessageType, WorkflowMessage


def _event_fields(event: WorkflowEvent[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": event.type,
        "data": event.data,
        "origin": event.origin,
        "state": event.state,
        "details": event.details,
        "executor_id": event.executor_id,
        "iteration": event.iteration,
        "path": event.path,
    }
    if event.type == "request_info":
        fields["request_id"] = event.request_id
        fields["source_executor_id"] = event.source_executor_id
        fields["request_type"] = event.request_type
        fields["response_type"] = event.response_type
    return {name: value for name, value in fields.items() if value is not None}


def _event(fields: dict[str, Any]) -> WorkflowEvent[Any]:
    return WorkflowEvent(**fields)


register_type(WorkflowEvent, encode=_event_fields, decode=_event)
for _data_type in (
    CheckpointInfo,
    FailedMessage,
    MessageType,
    UndeliveredMessage,
    WorkflowErrorDetails,
    WorkflowEventSource,
    WorkflowMessage,
    WorkflowRunState,
):
    register_type(_data_type)
