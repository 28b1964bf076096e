"""Nodes read from JSON: the agent, what it reads and writes, and what happens when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from perdure import Retry
from perdure.agent_workflows.agents import AgentConfig
from perdure.agent_workflows.conditions_reading import read_condition
from perdure.agent_workflows.config_given import is_function_mark
from perdure.agent_workflows.config_reading import entry_of, is_name, json_at, shown
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
    from perdure.agent_workflows.conditions import Condition
    from perdure.agent_workflows.config_given import Given
    from perdure.agent_workflows.config_reading import Entry
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
        retry=_retry(entry.entry("retry"), given),
        timeout=entry.seconds("timeout"),
        on_error=_on_error(entry.entry("on_error")),
        approval=_approval(entry.entry("approval"), given),
    )


def read_when(entry: Entry, given: Given) -> Condition | Any:
    """What `when` says: a condition, or a function that was given anew."""
    if "when" not in entry:
        return None
    value, path = entry["when"], entry.at("when")
    if is_function_mark(value):
        mark = entry_of(value, path, given.problems)
        return None if mark is None else given.function(mark)
    return read_condition(value, path, given.problems)


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
    schema = entry.json("schema") if entry.need("schema") else None
    return None if schema is None else StructuredOutput(_class(entry.at("schema"), schema, given), mode)


def _union(entry: Entry, given: Given) -> UnionOutput | None:
    entry.only("type", "types")
    if not entry.need("types"):
        return None
    elements = entry.elements("types")
    if entry["types"] == []:
        entry.wrong("types", "at least one JSON schema")
    types = [_schema(path, each, given) for path, each in elements]
    return UnionOutput(tuple(each for each in types if each is not None))


def _schema(path: str, value: Any, given: Given) -> Any:
    schema = json_at(value, path, given.problems)
    return None if schema is None else _class(path, schema, given)


def _class(path: str, schema: dict[str, Any], given: Given) -> Any:
    return given.type(path, schema.get("title")) or schema


def _handoffs(entry: Entry) -> Handoffs | None:
    entry.only("type", "targets", "default")
    targets = entry.entry("targets") if entry.need("targets") else None
    default = entry.name("default")
    if targets is None:
        return None
    for target in targets.values:
        targets.text(target)
    return Handoffs(dict(targets.values), default)


def _on_error(entry: Entry | None) -> OnError:
    if entry is None:
        return OnError()
    entry.only("mode", "fallback")
    return OnError(entry.choice("mode", get_args(ErrorMode)) or "stop", entry.name("fallback"))


def _approval(entry: Entry | None, given: Given) -> Approval | None:
    if entry is None:
        return None
    entry.only("message", "when", "timeout")
    return Approval(entry.text("message"), read_when(entry, given), entry.duration("timeout"))


def _retry(entry: Entry | None, given: Given) -> Retry | None:
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
