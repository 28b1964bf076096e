"""Sessions: an agent's conversation with its state, its JSON form, and changes of its state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, cast

from perdure.agents.messages.message import Message
from perdure.clock import SystemClock
from perdure.codec import register_type
from perdure.log import Log

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _StateType:
    cls: type
    type_id: str
    encode: Callable[[Any], Mapping[str, Any]]
    decode: Callable[[Mapping[str, Any]], Any]


_by_class: dict[type, _StateType] = {}
_by_id: dict[str, _StateType] = {}


def register_state_type(
    cls: type[T],
    *,
    type_id: str | None = None,
    encoder: Callable[[T], Mapping[str, Any]] | None = None,
    decoder: Callable[[Mapping[str, Any]], T] | None = None,
) -> None:
    """Let instances of a class be part of sessions that are written as JSON.

    Pydantic models and classes with `to_dict` and `from_dict` need no functions. The JSON contains `type_id`: keep it
    when the class moves. Raises ValueError.
    """
    name = type_id or cls.__name__.lower()
    known = _by_id.get(name)
    # A class that is defined again, as in a notebook, replaces its older version.
    if known is not None and (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"type_id {name!r} is already used by {known.cls.__qualname__!r}; choose another")
    if (encoder is None) != (decoder is None):
        raise ValueError(f"{cls.__qualname__!r} needs both encoder and decoder, or neither")
    found: Any = cls
    by_pydantic = methodcaller("model_dump", mode="json") if hasattr(found, "model_dump") else None
    encode: Any = encoder or getattr(found, "to_dict", by_pydantic)
    decode: Any = decoder or getattr(found, "from_dict", None) or getattr(found, "model_validate", None)
    if not encode or not decode:
        raise ValueError(
            f"{cls.__qualname__!r} is not a pydantic model and has no to_dict and from_dict; give encoder and decoder"
        )
    _by_class[cls] = _by_id[name] = _StateType(cls, name, encode, decode)


def _to_plain(value: Any, path: str) -> Any:
    if value is None or type(value) in {str, int, float, bool}:
        return value
    entry = _by_class.get(value.__class__)
    if entry is not None:
        return {**_plain_mapping(entry.encode(value), path), "type": entry.type_id}
    if isinstance(value, list | tuple | Log):
        return [_to_plain(each, f"{path}[{place}]") for place, each in enumerate(cast("list[Any]", value))]
    if isinstance(value, Mapping):
        return _plain_mapping(cast("Mapping[Any, Any]", value), path)
    raise TypeError(
        f"{path} is a {type(value).__qualname__!r}, which has no JSON form; keep plain values in a session, or "
        "call register_state_type() for the class"
    )


def _plain_mapping(value: Mapping[Any, Any], path: str) -> dict[str, Any]:
    return {str(key): _to_plain(each, f"{path}[{key!r}]") for key, each in value.items()}


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(each) for each in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    found = cast("Mapping[str, Any]", value)
    entry = _by_id.get(str(found.get("type")))
    if entry is None:
        return {key: _from_plain(each) for key, each in found.items()}
    if entry.cls is not Message:
        found = {key: _from_plain(each) for key, each in found.items() if key != "type"}
    return entry.decode(found)


register_state_type(Message, type_id="message")


ServiceSessionId: TypeAlias = Mapping[str, Any]
"""A provider's id of a session that is more than a str."""


