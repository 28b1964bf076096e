"""Values of models held against a JSON schema: all of the language but `format`, and what other documents hold.

`outputs_schema_faults` says whether a schema is one: only those are looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from perdure.agent_workflows.conditions_values import same
from perdure.agent_workflows.outputs_limits import beyond_limits, required_beside

Schema: TypeAlias = Mapping[str, Any]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return _is_number(value) and (isinstance(value, int) or cast("float", value).is_integer())


TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": _is_whole,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
    "null": lambda value: value is None,
}
"""By type that a schema may name, whether a value is of it."""
_DEPTH_MAX: Final = 100
"""A schema may refer to itself, and so go on for ever."""


def misfits(value: object, schema: Schema) -> list[str]:
    """Where and why a value is not what a schema asks for; empty if it is."""
    return list(_Checked(schema).faults(value, schema, "", 0))


class _Checked:
    """One schema, with what it refers to."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def faults(self, value: object, schema: object, place: str, depth: int) -> Iterator[str]:
        if depth > _DEPTH_MAX:
            yield f"{place or 'the value'} is nested too deeply"
            return
        if schema is False:
            yield f"{place or 'the value'} does not belong there"
        if not isinstance(schema, Mapping):
            return
        found = cast("Schema", schema)
        if "$ref" in found:
            yield from self.faults(value, self._referred(found["$ref"]), place, depth + 1)
        if reason := _unlike(value, found):
            yield f"{place or 'the value'} {reason}"
            return
        yield from (f"{place or 'the value'} {reason}" for reason in beyond_limits(value, found))
        yield from self._combined(value, found, place, depth + 1)
        if isinstance(value, Mapping):
            yield from self._of_object(cast("Mapping[str, Any]", value), found, place, depth + 1)
        elif isinstance(value, list):
            yield from self._of_list(cast("list[object]", value), found, place, depth + 1)

    def _fits(self, value: object, schema: object, place: str, depth: int) -> bool:
        return next(self.faults(value, schema, place, depth), None) is None

    def _of_list(self, value: list[object], schema: Schema, place: str, depth: int) -> Iterator[str]:
        first: Sequence[Any] = schema.get("prefixItems") or ()
        for number, each in enumerate(value):
            wanted = first[number] if number < len(first) else schema.get("items")
            yield from self.faults(each, wanted, f"{place}[{number}]", depth)
        if "contains" in schema:
            count = sum(self._fits(each, schema["contains"], place, depth) for each in value)
            least, most = schema.get("minContains", 1), schema.get("maxContains", count)
            if not least <= count <= most:
                yield f"{place or 'the value'} has {count} of the elements that are to be in it"

    def _of_object(self, value: Mapping[str, Any], schema: Schema, place: str, depth: int) -> Iterator[str]:
        for name in (*(schema.get("required") or ()), *required_beside(value, schema)):
            if name not in value:
                yield f"{_inside(place, name)} is missing"
        for name, each in value.items():
            yield from self.faults(name, schema.get("propertyNames"), _inside(place, name), depth)
            for wanted in _wanted(name, schema):
                yield from self.faults(each, wanted, _inside(place, name), depth)

    def _combined(self, value: object, schema: Schema, place: str, depth: int) -> Iterator[str]:
        for each in schema.get("allOf") or ():
            yield from self.faults(value, each, place, depth)
        any_of, one_of = (schema.get(kind) or () for kind in ("anyOf", "oneOf"))
        if any_of and not any(self._fits(value, each, place, depth) for each in any_of):
            yield f"{place or 'the value'} is none of what it may be"
        fitting = sum(self._fits(value, each, place, depth) for each in one_of)
        if one_of and fitting != 1:
            yield f"{place or 'the value'} is {'several' if fitting else 'none'} of what it may be"
        if "not" in schema and self._fits(value, schema["not"], place, depth):
            yield f"{place or 'the value'} is what it may not be"
        if "if" in schema:
            branch = "then" if self._fits(value, schema["if"], place, depth) else "else"
            yield from self.faults(value, schema.get(branch), place, depth)

    def _referred(self, name: object) -> object:
        """What a reference inside of the schema means; nothing, if it is none."""
        if not isinstance(name, str) or not name.startswith("#"):
            return None
        found: object = self._root
        for part in name.removeprefix("#").strip("/").split("/") if name != "#" else ():
            key = part.replace("~1", "/").replace("~0", "~")
            found = cast("Mapping[str, object]", found).get(key) if isinstance(found, Mapping) else None
        return found


def _wanted(name: str, schema: Schema) -> list[object]:
    """What the value of a key is to be: what is said of it, of keys like it, or else of all others."""
    properties: Schema = schema.get("properties") or {}
    patterns: Schema = schema.get("patternProperties") or {}
    found = [properties[name]] if name in properties else []
    found += [wanted for pattern, wanted in patterns.items() if re.search(pattern, name)]
    return found or [schema.get("additionalProperties")]


def _unlike(value: object, schema: Schema) -> str | None:
    """Why a value itself is not what is asked for, whatever is inside of it."""
    types = schema.get("type")
    names: list[str] = [types] if isinstance(types, str) else list(types or ())
    if names and not any(TYPES.get(name, _anything)(value) for name in names):
        return f"is to be of type {' or '.join(names)}"
    if "const" in schema and not same(value, schema["const"]):
        return f"is to be {schema['const']!r}"
    choices: Sequence[Any] | None = schema.get("enum")
    if choices is not None and not any(same(value, each) for each in choices):
        return f"is to be one of {list(choices)!r}"
    return None


def _anything(_: object) -> bool:
    return True


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
