"""Check an answer against the JSON Schema that is stored with its request.

A stored schema may come from anywhere, so the check has a bound: it fetches nothing, and skips what would take long.
A run that applies an answer checks it again, with its own types.
"""

from __future__ import annotations

import contextvars
import functools
import math
import re
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsonschema.exceptions import ValidationError
    from pydantic_core import SchemaValidator

Schema: TypeAlias = dict[str, Any]

_NODES_MAX = 20_000
_STEPS_MAX = 100_000
"""A step takes a few microseconds, so a check takes about a second at most."""
_STEPS_PER_PATTERN = 2000
_LETTERS_PER_STEP = 100
_PATTERN_COST_MAX = 20_000_000
"""Length of the pattern, times its counted repetitions, times length of the text. This takes about 0.1 seconds."""

_ENDLESS = frozenset(
    {"uniqueItems", "patternProperties", "$dynamicRef", "unevaluatedItems", "unevaluatedProperties", "$schema"}
)
"""Keywords whose cost has no bound in our step count. The schemas of our own types need none of them."""


class _TooCostlyError(Exception):
    """The check is not worth its cost."""


_steps_left: contextvars.ContextVar[int] = contextvars.ContextVar("steps_left")


def _spend(steps: int) -> None:
    left = _steps_left.get() - steps
    if left < 0:
        raise _TooCostlyError
    _steps_left.set(left)


def check_against(schema: Schema, value: object, *, steps_max: int = _STEPS_MAX) -> str | None:
    """Return the first reason why JSON data does not fit a schema; None if it fits, or if the check would take long.

    Where Python is more lenient than JSON Schema, so is this check: `True` is an integer, and equals 1 in an enum.
    """
    from jsonschema import exceptions  # noqa: PLC0415 - imported on first use
    from jsonschema.exceptions import UnknownType  # noqa: PLC0415
    from referencing import Registry  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    token = _steps_left.set(steps_max)
    try:
        _require_modest(schema)
        # An empty registry fetches nothing.
        validator = _validator()(schema, registry=Registry[Any]())
        error: Any = cast("Any", exceptions).best_match(validator.iter_errors(value))
    except Unresolvable as missing:
        return f"the schema refers to {missing.ref!r}, which it does not contain"
    except (_TooCostlyError, RecursionError, UnknownType, TypeError, ValueError, AttributeError, LookupError):
        # It takes too long, or the schema is malformed.
        return None
    finally:
        _steps_left.reset(token)
    if error is None:
        return None
    return error.message if error.json_path == "$" else f"at {error.json_path}: {error.message}"


def _require_modest(schema: object) -> None:
    """Refuse a large schema, and one with something that has no bound, such as another dialect."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - imported on first use

    waiting, count = [schema], 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > _NODES_MAX or (isinstance(node, dict) and not _ENDLESS.isdisjoint(cast("dict[str, object]", node))):
            raise _TooCostlyError
        if isinstance(node, dict):
            # The library knows the schemas of all dialects by URL, and they ask for dialects.
            ref = cast("dict[str, object]", node).get("$ref")
            if isinstance(ref, str) and not ref.startswith("#"):
                raise Unresolvable(ref=ref)
            waiting.extend(cast("dict[str, object]", node).values())
        elif isinstance(node, list):
            waiting.extend(cast("list[object]", node))


@functools.cache
def _validator() -> Any:
    from jsonschema import validators  # noqa: PLC0415 - imported on first use
    from jsonschema.validators import Draft202012Validator  # noqa: PLC0415

    def is_integer(_: object, value: object) -> bool:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())

    known: dict[str, Any] = cast("Any", Draft202012Validator).VALIDATORS
    checks = {**known, "enum": _check_enum, "pattern": _check_pattern}
    return cast("Any", validators).create(
        Draft202012Validator.META_SCHEMA,
        {name: _counted(check) for name, check in checks.items()},
        type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer),
    )


def _counted(check: Callable[..., Any]) -> Callable[..., Iterator[ValidationError]]:
    """Count the steps of a check, and its errors: each passes through all levels, and its message quotes the value."""

    def counted(*args: object) -> Iterator[ValidationError]:
        _spend(1)
        for error in check(*args) or ():
            _spend(1 + len(error.message) // _LETTERS_PER_STEP)
            yield error

    return counted


def _check_enum(_: object, values: list[Any], value: object, __: object) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - imported on first use

    if value not in values:
        yield ValidationError(f"{value!r} is not one of {values!r}")


def _check_pattern(_: object, pattern: object, value: object, __: object) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - imported on first use
    from pydantic import ValidationError as Mismatch  # noqa: PLC0415

    if not isinstance(pattern, str) or not isinstance(value, str) or _cost(pattern, value) > _PATTERN_COST_MAX:
        return
    _spend(_STEPS_PER_PATTERN)
    regex = _regex(pattern)
    try:
        if regex is not None:
            regex.validate_python(value)
    except Mismatch:
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _cost(pattern: str, text: str) -> float:
    if re.search(r"\(\?[\w-]*x", pattern):
        # With the flag x, counts may contain comments.
        return math.inf
    counts = [re.sub(r"[^\d,]", "", braces).split(",") for braces in re.findall(r"\{([^}]*)", pattern)]
    repetitions = math.prod(max(int(number or 1) for number in numbers) for numbers in counts)
    return len(pattern) * max(repetitions, 1) * (len(text) + 1)


@functools.lru_cache(maxsize=256)
def _regex(pattern: str) -> SchemaValidator | None:
    """Compile a pattern for pydantic's engine, which takes linear time; Python's may take forever.

    None if that engine does not know the pattern's dialect.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema  # noqa: PLC0415 - imported on first use

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:
        return None
