"""Values of a checkpoint in small pages, so that a page in a browser can show a state of any size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import WorkflowException

if TYPE_CHECKING:
    from perdure.storage import CheckpointView, SnapshotView

SECTIONS = ("state", "scopes", "executors", "messages", "fan_in", "requests", "suspended", "outputs", "spent", "budget")
"""The parts of a checkpoint that hold values."""

_PREVIEW_LENGTH = 160
_TEXT_LENGTH = 20_000
_FOUND_MAX = 100
_DEPTH_MAX = 200
_MESSAGE_FIELDS = ("sources", "target", "value", "due", "answers")


@dataclass(frozen=True, slots=True)
class Place:
    """A value in a checkpoint, as plain data."""

    value: Any

    @classmethod
    def find(cls, view: SnapshotView, keys: Sequence[str | int]) -> Place:
        """Return the value at a path of keys. Raises ValueError if there is none."""
        value: Any = _root(view)
        for key in keys:
            try:
                value = _inside(value)[key]
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"there is no {key!r} in this place of the checkpoint") from error
        return cls(_inside(value))

    def page(self, start: int, limit: int) -> Mapping[str, Any]:
        """Return the value: a text from a position on, or members from a position on, each as a line."""
        value, found = self.value, summary(self.value)
        if isinstance(value, str):
            return {**found, "text": value[start : start + _TEXT_LENGTH], "from": start}
        if isinstance(value, list | tuple):
            chosen = cast("Sequence[Any]", value)[start : start + limit]
            return {**found, "members": [{"key": start + at, **summary(each)} for at, each in enumerate(chosen)]}
        if isinstance(value, Mapping):
            members = cast("Mapping[str, Any]", value)
            names = [name for name in islice(members, start, start + limit) if name != "$type"]
            return {**found, "members": [{"key": name, **summary(_inside(members[name]))} for name in names]}
        return found


def _root(view: SnapshotView) -> Mapping[str, Any]:
    return {name: getattr(view, name) for name in SECTIONS} | {"sub_workflows": view.sub_workflows}


def _inside(value: Any) -> Any:
    """Return a value as plain data: a sub-workflow and a waiting message have their parts as members."""
    if hasattr(value, "sub_workflows"):
        return _root(value)
    if hasattr(value, "sources"):
        return {name: getattr(value, name) for name in _MESSAGE_FIELDS}
    return value


def summary(value: Any) -> dict[str, Any]:
    """Describe a value on one line: its kind, its size, and a short text."""
    inner = _inside(value)
    if inner is None or isinstance(inner, bool | int | float):
        return {"kind": "null" if inner is None else type(inner).__name__, "value": inner}
    if isinstance(inner, str):
        return {"kind": "str", "size": len(inner), "preview": inner[:_PREVIEW_LENGTH]}
    if isinstance(inner, Mapping):
        members = cast("Mapping[str, Any]", inner)
        # Looking at a value reads it, so only values that were read show what is in them.
        name = members.get("$type") if isinstance(inner, dict) else None
        size = len(members) - (name is not None)
        return {
            "kind": "object",
            "size": size,
            "type": name,
            "preview": ", ".join(islice(members, 8))[:_PREVIEW_LENGTH],
        }
    if isinstance(inner, list | tuple):
        return {"kind": "list", "size": len(cast("Sequence[Any]", inner))}
    return {"kind": "str", "size": 0, "preview": repr(inner)[:_PREVIEW_LENGTH]}


@dataclass(slots=True)
class _Search:
    wanted: str
    found: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def walk(self, value: Any, keys: tuple[str | int, ...]) -> None:
        """Add the matching places in a value."""
        if len(self.found) >= _FOUND_MAX or len(keys) > _DEPTH_MAX:
            return
        inner = _inside(value)
        if isinstance(inner, Mapping | list | tuple):
            for key, each in _members(cast("Mapping[str, Any] | Sequence[Any]", inner)):
                if isinstance(key, str) and self.wanted in key.lower():
                    self._add((*keys, key), each)
                self.walk(each, (*keys, key))
        elif isinstance(inner, str):
            at = inner.lower().find(self.wanted)
            if at >= 0:
                self._add(keys, inner[max(at - 40, 0) : at + _PREVIEW_LENGTH])
        elif self.wanted == str(inner).lower():
            self._add(keys, inner)

    def _add(self, keys: tuple[str | int, ...], value: Any) -> None:
        if len(self.found) < _FOUND_MAX and not (self.found and self.found[-1]["at"] == list(keys)):
            self.found.append({"at": list(keys), **summary(value)})


def _members(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[str | int, Any]]:
    return iter(value.items()) if isinstance(value, Mapping) else enumerate(value)


def search(view: CheckpointView, wanted: str) -> list[dict[str, Any]]:
    """Return up to 100 places whose key or text contains `wanted`, whatever its case."""
    found = _Search(wanted.lower())
    for section, values in _root(view).items():
        for key, each in _readable(values):
            found.walk({key: each} if isinstance(key, str) else [each], (section,))
    return found.found


def _readable(values: Any) -> Iterator[tuple[str | int, Any]]:
    """Yield members; one that can't be read is left out, and the others are still searched."""
    if not isinstance(values, Mapping):
        yield from enumerate(cast("Sequence[Any]", values or ()))
        return
    members = cast("Mapping[str, Any]", values)
    for key in members:
        try:
            yield key, members[key]
        except WorkflowException:
            continue
