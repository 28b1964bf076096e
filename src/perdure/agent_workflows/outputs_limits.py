"""How great, long and many a value may be by a JSON schema: the limits of numbers, texts, lists and objects."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

from perdure.agent_workflows.conditions_values import same

Limit: TypeAlias = tuple[str, Callable[[Any, Any], bool], str]
"""A word of JSON schemas, whether a value keeps to what it says, and what the value is to be."""


def _is_multiple(value: float, unit: float) -> bool:
    # Of decimals as they are written: 0.3 is a multiple of 0.1.
    return bool(unit) and math.isfinite(value) and not Decimal(repr(value)) % Decimal(repr(unit))


def _is_long_enough(value: Sized, limit: float) -> bool:
    return len(value) >= limit


def _is_short_enough(value: Sized, limit: float) -> bool:
    return len(value) <= limit


def _has_each_once(value: list[Any], wanted: object) -> bool:
    return wanted is not True or not any(same(one, each) for n, one in enumerate(value) for each in value[:n])


_OF_NUMBERS: Final[tuple[Limit, ...]] = (
    ("minimum", lambda value, limit: value >= limit, "{} or more"),
    ("maximum", lambda value, limit: value <= limit, "{} or less"),
    ("exclusiveMinimum", lambda value, limit: value > limit, "more than {}"),
    ("exclusiveMaximum", lambda value, limit: value < limit, "less than {}"),
    ("multipleOf", _is_multiple, "a multiple of {}"),
)
_OF_TEXTS: Final[tuple[Limit, ...]] = (
    ("minLength", _is_long_enough, "of {} characters or more"),
    ("maxLength", _is_short_enough, "of {} characters or less"),
    ("pattern", lambda value, pattern: re.search(pattern, value) is not None, "like {!r}"),
)
_OF_LISTS: Final[tuple[Limit, ...]] = (
    ("minItems", _is_long_enough, "of {} elements or more"),
    ("maxItems", _is_short_enough, "of {} elements or less"),
    ("uniqueItems", _has_each_once, "without the same element twice"),
)
_OF_OBJECTS: Final[tuple[Limit, ...]] = (
    ("minProperties", _is_long_enough, "of {} keys or more"),
    ("maxProperties", _is_short_enough, "of {} keys or less"),
)

NUMBERS: Final = frozenset(word for word, _, _ in (*_OF_NUMBERS, *_OF_TEXTS, *_OF_LISTS, *_OF_OBJECTS)) - {
    "pattern",
    "uniqueItems",
}
"""The words that have a number behind them."""


def beyond_limits(value: object, schema: Mapping[str, Any]) -> Iterator[str]:
    """What a value is to be and is not, for each limit that it does not keep to."""
    for word, keeps, wanted in _limits_of(value):
        limit: object = schema.get(word)
        if _is_said(word, limit) and not keeps(value, limit):
            yield f"is to be {wanted.format(limit)}"


def _limits_of(value: object) -> tuple[Limit, ...]:
    match value:
        case bool():
            return ()
        case int() | float():
            return _OF_NUMBERS
        case str():
            return _OF_TEXTS
        case list():
            return _OF_LISTS
        case Mapping():
            return _OF_OBJECTS
        case _:
            return ()


def _is_said(word: str, limit: object) -> bool:
    """Whether there is a limit. In older schemas `exclusiveMinimum` is a bool, which says nothing by itself."""
    if word in NUMBERS:
        return isinstance(limit, int | float) and not isinstance(limit, bool)
    return isinstance(limit, str) if word == "pattern" else limit is not None


def required_beside(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """The keys that have to be there because others are."""
    for name, needed in cast("Mapping[str, list[str]]", schema.get("dependentRequired") or {}).items():
        yield from (each for each in needed if name in value and each not in value)
