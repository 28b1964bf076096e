"""What nodes put out: the keys that are known before anything runs, and values made of what models answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, cast

from perdure.agent_workflows.definition import (
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
from perdure.agent_workflows.outputs_schema import misfits
from perdure.agent_workflows.outputs_schema_faults import schema_faults

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.agent_workflows.definition import Node, Output

Wanted: TypeAlias = type[Any] | Mapping[str, Any]
"""What a value is to be: a pydantic model, or a JSON schema."""

_FENCE: Final = "```"
_DEPTH_MAX: Final = 60
FAULTS_MAX: Final = 20
"""How many faults a model is told at once."""


class NoValueError(ValueError):
    """What a model has said is not what it was asked for. The text is what the model is told."""


def output_keys(node: Node) -> frozenset[str] | None:
    """The keys under which a node puts out something when it succeeds; None if they are not known before."""
    match node.output:
        case TextOutput(key):
            return frozenset({key})
        case StructuredOutput(wanted):
            return _keys([wanted], RESULT)
        case UnionOutput(types):
            return _keys(types, RESULT, MATCHED_TYPE)
        case Handoffs():
            return frozenset({HANDOFF_TARGET, ANSWER})


def readable_keys(node: Node) -> frozenset[str] | None:
    """The keys that others may read of a node: also that of its failure, if it is isolated. None: not known."""
    keys = output_keys(node)
    return keys | {ERROR} if keys is not None and node.on_error.mode == "isolate" else keys


def keys_with_fallbacks(node: Node, nodes: Mapping[str, Node]) -> frozenset[str] | None:
    """The keys that others may read of a node, those of whoever stands in for it included. None: not known."""
    found: frozenset[str] = frozenset()
    seen: set[str] = set()
    who: Node | None = node
    while who is not None and who.id not in seen:
        seen.add(who.id)
        keys = readable_keys(who)
        if keys is None:
            return None
        found |= keys
        who = nodes.get(who.on_error.fallback or "") if who.on_error.mode == "fallback" else None
    return found


def main_key(node: Node) -> str | None:
    """The key of what a node puts out as a whole. A router has none: it may say nothing but whom it chooses."""
    match node.output:
        case TextOutput(key):
            return key
        case StructuredOutput() | UnionOutput():
            return RESULT
        case Handoffs():
            return None


def _keys(types: Iterable[Wanted], *more: str) -> frozenset[str] | None:
    found = set(more)
    for wanted in types:
        fields = field_names(wanted)
        if fields is None:
            return None
        found |= fields
    return frozenset(found)


def field_names(wanted: Wanted) -> frozenset[str] | None:
    """The fields of a value; None if any may be there."""
    if isinstance(wanted, Mapping):
        properties: object = wanted.get("properties")
        # Of what is no schema nothing is known; `require_output` says so.
        return (
            frozenset(cast("Mapping[str, Any]", properties)) if isinstance(properties, Mapping) and properties else None
        )
    config: Mapping[str, Any] = getattr(wanted, "model_config", {})
    if config.get("extra") == "allow":
        return None
    fields: Mapping[str, Any] = getattr(wanted, "model_fields", {})
    computed: Mapping[str, Any] = getattr(wanted, "model_computed_fields", {})
    return frozenset({*(name for name, field in fields.items() if not field.exclude), *computed})


def title_of(wanted: object) -> str | None:
    """What a type is called: its class, or the title of the schema; None if it has no name."""
    if isinstance(wanted, Mapping):
        title: object = cast("Mapping[str, Any]", wanted).get("title")
    else:
        title = getattr(wanted, "__name__", None)
    return title if isinstance(title, str) and title else None


def type_name(wanted: Wanted) -> str:
    """What a type is called. Raises ValueError if it has no name."""
    name = title_of(wanted)
    if name is None:
        raise ValueError("a JSON schema that is one of several outputs is known by its title; give it one")
    return name


def require_output(output: Output) -> None:
    """Raise TypeError or ValueError if no answer of a model could be put out like this."""
    match output:
        case TextOutput(key) if not key:
            raise ValueError("the key of an output is empty; leave it out, or name it")
        case StructuredOutput(wanted, mode):
            _require_type(wanted)
            if mode not in {"native", "tool"}:
                raise ValueError(f"the mode of a structured output is 'native' or 'tool', not {mode!r}")
            _require_free(wanted, RESULT)
        case UnionOutput(types):
            if not types:
                raise ValueError("an output of several types names them; there is none")
            for wanted in types:
                _require_type(wanted)
                _require_free(wanted, RESULT, MATCHED_TYPE)
        case Handoffs(targets, default):
            if not targets:
                raise ValueError("a router chooses one of its handoffs, and has none; add some")
            if default is not None and default not in targets:
                raise ValueError(f"the default {default!r} is none of the handoffs: {', '.join(map(repr, targets))}")
        case _:
            pass


def _require_type(wanted: object) -> None:
    if isinstance(wanted, Mapping):
        if cast("Mapping[str, Any]", wanted).get("type", "object") != "object":
            raise ValueError("the JSON schema of an output is that of an object; put the value into a property of one")
        if faults := list(schema_faults(cast("object", wanted))):
            raise ValueError(
                f"its JSON schema is none: {'; '.join(faults[:FAULTS_MAX])}; correct it, or give a pydantic model"
            )
        return
    if not isinstance(wanted, type) or not hasattr(wanted, "model_validate_json"):
        raise TypeError(f"a structured output is a pydantic model or a JSON schema, not {wanted!r}")
    if getattr(wanted, "__pydantic_root_model__", False):
        raise TypeError(f"{wanted.__name__!r} is a RootModel, which has no fields to put out; give it a field")


def _require_free(wanted: Wanted, *taken: str) -> None:
    clash = sorted((field_names(wanted) or frozenset()) & set(taken))
    if clash:
        name = title_of(wanted) or "the JSON schema"
        raise ValueError(
            f"{name!r} has a field {clash[0]!r}, and that key stands for something else in an output; rename the field"
        )


def value_in(text: str, wanted: Wanted) -> dict[str, Any]:
    """The value that a text in JSON holds, as plain data. Raises NoValueError with what is wrong with it."""
    text = _unfenced(text)
    if not text.strip():
        raise NoValueError("it is empty")
    value = _fitting(text, wanted) if isinstance(wanted, Mapping) else _dumped(text, wanted)
    if _is_deeper(value, _DEPTH_MAX):
        raise NoValueError("it is nested too deeply")
    try:
        json_text(value)
    except ValueError as error:
        raise NoValueError("it holds a number that JSON does not have") from error
    return value


def _unfenced(text: str) -> str:
    """What stands between fences of Markdown, if the text is nothing but that."""
    # No regular expression: a model may say anything, and one that tries in many ways would stop the process.
    first, _, rest = text.strip().partition("\n")
    body, _, last = rest.rpartition("\n")
    language = first.removeprefix(_FENCE).strip()
    is_fenced = first.startswith(_FENCE) and last.strip() == _FENCE and (not language or language.isalpha())
    return body if is_fenced else text


def _is_deeper(value: object, levels: int) -> bool:
    """Whether a value has more levels than these: it could not be kept."""
    inner: Iterable[object]
    match value:
        case dict():
            inner = cast("dict[str, object]", value).values()
        case list():
            inner = cast("list[object]", value)
        case _:
            return False
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _fitting(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NoValueError(f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise NoValueError("it is no JSON object")
    if not _is_deeper(cast("object", value), _DEPTH_MAX) and (faults := misfits(cast("object", value), schema)):
        raise NoValueError("; ".join(faults[:FAULTS_MAX]))
    return cast("dict[str, Any]", value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _dumped(text: str, model: type[Any]) -> dict[str, Any]:
    try:
        return model.model_validate_json(text).model_dump(mode="json")
    except ValueError as error:
        raise NoValueError(_faults(error)) from error


def _faults(error: ValueError) -> str:
    """What pydantic has found, without the values: the model knows them, and nobody else has to."""
    listed: Any = getattr(error, "errors", None)
    if listed is None:
        return str(error)
    found = listed(include_url=False, include_context=False, include_input=False)[:FAULTS_MAX]
    return "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'the value'}: {fault['msg']}" for fault in found)


def json_text(value: object, *, is_strict: bool = True) -> str:
    """A value as JSON, as people and models read it.

    Raises ValueError or TypeError for what JSON does not have; if that is not strict, it stands there as a text.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=not is_strict, default=None if is_strict else str)
