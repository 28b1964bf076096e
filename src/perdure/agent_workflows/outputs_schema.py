"""Values of models held against a JSON schema: names, types, enums and what is inside; the rest of the language is not.

What stands in a schema beside that (patterns, lengths, ranges) the model is told, and it is not looked at here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

Schema: TypeAlias = Mapping[str, Any]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and float(cast("float", value)).is_integer(),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
    "null": lambda value: value is None,
}
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
        if not isinstance(schema, Mapping):
            return
        found = cast("Schema", schema)
        if "$ref" in found:
            yield from self.faults(value, self._referred(found["$ref"]), place, depth + 1)
        if reason := _unlike(value, found):
            yield f"{place or 'the value'} {reason}"
            return
        yield from self._combined(value, found, place, depth + 1)
        if isinstance(value, Mapping):
            yield from self._of_object(cast("Mapping[str, Any]", value), found, place, depth + 1)
        elif isinstance(value, list):
            for number, each in enumerate(cast("list[object]", value)):
                yield from self.faults(each, found.get("items"), f"{place}[{number}]", depth + 1)

    def _of_object(self, value: Mapping[str, Any], schema: Schema, place: str, depth: int) -> Iterator[str]:
        properties: Schema = schema.get("properties") or {}
        for name in schema.get("required") or ():
            if name not in value:
                yield f"{_inside(place, name)} is missing"
        others = schema.get("additionalProperties", True)
        for name, each in value.items():
            if name in properties:
                yield from self.faults(each, properties[name], _inside(place, name), depth)
            elif others is False:
                yield f"{_inside(place, name)} does not belong there"
            else:
                yield from self.faults(each, others, _inside(place, name), depth)

    def _combined(self, value: object, schema: Schema, place: str, depth: int) -> Iterator[str]:
        for each in schema.get("allOf") or ():
            yield from self.faults(value, each, place, depth)
        for kind in ("anyOf", "oneOf"):
            ways: Sequence[Any] = schema.get(kind) or ()
            if ways and all(next(self.faults(value, each, place, depth), None) is not None for each in ways):
                yield f"{place or 'the value'} is none of what it may be"

    def _referred(self, name: object) -> object:
        """What a reference inside of the schema means; nothing, if it is none."""
        if not isinstance(name, str) or not name.startswith("#"):
            return None
        found: object = self._root
        for part in name.removeprefix("#").strip("/").split("/") if name != "#" else ():
            key = part.replace("~1", "/").replace("~0", "~")
            found = cast("Mapping[str, object]", found).get(key) if isinstance(found, Mapping) else None
        return found


def _unlike(value: object, schema: Schema) -> str | None:
    """Why a value itself is not what is asked for, whatever is inside of it."""
    types = schema.get("type")
    names: list[str] = [types] if isinstance(types, str) else list(types or ())
    if names and not any(_TYPES.get(name, _anything)(value) for name in names):
        return f"is to be of type {' or '.join(names)}"
    if "const" in schema and not _is_same(value, schema["const"]):
        return f"is to be {schema['const']!r}"
    choices: Sequence[Any] | None = schema.get("enum")
    if choices is not None and not any(_is_same(value, each) for each in choices):
        return f"is to be one of {list(choices)!r}"
    return None


def _is_same(value: object, other: object) -> bool:
    """Whether they are equal in JSON, where True is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _anything(_: object) -> bool:
    return True


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
