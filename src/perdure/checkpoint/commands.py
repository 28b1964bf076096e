"""Commands of a run's inbox: answers, messages, cancellation and budgets. Answers are checked and converted.

pydantic describes and converts, jsonschema checks. Both are imported on first use. The schema and the conversion agree:
an answer that fits the schema is converted, and one that does not fit is refused.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import types
import typing
from enum import Flag
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.checkpoint.answer_check import Schema, check_against
from perdure.codec import MALFORMED, Codec, DamagedPartError, Encoded, Kept, document, loads, read_document
from perdure.data_classes import value_class
from perdure.errors import CheckpointDamagedError
from perdure.records import Command
from perdure.typenames import describe
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import core_schema


_SHOWN_LENGTH_MAX = 80


@value_class
class AnswerCommand:
    """An answer to a request."""

    command_id: str
    request_id: str
    value: Kept
    at: str
    by: str
    shown: str


@value_class
class MessageCommand:
    """A message for an executor, or for the start of the next turn."""

    command_id: str
    target_id: str | None
    value: Kept
    at: str
    by: str


@value_class
class CancelCommand:
    """A request to stop the run."""

    command_id: str
    reason: str | None
    at: str
    by: str


@value_class
class BudgetCommand:
    """New limits of the run, by resource. The budget of other resources stays."""

    command_id: str
    budget: Mapping[str, float]


AnyCommand: TypeAlias = AnswerCommand | MessageCommand | CancelCommand | BudgetCommand


def answer_id(request_id: str) -> str:
    """Return the command id of an answer. A request has at most one answer."""
    return f"answer/{request_id}"


CANCEL_ID = "cancel"


def answer_command(
    codec: Codec, request_id: str, answer: object, *, at: str, by: str, expects: tuple[str, str]
) -> Command:
    """Encode an answer, valid as long as the run's head has the request. Raises EncodeError."""
    value = codec.encode(answer, path=f"answer to request {request_id!r}").inline()
    tree = {"request": request_id, "value": value, "shown": shown(answer), "at": at, "by": by}
    return _command(answer_id(request_id), "answer", document(tree), expects)


def message_command(
    codec: Codec, command_id: str, message: object, *, target_id: str | None, at: str, by: str
) -> Command:
    """Encode a message. Raises EncodeError."""
    tree = {"target": target_id, "value": codec.encode(message, path="the message").inline(), "at": at, "by": by}
    return _command(f"message/{command_id}", "message", document(tree), None)


def cancel_command(*, reason: str | None, at: str, by: str) -> Command:
    """Encode a cancellation."""
    return _command(CANCEL_ID, "cancel", document({"reason": reason, "at": at, "by": by}), None)


def budget_command(command_id: str, budget: Mapping[str, float], *, at: str, by: str) -> Command:
    """Encode new limits. Raises TypeError, ValueError."""
    tree = {"budget": check_budget(budget), "at": at, "by": by}
    return _command(f"budget/{command_id}", "budget", document(tree), None)


def check_budget(budget: Mapping[str, float]) -> dict[str, float]:
    """Return the budget if every amount is valid. Raises TypeError, ValueError."""
    for name, amount in budget.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"the budget of {name!r} must be a number, not {amount!r}")
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(f"the budget of {name!r} must be finite and not negative, not {amount!r}")
    return dict(budget)


def _command(command_id: str, kind: str, encoded: Encoded, expects: tuple[str, str] | None) -> Command:
    return Command(command_id, kind, encoded.text, encoded.refs, encoded.blobs, expects)


def is_same_answer(one: Command, other: Command) -> bool:
    """Return True if two answers to a request are equal, whoever gave them, and whatever the order of their keys."""
    return _canonical(one) == _canonical(other)


def _canonical(command: Command) -> str:
    # Compared as text, because True equals 1 in Python.
    return json.dumps(loads(command.data)["value"], sort_keys=True)


def shown(value: object) -> str:
    """Format a value briefly for messages to people."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[: _SHOWN_LENGTH_MAX - 1]}…"


def read_command(command: Command, blobs: Mapping[str, bytes], *, checkpoint_id: str) -> AnyCommand:
    """Decode a command. Raises CheckpointDamagedError."""
    try:
        tree = loads(command.data)
        return _read(command, tree, blobs, checkpoint_id)
    except MALFORMED as error:
        reason = f"the command {command.id!r} in its inbox can't be read: {error or repr(error)}"
        raise CheckpointDamagedError(checkpoint_id, reason) from error


def _read(command: Command, tree: dict[str, Any], blobs: Mapping[str, bytes], checkpoint_id: str) -> AnyCommand:
    at, by, needed = tree["at"], tree["by"], ("request", "shown") if command.kind == "answer" else ()
    texts = (at, by, *(tree.get(name) for name in needed), tree.get("target") or "", tree.get("reason") or "")
    if not all(isinstance(each, str) for each in texts):
        raise DamagedPartError("a text has another type")
    match command.kind:
        case "answer":
            value = _value(tree["value"], blobs, f"answer to request {tree['request']!r}", checkpoint_id)
            return AnswerCommand(command.id, tree["request"], value, at, by, tree["shown"])
        case "message":
            value = _value(tree["value"], blobs, "a message from outside", checkpoint_id)
            return MessageCommand(command.id, tree["target"], value, at, by)
        case "cancel":
            return CancelCommand(command.id, tree["reason"], at, by)
        case "budget":
            return BudgetCommand(command.id, check_budget(tree["budget"]))
        case kind:
            raise DamagedPartError(f"unknown kind of command: {kind!r}")


def _value(tree: object, blobs: Mapping[str, bytes], path: str, checkpoint_id: str) -> Kept:
    """Return a value with its blobs, which the checkpoint that applies the command must keep."""
    encoded = read_document(tree).with_stored(blobs)
    return Kept(path=path, encoded=encoded, stored=blobs, checkpoint_id=checkpoint_id)


def schema_of(type_expression: object) -> Schema | None:
    """Return the JSON Schema (2020-12) of the data that can answer with this type; None if it can't be described."""
    adapter = _adapter(type_expression)
    return None if isinstance(adapter, str) else adapter.schema


