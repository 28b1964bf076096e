"""Conversations of agents, from the messages that they keep in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from perdure.storage import SnapshotView

_MESSAGE = "perdure:Message"
_TEXT_LENGTH_MAX = 100_000
_MESSAGES_MAX = 1_000
_IMAGES = ("data:image/png;base64,", "data:image/jpeg;base64,", "data:image/gif;base64,", "data:image/webp;base64,")
_FIELDS = ("type", "text", "name", "call_id", "arguments", "result", "exception", "uri", "media_type", "approved", "id")


def conversations(view: SnapshotView, path: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the longest list of messages of each agent, as simple data; in sub-workflows too."""
    found: list[dict[str, Any]] = []
    places = {scope.removeprefix("private:"): values for scope, values in view.scopes.items()}
    for name in dict.fromkeys([*places, *view.executors]):
        stored = [place[name] for place in (places, view.executors) if name in place]
        lists = [each for value in stored for each in _lists(value)]
        if lists:
            longest = max(lists, key=len)
            messages = [_message(each) for each in longest[-_MESSAGES_MAX:]]
            found.append({"agent": name, "path": list(path), "count": len(longest), "messages": messages})
    for name, child in view.sub_workflows.items():
        found += conversations(child, (*path, name))
    return found


def _lists(value: Any) -> Iterator[list[Any]]:
    """Yield the lists of messages in a value."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if items and all(_is_message(each) for each in items):
            yield items
            return
        for each in items:
            yield from _lists(each)
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, Any]", value).values():
            yield from _lists(each)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and cast("dict[str, Any]", value).get("$type") == _MESSAGE


def _message(message: Any) -> dict[str, Any]:
    fields = _fields(message)
    contents = [_content(_fields(each)) for each in fields.get("contents") or ()]
    return {"role": fields.get("role"), "author": fields.get("author_name"), "contents": contents}


def _fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of a stored message or content."""
    inner: Any = cast("Mapping[str, Any]", value).get("value", value) if isinstance(value, Mapping) else {}
    return cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else {}


def _content(content: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _FIELDS:
        value = content.get(name)
        if value is None:
            continue
        if name == "uri":
            # Pages load nothing from elsewhere. An image must be in the store.
            is_image = isinstance(value, str) and value.startswith(_IMAGES)
            found["image" if is_image else "address"] = value if is_image else str(value)[:300]
        else:
            found[name] = value[:_TEXT_LENGTH_MAX] if isinstance(value, str) else value
    if isinstance(content.get("function_call"), Mapping):
        found["call"] = _content(_fields(content["function_call"]))
    return found