class AgentSession:
    """A conversation with an agent: an id, the provider's id if it stores the conversation, and a state.

    The state is plain data with one part for each provider: the history is in `state["in_memory"]["messages"]`. A
    session that is saved, with `to_dict` or in a workflow's state, can continue in any process.
    """

    def __init__(self, *, session_id: str | None = None, service_session_id: Any = None) -> None:
        self.session_id = session_id or SystemClock().new_id()
        self.service_session_id = service_session_id
        self.state: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON. Raises TypeError with the path of a value that has no JSON form."""
        return {
            "type": "session",
            "session_id": self.session_id,
            "service_session_id": self.service_session_id,
            "state": _plain_mapping(self.state, "state"),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentSession:
        """Read the output of `to_dict`. Raises TypeError, ValueError."""
        given = cast("object", data)
        if not isinstance(given, Mapping):
            raise TypeError(f"from_dict() takes the output of to_dict(), not {given!r}; parse JSON with json.loads()")
        if "session_id" not in data:
            raise ValueError(f"a session needs a session_id; found only {list(data)}")
        session_id: Any = data["session_id"]
        state: Any = data.get("state") or {}
        if not isinstance(session_id, str) or not isinstance(state, Mapping):
            raise TypeError(
                f"a session needs a str as session_id and a dict as state, not {session_id!r} and {state!r}"
            )
        session = cls(session_id=session_id, service_session_id=data.get("service_session_id"))
        session.state.update({key: _from_plain(value) for key, value in cast("Mapping[str, Any]", state).items()})
        return session

    def __repr__(self) -> str:
        return f"AgentSession(session_id={self.session_id!r})"


def _session_fields(session: AgentSession) -> dict[str, Any]:
    values = ((name, getattr(session, name)) for name in ("session_id", "service_session_id", "state"))
    return {name: value for name, value in values if value is not None}


def _session_of(fields: Mapping[str, Any]) -> AgentSession:
    session = AgentSession(session_id=fields["session_id"], service_session_id=fields.get("service_session_id"))
    session.state.update(fields["state"])
    return session


register_type(AgentSession, name="perdure:AgentSession", encode=_session_fields, decode=_session_of)


Change: TypeAlias = tuple[Literal["add", "set", "erase"], tuple[str, ...], Any]
"""The kind of change, the path of keys, and the appended elements or the new value."""


def copy_state(value: Any) -> Any:
    """Copy a value of a session. Messages are shared, because nobody changes them."""
    if isinstance(value, Log):
        return cast("Log[Any]", value).copy()
    if isinstance(value, Message):
        return value
    if type(value) is dict:
        return {key: copy_state(each) for key, each in cast("dict[Any, Any]", value).items()}
    if type(value) is list:
        return [copy_state(each) for each in cast("list[Any]", value)]
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - a value that can't be copy_state can't be stored either: storing it reports the error
        return value


def share_logs(value: Any, known: Any) -> None:
    """Let the logs in `value` reuse the elements that `known` has already decoded."""
    if isinstance(value, Log) and isinstance(known, Log):
        cast("Log[Any]", value).__share__(cast("Log[Any]", known))
    elif _is_state(value) and _is_state(known):
        for key in value.keys() & known.keys():
            share_logs(value[key], known[key])


def find_changes(before: Mapping[str, Any], after: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Change]:
    """Yield the smallest changes that turn `before` into `after`."""
    for key in before:
        if key not in after:
            yield "erase", (*path, key), None
    for key, value in after.items():
        yield from _value_changes(before.get(key), value, (*path, key), is_new=key not in before)


def _value_changes(before: Any, after: Any, path: tuple[str, ...], *, is_new: bool) -> Iterator[Change]:
    if _is_state(after) and after and (is_new or _is_state(before)):
        yield from find_changes(before or {}, after, path)
    elif _is_sequence(after) and (is_new or _continues(before, after)):
        added = after[len(before or ()) :]
        if added or is_new:
            yield "add", path, Log(added) if isinstance(after, Log) else added
    elif is_new or before != after:
        yield "set", path, after


def _is_state(value: Any) -> TypeGuard[dict[str, Any]]:
    return type(value) is dict and all(isinstance(key, str) for key in cast("dict[Any, Any]", value))


def _is_sequence(value: Any) -> TypeGuard[Log[Any] | list[Any]]:
    return isinstance(value, Log | list)


def _continues(before: Any, after: Log[Any] | list[Any]) -> bool:
    """Return True if `after` is `before` with something appended. A log only grows, so its ends decide."""
    if type(before) is not type(after) or len(before) > len(after):
        return False
    if isinstance(after, list):
        return after[: len(before)] == before
    return not before or (after[0] == before[0] and after[len(before) - 1] == before[-1])


def apply_changes(changed: Iterable[Change], state: dict[str, Any]) -> None:
    """Apply changes to a state. A sequence that is gone is created again."""
    for what, path, value in changed:
        place, key = _container(state, path), path[-1]
        present = place.get(key)
        if what == "erase":
            place.pop(key, None)
        elif what == "add" and _is_sequence(present):
            present.extend(value)
        else:
            place[key] = copy_state(value)


def _container(state: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path[:-1]:
        inner = state.get(key)
        if type(inner) is not dict:
            inner = state[key] = {}
        state = cast("dict[str, Any]", inner)
    return state
