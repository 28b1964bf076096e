"""Nodes read from JSON: the agent, what it reads and writes, and what happens when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from perdure import Retry
from perdure.agent_workflows.agents import AgentConfig
from perdure.agent_workflows.config_entries import Entry, entry_of, is_name, json_at, shown
from perdure.agent_workflows.config_given import is_function_mark
from perdure.agent_workflows.config_when import read_when
from perdure.agent_workflows.config_writing import ERRORS
from perdure.agent_workflows.definition import (
    Approval,
    ErrorMode,
    Handoffs,
    Node,
    OnError,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure import SupportsAgentRun
    from perdure.agent_workflows.config_given import Given
    from perdure.agent_workflows.definition import Output

_INFORMATION = ("name", "description", "instructions")


def read_node(node_id: str, entry: Entry, given: Given) -> Node:
    """A node. Where something is wrong, which is noted, it has what it would have if nothing were said."""
    entry.only(
        *("agent", "output", "input_key", "template", "reads", "instructions"),
        *("retry", "timeout", "on_error", "approval"),
    )
    return Node(
        id=node_id,
        agent=_agent(node_id, entry, given) or AgentConfig(),
        output=_output(entry.entry("output"), given) or TextOutput(),
        input_key=entry.name("input_key"),
        template=entry.text("template"),
        reads=entry.choice("reads", ("request", "upstream")),
        instructions=entry.text("instructions"),
        retry=_retry(entry, given),
        timeout=entry.seconds("timeout"),
        on_error=_on_error(entry),
        approval=_approval(entry, given),
    )


def _agent(node_id: str, entry: Entry, given: Given) -> SupportsAgentRun | AgentConfig | None:
    anew = given.agent(node_id)
    if not entry.need("agent"):
        return anew
    written = entry.entry("agent")
    if written is None:
        return anew
    return _prebuilt(node_id, written, anew) if "prebuilt" in written else _agent_config(written, anew)


def _prebuilt(
    node_id: str, entry: Entry, anew: SupportsAgentRun | AgentConfig | None
) -> SupportsAgentRun | AgentConfig | None:
    entry.only("prebuilt", *_INFORMATION)
    for name in _INFORMATION:
        entry.text(name)
    if entry["prebuilt"] is not True:
        return entry.wrong("prebuilt", "true, or leave it out")
    if anew is None:
        entry.problems.note(entry.path, f"it is an agent, which JSON can't hold; give it as agents[{node_id!r}]")
    return anew


def _agent_config(entry: Entry, anew: SupportsAgentRun | AgentConfig | None) -> SupportsAgentRun | AgentConfig:
    entry.only(*_INFORMATION, "model", "tools", "options", "options_left_out")
    config = AgentConfig(
        name=entry.name("name"),
        instructions=entry.text("instructions"),
        description=entry.text("description"),
        model=entry.name("model"),
        tools=entry.names("tools"),
        options=entry.json("options") or {},
    )
    lost = entry.names("options_left_out")
    if lost and anew is None:
        entry.problems.note(
            entry.at("options_left_out"),
            f"JSON can't hold the options {', '.join(map(repr, lost))}; put values for them into `options` and "
            "take this key out, or give the agent anew in agents=",
        )
    return config if anew is None else anew


def _output(entry: Entry | None, given: Given) -> Output | None:
    if entry is None or not entry.need("type"):
        return None
    match entry.choice("type", ("text", "structured", "union", "handoffs")):
        case "text":
            entry.only("type", "key")
            key = entry.name("key")
            return TextOutput() if key is None else TextOutput(key)
        case "structured":
            return _structured(entry, given)
        case "union":
            return _union(entry, given)
        case "handoffs":
            return _handoffs(entry)
        case _:
            return None


def _structured(entry: Entry, given: Given) -> StructuredOutput | None:
    entry.only("type", "schema", "mode")
    mode = entry.choice("mode", ("native", "tool")) or "native"
    wanted = _schema(entry.at("schema"), entry["schema"], given) if entry.need("schema") else None
    return None if wanted is None else StructuredOutput(wanted, mode)


def _union(entry: Entry, given: Given) -> UnionOutput | None:
    entry.only("type", "types")
    if not entry.need("types"):
        return None
    elements = entry.elements("types")
    if entry["types"] == []:
        entry.wrong("types", "at least one JSON schema")
    types = [_schema(path, each, given, is_named=True) for path, each in elements]
    return UnionOutput(tuple(each for each in types if each is not None))


def _schema(path: str, value: Any, given: Given, *, is_named: bool = False) -> Any:
    """A JSON schema, or the class that was given for it. One of several is known by its title."""
    schema = json_at(value, path, given.problems)
    if schema is None:
        return None
    kind = given.type(path, schema.get("title"))
    if kind is not None:
        return kind
    _note_faults(Entry(schema, path, given.problems), is_named=is_named)
    return schema


def _note_faults(schema: Entry, *, is_named: bool) -> None:
    """Note what keeps a JSON schema from being that of an output. What else is wrong with it `build()` says."""
    schema.text("title")
    if is_named and schema["title"] in (None, ""):
        schema.wrong("title", "a title, by which one of several outputs is known")
    if "type" in schema and schema["type"] != "object":
        schema.wrong("type", "'object', and put the value into a property")
    schema.entry("properties")


def _handoffs(entry: Entry) -> Handoffs | None:
    entry.only("type", "targets", "default")
    targets = entry.entry("targets") if entry.need("targets") else None
    default = entry.name("default")
    if targets is None:
        return None
    if not targets.values:
        entry.wrong("targets", "one node at least")
    for target in targets.values:
        targets.text(target)
    return Handoffs(dict(targets.values), default)


def _on_error(node: Entry) -> OnError:
    if isinstance(node["on_error"], str):
        return OnError(node.choice("on_error", [mode for mode in get_args(ErrorMode) if mode != "fallback"]) or "stop")
    entry = node.entry("on_error")
    if entry is None:
        return OnError()
    entry.only("mode", "fallback")
    mode, fallback = entry.choice("mode", get_args(ErrorMode)) or "stop", entry.name("fallback")
    if mode == "fallback":
        entry.need("fallback")
    elif "fallback" in entry:
        entry.problems.note(entry.at("fallback"), f"the mode is {mode!r}, which has none; make it 'fallback'")
    return OnError(mode, fallback)


def _approval(node: Entry, given: Given) -> Approval | None:
    written = node["approval"]
    if isinstance(written, bool | str):
        return Approval(None if written is True else written) if written is not False else None
    entry = node.entry("approval")
    if entry is None:
        return None
    entry.only("message", "when", "timeout")
    return Approval(entry.text("message"), read_when(entry, given), entry.duration("timeout"))


def _retry(node: Entry, given: Given) -> Retry | None:
    if isinstance(node["retry"], int | float):
        attempts = node.whole("retry")
        return None if attempts is None else Retry(attempts)
    entry = node.entry("retry")
    if entry is None:
        return None
    entry.only("attempts", "backoff", "factor", "longest", "on")
    told: dict[str, Any] = {
        "attempts": entry.whole("attempts"),
        "backoff": _function_or(entry, "backoff", given, lambda: entry.number("backoff")),
        "factor": entry.number("factor"),
        "longest": entry.number("longest"),
        "on": _function_or(entry, "on", given, lambda: _errors(entry, given)),
    }
    return Retry(**{name: value for name, value in told.items() if value is not None})


def _function_or(entry: Entry, key: str, given: Given, read: Callable[[], Any]) -> Any:
    if not is_function_mark(entry[key]):
        return read()
    mark = entry.entry(key)
    return None if mark is None else given.function(mark)


def _errors(entry: Entry, given: Given) -> tuple[type[Exception], ...] | None:
    if "on" not in entry:
        return None
    found = [_error(path, each, given) for path, each in entry.elements("on")]
    return tuple(each for each in found if each is not None)


def _error(path: str, value: Any, given: Given) -> type[Exception] | None:
    if not isinstance(value, str):
        mark = entry_of(value, path, given.problems)
        return None if mark is None else _given_error(mark, given)
    kind = given.type(path, value) or ERRORS.get(value)
    if kind is None or not issubclass(kind, Exception):
        return given.problems.note(
            path, f"there is no error {shown(value)} by itself; give its class as types[{value!r}]"
        )
    return kind


def _given_error(entry: Entry, given: Given) -> type[Exception] | None:
    entry.only("type", "name")
    if not entry.need("type", "name") or entry.choice("type", ("class",)) is None or not is_name(entry["name"]):
        return None if is_name(entry["name"]) or "name" not in entry else entry.wrong("name", "the name of the class")
    kind = given.type(entry.path, entry["name"])
    if kind is None or not issubclass(kind, Exception):
        return given.problems.note(
            entry.path, f"it is a class of errors, which JSON can't hold; give it as types[{entry['name']!r}]"
        )
    return kind
