"""What conditions ask of values: where a key leads, whether two values are the same, which of two is greater."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, cast

MISSING: Final = object()
"""Stands for a value that is not there; None is a value."""

_PLACE: Final = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)


def require_key(key: object) -> None:
    """Refuse what can't be a key of outputs, or a dotted path into them. Raises TypeError or ValueError."""
    if not isinstance(key, str):
        raise TypeError(f"the key of a condition is a text, as 'score' or 'result.score', not {key!r}")
    if not all(key.split(".")):
        raise ValueError(f"the key {key!r} of a condition has an empty part; write it as 'score' or 'result.score'")


def found(outputs: Mapping[str, Any], key: str) -> Any:
    """The value that a key leads to, or MISSING.

    A key that is there as it is written wins. Otherwise the part before its first dot has to lead to a dict or a list,
    and the rest is looked up in there: in a list by number, from 0 on. Nothing leads into texts.
    """
    return _found_in(outputs, key)


def _found_in(value: Any, key: str) -> Any:
    whole = inside(value, key)
    head, _, rest = key.partition(".")
    if whole is not MISSING or not rest:
        return whole
    return _found_in(inside(value, head), rest)


def inside(value: Any, key: str) -> Any:
    """What a dict has under a key, or a list at a place; MISSING if there is nothing."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(key, MISSING)
    if isinstance(value, list | tuple) and is_place(key):
        elements = cast("list[Any]", value)
        return elements[int(key)] if int(key) < len(elements) else MISSING
    return MISSING


def is_place(key: str) -> bool:
    """Whether it is the number of an element of a list."""
    return _PLACE.fullmatch(key) is not None


def json_of(value: object, what: str) -> Any:
    """A copy of a value that is JSON, tuples as lists. Raises TypeError or ValueError that name `what` it is for."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} is {value!r}, which JSON has no word for; give a finite number")
        return value
    if isinstance(value, list | tuple):
        return [json_of(each, what) for each in cast("list[object]", value)]
    if isinstance(value, Mapping):
        return _json_dict(cast("Mapping[object, object]", value), what)
    raise TypeError(f"{what} is a {type(value).__name__}; give JSON: a text, number, bool, None, list or dict")


def _json_dict(value: Mapping[object, object], what: str) -> dict[str, Any]:
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise TypeError(f"{what} has the key {wrong[0]!r}; keys of a dict in JSON are texts")
    return {cast("str", key): json_of(each, what) for key, each in value.items()}


def same(one: Any, another: Any) -> bool:
    """Whether two values are the same JSON: 1 is 1.0 and not True, a list is a tuple, and a text is no number."""
    if isinstance(one, bool) or isinstance(another, bool):
        return one is another
    if isinstance(one, int | float) and isinstance(another, int | float):
        return one == another
    if isinstance(one, str) and isinstance(another, str):
        return one == another
    if isinstance(one, list | tuple) and isinstance(another, list | tuple):
        ones, others = cast("list[Any]", one), cast("list[Any]", another)
        return len(ones) == len(others) and all(map(same, ones, others))
    if isinstance(one, Mapping) and isinstance(another, Mapping):
        return _same_dicts(cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", another))
    return one is None and another is None


def _same_dicts(one: Mapping[str, Any], another: Mapping[str, Any]) -> bool:
    return one.keys() == another.keys() and all(same(value, another[key]) for key, value in one.items())


def is_empty(value: Any) -> bool:
    """Whether there is nothing in it: it is missing, None, a text of white space alone, or a list or dict without."""
    if value is MISSING or value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    return isinstance(value, list | tuple | Mapping) and not value


def holds_in(value: Any, part: Any) -> bool:
    """Whether a text has this text in it, a list this element, a dict this key."""
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    if isinstance(value, list | tuple):
        return any(same(each, part) for each in cast("list[Any]", value))
    return isinstance(value, Mapping) and isinstance(part, str) and part in value


def order(value: Any, bound: float | str) -> int | None:
    """-1, 0 or 1: the value is less than the bound, as much, or greater. None if they can't be compared.

    With a number as bound, a number is compared, and a text that is nothing but a number, as "7" or " -1.5e3 ". With a
    text as bound, texts are compared, by the numbers of their characters. All else can't be: bool, None, lists, dicts.
    """
    if isinstance(bound, str):
        return _sign(value, bound) if isinstance(value, str) else None
    number = _number(value)
    if isinstance(number, Decimal) and isinstance(bound, float):
        # As it is written: what 0.8 is in binary is a bit more than the "0.8" that a model says.
        return _sign(number, Decimal(repr(float(bound))))
    return None if number is None else _sign(number, bound)


def _sign(one: Any, another: Any) -> int:
    return (one > another) - (one < another)


def _number(value: Any) -> int | float | Decimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return None if isinstance(value, float) and math.isnan(value) else value
    # A Decimal is exact and as long as it likes, where int() refuses texts of many digits.
    if isinstance(value, str) and _NUMBER.fullmatch(text := value.strip()):
        return Decimal(text)
    return None
