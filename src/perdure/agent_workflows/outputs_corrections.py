"""What a person makes of an output: other values under some keys, held against what the node puts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from perdure.agent_workflows.checking_words import listed
from perdure.agent_workflows.conditions_values import same
from perdure.agent_workflows.definition import (
    ANSWER,
    HANDOFF_TARGET,
    MATCHED_TYPE,
    RESULT,
    Handoffs,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)
from perdure.agent_workflows.outputs import FAULTS_MAX, NoValueError, field_names, json_text, type_name
from perdure.agent_workflows.outputs_schema import misfits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from perdure.agent_workflows.definition import Output
    from perdure.agent_workflows.outputs import Wanted


def corrected_outputs(output: Output, outputs: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs with what a person has changed. The whole of a value changes with its fields.

    Raises NoValueError with all that is wrong with the changes.
    """
    match output:
        case TextOutput(key):
            _require_none([*_unknown(changes, {key}), *_no_texts(changes, key)])
            return {**outputs, **changes}
        case Handoffs(targets):
            known = {HANDOFF_TARGET, ANSWER}
            _require_none([*_unknown(changes, known), *_no_texts(changes, *known), *_no_target(changes, targets)])
            return {**outputs, **changes}
        case StructuredOutput(wanted):
            value = _corrected_value(wanted, outputs[RESULT], changes)
            return {**value, RESULT: value}
        case UnionOutput(types):
            return _corrected_union(types, outputs, changes)


def _corrected_union(types: Iterable[Wanted], outputs: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    by_name = {type_name(each): each for each in types}
    name: object = changes.get(MATCHED_TYPE, outputs[MATCHED_TYPE])
    if not isinstance(name, str) or name not in by_name:
        raise NoValueError(f"{MATCHED_TYPE!r} is one of {listed(by_name)}, not {name!r}")
    # A value of another type begins anew: what the old one was made of says nothing of it.
    anew: Mapping[str, Any] = {} if name == outputs[MATCHED_TYPE] else {RESULT: {}}
    fields = {key: each for key, each in changes.items() if key != MATCHED_TYPE}
    value = _corrected_value(by_name[name], outputs[RESULT], {**anew, **fields})
    return {**value, RESULT: value, MATCHED_TYPE: name}


def _corrected_value(wanted: Wanted, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    whole: object = changes.get(RESULT, before)
    if not isinstance(whole, Mapping):
        raise NoValueError(f"{RESULT!r} is the whole value, an object, not {whole!r}")
    given = cast("Mapping[str, Any]", whole)
    fields = {key: each for key, each in changes.items() if key != RESULT}
    known = field_names(wanted)
    asked = (*given, *fields) if RESULT in changes else tuple(fields)
    problems = [] if known is None else list(_unknown(asked, known))
    if RESULT in changes:
        problems += [
            f"{key!r} is {each!r} and in {RESULT!r} it is {given[key]!r}: give one of them"
            for key, each in fields.items()
            if key in given and not same(each, given[key])
        ]
    _require_none(problems)
    value = {**given, **fields}
    if isinstance(wanted, Mapping):
        return _fitting(wanted, value)
    return _validated(wanted, value, set(asked), is_whole=RESULT in changes)


def _fitting(schema: Mapping[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    _require_none(misfits(value, schema))
    return value


def _validated(model: type[Any], value: dict[str, Any], changed: set[str], *, is_whole: bool) -> dict[str, Any]:
    """The value as the model has it.

    What a model does not write down, or writes in another way than it reads, can't be given back to it: only faults of
    what was changed count, and of the value as a whole.
    """
    excluded = {name for name, field in getattr(model, "model_fields", {}).items() if field.exclude}
    computed: Mapping[str, Any] = getattr(model, "model_computed_fields", {})
    _require_none([f"{key!r} is computed of others: change those" for key in sorted(changed) if key in computed])
    told = {key: each for key, each in value.items() if key not in computed}
    try:
        return model.model_validate_json(json_text(told), by_name=True, by_alias=False).model_dump(mode="json")
    except ValueError as error:
        counting = {*getattr(model, "model_fields", {})} if is_whole else changed
        _require_none(_faults(error, counting - excluded))
    # It fits as far as can be seen, and there is no object of it.
    stale = [f"{key!r} can't be computed anew, as not all is put out that it is computed of" for key in computed]
    _require_none(stale)
    return value


def _faults(error: ValueError, counting: Collection[str]) -> Iterator[str]:
    listed: Any = getattr(error, "errors", None)
    if listed is None:
        yield str(error)
        return
    for fault in listed(include_url=False, include_context=False, include_input=False):
        place: tuple[Any, ...] = fault["loc"]
        if not place or place[0] in counting:
            yield f"{'.'.join(map(str, place)) or 'the value'}: {fault['msg']}"


def _unknown(changes: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for key in changes:
        if key not in known:
            yield f"there is no output {key!r}; there are {listed(sorted(known))}"


def _no_texts(changes: Mapping[str, Any], *keys: str) -> Iterator[str]:
    for key in keys:
        if key in changes and not isinstance(changes[key], str):
            yield f"{key!r} is a text, not {changes[key]!r}"


def _no_target(changes: Mapping[str, Any], targets: Collection[str]) -> Iterator[str]:
    target = changes.get(HANDOFF_TARGET)
    if isinstance(target, str) and target not in targets:
        yield f"{HANDOFF_TARGET!r} is one of {listed(targets)}, not {target!r}"


def _require_none(problems: Iterable[str]) -> None:
    found = list(problems)[:FAULTS_MAX]
    if found:
        raise NoValueError("; ".join(found))
