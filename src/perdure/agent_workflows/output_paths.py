"""Paths into outputs, followed through JSON schemas before anything runs.

A value may have one of several schemas; a path is dead only if it is in all of them. A schema that names properties has
only these, unless it allows additional ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agent_workflows.definition.json_values import is_index
from perdure.agent_workflows.definition.problems import quoted
from perdure.agent_workflows.definition.values import (
    ERROR,
    MATCHED_TYPE,
    RESULT,
    Handoffs,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)
from perdure.agent_workflows.outputs import schema_of, with_fallbacks

if TYPE_CHECKING:
    from perdure.agent_workflows.definition.values import Node, Shape


_Located = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A schema, and the whole schema that its references point into."""
_TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_SCALARS: Final = frozenset({"string", "number", "integer", "boolean", "null"})
_OPEN: Final = frozenset({"allOf", "if", "not", "patternProperties", "dependentSchemas", "$dynamicRef"})
"""Rules that may allow more than `properties` names."""


def find_dead_end(node: Node, nodes: Mapping[str, Node], key: str, path: Iterable[str]) -> str | None:
    """Explain why a path into an output can never exist, fallbacks included; None if it may exist."""
    try:
        return _dead_end(node, nodes, key, path)
    except RecursionError:
        return None  # The schema is only a reference to itself.


def _dead_end(node: Node, nodes: Mapping[str, Node], key: str, path: Iterable[str]) -> str | None:
    found: list[_Located] | None = []
    for each in with_fallbacks(node, nodes):
        own = _locate_output(each, key)
        found = None if own is None or found is None else found + own
    what = f"{key!r} of {node.id!r}"
    for part in path:
        if found is None:
            return None
        inner = _merge(_descend(each, part) for each in found)
        if inner == []:
            has = sorted({name for each in found for name in _names_in(each)})
            return f"{what} has no {part!r}{f'; it has {quoted(has)}' if has else ' in it'}"
        found, what = inner, f"{part!r} of {what}"
    return None


def _locate_output(node: Node, key: str) -> list[_Located] | None:
    """Return the schemas of an output key; None if one is not known."""
    texts: list[_Located] = [(_TEXT, _TEXT)]
    shapes: tuple[Shape, ...] = ()
    match node.output:
        case TextOutput() | Handoffs():
            return texts
        case StructuredOutput(shape):
            shapes = (shape,)
        case UnionOutput(types):
            if key == MATCHED_TYPE:
                return texts
            shapes = types
    schemas = [schema_of(shape) for shape in shapes]
    if any(schema is None for schema in schemas):
        return None
    wholes: list[_Located] = [(schema, schema) for schema in schemas if schema is not None]
    found = wholes if key == RESULT else _merge(_descend(each, key) for each in wholes)
    if key == ERROR and node.on_error.mode == "isolate" and found is not None:
        return found + texts
    return found


def _merge(several: Iterable[list[_Located] | None]) -> list[_Located] | None:
    found: list[_Located] = []
    for each in several:
        if each is None:
            return None
        found += each
    return found


def _descend(located: _Located, part: str) -> list[_Located] | None:
    """Return the schemas at one step into a value: empty if there is nothing, None if anything may be there."""
    schema, root = located
    if "$ref" in schema:
        target = _follow(root, schema["$ref"])
        return None if target is None else _descend((target, root), part)
    for rule in ("anyOf", "oneOf"):
        if rule in schema:
            return _merge(_descend((each, root), part) for each in schema[rule])
    types: object = schema.get("type", "object" if "properties" in schema else None)
    if types is None and ("enum" in schema or "const" in schema):
        return [] if not isinstance(schema.get("const"), dict | list) else None
    if not _OPEN.isdisjoint(schema) or not isinstance(types, str | list):
        return None
    names = [types] if isinstance(types, str) else cast("list[Any]", types)
    return _merge(_descend_typed(schema, name, part, root) for name in names)


def _descend_typed(schema: Mapping[str, Any], name: Any, part: str, root: Mapping[str, Any]) -> list[_Located] | None:
    if name in _SCALARS:
        return []
    if name == "array":
        return _descend_list(schema, part, root)
    properties: object = schema.get("properties")
    inner: Mapping[str, Any] = cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}
    if name == "object" and part in inner:
        return [(inner[part], root)] if isinstance(inner[part], Mapping) else None
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping) and others:
        return [(cast("Mapping[str, Any]", others), root)]
    # A name with a dot in it could be meant by a path that looks longer.
    is_open = others is True or not inner or any("." in each for each in inner)
    return None if name != "object" or is_open else []


def _descend_list(schema: Mapping[str, Any], part: str, root: Mapping[str, Any]) -> list[_Located] | None:
    if not is_index(part):
        return []
    first: list[Any] = schema.get("prefixItems") or []
    if int(part) < len(first):
        return [(first[int(part)], root)]
    if first and "items" not in schema:
        return [] if schema.get("maxItems") == len(first) else None
    items: object = schema.get("items")
    return [(cast("Mapping[str, Any]", items), root)] if isinstance(items, Mapping) else None


def _follow(root: Mapping[str, Any], reference: object) -> Mapping[str, Any] | None:
    target: Any = root
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        target = cast("Mapping[str, Any]", target).get(part) if isinstance(target, Mapping) else None
    return cast("Mapping[str, Any]", target) if isinstance(target, Mapping) else None


def _names_in(located: _Located) -> Iterator[str]:
    schema, root = located
    target = _follow(root, schema["$ref"]) if "$ref" in schema else schema
    for each in (target or {}).get("anyOf", ()):
        yield from _names_in((each, root))
    yield from (target or {}).get("properties", {})
