"""What is wrong with a JSON schema itself, found before a model is asked for a value of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from perdure.agent_workflows.outputs_limits import NUMBERS
from perdure.agent_workflows.outputs_schema import TYPES

_DEPTH_MAX: Final = 100


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in cast("list[object]", value))


def _is_type(value: object) -> bool:
    return (
        value in TYPES if isinstance(value, str) else _is_texts(value) and set(cast("list[str]", value)) <= set(TYPES)
    )


def _is_number(value: object) -> bool:
    # In older schemas `exclusiveMinimum` is true or false.
    return isinstance(value, int | float)


def _is_dict(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in cast("Mapping[object, object]", value))


def _is_dict_of_texts(value: object) -> bool:
    return _is_dict(value) and all(map(_is_texts, cast("Mapping[str, object]", value).values()))


_KINDS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    **dict.fromkeys((*NUMBERS, "minContains", "maxContains"), (_is_number, "a number")),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), (_is_dict, "an object")),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), (lambda value: isinstance(value, list), "a list")),
    "enum": (lambda value: isinstance(value, list | tuple), "a list"),
    "required": (_is_texts, "a list of names"),
    "dependentRequired": (_is_dict_of_texts, "an object with lists of names"),
    "type": (_is_type, "one of " + ", ".join(map(repr, TYPES)) + ", or a list of them"),
    "pattern": (lambda value: isinstance(value, str), "a text"),
    "title": (lambda value: isinstance(value, str), "a text"),
}
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else")


def schema_faults(schema: object, place: str = "", depth: int = 0) -> Iterator[str]:
    """Where and why it is no JSON schema."""
    if isinstance(schema, bool):
        return
    if not _is_dict(schema):
        yield f"{place or 'the schema'} is to be an object"
        return
    if depth > _DEPTH_MAX:
        yield f"{place or 'the schema'} is nested too deeply"
        return
    found = cast("Mapping[str, Any]", schema)
    wrong = {key: wanted for key, (fits, wanted) in _KINDS.items() if key in found and not fits(found[key])}
    yield from (f"{_inside(place, key)} is to be {wanted}" for key, wanted in wrong.items())
    yield from _pattern_faults({key: value for key, value in found.items() if key not in wrong}, place)
    for key, inner in _inner(found, wrong):
        yield from schema_faults(inner, _inside(place, key), depth + 1)


def _pattern_faults(schema: Mapping[str, Any], place: str) -> Iterator[str]:
    patterns = [("pattern", schema["pattern"])] if "pattern" in schema else []
    patterns += [(f"patternProperties.{each}", each) for each in schema.get("patternProperties", ())]
    for key, pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            yield f"{_inside(place, key)} is no regular expression of Python: {error}"


def _inner(schema: Mapping[str, Any], wrong: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    """The schemas in a schema."""
    for key in _NAMED:
        if key not in wrong:
            yield from (
                (f"{key}.{name}", each) for name, each in cast("Mapping[str, Any]", schema.get(key, {})).items()
            )
    for key in _LISTED:
        if key not in wrong:
            yield from ((f"{key}[{n}]", each) for n, each in enumerate(cast("list[Any]", schema.get(key, []))))
    yield from ((key, schema[key]) for key in _SINGLE if key in schema)


def _inside(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
