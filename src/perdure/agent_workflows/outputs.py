"""Outputs of nodes: their keys, values made from a model's answers, and corrections by people."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend  # pyright: ignore[reportUnknownVariableType]
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import override

from perdure.agent_workflows.definition.json_values import MISSING, copy_json, is_same, look_inside
from perdure.agent_workflows.definition.problems import path_of, quoted
from perdure.agent_workflows.definition.values import (
    ANSWER,
    ERROR,
    HANDOFF_TARGET,
    MATCHED_TYPE,
    RESULT,
    Handoffs,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)

if TYPE_CHECKING:
    from perdure.agent_workflows.definition.values import Node, Output, Shape

_FENCE: Final = "```"
_DEPTH_MAX: Final = 60
_FAULTS_MAX: Final = 20
_TEXT_MAX: Final = 80


class InvalidValueError(ValueError):
    """A value is not of the form that was asked for. The message is written for the model or person who gave it."""


def output_keys(node: Node) -> frozenset[str] | None:
    """Return the output keys of a node that succeeds; None if they are not known in advance."""
    match node.output:
        case TextOutput(key):
            return frozenset({key})
        case StructuredOutput(shape):
            return _keys([shape], RESULT)
        case UnionOutput(types):
            return _keys(types, RESULT, MATCHED_TYPE)
        case Handoffs():
            return frozenset({HANDOFF_TARGET, ANSWER})


def _keys(shapes: Iterable[Shape], *more: str) -> frozenset[str] | None:
    found = set(more)
    for shape in shapes:
        names = field_names(shape)
        if names is None:
            return None
        found |= names
    return frozenset(found)


def readable_keys(node: Node, nodes: Mapping[str, Node]) -> frozenset[str] | None:
    """Return the keys that others may read from a node, its fallbacks and its failure; None if they are not known."""
    found: frozenset[str] = frozenset()
    for each in with_fallbacks(node, nodes):
        keys = output_keys(each)
        if keys is None:
            return None
        found |= keys
        if each.on_error.mode == "isolate":
            found |= {ERROR}
    return found


def with_fallbacks(node: Node, nodes: Mapping[str, Node]) -> Iterator[Node]:
    """Yield a node, its fallback, the fallback of that, and so on."""
    seen: set[str] = set()
    current: Node | None = node
    while current is not None and current.id not in seen:
        seen.add(current.id)
        yield current
        current = nodes.get(current.on_error.fallback or "") if current.on_error.mode == "fallback" else None


def main_key(output: Output) -> str | None:
    """Return the key of the whole output. A router has none: it may say nothing but its choice."""
    match output:
        case TextOutput(key):
            return key
        case StructuredOutput() | UnionOutput():
            return RESULT
        case Handoffs():
            return None


class _SerializedSchema(GenerateJsonSchema):
    """Generate the schema of a model's dumped form. A serializer without a return type may return anything."""

    @override
    def ser_schema(self, schema: Any) -> Any:
        found = super().ser_schema(schema)
        is_custom = schema["type"] in {"function-plain", "function-wrap"}
        return {} if found is None and is_custom else found


def schema_of(shape: Shape) -> Mapping[str, Any] | None:
    """Return the JSON schema of a value as it is put out; None if a model has no schema."""
    return shape if isinstance(shape, Mapping) else _model_schema(shape)


@lru_cache(maxsize=256)
def _model_schema(model: type[Any]) -> Mapping[str, Any] | None:
    try:
        return model.model_json_schema(by_alias=False, mode="serialization", schema_generator=_SerializedSchema)
    except (PydanticUserError, AttributeError, TypeError):
        return None


def field_names(shape: Shape) -> frozenset[str] | None:
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


def title_of(shape: object) -> str | None:
    """Return the name of a class, or the title of a schema; None if it has none."""
    if isinstance(shape, Mapping):
        title: object = cast("Mapping[str, Any]", shape).get("title")
    else:
        title = getattr(shape, "__name__", None)
    return title if isinstance(title, str) and title else None


def require_title(shape: Shape) -> str:
    """Return the name of a type. Raises ValueError if it has none."""
    name = title_of(shape)
    if name is None:
        raise ValueError("a JSON schema that is one of several outputs is known by its title; give it one")
    return name


