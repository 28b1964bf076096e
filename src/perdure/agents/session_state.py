"""The state of a session as plain values, for JSON, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from perdure.agents.messages import Message
from perdure.data import frozen
from perdure.log import Log

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
