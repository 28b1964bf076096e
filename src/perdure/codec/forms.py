"""Classes whose constructors don't tell what plain data may stand for an instance: each says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Callable


@frozen
class Form:
    """`data` is the type of the data, `make` the way from it to an instance, and `told` how users are told of it."""

    data: object
    make: Callable[[Any], object]
    told: str


_FORMS: dict[type, Form] = {}


def register_form(cls: type, data: object, *, make: Callable[[Any], object], told: str) -> None:
    """Let plain data stand for instances of a class in answers, and describe it in their schemas."""
    _FORMS[cls] = Form(data, make, told)


def form_of(expression: object) -> Form | None:
    """The data that may stand for an instance of this very class; None if it is not known, or no class."""
    return _FORMS.get(expression) if isinstance(expression, type) else None
