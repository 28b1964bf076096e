"""JSON values: paths into them, copies and equality."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, cast

MISSING: Final = object()
"""Marks a value that is not there; None is a value."""

_INDEX: Final = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


def look_up(outputs: Any, key: str) -> Any:
    """Return the value at a dotted path, or MISSING.

    A key that exists as written wins. Otherwise its first part must lead to a dict, or as a number into a list.
    """
    whole = look_inside(outputs, key)
    head, _, rest = key.partition(".")
    if whole is not MISSING or not rest:
        return whole
    return look_up(look_inside(outputs, head), rest)


def look_inside(value: Any, key: str) -> Any:
    """Return the entry of a dict, or the element of a list by its number; MISSING if there is none."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(key, MISSING)
    if isinstance(value, list | tuple) and is_index(key):
        elements = cast("list[Any]", value)
        return elements[int(key)] if int(key) < len(elements) else MISSING
    return MISSING


def is_index(key: str) -> bool:
    """Return True if a key is the number of a list element."""
    return _INDEX.fullmatch(key) is not None


def copy_json(value: object, what: str) -> Any:
    """Copy a JSON value, tuples as lists. Raises TypeError or ValueError, which name `what` it is for."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} is {value!r}, which JSON does not have; give a finite number")
        return value
    if isinstance(value, list | tuple):
        return [copy_json(each, what) for each in cast("list[object]", value)]
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} is a {type(value).__name__}; give JSON: a text, number, bool, None, list or dict")
    entries = cast("Mapping[object, object]", value)
    if wrong := [key for key in entries if not isinstance(key, str)]:
        raise TypeError(f"{what} has the key {wrong[0]!r}; in JSON the keys of a dict are texts")
    return {cast("str", key): copy_json(each, what) for key, each in entries.items()}


def is_same(one: Any, other: Any) -> bool:
    """Return True if two values are the same JSON: 1 is 1.0 but not True, and "7" is not 7."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        ones, others = cast("list[Any]", one), cast("list[Any]", other)
        return len(ones) == len(others) and all(map(is_same, ones, others))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        ours, theirs = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
        return ours.keys() == theirs.keys() and all(is_same(value, theirs[key]) for key, value in ours.items())
    return one is None and other is None
