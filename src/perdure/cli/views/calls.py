"""Model calls, tool calls and steps of a run: the committed ones, and those that the journal holds since its head."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from perdure.inspector.views import Row, event_view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.records import JournalRecord
    from perdure.storage import StoreStorage

_STEP = "/step/"
_KINDS = {"model_call_completed": "model", "tool_call_completed": "tool", "step_completed": "step"}


async def call_views(storage: StoreStorage, run_id: str, *, has_steps: bool = False) -> AsyncIterator[Row]:
    """Describe the calls of a run in order. Those of the superstep in progress or failed have no `seq`.

    `kind` is model, tool or step; steps are left out unless `has_steps`. `outcome` is completed, failed, asked,
    interrupted, raised (the handler caught it) or open (it had begun). `spent` has the tokens.
    """
    async for event in storage.events(run_id):
        kind = _KINDS.get(event.innermost.type)
        if kind is not None and (has_steps or kind != "step"):
            yield _committed(event_view(event), kind)
    for record in await storage.store.journal(run_id):
        row = _recorded(record)
        if row is not None and (has_steps or row["kind"] != "step"):
            yield row


def _committed(event: Row, kind: str) -> Row:
    data: Any = event["data"]
    return {
        **{name: event[name] for name in ("seq", "at", "superstep", "path", "executor_id")},
        "kind": kind,
        **{name: data.get(name) for name in ("name", "model", "outcome")},
        "seconds": data.get("duration"),
        "spent": data.get("spent") or {},
    }


def _recorded(record: JournalRecord) -> Row | None:
    """Describe the journal record of a step; None for other records."""
    owner, _, rest = record.key.partition(_STEP)
    last = rest.rpartition(_STEP)[2]
    name, _, identity = last.replace("#", "@", 1).partition("@")
    if not rest or "/" in identity:
        return None
    try:
        tree = json.loads(record.data)
        started_at, spent, events = tree["at"], tree.get("spent", {}), tree.get("told", ())
        # The event that the next commit numbers is in the record already.
        found: list[dict[str, Any]] = [data["fields"] for kind, data in events if kind in _KINDS]
        info = found[0] if found else dict[str, Any]()
        outcome = "open" if "open" in tree else info.get("outcome", "completed") if "result" in tree else "raised"
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    superstep, _, activation = owner.partition("/")
    return {
        "seq": None,
        "at": started_at,
        "superstep": _number(superstep),
        "path": [],
        "executor_id": activation.rpartition("#")[0],
        **_kind_and_name(unquote(name)),
        "model": info.get("model"),
        "outcome": outcome,
        "seconds": info.get("duration"),
        "spent": spent,
    }


def _kind_and_name(step: str) -> dict[str, str]:
    """Return the kind of a step by its name: the call of a model or tool, or a step of a handler."""
    if step == "model":
        return {"kind": "model", "name": step}
    if step.startswith("tool "):
        return {"kind": "tool", "name": step.removeprefix("tool ")}
    return {"kind": "step", "name": step}


def _number(superstep: str) -> int | None:
    """Return the superstep of an activation id, which is `turn.supersteps before it`."""
    _, _, before = superstep.rpartition(".")
    return int(before) + 1 if before.isdigit() else None
