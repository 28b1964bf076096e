"""Structured answers: parse the text of a model as a response format, and name what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jsonschema import ValidationError

_FENCE: Final = "```"
_FAULTS_MAX: Final = 20
_TEXT_MAX: Final = 80


class InvalidValueError(ValueError):
    """A value is not of the form that was asked for. The message is written for the model or person who gave it."""


def parse_answer(text: str, wanted: type[Any] | Mapping[str, Any]) -> Any:
    """Parse a text, also one in a code fence, as a pydantic model or by a JSON schema.

    Raises InvalidValueError, pydantic's ValidationError.
    """
    text = _strip_fence(text)
    if isinstance(wanted, type):
        return wanted.model_validate_json(text)
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"it is not JSON: {error}") from error
    require_none(value_faults(value, _schema_in(wanted)))
    return value


def answer_fault(text: str, wanted: type[Any] | Mapping[str, Any]) -> str | None:
    """Name what is wrong with an answer, for the model; None if it fits."""
    if isinstance(wanted, Mapping) and wanted.get("type") == "text":
        return None
    if not text.strip():
        return "it is empty"
    try:
        parse_answer(text, wanted)
    except ValueError as error:
        return "; ".join(model_faults(error))
    return None


def correction(fault: str) -> str:
    """Return the text that asks a model for another answer."""
    return (
        f"Your answer can't be used: {fault}. Answer again, with JSON of the form that was asked for and nothing else."
    )


def _schema_in(wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema in a response format, which may be in the form of a provider."""
    kind: object = wanted.get("type")
    if kind == "json_object":
        return {"type": "object"}
    return wanted.get("json_schema", {}).get("schema", {}) if kind == "json_schema" else wanted


def _strip_fence(text: str) -> str:
    """Return the text between Markdown fences, if there is nothing else."""
    # Without a regular expression: on a hostile answer one could take too long.
    first, _, rest = text.strip().partition("\n")
    body, _, last = rest.rpartition("\n")
    language = first.removeprefix(_FENCE).strip()
    is_fenced = first.startswith(_FENCE) and last.strip() == _FENCE and (not language or language.isalpha())
    return body if is_fenced else text


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator, ValidationError  # noqa: PLC0415 - loaded on first use
    from jsonschema.validators import extend  # noqa: PLC0415  # pyright: ignore[reportUnknownVariableType]

    def check_multiple(_: Any, unit: float, value: object, __: Any) -> Iterator[ValidationError]:
        """Check `multipleOf` for decimals as they are written: 0.3 is a multiple of 0.1."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        if is_infinite or Fraction(repr(value)) % Fraction(repr(unit)):
            yield ValidationError("")

    def check_reference(validator: Any, reference: str, value: object, schema: Any) -> Iterator[ValidationError]:
        """Follow references inside the schema only: nothing is read from elsewhere."""
        if reference.startswith("#"):
            yield from Draft202012Validator.VALIDATORS["$ref"](validator, reference, value, schema)

    return cast("Any", extend)(Draft202012Validator, {"multipleOf": check_multiple, "$ref": check_reference})


def value_faults(value: object, schema: Mapping[str, Any]) -> list[str]:
    """Name what keeps a value from being of a schema, each with its place. An invalid schema allows everything."""
    from jsonschema import SchemaError  # noqa: PLC0415 - loaded on first use

    try:
        _validator().check_schema(schema)
        return [fault_text(error) for error in _validator()(schema).iter_errors(value)]
    except SchemaError:
        return []
    except RecursionError:
        return ["it is nested too deeply"]


def fault_text(error: ValidationError) -> str:
    """Describe an error by its rule, not by the value, which must not get into logs."""
    place, rule = path_of(tuple(error.absolute_path)) or "the value", str(error.validator)
    if rule in {"required", "dependentRequired", "additionalProperties"}:
        return f"{place}: {error.message}"
    text = json.dumps(error.validator_value, ensure_ascii=False, default=str)
    return f"{place} must satisfy {rule}: {text if len(text) <= _TEXT_MAX else f'{text[: _TEXT_MAX - 1]}…'}"


def path_of(place: Sequence[str | int], path: str = "") -> str:
    """Write a place inside `path` as a path, such as `edges[0].when`."""
    for part in place:
        name = f".{part}" if path else part
        path += f"[{part}]" if isinstance(part, int) else str(name)
    return path


def model_faults(error: ValueError) -> list[str]:
    """Name pydantic's errors without the values."""
    errors: Any = getattr(error, "errors", None)
    if errors is None:
        return [str(error)]
    faults = errors(include_url=False, include_context=False, include_input=False)
    found = [f"{'.'.join(map(str, fault['loc'])) or 'the value'}: {fault['msg']}" for fault in faults]
    return found[:_FAULTS_MAX]


def require_none(problems: Iterable[str]) -> None:
    """Raise InvalidValueError if there are problems."""
    found = list(problems)[:_FAULTS_MAX]
    if found:
        raise InvalidValueError("; ".join(found))