def require_output(output: Output) -> None:
    """Raise TypeError or ValueError if no answer of a model could have this form."""
    match output:
        case StructuredOutput(shape):
            _require_shape(shape, RESULT)
        case UnionOutput(types):
            if not types:
                raise ValueError("union_output has no types; give at least one")
            for shape in types:
                _require_shape(shape, RESULT, MATCHED_TYPE)
        case Handoffs(targets, default):
            if not targets:
                raise ValueError("a router has no handoffs; add some")
            if default is not None and default not in targets:
                raise ValueError(f"the default {default!r} is not one of the handoffs: {quoted(targets)}")
        case TextOutput():
            pass


def _require_shape(shape: object, *taken: str) -> None:
    if isinstance(shape, Mapping):
        if cast("Mapping[str, Any]", shape).get("type", "object") != "object":
            raise ValueError("the JSON schema of an output is that of an object; put the value into a property of one")
        if faults := schema_faults(cast("object", shape)):
            listed = "; ".join(faults[:_FAULTS_MAX])
            raise ValueError(f"its JSON schema is not valid: {listed}; correct it, or give a pydantic model")
    elif not isinstance(shape, type) or not hasattr(shape, "model_validate_json"):
        raise TypeError(f"a structured output is a pydantic model or a JSON schema, not {shape!r}")
    elif getattr(shape, "__pydantic_root_model__", False):
        raise TypeError(f"{shape.__name__!r} is a RootModel, which has no fields to put out; give it a field")
    clash = sorted((field_names(cast("Shape", shape)) or frozenset()) & set(taken))
    if clash:
        name = title_of(cast("object", shape)) or "the JSON schema"
        raise ValueError(f"{name!r} has a field {clash[0]!r}, which is a reserved output key; rename the field")


def _check_multiple(_: Any, unit: float, value: object, __: Any) -> Iterator[ValidationError]:
    """Check `multipleOf` for decimals as they are written: 0.3 is a multiple of 0.1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if is_infinite or Fraction(repr(value)) % Fraction(repr(unit)):
        yield ValidationError("")


def _skip_flags(rule: str) -> Callable[..., Iterator[ValidationError]]:
    """Return the check of an exclusive bound that ignores the flag which older drafts have there."""

    def check(validator: Any, bound: object, value: object, schema: Any) -> Iterator[ValidationError]:
        if not isinstance(bound, bool):
            yield from Draft202012Validator.VALIDATORS[rule](validator, bound, value, schema)

    return check


def _check_reference(validator: Any, reference: str, value: object, schema: Any) -> Iterator[ValidationError]:
    """Follow references inside the schema only: nothing is read from elsewhere."""
    if reference.startswith("#"):
        yield from Draft202012Validator.VALIDATORS["$ref"](validator, reference, value, schema)


_EXCLUSIVE: Final = ("exclusiveMinimum", "exclusiveMaximum")
_Validator: Final[Any] = cast("Any", extend)(
    Draft202012Validator,
    {"multipleOf": _check_multiple, "$ref": _check_reference, **{rule: _skip_flags(rule) for rule in _EXCLUSIVE}},
)
_METASCHEMA: Final[Any] = Draft202012Validator(
    Draft202012Validator.META_SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER
)


def schema_faults(schema: object) -> list[str]:
    """Name what is wrong with a JSON schema, each with its place. `format` and other documents are not looked at."""
    try:
        plain = copy_json(schema, "it")
        errors = (error for error in _METASCHEMA.iter_errors(plain) if not _is_old_flag(error))
        faults = dict.fromkeys(map(_fault, errors))
        return list(faults) or [f"{each!r} refers to nothing in it" for each in _dangling_references(plain)]
    except (TypeError, ValueError, OverflowError) as error:
        return [str(error)]
    except RecursionError:
        return ["it is nested too deeply"]


def _is_old_flag(error: ValidationError) -> bool:
    return isinstance(cast("object", error.instance), bool) and error.absolute_path[-1] in _EXCLUSIVE


def _dangling_references(schema: Any) -> Iterator[str]:
    pending: list[Any] = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            entries = cast("dict[str, Any]", value)
            reference = entries.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/") and not _resolves(schema, reference):
                yield reference
            pending.extend(entries.values())
        elif isinstance(value, list):
            pending.extend(cast("list[Any]", value))


def _resolves(schema: Any, reference: str) -> bool:
    for part in reference.removeprefix("#/").split("/"):
        schema = look_inside(schema, part.replace("~1", "/").replace("~0", "~"))
    return schema is not MISSING


def value_faults(value: object, schema: Mapping[str, Any]) -> list[str]:
    """Name what keeps a value from being of a valid schema, each with its place."""
    try:
        return [_fault(error) for error in _Validator(copy_json(schema, "the schema")).iter_errors(value)]
    except RecursionError:
        return ["it is nested too deeply"]


def _fault(error: ValidationError) -> str:
    """Describe an error by its rule, not by the value, which must not get into logs."""
    place, rule = path_of(tuple(error.absolute_path)) or "the value", str(error.validator)
    if rule in {"required", "dependentRequired", "additionalProperties"}:
        return f"{place}: {error.message}"
    text = json.dumps(error.validator_value, ensure_ascii=False, default=str)
    return f"{place} must satisfy {rule}: {text if len(text) <= _TEXT_MAX else f'{text[: _TEXT_MAX - 1]}…'}"


def parse_value(text: str, shape: Shape) -> dict[str, Any]:
    """Parse a model's answer as a value. Raises InvalidValueError with all that is wrong."""
    text = _strip_fence(text)
    if not text.strip():
        raise InvalidValueError("it is empty")
    value = _parse_by_schema(text, shape) if isinstance(shape, Mapping) else _parse_by_model(text, shape)
    if _is_deeper(value, _DEPTH_MAX):
        raise InvalidValueError("it is nested too deeply")
    try:
        json_text(value)
    except ValueError as error:
        raise InvalidValueError("it holds a number that JSON does not have") from error
    return value


