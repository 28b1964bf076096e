"""What stands at a path of a checkpoint, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from perdure.graph import SHARED_SCOPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _state(rest: str) -> str:
    scope, _, key = rest.partition("/")
    name = f"state[{key!r}]"
    return name if scope == SHARED_SCOPE else f"{name} of scope {unquote(scope)!r}"


def _child(rest: str) -> str:
    executor_id, _, inner = rest.partition("/")
    return f"sub-workflow {unquote(executor_id)!r}: {name_of(inner)}"


_ALONE: Mapping[str, str] = {
    "deliveries": "messages",
    "delayed": "delayed messages",
    "fan_in": "messages that wait in fan-ins",
    "suspended": "suspended handlers",
    "kwargs": "run kwargs",
    "cancelled": "why it was cancelled",
    "fields": "fields of a checkpoint made by hand",
}

_KINDS: Mapping[str, Callable[[str], str]] = {
    "state": _state,
    "child": _child,
    "executor": lambda rest: f"executor {rest!r}",
    "request": lambda rest: f"request {rest!r}",
    "carried": lambda rest: f"record {rest!r}",
    "outputs": lambda _: "outputs",
    "answered": lambda _: "answered requests",
    "received": lambda _: "received messages",
}


def name_of(path: str) -> str:
    """The words for a path. The chunks of a sequence have the same."""
    kind, slash, rest = path.partition("/")
    if slash and kind in _KINDS:
        return _KINDS[kind](rest)
    return _ALONE.get(path, path)
