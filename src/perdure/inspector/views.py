"""Runs, events, requests and checkpoints as plain dicts: what `-o json` prints. SCHEMA changes with their meaning."""

import dataclasses
from collections.abc import Mapping, Sequence, Set as AbstractSet
from datetime import datetime
from enum import Enum
from typing import Any, TypeAlias, cast

from perdure.checkpoint import WorkflowCheckpoint
from perdure.codec import MALFORMED, dumps, plain_data
from perdure.errors import WorkflowException
from perdure.events import Undecoded, WorkflowEvent
from perdure.storage import PendingRequest, RunInfo

SCHEMA = 1
Row: TypeAlias = Mapping[str, Any]

_DEPTH_MAX = 40


def run_view(run: RunInfo) -> Row:
    """Describe a run."""
    return {each.name: plain(getattr(run, each.name)) for each in dataclasses.fields(run)}


def request_view(request: PendingRequest) -> Row:
    """Describe an open request."""
    return {each.name: plain(getattr(request, each.name)) for each in dataclasses.fields(request)}


def checkpoint_view(checkpoint: WorkflowCheckpoint) -> Row:
    """Describe a checkpoint without its values."""
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "run_id": checkpoint.run_id,
        "previous_checkpoint_id": checkpoint.previous_checkpoint_id,
        "superstep": checkpoint.iteration_count,
        "at": checkpoint.timestamp,
        "workflow_name": checkpoint.workflow_name,
    }


def event_view(event: WorkflowEvent[Any]) -> Row:
    """Describe a committed event. An event in a sub-workflow is shown as its own, with its path."""
    inner = event.innermost
    found: dict[str, Any] = {
        "seq": event.seq,
        "at": getattr(event, "at", None),
        "superstep": getattr(event, "superstep", None),
        "type": inner.type,
        "executor_id": inner.executor_id,
        "path": list(event.path),
        "state": None if inner.state is None else inner.state.value,
        "data": plain(inner.data),
        "details": plain(inner.details),
    }
    if inner.type in {"request_info", "answered"}:
        found["request_id"] = inner.request_id
    return found


def plain(value: object, depth: int = 0) -> Any:  # noqa: C901 - one case for each kind of value
    """Return a value as JSON data. An object is a dict of its fields, with the name of its type under `type`."""
    inner = depth + 1
    if depth > _DEPTH_MAX:
        return "…"
    match value:
        case Enum():
            return plain(value.value, inner)
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.isoformat()
        case Undecoded(json=tree):
            return undecoded(tree)
        case WorkflowEvent():
            return event_view(cast("WorkflowEvent[Any]", value))
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {each.name: plain(getattr(value, each.name), inner) for each in dataclasses.fields(value)}
            return fields if type(value).__module__.startswith("perdure.") else {"type": _name(value), **fields}
        case Mapping():
            items = cast("Mapping[object, object]", value).items()
            return {key if isinstance(key, str) else str(key): plain(each, inner) for key, each in items}
        case bytes() | bytearray():
            return f"<{len(value)} bytes>"
        case Sequence() | AbstractSet():
            return [plain(each, inner) for each in cast("Sequence[object]", value)]
        case _:
            return f"<{_name(value)}>"


def undecoded(tree: Any) -> Any:
    """Return the stored JSON of a value whose type is unknown here as plain data. Nothing is imported or called."""
    if tree is None:
        return None
    name = cast("dict[str, Any]", tree).get("type") if isinstance(tree, dict) else None
    try:
        found: Any = plain_data(dumps(cast("Any", tree)), {}, path="data")
    except (*MALFORMED, WorkflowException):
        return cast("Any", tree)
    if isinstance(name, str) and isinstance(found, dict):
        return {"type": name, **cast("dict[str, Any]", found)}
    return found


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
