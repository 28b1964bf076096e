"""Copies of decoded values, and which values need none."""

from __future__ import annotations

import dataclasses
import pathlib
from datetime import date, datetime, time, timedelta, timezone
from functools import cached_property
from operator import is_
from types import EllipsisType, NoneType
from typing import TYPE_CHECKING, Any

from perdure.codec.trust_reach import is_enum, is_model, is_named_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

ATOMS: set[type] = {
    *(NoneType, bool, int, float, complex, str, bytes, EllipsisType, range),
    *(datetime, date, time, timedelta, timezone),
    *(pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path())),
}
"""Types whose instances hold nothing that could change. Subclasses are not meant. `codec_late` adds its own."""


type_of: Callable[[Any], type] = type
"""`type`, for checkers that would narrow a value of any type to one of a type that they don't know."""


_new: Callable[[type], Any] = object.__new__


class Uncopyable(Exception):
    """This value is rather decoded again."""


def copied(elements: Sequence[Any]) -> list[Any]:
    """The elements of a decoded chunk once more. Raises Uncopyable."""
    return [element if type(element) in ATOMS else _copy(element) for element in elements]


def is_immutable(value: Any) -> bool:
    """Whether nothing inside of a value can change."""
    cls = type_of(value)
    if cls in ATOMS:
        return True
    if cls is tuple or cls is frozenset:
        return all(map(is_immutable, value))
    if is_enum(cls):
        return True
    if is_named_tuple(cls):
        return cls.__dictoffset__ == 0 and all(map(is_immutable, value))
    return _is_frozen(cls) and all(map(is_immutable, _held(value))) and not _has_more(value)


def spare(value: Any) -> Any:
    """A copy of a small frozen dataclass that only needs to be copied to be handed out again, else None."""
    cls = type_of(value)
    if not _is_frozen(cls) or (_copiers.get(cls) or _made_copier(cls)) is not _copied_record:
        return None
    return _copied_record(value) if ATOMS.issuperset(map(type, value.__dict__.values())) else None


def is_unchanged(value: Any, copy: Any) -> bool:
    """Whether a value is what it was when it was copied: the same leaves, in a structure of the same types."""
    if value is copy:
        return True
    cls = type_of(value)
    if cls in ATOMS or cls is not type_of(copy):
        return False
    if cls is dict:
        return _has_same(value, copy)
    if cls is list or cls is tuple:
        return len(value) == len(copy) and all(map(is_unchanged, value, copy))
    copier = _copiers.get(cls)
    if copier is _copied_record:
        return _has_same(value.__dict__, copy.__dict__)
    return copier is _copied_model and _is_same_model(value, copy)


def _has_same(values: Mapping[Any, Any], copies: Mapping[Any, Any]) -> bool:
    if len(values) != len(copies) or not all(map(is_, values, copies)):
        return False
    return all(map(is_unchanged, values.values(), copies.values()))


def _is_same_model(value: Any, copy: Any) -> bool:
    return (
        value.__pydantic_extra__ is None
        and value.__pydantic_private__ is None
        and value.__pydantic_fields_set__ == copy.__pydantic_fields_set__
        and _has_same(value.__dict__, copy.__dict__)
    )


def anchor(element: Any) -> object:
    """Something inside of an element that stays the same object as long as the element does not change."""
    cls = type_of(element)
    if cls is dict:
        inside: Any = element
    elif _copiers.get(cls) in _BY_ATTRIBUTES:
        inside = element.__dict__
    else:
        return element
    texts = [value for value in inside.values() if type_of(value) is str]
    return max(texts, key=len) if texts else element


def keeps_all_in_dict(cls: type) -> bool:
    """Whether a dataclass has its fields in the `__dict__` of an instance: none in slots, none behind a descriptor."""
    bases = cls.__mro__
    if any(vars(base).get("__slots__") for base in bases) or cls.__dictoffset__ == 0:
        return False
    names = [each.name for each in dataclasses.fields(cls)]
    found: Iterable[Any] = (vars(base)[name] for name in names for base in bases if name in vars(base))
    return not any(hasattr(type_of(attribute), "__set__") for attribute in found)


def is_closed(cls: type) -> bool:
    """Whether the instances of a dataclass can't change, but for what their fields hold.

    One that has a `__dict__` can: frozen or not, a `cached_property` writes into it.
    """
    return cls.__dictoffset__ == 0 and _is_frozen(cls)


def _is_frozen(cls: type) -> bool:
    # A base that is no dataclass may bring slots, which are not seen here.
    parameters: Any = vars(cls).get("__dataclass_params__")
    return parameters is not None and parameters.frozen and cls.__bases__ == (object,)


def _held(value: Any) -> list[object]:
    return [getattr(value, each.name, None) for each in dataclasses.fields(value)]


def _has_more(value: Any) -> bool:
    """Whether an instance has attributes beside its fields, or will have once it is used."""
    in_dict: Mapping[str, Any] = getattr(value, "__dict__", {})
    if len(in_dict) > len(dataclasses.fields(value)):
        return True
    return any(isinstance(each, cached_property) for each in vars(type_of(value)).values())


def _copy(value: Any) -> Any:
    cls = type_of(value)
    if cls is dict:
        return _copied_values(value)
    if cls is list:
        return copied(value)
    if cls is tuple:
        return tuple(copied(value))
    copier = _copiers.get(cls) or _made_copier(cls)
    return copier(value)


def _copied_values(values: Mapping[Any, Any]) -> dict[Any, Any]:
    if not ATOMS.issuperset(map(type, values)):
        raise Uncopyable
    return {key: value if type(value) in ATOMS else _copy(value) for key, value in values.items()}


def _copied_record(value: Any) -> Any:
    copy: Any = _new(type_of(value))
    copy.__dict__.update(_copied_values(value.__dict__))
    return copy


def _copied_model(value: Any) -> Any:
    if value.__pydantic_extra__ is not None or value.__pydantic_private__ is not None:
        raise Uncopyable
    copy: Any = _new(type_of(value))
    set_ = object.__setattr__
    set_(copy, "__dict__", _copied_values(value.__dict__))
    set_(copy, "__pydantic_fields_set__", set(value.__pydantic_fields_set__))
    set_(copy, "__pydantic_extra__", None)
    set_(copy, "__pydantic_private__", None)
    return copy


def _itself(value: Any) -> Any:
    return value


def _refuse(_: Any) -> Any:
    raise Uncopyable


def _made_copier(cls: type) -> Callable[[Any], Any]:
    copier = _copiers[cls] = _copier_of(cls)
    return copier


def never_copy(cls: type) -> None:
    """Instances are what a function of the program makes of stored data, not what their attributes are."""
    _copiers[cls] = _refuse


def _copier_of(cls: type) -> Callable[[Any], Any]:
    if is_enum(cls):
        return _itself
    if is_model(cls):
        return _copied_model
    return _copied_record if dataclasses.is_dataclass(cls) and keeps_all_in_dict(cls) else _refuse


_copiers: dict[type, Callable[[Any], Any]] = {}
_BY_ATTRIBUTES = frozenset({_copied_record, _copied_model})
