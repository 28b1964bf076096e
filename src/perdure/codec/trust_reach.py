"""Which classes a type expression reaches, followed through arguments and fields."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypeVar, cast, get_args, get_origin

from perdure.typenames import type_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def is_data_type(cls: type) -> bool:
    """Whether instances are data by their kind: dataclass, enum, named tuple or pydantic model."""
    return is_named_tuple(cls) or is_model(cls) or is_enum(cls) or dataclasses.is_dataclass(cls)


def is_enum(cls: type) -> bool:
    """Whether a class is an enum, flags included."""
    return Enum in cls.__mro__


def is_named_tuple(cls: type) -> bool:
    """Whether a class was made by `NamedTuple` or `namedtuple`, or derives from one that was."""
    return tuple in cls.__mro__ and isinstance(getattr(cls, "_fields", None), tuple)


def is_model(cls: type) -> bool:
    """Whether a class is a pydantic model. Never imports pydantic: where it is not loaded there are no models."""
    pydantic_main = sys.modules.get("pydantic.main")
    base = None if pydantic_main is None else vars(pydantic_main).get("BaseModel")
    return base is not None and issubclass(cls, base)


def reachable(expressions: Iterable[object]) -> dict[str, type]:
    """The classes that stand in these type expressions, directly or in the fields of one that does, by name."""
    found: dict[str, type] = {}
    seen: set[int] = set()
    # The queue only grows, so that every expression stays alive: a freed one would give its id to another.
    queue = list(expressions)
    for expression in queue:
        if id(expression) in seen:
            continue
        seen.add(id(expression))
        if isinstance(expression, type) and not isinstance(expression, types.GenericAlias):
            found.setdefault(type_name(expression), expression)
        queue.extend(_next(expression))
    return found


def visible(module: types.ModuleType) -> Iterator[type]:
    """The data types that have a name in a module, those nested in its own classes included."""
    seen: set[type] = set()
    queue: list[object] = list(vars(module).values())
    for value in queue:
        if not isinstance(value, type) or value in seen:
            continue
        seen.add(value)
        if is_data_type(value):
            yield value
        if value.__module__ == module.__name__:
            queue.extend(vars(value).values())


def _next(expression: object) -> Iterable[object]:
    """What to follow from one type expression."""
    if get_origin(expression) is Annotated:
        return get_args(expression)[:1]
    if get_origin(expression) is Literal:
        return [type(value) for value in get_args(expression) if isinstance(value, Enum)]
    if isinstance(expression, NewType):
        return [expression.__supertype__]
    if isinstance(expression, TypeVar):
        return [expression.__bound__, *expression.__constraints__]
    if isinstance(expression, list):
        return cast("list[object]", expression)
    if isinstance(expression, type) and not isinstance(expression, types.GenericAlias):
        return _mentioned(expression)
    # An alias made by a `type` statement evaluates its value when asked, and may fail then.
    value = _attribute(expression, "__value__")
    return [get_origin(expression), value, *get_args(expression)]


def _mentioned(cls: type) -> list[object]:
    """The type expressions in the definition of a class whose instances are data."""
    mentioned: list[object] = list(vars(cls).get("__orig_bases__", ()))
    if typing.is_typeddict(cls) or (is_data_type(cls) and not issubclass(cls, Enum)):
        mentioned.extend(_hints(cls))
    if is_model(cls):
        mentioned.extend(vars(cls).get("__pydantic_generic_metadata__", {}).get("args", ()))
        mentioned.extend(field.annotation for field in _attribute(cls, "model_fields", {}).values())
    return mentioned


def _hints(cls: type) -> list[object]:
    """The resolved annotations of a class and its bases. One that can't be resolved hides only itself."""
    try:
        return list(typing.get_type_hints(cls, include_extras=True).values())
    except Exception:  # noqa: BLE001  an annotation may be any expression and fail in any way
        return [
            hint
            for base in cls.__mro__
            for annotation in vars(base).get("__annotations__", {}).values()
            for hint in _resolved(annotation, base)
        ]


def _resolved(annotation: object, owner: type) -> list[object]:
    if not isinstance(annotation, str):
        return [annotation]
    holder = type("holder", (), {"__annotations__": {"it": annotation}})
    module = sys.modules.get(owner.__module__)
    names = {**vars(owner), owner.__name__: owner}
    try:
        hints = typing.get_type_hints(holder, vars(module) if module else {}, names, include_extras=True)
    except Exception:  # noqa: BLE001  as above: this annotation is skipped
        return []
    return [hints["it"]]


def _attribute(owner: object, name: str, default: Any = None) -> Any:
    try:
        return getattr(owner, name, default)
    except Exception:  # noqa: BLE001  computed attributes of type expressions may fail in any way
        return default
