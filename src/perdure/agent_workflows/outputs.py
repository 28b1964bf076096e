"""Outputs of nodes: their keys, values made from a model's answers, and corrections by people."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import override

from perdure import InvalidValueError, json_schema_faults, parse_answer, value_faults
from perdure.agent_workflows.definition import values
from perdure.agent_workflows.definition.conditions import MISSING, is_index, is_same, look_inside
from perdure.agent_workflows.errors import quoted

_FAULTS_MAX: Final = 20


def _form_of(output: values.Output) -> tuple[frozenset[str], tuple[values.Shape, ...]]:
    """Return the output keys that are always there, and the forms of the value whose fields are further keys."""
    match output:
        case values.TextOutput(key):
            return frozenset({key}), ()
        case values.StructuredOutput(shape):
            return frozenset({values.RESULT}), (shape,)
        case values.UnionOutput(types):
            return frozenset({values.RESULT, values.MATCHED_TYPE}), types
        case values.Handoffs():
            return frozenset({values.HANDOFF_TARGET, values.ANSWER}), ()


def output_keys(node: values.Node) -> frozenset[str] | None:
    """Return the output keys of a node that succeeds; None if they are not known in advance."""
    keys, shapes = _form_of(node.output)
    for shape in shapes:
        names = field_names(shape)
        if names is None:
            return None
        keys |= names
    return keys


def readable_keys(node: values.Node, nodes: Mapping[str, values.Node]) -> frozenset[str] | None:
    """Return the keys that others may read from a node, its fallbacks and its failure; None if they are not known."""
    found: frozenset[str] = frozenset()
    for each in with_fallbacks(node, nodes):
        keys = output_keys(each)
        if keys is None:
            return None
        found |= keys
        if each.on_error.mode == "isolate":
            found |= {values.ERROR}
    return found


def with_fallbacks(node: values.Node, nodes: Mapping[str, values.Node]) -> Iterator[values.Node]:
    """Yield a node, its fallback, the fallback of that, and so on."""
    seen: set[str] = set()
    current: values.Node | None = node
    while current is not None and current.id not in seen:
        seen.add(current.id)
        yield current
        current = nodes.get(current.on_error.fallback or "") if current.on_error.mode == "fallback" else None


def main_key(output: values.Output) -> str | None:
    """Return the key of the whole output. A router has none: it may say nothing but its choice."""
    match output:
        case values.TextOutput(key):
            return key
        case values.Handoffs():
            return None
        case _:
            return values.RESULT


class _SerializedSchema(GenerateJsonSchema):
    """Generate the schema of a model's dumped form. A serializer without a return type may return anything."""

    @override
    def ser_schema(self, schema: Any) -> Any:
        found = super().ser_schema(schema)
        is_custom = schema["type"] in {"function-plain", "function-wrap"}
        return {} if found is None and is_custom else found


def schema_of(shape: values.Shape) -> Mapping[str, Any] | None:
    """Return the JSON schema of a value as it is put out; None if a model has no schema."""
    return shape if isinstance(shape, Mapping) else _model_schema(shape)


@lru_cache(maxsize=256)
def _model_schema(model: type[Any]) -> Mapping[str, Any] | None:
    try:
        return model.model_json_schema(by_alias=False, mode="serialization", schema_generator=_SerializedSchema)
    except (PydanticUserError, AttributeError, TypeError):
        return None


def field_names(shape: values.Shape) -> frozenset[str] | None:
    """Return the fields of a value; None if it may have any."""
    schema = schema_of(shape)
    if schema is None:
        return None
    if "$ref" in schema and isinstance(shape, type):
        schema = cast("Mapping[str, Any]", schema["$defs"])[str(schema["$ref"]).rpartition("/")[2]]
    given: object = schema.get("properties")
    properties: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    if isinstance(shape, type):
        is_open = schema.get("additionalProperties") or schema.get("type") != "object"
        return None if is_open else frozenset(properties)
    # A user's schema that names no properties says nothing about them.
    return frozenset(properties) or None


def title_of(shape: Any) -> str:
    """Return the name of a class, or the title of a schema; empty if it has none."""
    title = cast("Mapping[str, Any]", shape).get("title") if isinstance(shape, Mapping) else shape.__name__
    return title if isinstance(title, str) else ""


