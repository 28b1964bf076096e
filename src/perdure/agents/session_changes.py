"""What became of the state of a session: as changes, so that turns which were taken side by side come together."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, cast

from perdure.agents.messages import Message
from perdure.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Change: TypeAlias = tuple[Literal["add", "set", "erase"], tuple[str, ...], Any]
"""What was done, the keys that lead there, and with what: what was added to a sequence, or the value that was set."""


def copied(value: Any) -> Any:
    """A value of a session once more, so that neither is changed through the other. Messages are shared: they stay."""
    if isinstance(value, Log):
        return cast("Log[Any]", value).copy()
    if isinstance(value, Message):
        return value
    if type(value) is dict:
        return {key: copied(each) for key, each in cast("dict[Any, Any]", value).items()}
    if type(value) is list:
        return [copied(each) for each in cast("list[Any]", value)]
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - what has no copies can't be stored either, and then it is told
        return value


def share(value: Any, known: Any) -> None:
    """Let the logs in a value have the elements that were decoded before, where they are the same."""
    if isinstance(value, Log) and isinstance(known, Log):
        cast("Log[Any]", value).__share__(cast("Log[Any]", known))
    elif _is_state(value) and _is_state(known):
        for key in value.keys() & known.keys():
            share(value[key], known[key])


def changes(before: Mapping[str, Any], after: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Change]:
    """What makes one state of the other, as little as possible."""
    for key in before:
        if key not in after:
            yield "erase", (*path, key), None
    for key, value in after.items():
        yield from _changes_of(before.get(key), value, (*path, key), is_new=key not in before)


def _changes_of(before: Any, after: Any, path: tuple[str, ...], *, is_new: bool) -> Iterator[Change]:
    if _is_state(after) and after and (is_new or _is_state(before)):
        yield from changes(before or {}, after, path)
    elif _grows(after) and (is_new or _goes_on(before, after)):
        added = after[len(before or ()) :]
        if added or is_new:
            yield "add", path, Log(added) if isinstance(after, Log) else added
    elif is_new or before != after:
        yield "set", path, after


def _is_state(value: Any) -> TypeGuard[dict[str, Any]]:
    return type(value) is dict and all(isinstance(key, str) for key in cast("dict[Any, Any]", value))


def _grows(value: Any) -> TypeGuard[Log[Any] | list[Any]]:
    return isinstance(value, Log | list)


def _goes_on(before: Any, after: Log[Any] | list[Any]) -> bool:
    """Whether a sequence is the other with something added. Of a log, which only grows, the ends tell."""
    if type(before) is not type(after) or len(before) > len(after):
        return False
    if isinstance(after, list):
        return after[: len(before)] == before
    return not before or (after[0] == before[0] and after[len(before) - 1] == before[-1])


def apply(changed: Iterable[Change], state: dict[str, Any]) -> None:
    """Make changes to a state. What is not there any more is no reason not to add to it."""
    for what, path, value in changed:
        place, key = _place(state, path), path[-1]
        present = place.get(key)
        if what == "erase":
            place.pop(key, None)
        elif what == "add" and _grows(present):
            present.extend(value)
        else:
            place[key] = copied(value)


def _place(state: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path[:-1]:
        inner = state.get(key)
        if type(inner) is not dict:
            inner = state[key] = {}
        state = cast("dict[str, Any]", inner)
    return state