def coerce(value: Any, expected: Any) -> Any:
    """Convert JSON data to the expected type. A value of that type is returned as it is.

    Raises ValueError if the data does not fit.
    """
    if is_instance_of(value, expected):
        return value
    adapter = _adapter(expected)
    if isinstance(adapter, str):
        raise ValueError(f"{describe(expected)} can't be made of data: {adapter}")
    return adapter.convert(value)


class _Adapter:
    """A pydantic adapter for one type, and the JSON Schema of the type.

    The type is wrapped in a tuple, because pydantic takes no configuration for a bare dataclass.
    """

    def __init__(self, adapter: TypeAdapter[tuple[Any]]) -> None:
        self._adapter = adapter
        self.schema = _describe(adapter)

    def convert(self, value: object) -> Any:
        try:
            text = json.dumps([value])
        except (TypeError, ValueError):
            return _validated(lambda: self._adapter.validate_python((value,)))
        try:
            return _validated(lambda: self._adapter.validate_json(text, strict=True))
        except ValueError:
            # Lenient conversion makes 3 of 3.0, and of "3" as well: only what fits the schema may take that way.
            if self.schema is None:
                raise
            reason = check_against(self.schema, json.loads(text)[0], steps_max=sys.maxsize)
            if reason is not None:
                raise ValueError(reason) from None
            return _validated(lambda: self._adapter.validate_json(text))


def _validated(validate: Callable[[], tuple[Any]]) -> Any:
    from pydantic import ValidationError  # noqa: PLC0415 - imported on first use

    try:
        return validate()[0]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"][1:])
        raise ValueError(f"at ${place}: {first['msg']}" if place else first["msg"]) from error
    except Exception as error:
        # A constructor of the program raised.
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _adapter(type_expression: object) -> _Adapter | str:
    """Return the adapter of a type, or the reason why pydantic can't make one."""
    try:
        return _cached_adapter(type_expression)
    except TypeError:  # Metadata of an Annotated may be unhashable.
        return _make_adapter(type_expression)


def _make_adapter(type_expression: object) -> _Adapter | str:
    from pydantic import AfterValidator, ConfigDict, TypeAdapter  # noqa: PLC0415 - imported on first use

    try:
        # A class that text can answer, such as Content, says so.
        if (from_text := getattr(type_expression, "__perdure_from_text__", None)) is not None:
            type_expression = typing.cast("Any", type_expression) | typing.Annotated[str, AfterValidator(from_text)]
        wrapped: Any = types.GenericAlias(tuple, (type_expression,))
        adapter: TypeAdapter[tuple[Any]]
        adapter = TypeAdapter(wrapped, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
        return _Adapter(adapter)
    except Exception as error:  # noqa: BLE001 - annotations of the program may fail in any way
        return str(error).partition("\n")[0]


_cached_adapter = functools.lru_cache(maxsize=512)(_make_adapter)


def _describe(adapter: TypeAdapter[tuple[Any]]) -> Schema | None:
    from pydantic.errors import PydanticInvalidForJsonSchema  # noqa: PLC0415 - imported on first use

    try:
        whole = adapter.json_schema(schema_generator=_schema_generator())
    except PydanticInvalidForJsonSchema:
        return None
    [schema] = whole["prefixItems"]
    definitions: dict[str, Schema] = whole.get("$defs", {})
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    if name in definitions:
        schema = definitions[name]
        if f'"#/$defs/{name}"' not in json.dumps(definitions):
            del definitions[name]
    return {**schema, "$defs": definitions} if definitions else schema


def _without(schema: Schema, key: str) -> Schema:
    return {name: value for name, value in schema.items() if name != key}


@functools.cache
def _schema_generator() -> type[GenerateJsonSchema]:
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415 - imported on first use

    class Generator(GenerateJsonSchema):
        """Describe what conversion accepts, where pydantic's own description is narrower."""

        def set_schema(self, schema: core_schema.SetSchema) -> Schema:
            return _without(super().set_schema(schema), "uniqueItems")

        def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> Schema:
            return _without(super().frozenset_schema(schema), "uniqueItems")

        def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> Schema:
            return _without(super().typed_dict_schema(schema), "additionalProperties")

        def enum_schema(self, schema: core_schema.EnumSchema) -> Schema:
            cls = schema["cls"]
            if issubclass(cls, Flag):
                return {"type": "integer"}
            # A class with its own `_missing_` may accept any value.
            is_open = any("_missing_" in vars(base) for base in cls.__mro__ if base.__module__ != "enum")
            return {} if is_open else super().enum_schema(schema)

        def field_title_should_be_set(self, schema: object) -> bool:
            """Leave out titles that only repeat the names of fields."""
            del schema
            return False

        def emit_warning(self, kind: object, detail: str) -> None:
            """Ignore defaults that JSON can't show."""

    return Generator