def require_output(output: values.Output) -> None:
    """Raise TypeError or ValueError if no answer of a model could have this form."""
    if output == values.UnionOutput(()):
        raise ValueError("union_output has no types; give at least one")
    reserved, shapes = _form_of(output)
    for shape in shapes:
        if isinstance(shape, Mapping):
            if faults := schema_faults(shape):
                listed = "; ".join(faults[:_FAULTS_MAX])
                raise ValueError(f"its JSON schema is not valid: {listed}; correct it, or give a pydantic model")
        elif not hasattr(shape, "model_validate_json"):
            raise TypeError(f"a structured output is a pydantic model or a JSON schema, not {shape!r}")
        elif getattr(shape, "__pydantic_root_model__", False):
            raise TypeError(f"{shape.__name__!r} is a RootModel, which has no fields to put out; give it a field")
        if clash := sorted((field_names(shape) or frozenset()) & reserved):
            name = title_of(shape) or "the JSON schema"
            raise ValueError(f"{name!r} has a field {clash[0]!r}, which is a reserved output key; rename the field")


def schema_faults(schema: Any) -> list[str]:
    """Name what is wrong with a JSON schema, each with its place. `format` and other documents are not looked at."""
    faults = json_schema_faults(schema)
    return faults or [f"{each!r} refers to nothing in it" for each in _dangling_references(schema, schema)]


def _dangling_references(value: Any, root: Any) -> Iterator[str]:
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        inner, reference = entries.values(), entries.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/") and _follow(root, reference) is None:
            yield reference
    elif isinstance(value, list):
        inner = cast("list[Any]", value)
    for each in inner:
        yield from _dangling_references(each, root)


def parse_value(text: str, shape: values.Shape) -> dict[str, Any]:
    """Parse a model's answer as a value. Raises InvalidValueError with all that is wrong."""
    if not text.strip():
        raise InvalidValueError("it is empty")
    try:
        found: object = parse_answer(text, shape)
    except ValueError as error:
        raise InvalidValueError.of(error) from error
    value = found if isinstance(shape, Mapping) else cast("Any", found).model_dump(mode="json")
    if not isinstance(value, dict):
        raise InvalidValueError("it is not a JSON object")
    try:
        json_text(cast("object", value))
    except ValueError as error:
        raise InvalidValueError("it holds a number that JSON does not have") from error
    return cast("dict[str, Any]", value)


def json_text(value: object, *, is_strict: bool = True) -> str:
    """Return a value as JSON for people and models. If it is not strict, what JSON does not have becomes text.

    Raises ValueError or TypeError if it is strict.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=not is_strict, default=None if is_strict else str)


def correct_outputs(output: values.Output, outputs: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a person's changes to outputs. A changed field changes the whole value too.

    Raises InvalidValueError with all that is wrong with the changes.
    """
    match output:
        case values.TextOutput() | values.Handoffs():
            known, _ = _form_of(output)
            problems = [*_unknown(changes, known)]
            problems += [
                f"{key!r} is a text, not {each!r}"
                for key, each in changes.items()
                if key in known and not isinstance(each, str)
            ]
            target: object = changes.get(values.HANDOFF_TARGET)
            if isinstance(output, values.Handoffs) and isinstance(target, str) and target not in output.targets:
                problems.append(f"{values.HANDOFF_TARGET!r} is one of {quoted(output.targets)}, not {target!r}")
            _require_none(problems)
            return {**outputs, **changes}
        case values.StructuredOutput(shape):
            value = _correct_value(shape, outputs[values.RESULT], changes)
            return {**value, values.RESULT: value}
        case values.UnionOutput(types):
            return _correct_union(types, outputs, changes)


