"""Plain data, as JSON has it, brought to the type that is expected.

It takes what the JSON Schema of the type describes, and nothing that the schema refuses.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import deque
from collections.abc import (
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

import typing_extensions

from perdure.codec import dumps, form_of, is_enum, is_model, is_named_tuple
from perdure.storage import is_plain
from perdure.typenames import describe, type_of
from perdure.types import is_instance_of, plain_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.codec import Form

_UNIONS: Final = (Union, types.UnionType)
_MAPPINGS: Final[frozenset[object]] = frozenset({dict, Mapping, MutableMapping})
_ARRAYS: Final[Mapping[object, Callable[[list[Any]], object]]] = {
    **dict.fromkeys((list, Collection, Iterable, Sequence, MutableSequence), list[Any]),
    **dict.fromkeys((set, AbstractSet, MutableSet), set[Any]),
    frozenset: frozenset[Any],
    deque: deque[Any],
}


def coerce(value: Any, expected: Any) -> Any:
    """The value as the type that is expected. What fits already is left alone, and so is what nothing can be made of.

    Raises TypeError or ValueError for data of the right kind that is not right.
    """
    if is_instance_of(value, expected):
        return value
    plain = plain_type(expected)
    origin, args = get_origin(plain), get_args(plain)
    if origin in _UNIONS:
        return _first_fitting(value, args)
    if origin is Literal:
        return next((arg for arg in args if isinstance(arg, Enum) and arg.value == value), value)
    cls = origin or plain
    return _as_class(value, cls, args) if isinstance(cls, type) else value


def _first_fitting(value: Any, members: tuple[Any, ...]) -> Any:
    # A class with a form may take any text: what else a text may be is looked at first.
    for member in sorted(members, key=lambda member: form_of(plain_type(member)) is not None):
        try:
            coerced = coerce(value, member)
        except (TypeError, ValueError):
            continue
        if is_instance_of(coerced, member):
            return coerced
    return value


def _as_class(value: Any, cls: type[Any], args: tuple[Any, ...]) -> Any:
    if is_enum(cls):
        return _made(cls, value)
    if is_model(cls):
        return _made(_validated, cls, value)
    form = form_of(cls)
    if form is not None:
        return _of_form(value, form, cls)
    match value:
        case list() | tuple():
            return _from_array(typing.cast("Sequence[Any]", value), cls, args)
        case dict():
            return _from_object(typing.cast("dict[Any, Any]", value), cls, args)
        case str():
            return _FROM_TEXT[cls](value) if cls in _FROM_TEXT else value
        case int() if cls is float and type(value) is int:
            return float(value)
        case float() if cls is int and value.is_integer():
            return int(value)
        case _:
            return value


def _of_form(value: Any, form: Form, cls: type) -> Any:
    data = coerce(value, form.data)
    if not is_instance_of(data, form.data):
        raise TypeError(f"a {describe(cls)} is {form.told}")
    return _made(form.make, data)


def _from_array(value: Sequence[Any], cls: type[Any], args: tuple[Any, ...]) -> Any:
    if is_named_tuple(cls):
        return _made(cls, **_fields(_named(value, cls._fields), cls))
    if cls is tuple:
        return tuple(map(coerce, value, _item_types(args, len(value))))
    if cls not in _ARRAYS:
        return value
    element = args[0] if args else Any
    return _ARRAYS[cls]([coerce(item, element) for item in value])


def _item_types(args: tuple[Any, ...], length: int) -> Sequence[Any]:
    """The type of each item of a tuple; Any if they don't stand one for one."""
    if args[1:] == (Ellipsis,):
        return [args[0]] * length
    return args if len(args) == length else [Any] * length


def _from_object(value: dict[Any, Any], cls: type[Any], args: tuple[Any, ...]) -> Any:
    if dataclasses.is_dataclass(cls):
        return _made(cls, **_fields(value, cls))
    if typing_extensions.is_typeddict(cls):
        hints = _hints(cls)
        return {name: coerce(item, hints.get(name, Any)) for name, item in value.items()}
    if cls not in _MAPPINGS or not args:
        return value
    key_type, value_type = args
    return {coerce(key, key_type): coerce(item, value_type) for key, item in value.items()}


def _named(items: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    if len(items) > len(names):
        raise TypeError(f"there are {len(items)} items for the fields {', '.join(names)}")
    return dict(zip(names, items, strict=False))


def _fields(given: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The values of fields. Raises TypeError for one that is not of its type."""
    hints = _hints(cls)
    fields = {name: coerce(item, hints.get(name, Any)) for name, item in given.items()}
    for name, value in fields.items():
        hint = hints.get(name, Any)
        if not is_instance_of(value, hint):
            raise TypeError(f"{name!r} is a {type_of(value)}, not a {describe(hint)}")
    return fields


def _hints(cls: type) -> dict[str, Any]:
    """The types of fields; none, if one of them names what can't be found."""
    try:
        hints = typing.get_type_hints(cls)
    except Exception:  # noqa: BLE001 - an annotation may be any expression and fail in any way
        return {}
    return {name: _given_type(hint) for name, hint in hints.items()}


def _given_type(hint: Any) -> Any:
    """What the constructor of a dataclass takes, where that is no field."""
    return typing.cast("Any", hint).type if isinstance(hint, dataclasses.InitVar) else hint


def _made(make: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    """What users' code makes of data. However that fails, the data does not fit."""
    try:
        return make(*args, **fields)
    except (TypeError, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _validated(model: Any, value: Any) -> Any:
    # Only of JSON text a strict model takes what JSON has no type for, like a date.
    return model.model_validate_json(dumps(value)) if is_plain(value) else model.model_validate(value)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no decimal number") from error


_FROM_TEXT: Final[Mapping[type, Callable[[str], object]]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: _decimal,
    **{cls: cls for cls in (Path, PosixPath, PurePath, PurePosixPath)},
}
