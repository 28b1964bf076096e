"""Copies of plain values, so that what was said stays as it was, whatever becomes of the value that said it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def plain_copy(value: Any) -> Any:
    """A copy of dicts, lists and tuples and of those in them. All else is left as it is, as it may be anything."""
    try:
        return _copied(value)
    except RecursionError:
        # It is too deep or holds itself, and whoever looks at it says so.
        return value


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if type(value) is list:
        return [_copied(each) for each in cast("list[Any]", value)]
    if type(value) is tuple:
        return tuple(_copied(each) for each in cast("tuple[Any, ...]", value))
    return value