def _correct_union(
    types: Iterable[values.Shape], outputs: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    by_name = {title_of(each): each for each in types}
    name: object = changes.get(values.MATCHED_TYPE, outputs[values.MATCHED_TYPE])
    if not isinstance(name, str) or name not in by_name:
        raise InvalidValueError(f"{values.MATCHED_TYPE!r} is one of {quoted(by_name)}, not {name!r}")
    # A value of another type starts empty: the fields of the old type mean nothing in it.
    start: Mapping[str, Any] = {} if name == outputs[values.MATCHED_TYPE] else {values.RESULT: {}}
    fields = {key: each for key, each in changes.items() if key != values.MATCHED_TYPE}
    value = _correct_value(by_name[name], outputs[values.RESULT], {**start, **fields})
    return {**value, values.RESULT: value, values.MATCHED_TYPE: name}


def _correct_value(shape: values.Shape, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    whole: object = changes.get(values.RESULT, before)
    if not isinstance(whole, Mapping):
        raise InvalidValueError(f"{values.RESULT!r} is the whole value, an object, not {whole!r}")
    given = cast("Mapping[str, Any]", whole)
    fields = {key: each for key, each in changes.items() if key != values.RESULT}
    known = field_names(shape)
    asked = (*given, *fields) if values.RESULT in changes else tuple(fields)
    problems = [] if known is None else list(_unknown(asked, known))
    if values.RESULT in changes:
        problems += [
            f"{key!r} is {each!r} but in {values.RESULT!r} it is {given[key]!r}; give one of them"
            for key, each in fields.items()
            if key in given and not is_same(each, given[key])
        ]
    _require_none(problems)
    value = {**given, **fields}
    if isinstance(shape, Mapping):
        _require_none(value_faults(value, shape))
        return value
    computed: Mapping[str, Any] = getattr(shape, "model_computed_fields", {})
    _require_none([f"{key!r} is computed from other fields; change those" for key in sorted({*asked} & {*computed})])
    own = {key: each for key, each in value.items() if key not in computed}
    try:
        return shape.model_validate_json(json_text(own), by_name=True, by_alias=False).model_dump(mode="json")
    except ValueError as error:
        raise InvalidValueError.of(error) from error


def _require_none(problems: Sequence[str]) -> None:
    if problems:
        raise InvalidValueError(*problems)


def _unknown(changes: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for key in changes:
        if key not in known:
            yield f"there is no output {key!r}; there are {quoted(sorted(known))}"


# A schema, and the whole schema that its references point into.
_Located: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
_TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_SCALARS: Final = frozenset({"string", "number", "integer", "boolean", "null"})
# Rules that may allow more than `properties` names.
_OPEN: Final = frozenset({"allOf", "if", "not", "patternProperties", "dependentSchemas", "$dynamicRef"})


def find_dead_end(node: values.Node, nodes: Mapping[str, values.Node], key: str, path: Iterable[str]) -> str | None:
    """Explain why a path into an output can never exist, fallbacks included; None if it may exist.

    A value may have one of several schemas; a path is dead only if it is in all of them.
    """
    found = _merge(_locate_output(each, key) for each in with_fallbacks(node, nodes))
    what = f"{key!r} of {node.id!r}"
    for part in path:
        if found is None:
            return None
        inner = _merge(_descend(*each, part) for each in found)
        if inner == []:
            has = sorted({name for each in found for name in _names_in(*each)})
            return f"{what} has no {part!r}{f'; it has {quoted(has)}' if has else ' in it'}"
        found, what = inner, f"{part!r} of {what}"
    return None


def _locate_output(node: values.Node, key: str) -> list[_Located] | None:
    """Return the schemas of an output key; None if one is not known."""
    texts: list[_Located] = [(_TEXT, _TEXT)]
    schemas = [schema_of(shape) for shape in _form_of(node.output)[1]]
    if not schemas or key == values.MATCHED_TYPE:
        return texts
    wholes = _merge(None if schema is None else [(schema, schema)] for schema in schemas)
    if wholes is None or key == values.RESULT:
        return wholes
    found = _merge(_descend(*each, key) for each in wholes)
    is_error = key == values.ERROR and node.on_error.mode == "isolate"
    return found + texts if is_error and found is not None else found


def _merge(several: Iterable[list[_Located] | None]) -> list[_Located] | None:
    found: list[_Located] = []
    for each in several:
        if each is None:
            return None
        found += each
    return found


def _descend(schema: Mapping[str, Any], root: Mapping[str, Any], part: str) -> list[_Located] | None:
    """Return the schemas at one step into a value: empty if there is nothing, None if anything may be there."""
    if "$ref" in schema:
        target = _follow(root, schema["$ref"])
        return None if target is None or target is schema else _descend(target, root, part)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _merge(_descend(each, root, part) for each in choices)
    types: Any = schema.get("type", "object" if "properties" in schema else None)
    if types is None or not _OPEN.isdisjoint(schema):
        return None
    names: list[str] = [types] if isinstance(types, str) else types
    return _merge(_descend_typed(schema, root, name, part) for name in names)


def _descend_typed(schema: Mapping[str, Any], root: Mapping[str, Any], name: str, part: str) -> list[_Located] | None:
    if name in _SCALARS:
        return []
    if name == "array":
        first: list[Any] = schema.get("prefixItems", [])
        if not is_index(part) or (first and schema.get("maxItems", math.inf) <= int(part)):
            return []
        inner: Any = first[int(part)] if int(part) < len(first) else schema.get("items")
    else:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        inner = properties.get(part, schema.get("additionalProperties"))
        if not inner and properties:
            return []
    return [(cast("Mapping[str, Any]", inner), root)] if isinstance(inner, Mapping) else None


def _follow(root: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """Return the schema that a reference inside `root` points to; None if there is none."""
    target: Any = root
    for part in reference.strip("#/").split("/") if reference.startswith("#") and reference != "#" else ():
        target = look_inside(target, part.replace("~1", "/").replace("~0", "~"))
    return None if target is MISSING or not reference.startswith("#") else target


def _names_in(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    target = (_follow(root, schema["$ref"]) if "$ref" in schema else schema) or {}
    for each in target.get("anyOf", ()):
        yield from _names_in(each, root)
    yield from target.get("properties", {})
