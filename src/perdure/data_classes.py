"""Data classes of the hot path: values that are cheap to create, and empty collections as defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(cls: type[T]) -> type[T]:
    """Make a data class that is frozen for type checkers, not at run time.

    Creating a frozen data class takes Python six times as long, and a durable superstep creates about twenty: frozen,
    they were a third of the time that its event loop spends on it.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


def evolve(value: T, **changes: Any) -> T:
    """Return a copy of a value with other fields, in a third of the time of `dataclasses.replace`."""
    cls: Any = type(value)
    copy = object.__new__(cls)
    for name in cls.__slots__:
        setattr(copy, name, changes[name] if name in changes else getattr(value, name))
    return copy


# Calling `dict[str, int]` takes eight times as long as `dict`, whose types a strict checker can't infer.
new_dict: Final[Callable[[], dict[Any, Any]]] = dict
new_list: Final[Callable[[], list[Any]]] = list
new_set: Final[Callable[[], set[Any]]] = set
