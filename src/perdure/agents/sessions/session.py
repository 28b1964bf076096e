"""Sessions: conversations with an agent that go on, and what providers keep in them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, TypeVar, cast

from perdure.agents.messages.message import Message
from perdure.clock import SystemClock
from perdure.data import frozen
from perdure.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


@frozen
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

    Pydantic models and classes with `to_dict` and `from_dict` need no functions. `type_id` is what the JSON says: keep
    it when the class moves. Raises ValueError.
    """
    name = type_id or cls.__name__.lower()
    known = _by_id.get(name)
    # The same class loaded again, as a notebook does, takes its own place.
    if known is not None and (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"the type_id {name!r} is that of {known.cls.__qualname__!r} already; give another")
    if (encoder is None) != (decoder is None):
        raise ValueError(f"{cls.__qualname__!r} needs both encoder and decoder, or neither")
    _by_class[cls] = _by_id[name] = _StateType(cls, name, encoder or _encoder(cls), decoder or _decoder(cls))


def _encoder(cls: Any) -> Callable[[Any], Mapping[str, Any]]:
    if hasattr(cls, "to_dict"):
        return cls.to_dict
    if hasattr(cls, "model_dump"):
        return lambda value: value.model_dump(mode="json")
    raise ValueError(f"{cls.__qualname__!r} is no pydantic model and has no to_dict; give encoder and decoder")


def _decoder(cls: Any) -> Callable[[Mapping[str, Any]], Any]:
    if hasattr(cls, "from_dict"):
        return cls.from_dict
    if hasattr(cls, "model_validate"):
        return cls.model_validate
    raise ValueError(f"{cls.__qualname__!r} is no pydantic model and has no from_dict; give encoder and decoder")


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a session as plain values. Raises TypeError for what is none, with its path."""
    return {key: _plain(value, f"state[{key!r}]") for key, value in state.items()}


def _plain(value: Any, path: str) -> Any:
    if value is None or type(value) in {str, int, float, bool}:
        return value
    entry = _by_class.get(value.__class__)
    if entry is not None:
        return {**_plain_mapping(entry.encode(value), path), "type": entry.type_id}
    if isinstance(value, list | tuple | Log):
        return [_plain(each, f"{path}[{place}]") for place, each in enumerate(cast("list[Any]", value))]
    if isinstance(value, Mapping):
        return _plain_mapping(cast("Mapping[Any, Any]", value), path)
    raise TypeError(
        f"{path} is a {type(value).__qualname__!r}, which has no form in JSON; keep plain values in a session, or "
        "register_state_type() the class"
    )


def _plain_mapping(value: Mapping[Any, Any], path: str) -> dict[str, Any]:
    return {str(key): _plain(each, f"{path}[{key!r}]") for key, each in value.items()}


def revived_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of plain values. Raises ValueError."""
    return {key: _revived(value) for key, value in state.items()}


def _revived(value: Any) -> Any:
    if isinstance(value, list):
        return [_revived(each) for each in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    found = cast("Mapping[str, Any]", value)
    entry = _by_id.get(str(found.get("type")))
    if entry is None:
        return {key: _revived(each) for key, each in found.items()}
    if entry.cls is not Message:
        found = {key: _revived(each) for key, each in found.items() if key != "type"}
    return entry.decode(found)


register_state_type(Message, type_id="message")


class AgentSession:
    """A conversation with an agent: an id, the id that the provider has for it if it keeps it, and a state.

    The state is plain data, a part for each provider: the history stands in `state["in_memory"]["messages"]`. Whoever
    keeps a session, with `to_dict` or in the state of a workflow, can go on with it in any process.
    """

    def __init__(self, *, session_id: str | None = None, service_session_id: Any = None) -> None:
        self._session_id = session_id or SystemClock().new_id()
        self.service_session_id = service_session_id
        self.state: dict[str, Any] = {}

    @property
    def session_id(self) -> str:
        """What the session is known by."""
        return self._session_id

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON. Raises TypeError for what is none, with its path."""
        return {
            "type": "session",
            "session_id": self._session_id,
            "service_session_id": self.service_session_id,
            "state": plain_state(self.state),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentSession:
        """The session of what `to_dict` gave. Raises TypeError, ValueError."""
        given = cast("object", data)
        if not isinstance(given, Mapping):
            raise TypeError(f"a session is made of what to_dict() gave, not of {given!r}; read JSON with json.loads()")
        if "session_id" not in data:
            raise ValueError(f"a session has a session_id; this has only {list(data)}")
        session_id: Any = data["session_id"]
        state: Any = data.get("state") or {}
        if not isinstance(session_id, str) or not isinstance(state, Mapping):
            raise TypeError(
                f"the session_id of a session is a text and its state a dict, not {session_id!r} and {state!r}"
            )
        session = cls(session_id=session_id, service_session_id=data.get("service_session_id"))
        session.state.update(revived_state(cast("Mapping[str, Any]", state)))
        return session

    def __repr__(self) -> str:
        return f"AgentSession(session_id={self._session_id!r})"


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
