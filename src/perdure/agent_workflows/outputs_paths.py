"""Where paths into outputs lead, as far as types tell it before anything runs: through models, dataclasses and schemas.

A value may have one of several kinds, and a path leads nowhere only if it does so in all of them. What is free, as a
dict of anything, may have everything in it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from perdure.agent_workflows.checking_words import listed
from perdure.agent_workflows.conditions_values import is_place
from perdure.agent_workflows.definition import (
    ERROR,
    MATCHED_TYPE,
    RESULT,
    Handoffs,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)
from perdure.agent_workflows.outputs import field_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.agent_workflows.definition import Node

Kind: TypeAlias = Any
"""What a value may be: a type expression, or a JSON schema."""
Kinds: TypeAlias = "list[Kind] | None"
"""All that a value may be; None if that is not known."""

_SIMPLE: Final = frozenset(
    {str, int, float, bool, bytes, NoneType, Decimal, date, datetime, time, timedelta, UUID, Path, PurePath}
)
_LISTS: Final = frozenset({list, set, frozenset, tuple, Sequence, MutableSequence, AbstractSet})
_DICTS: Final = frozenset({dict, Mapping, MutableMapping})
_SIMPLE_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "null"})
_JOINED: Final = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "dependentSchemas", "prefixItems"}
)
"""What lets a schema be more than its own properties say."""


def dead_end(node: Node, nodes: Mapping[str, Node], key: str, path: Sequence[str]) -> str | None:
    """Why a path into an output of a node leads nowhere, whoever stands in for it; None if it may lead somewhere."""
    kinds, what = _kinds_of(node, nodes, key), f"{key!r} of {node.id!r}"
    for part in path:
        if kinds is None:
            return None
        inner = _together(_inside(kind, part) for kind in kinds)
        if inner == []:
            has = sorted({name for kind in kinds for name in _names(kind)})
            return f"{what} has no {part!r}{f'; it has {listed(has)}' if has else ' in it'}"
        kinds, what = inner, f"{part!r} of {what}"
    return None


def _kinds_of(node: Node, nodes: Mapping[str, Node], key: str) -> Kinds:
    """What may stand under a key of the outputs of a node, or of whoever stands in for it."""
    found: list[Kinds] = []
    seen: set[str] = set()
    who: Node | None = node
    while who is not None and who.id not in seen:
        seen.add(who.id)
        found.append(_own_kinds(who, key))
        who = nodes.get(who.on_error.fallback or "") if who.on_error.mode == "fallback" else None
    return _together(found)


def _own_kinds(node: Node, key: str) -> Kinds:
    if key == ERROR and node.on_error.mode == "isolate":
        return _together([[str], _put_out(node, key)])
    return _put_out(node, key)


def _put_out(node: Node, key: str) -> Kinds:
    match node.output:
        case TextOutput() | Handoffs():
            return [str]
        case StructuredOutput(wanted):
            return [wanted] if key == RESULT else _inside(wanted, key)
        case UnionOutput(types):
            if key == MATCHED_TYPE:
                return [str]
            return list(types) if key == RESULT else _together(_inside(wanted, key) for wanted in types)


def _together(several: Iterable[Kinds]) -> Kinds:
    found: list[Kind] = []
    for kinds in several:
        if kinds is None:
            return None
        found += kinds
    return found


def _inside(kind: Kind, part: str) -> Kinds:
    """What may stand at a place in a value of a kind: an empty list if nothing does."""
    if isinstance(kind, Mapping):
        return _in_schema(cast("Mapping[str, Any]", kind), part)
    origin, args = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return _together(_inside(each, part) for each in args)
    if origin is Annotated:
        return None if _is_written_otherwise(args[1:]) else _inside(args[0], part)
    if origin is Literal:
        return []
    # Not everything that stands where a type should can be looked up: it need not be hashable.
    base = origin if isinstance(origin, type) else kind if isinstance(kind, type) else None
    if base in _LISTS:
        return _in_list(origin, args, part)
    if base in _DICTS:
        return [args[1]] if args else None
    return None if origin is not None or base is None else _in_class(base, part)


def _in_list(origin: object, args: tuple[Kind, ...], part: str) -> Kinds:
    if not is_place(part):
        return []
    if not args:
        return None
    if origin is not tuple or args[1:] == (...,):
        return [args[0]]
    return [args[int(part)]] if int(part) < len(args) else []


def _in_class(kind: type[Any], part: str) -> Kinds:
    if kind in _SIMPLE:
        return []
    if issubclass(kind, Enum):
        return [] if all(type(each.value) in _SIMPLE for each in kind) else None
    if hasattr(kind, "model_fields"):
        return _in_model(kind, part)
    if is_dataclass(kind):
        hints = _hints(kind)
        names = {field.name for field in fields(kind)}
        return None if hints is None else [hints[part]] if part in names else []
    return None


def _hints(kind: type[Any]) -> Mapping[str, Any] | None:
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return None


def _in_model(model: type[Any], part: str) -> Kinds:
    decorators: Any = getattr(model, "__pydantic_decorators__", None)
    names = field_names(model)
    if names is None or getattr(decorators, "model_serializers", None):
        return None
    if getattr(model, "__pydantic_root_model__", False):
        return _inside(model.model_fields["root"].annotation, part)
    if part not in names:
        return []
    field = model.model_fields.get(part)
    if field is None or _is_written_otherwise(field.metadata) or getattr(decorators, "field_serializers", None):
        return None
    return [field.annotation]


def _is_written_otherwise(metadata: Iterable[object]) -> bool:
    """Whether something beside a type may say how a value is written."""
    return any(hasattr(each, "__get_pydantic_core_schema__") for each in metadata)


def _in_schema(schema: Mapping[str, Any], part: str) -> Kinds:
    types: object = schema.get("type", "object" if "properties" in schema else None)
    if not _JOINED.isdisjoint(schema) or not isinstance(types, str | list):
        return None
    named = [types] if isinstance(types, str) else cast("list[Any]", types)
    return _together(_in_typed(schema, each, part) for each in named)


def _in_typed(schema: Mapping[str, Any], name: Any, part: str) -> Kinds:
    if name in _SIMPLE_TYPES:
        return []
    if name == "array":
        return _in_list(list, (schema.get("items", Any),), part)
    properties: object = schema.get("properties")
    if name != "object" or not isinstance(properties, Mapping) or not properties:
        return None
    inner = cast("Mapping[str, Any]", properties)
    if part in inner:
        return [inner[part]]
    # A name with a dot in it would be found by a path that looks as if it went further.
    return None if schema.get("additionalProperties") or any("." in each for each in inner) else []


def _names(kind: Kind) -> Iterable[str]:
    """What is known to be in a value of a kind."""
    if isinstance(kind, Mapping):
        properties: object = cast("Mapping[str, Any]", kind).get("properties")
        return cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else ()
    if get_origin(kind) in {Union, UnionType, Annotated}:
        return [name for each in get_args(kind) for name in _names(each)]
    if hasattr(kind, "model_fields"):
        return field_names(kind) or ()
    return [field.name for field in fields(kind)] if isinstance(kind, type) and is_dataclass(kind) else ()
