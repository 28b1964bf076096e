"""Structured answers: parse the text of a model as a response format, and name what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self, cast

if TYPE_CHECKING:
    from jsonschema import ValidationError

_FENCE: Final = "```"
_FAULTS_MAX: Final = 20
_TEXT_MAX: Final = 80


class InvalidValueError(ValueError):
    """A value is not of the form that was asked for. The faults are written for the model or person who gave it."""

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults[:_FAULTS_MAX]))

    @classmethod
    def of(cls, error: ValueError) -> Self:
        """Name pydantic's errors without the values."""
        errors: Any = getattr(error, "errors", None)
        if errors is None:
            return cls(str(error))
        faults = errors(include_url=False, include_context=False, include_input=False)
        return cls(*(f"{'.'.join(map(str, fault['loc'])) or 'the value'}: {fault['msg']}" for fault in faults))


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
    # A provider's format wraps the schema.
    is_wrapped = wanted.get("type") == "json_schema"
    schema = wanted.get("json_schema", {}).get("schema", {}) if is_wrapped else wanted
    require_value(value, {"type": "object"} if wanted.get("type") == "json_object" else schema)
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
        return str(InvalidValueError.of(error))
    return None


def correction(fault: str) -> str:
    """Return the text that asks a model for another answer."""
    return (
        f"Your answer can't be used: {fault}. Answer again, with JSON of the form that was asked for and nothing else."
    )


def _strip_fence(text: str) -> str:
    """Return the text between Markdown fences, if there is nothing else."""
    # Without a regular expression: on a hostile answer one could take too long.
    first, _, rest = text.strip().partition("\n")
    body, _, last = rest.rpartition("\n")
    language = first.removeprefix(_FENCE).strip()
    is_fenced = first.startswith(_FENCE) and last.strip() == _FENCE and (not language or language.isalpha())
    return body if is_fenced else text


def json_schema_faults(schema: Any) -> list[str]:
    """Name what is wrong with a JSON schema, each with its place. `format` and references are not looked at."""
    return list(dict.fromkeys(map(_fault_text, _schema_validator().iter_errors(schema))))


@cache
def _schema_validator() -> Any:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - loaded on first use

    return Draft202012Validator(Draft202012Validator.META_SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)


@cache
def _value_validator() -> Any:
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
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - loaded on first use

    try:
        if json_schema_faults(schema):
            return []
        return [_fault_text(error) for error in _value_validator()(schema).iter_errors(value)]
    except Unresolvable:
        return []
    except RecursionError:
        return ["it is nested too deeply"]


def require_value(value: object, schema: Mapping[str, Any]) -> None:
    """Raise InvalidValueError if a value is not of a schema."""
    if faults := value_faults(value, schema):
        raise InvalidValueError(*faults)


def _fault_text(error: ValidationError) -> str:
    """Describe an error by its rule, not by the value, which must not get into logs."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    place, rule = path.removeprefix(".") or "the value", str(error.validator)
    if rule in {"required", "dependentRequired", "additionalProperties"}:
        return f"{place}: {error.message}"
    text = json.dumps(error.validator_value, ensure_ascii=False, default=str)
    return f"{place} must satisfy {rule}: {text if len(text) <= _TEXT_MAX else f'{text[: _TEXT_MAX - 1]}…'}"