def _strip_fence(text: str) -> str:
    """Return the text between Markdown fences, if there is nothing else."""
    # Without a regular expression: on a hostile answer one could take too long.
    first, _, rest = text.strip().partition("\n")
    body, _, last = rest.rpartition("\n")
    language = first.removeprefix(_FENCE).strip()
    is_fenced = first.startswith(_FENCE) and last.strip() == _FENCE and (not language or language.isalpha())
    return body if is_fenced else text


def _is_deeper(value: object, levels: int) -> bool:
    """Return True if a value has more levels than can be stored."""
    if isinstance(value, dict):
        inner: Iterable[object] = cast("dict[str, object]", value).values()
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    else:
        return False
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _parse_by_schema(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidValueError("it is not a JSON object")
    found = cast("dict[str, Any]", value)
    if not _is_deeper(found, _DEPTH_MAX):
        _require_none(value_faults(found, schema))
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _parse_by_model(text: str, model: type[Any]) -> dict[str, Any]:
    try:
        return model.model_validate_json(text).model_dump(mode="json")
    except ValueError as error:
        raise InvalidValueError("; ".join(_model_faults(error)[:_FAULTS_MAX])) from error


def _model_faults(error: ValueError, counting: Collection[str] | None = None) -> list[str]:
    """Name pydantic's errors without the values. With `counting`, only those about these fields or the whole."""
    errors: Any = getattr(error, "errors", None)
    if errors is None:
        return [str(error)]
    faults = errors(include_url=False, include_context=False, include_input=False)
    return [
        f"{'.'.join(map(str, fault['loc'])) or 'the value'}: {fault['msg']}"
        for fault in faults
        if counting is None or not fault["loc"] or fault["loc"][0] in counting
    ]


def json_text(value: object, *, is_strict: bool = True) -> str:
    """Return a value as JSON for people and models. If it is not strict, what JSON does not have becomes text.

    Raises ValueError or TypeError if it is strict.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=not is_strict, default=None if is_strict else str)


def correct_outputs(output: Output, outputs: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a person's changes to outputs. A changed field changes the whole value too.

    Raises InvalidValueError with all that is wrong with the changes.
    """
    match output:
        case TextOutput(key):
            _require_none([*_unknown(changes, {key}), *_not_texts(changes, key)])
            return {**outputs, **changes}
        case Handoffs(targets):
            known = {HANDOFF_TARGET, ANSWER}
            target = changes.get(HANDOFF_TARGET)
            wrong = [f"{HANDOFF_TARGET!r} is one of {quoted(targets)}, not {target!r}"]
            is_unknown = isinstance(target, str) and target not in targets
            _require_none([*_unknown(changes, known), *_not_texts(changes, *known), *(wrong if is_unknown else ())])
            return {**outputs, **changes}
        case StructuredOutput(shape):
            value = _correct_value(shape, outputs[RESULT], changes)
            return {**value, RESULT: value}
        case UnionOutput(types):
            return _correct_union(types, outputs, changes)


def _correct_union(types: Iterable[Shape], outputs: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    by_name = {require_title(each): each for each in types}
    name: object = changes.get(MATCHED_TYPE, outputs[MATCHED_TYPE])
    if not isinstance(name, str) or name not in by_name:
        raise InvalidValueError(f"{MATCHED_TYPE!r} is one of {quoted(by_name)}, not {name!r}")
    # A value of another type starts empty: the fields of the old type mean nothing in it.
    start: Mapping[str, Any] = {} if name == outputs[MATCHED_TYPE] else {RESULT: {}}
    fields = {key: each for key, each in changes.items() if key != MATCHED_TYPE}
    value = _correct_value(by_name[name], outputs[RESULT], {**start, **fields})
    return {**value, RESULT: value, MATCHED_TYPE: name}


def _correct_value(shape: Shape, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    whole: object = changes.get(RESULT, before)
    if not isinstance(whole, Mapping):
        raise InvalidValueError(f"{RESULT!r} is the whole value, an object, not {whole!r}")
    given = cast("Mapping[str, Any]", whole)
    fields = {key: each for key, each in changes.items() if key != RESULT}
    known = field_names(shape)
    asked = (*given, *fields) if RESULT in changes else tuple(fields)
    problems = [] if known is None else list(_unknown(asked, known))
    if RESULT in changes:
        problems += [
            f"{key!r} is {each!r} but in {RESULT!r} it is {given[key]!r}; give one of them"
            for key, each in fields.items()
            if key in given and not is_same(each, given[key])
        ]
    _require_none(problems)
    value = {**given, **fields}
    if isinstance(shape, Mapping):
        _require_none(value_faults(value, shape))
        return value
    return _validate_correction(shape, value, set(asked), is_whole=RESULT in changes)


def _validate_correction(
    model: type[Any], value: dict[str, Any], changed: set[str], *, is_whole: bool
) -> dict[str, Any]:
    """Return the value as the model dumps it.

    The model may not be able to read what it dumps, such as excluded fields. So only faults of changed fields count.
    """
    own_fields: Mapping[str, Any] = getattr(model, "model_fields", {})
    computed: Mapping[str, Any] = getattr(model, "model_computed_fields", {})
    _require_none([f"{key!r} is computed from other fields; change those" for key in sorted(changed & {*computed})])
    given = {key: each for key, each in value.items() if key not in computed}
    try:
        return model.model_validate_json(json_text(given), by_name=True, by_alias=False).model_dump(mode="json")
    except ValueError as error:
        excluded = {name for name, each in own_fields.items() if each.exclude}
        _require_none(_model_faults(error, ({*own_fields} if is_whole else changed) - excluded))
    _require_none([f"{key!r} can't be computed again, because some fields are not put out" for key in computed])
    return value


def _unknown(changes: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for key in changes:
        if key not in known:
            yield f"there is no output {key!r}; there are {quoted(sorted(known))}"


def _not_texts(changes: Mapping[str, Any], *keys: str) -> Iterator[str]:
    for key in keys:
        if key in changes and not isinstance(changes[key], str):
            yield f"{key!r} is a text, not {changes[key]!r}"


def _require_none(problems: Iterable[str]) -> None:
    found = list(problems)[:_FAULTS_MAX]
    if found:
        raise InvalidValueError("; ".join(found))
