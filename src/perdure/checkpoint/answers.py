"""Answers to requests: their JSON Schema, the check against a stored schema, and conversion to the requested type.

pydantic describes and converts, jsonschema checks. Both are imported on first use. The schema and the conversion agree:
an answer that fits the schema is converted, and one that does not fit is refused.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import types
import typing
from enum import Flag
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import typing_extensions

from perdure.codec import reachable
from perdure.typenames import describe
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsonschema.exceptions import ValidationError
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import core_schema

Schema: TypeAlias = dict[str, Any]


def schema_of(type_expression: object) -> Schema | None:
    """Return the JSON Schema (2020-12) of the data that can answer with this type; None if it can't be described."""
    adapter = _adapter(type_expression)
    return None if isinstance(adapter, str) else adapter.schema


def check_against(schema: Schema, value: object) -> str | None:
    """Return the first reason why JSON data does not fit a schema; None if it fits.

    Where Python is more lenient than JSON Schema, so is this check: `True` is an integer, and equals 1 in an enum.
    """
    from jsonschema import exceptions  # noqa: PLC0415 - imported on first use
    from referencing import Registry  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    # An empty registry fetches nothing: a stored schema can't make this process open a URL.
    validator = _lenient_validator()(schema, registry=Registry[Any]())
    try:
        error: Any = cast("Any", exceptions).best_match(validator.iter_errors(value))
    except Unresolvable as missing:
        return f"the schema refers to {missing.ref!r}, which it does not contain"
    except re.error:  # A pattern in another dialect than Python's: the run checks the answer again.
        return None
    if error is None:
        return None
    return error.message if error.json_path == "$" else f"at {error.json_path}: {error.message}"


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
            reason = check_against(self.schema, json.loads(text)[0])
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
    from pydantic import ConfigDict, TypeAdapter  # noqa: PLC0415 - imported on first use

    try:
        if sys.version_info < (3, 12):
            _prepare_typed_dicts(type_expression)
        wrapped: Any = types.GenericAlias(tuple, (type_expression,))
        adapter: TypeAdapter[tuple[Any]]
        adapter = TypeAdapter(wrapped, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
        return _Adapter(adapter)
    except Exception as error:  # noqa: BLE001 - annotations of the program may fail in any way
        return str(error).partition("\n")[0]


def _prepare_typed_dicts(type_expression: object) -> None:
    """Let pydantic read classes made with `typing.TypedDict`, which it refuses before Python 3.12.

    It reads a copy made with `typing_extensions.TypedDict` in their place.
    """
    for cls in reachable([type_expression]).values():
        if typing.is_typeddict(cls) and not hasattr(cls, "__get_pydantic_core_schema__"):
            cls.__get_pydantic_core_schema__ = _typed_dict_core_schema  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def _typed_dict_core_schema(cls: Any, handler: Any) -> Any:
    return handler.generate_schema(_copy_typed_dict(cls))


@functools.cache
def _copy_typed_dict(cls: Any) -> Any:
    hints = typing.get_type_hints(cls, include_extras=True)
    optional = {name: hint for name, hint in hints.items() if name in cls.__optional_keys__}
    made: Any = typing_extensions.TypedDict
    base = made(cls.__name__, optional, total=False)
    return types.new_class(
        cls.__name__,
        (base,),
        {},
        lambda body: body.update(
            __module__=cls.__module__,
            __annotations__={name: hint for name, hint in hints.items() if name not in optional},
        ),
    )


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


@functools.cache
def _schema_generator() -> type[GenerateJsonSchema]:
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415 - imported on first use

    class Generator(GenerateJsonSchema):
        """Describe what conversion accepts, where pydantic's own description is narrower."""

        def set_schema(self, schema: core_schema.SetSchema) -> Schema:
            described = super().set_schema(schema)
            described.pop("uniqueItems", None)
            return described

        def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> Schema:
            described = super().frozenset_schema(schema)
            described.pop("uniqueItems", None)
            return described

        def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> Schema:
            described = super().typed_dict_schema(schema)
            described.pop("additionalProperties", None)
            return described

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


@functools.cache
def _lenient_validator() -> Any:
    from jsonschema import validators  # noqa: PLC0415 - imported on first use
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415
    from jsonschema.validators import Draft202012Validator  # noqa: PLC0415

    def is_integer(_: object, value: object) -> bool:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())

    def check_enum(_: object, values: list[Any], value: object, __: object) -> Iterator[ValidationError]:
        if value not in values:
            yield ValidationError(f"{value!r} is not one of {values!r}")

    extend: Any = cast("Any", validators).extend
    return extend(
        Draft202012Validator,
        validators={"enum": check_enum},
        type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer),
    )
