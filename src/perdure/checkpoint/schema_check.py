"""Plain data checked against a JSON Schema by the library jsonschema, which is an extra: load this module when needed.

Where Python is laxer than JSON Schema, so is this check: what a run would take is not refused here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from jsonschema import exceptions, validators
from jsonschema.exceptions import ValidationError
from jsonschema.validators import Draft202012Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jsonschema.protocols import Validator

# The stubs of the library leave open what these two return.
_extend: Callable[..., type[Validator]] = cast("Any", validators).extend
_best_match: Callable[[Iterable[ValidationError]], ValidationError | None] = cast("Any", exceptions).best_match


def first_misfit(schema: dict[str, Any], value: object) -> str | None:
    """Where and why the data does not fit; None if it does."""
    # An empty registry fetches nothing: a stored schema can't make this process call an address that it names.
    validator = _LaxValidator(schema, registry=Registry[Any]())
    try:
        error = _best_match(validator.iter_errors(cast("Any", value)))
    except Unresolvable as missing:
        return f"the schema refers to {missing.ref!r}, which it does not contain"
    except re.error:  # a pattern in another dialect than Python's: the run asks its owner
        return None
    if error is None:
        return None
    return error.message if error.json_path == "$" else f"at {error.json_path}: {error.message}"


def _is_integer(_: object, value: object) -> bool:
    """In Python a bool is an int."""
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _one_of_values(_: object, values: list[Any], value: object, __: object) -> Iterator[ValidationError]:
    """Python finds the member of an enum by equality, and True equals 1."""
    if value not in values:
        yield ValidationError(f"{value!r} is not one of {values!r}")


_LaxValidator = _extend(
    Draft202012Validator,
    validators={"enum": _one_of_values},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)
