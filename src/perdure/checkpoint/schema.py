"""The JSON Schema of what may answer a request, and the check of an answer against it.

A schema refuses nothing that the run itself would take. What it lets through is checked again by the run.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import logging
import re
import types
import typing
from collections import deque
from collections.abc import Mapping, MutableMapping
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum, Flag
from pathlib import Path, PosixPath, PurePath, PurePosixPath
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Union, get_args, get_origin
from uuid import UUID

import typing_extensions

from perdure.codec import form_of, is_model
from perdure.types import plain_type

if TYPE_CHECKING:
    from collections.abc import Iterable

Schema: TypeAlias = dict[str, Any]

_UNIONS: Final = (Union, types.UnionType)
_ARRAYS: Final[frozenset[object]] = frozenset({list, set, frozenset, deque})
_OBJECTS: Final[frozenset[object]] = frozenset({dict, Mapping, MutableMapping})
_LEAVES: Final[Mapping[object, Schema]] = {
    Any: {},
    object: {},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    NoneType: {"type": "null"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    UUID: {"type": "string", "format": "uuid"},
    Decimal: {"type": "string"},
    **{cls: {"type": "string"} for cls in (Path, PosixPath, PurePath, PurePosixPath)},
}
_PLAIN: Final = (str, int, float, bool, NoneType)
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "null": (NoneType,),
    "boolean": (bool,),
    "integer": (int, float),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_DEEPEST: Final = 40

logger = logging.getLogger(__name__)


def schema_of(type_expression: object) -> Schema | None:
    """The JSON Schema (2020-12) of the plain data that may stand for a value of a type; None if there is none to tell.

    A pydantic model is what its own schema says, which is narrower than what the model would convert.
    """
    describer = _Describer()
    try:
        schema = describer.described(type_expression)
    except NameError:  # an alias that names what is not defined
        return None
    if schema is None or not describer.definitions:
        return schema
    return {**schema, "$defs": {**schema.get("$defs", {}), **describer.definitions}}


def check_against(schema: Schema, value: object) -> str | None:
    """The first reason why plain data does not fit a schema; None if it fits.

    Needs the extra `answers`; without it only the kind of the value as a whole is looked at.
    """
    try:
        # Optional, and so loaded when first used.
        from perdure.checkpoint.schema_check import first_misfit  # noqa: PLC0415
    except ImportError:
        _tell_unchecked()
        return _misfit_of_kind(schema, value)
    return first_misfit(schema, value)


@functools.cache
def _tell_unchecked() -> None:
    logger.warning("answers are checked as a whole only, not what is inside of them: pip install 'perdure[answers]'")


def _misfit_of_kind(schema: Schema, value: object) -> str | None:
    kinds = schema.get("type")
    named: list[str] = [kinds] if isinstance(kinds, str) else kinds or list(_KINDS)
    if isinstance(value, tuple(cls for name in named for cls in _KINDS[name])):
        return None
    return f"{value!r} is not of type {' or '.join(map(repr, named))}"


class _Describer:
    """Describes one type. Classes with fields that stand inside of it become definitions, so that they may recur."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._references: dict[type, str] = {}
        self._open: list[object] = []

    def described(self, expression: object) -> Schema | None:
        plain = plain_type(expression)
        if _is_record(plain):
            return self._record(plain)
        # An alias that names itself, or a generic one that grows: inside of itself it may be anything.
        if any(expression is outer for outer in self._open) or len(self._open) > _DEEPEST:
            return {}
        self._open.append(expression)
        try:
            return self._compound(plain)
        finally:
            self._open.pop()

    def _inner(self, expression: object) -> Schema:
        """What stands inside of something that can be described, and may be anything if it can't be itself."""
        return self.described(expression) or {}

    def _compound(self, plain: object) -> Schema | None:
        origin, args = get_origin(plain), get_args(plain)
        if origin in _UNIONS:
            return _any_of([self.described(member) for member in args])
        if origin is Literal:
            return _enumeration([value.value if isinstance(value, Enum) else value for value in args])
        cls = origin or plain
        if cls is not Any and not isinstance(cls, type):
            return None
        form = form_of(cls)
        if form is not None:
            return self.described(form.data)
        if cls is tuple:
            return self._tuple(args, is_bare=origin is None)
        if cls in _ARRAYS:
            return {"type": "array", "items": self._inner(args[0])} if args else {"type": "array"}
        if cls in _OBJECTS:
            return self._mapping(args)
        if isinstance(plain, type) and issubclass(plain, Enum):
            return _enum(plain)
        return dict(_LEAVES[cls]) if origin is None and cls in _LEAVES else None

    def _tuple(self, args: tuple[object, ...], *, is_bare: bool) -> Schema:
        if is_bare or any(_is_unpacked(item) for item in args):
            return {"type": "array"}
        if args[-1:] == (Ellipsis,):
            return {"type": "array", "items": self._inner(args[0])}
        return self._items(args, least=len(args))

    def _items(self, items: Iterable[object], *, least: int) -> Schema:
        described = [self._inner(item) for item in items]
        limits: Schema = {"minItems": least, "maxItems": len(described)}
        return {"type": "array", **limits, **({"prefixItems": described} if described else {})}

    def _mapping(self, args: tuple[object, ...]) -> Schema:
        if not args:
            return {"type": "object"}
        keys, values = (self._inner(argument) for argument in args)
        names = {} if keys in ({}, {"type": "string"}) else {"propertyNames": keys}
        return {"type": "object", **names, "additionalProperties": values}

    def _record(self, cls: type) -> Schema | None:
        """A class with fields: in place if it is the whole type, else a definition that is referred to."""
        if cls in self._references:
            return {"$ref": self._references[cls]}
        if not self._open and not self._references:
            self._references[cls] = "#"
            return self._fields(cls, "")
        name = self._free_name(cls.__name__)
        self._references[cls] = f"#/$defs/{name}"
        self.definitions[name] = {}
        self.definitions[name] = self._fields(cls, f"{name}.") or {}
        return {"$ref": self._references[cls]}

    def _free_name(self, wanted: str) -> str:
        name = spelled = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        number = 1
        while name in self.definitions:
            number += 1
            name = f"{spelled}_{number}"
        return name

    def _fields(self, cls: type, prefix: str) -> Schema | None:
        if is_model(cls):
            return self._model(cls, prefix)
        hints = _hints(cls)
        if hints is None:
            return None
        if typing_extensions.is_typeddict(cls):
            return self._typed_dict(cls, hints)
        if _is_named_tuple(cls):
            return self._named_tuple(cls, hints)
        return self._dataclass(cls, hints)

    def _model(self, cls: Any, prefix: str) -> Schema | None:
        try:
            schema: Schema = cls.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
        except Exception:  # noqa: BLE001 - a model has users' code in it, and may be unable to describe itself in any way
            return None
        if prefix:
            self.definitions.update({f"{prefix}{name}": inner for name, inner in schema.pop("$defs", {}).items()})
        return schema

    def _typed_dict(self, cls: Any, hints: Mapping[str, object]) -> Schema:
        # __required_keys__ takes NotRequired in a string for required; a field that says so itself is left out.
        required = [name for name in hints if name in cls.__required_keys__ and not _may_be_missing(hints[name])]
        return self._object(hints, required)

    def _named_tuple(self, cls: Any, hints: Mapping[str, object]) -> Schema:
        names: tuple[str, ...] = cls._fields
        least = len(names) - len(cls._field_defaults)
        return self._items([hints.get(name, Any) for name in names], least=least)

    def _dataclass(self, cls: type, hints: Mapping[str, object]) -> Schema | None:
        """The fields are those that the constructor takes by name: what an answer is made of is given to it."""
        parameters = inspect.signature(cls).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return {"type": "object"}
        named = [p for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
        required = [parameter.name for parameter in named if parameter.default is parameter.empty]
        fields = {parameter.name: hints.get(parameter.name, Any) for parameter in named}
        return {**self._object(fields, required), "additionalProperties": False}

    def _object(self, fields: Mapping[str, object], required: list[str]) -> Schema:
        properties = {name: self._inner(hint) for name, hint in fields.items()}
        return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _is_record(plain: object) -> typing.TypeGuard[type]:
    if not isinstance(plain, type):
        return False
    return _is_named_tuple(plain) or typing_extensions.is_typeddict(plain) or is_model(plain) or is_dataclass(plain)


def _is_named_tuple(cls: type) -> bool:
    return hasattr(cls, "_fields") and issubclass(cls, tuple)


def _hints(cls: type) -> dict[str, object] | None:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may be any expression and fail in any way
        return None


def _may_be_missing(hint: object) -> bool:
    origin = get_origin(hint)
    if origin in {typing.Annotated, typing_extensions.ReadOnly}:
        return _may_be_missing(get_args(hint)[0])
    return origin is typing.NotRequired


def _is_unpacked(item: object) -> bool:
    return bool(getattr(item, "__unpacked__", False)) or get_origin(item) in {typing.Unpack, typing_extensions.Unpack}


def _any_of(members: list[Schema | None]) -> Schema | None:
    described = [member for member in members if member is not None]
    return {"anyOf": described} if len(described) == len(members) else None


def _enum(cls: type[Enum]) -> Schema | None:
    # A class that looks for missing values itself may take any.
    if any("_missing_" in vars(base) for base in cls.__mro__ if base.__module__ != "enum"):
        return None
    if issubclass(cls, Flag):
        return {"type": "integer"}
    return _enumeration([member.value for member in cls])


def _enumeration(values: list[Any]) -> Schema | None:
    return {"enum": values} if values and all(type(value) in _PLAIN for value in values) else None
