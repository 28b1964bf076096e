"""A definition as JSON, with the names of what JSON cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from perdure import Retry
from perdure.agent_workflows.definition.conditions import And, Condition, condition_of
from perdure.agent_workflows.definition.document import ERRORS
from perdure.agent_workflows.definition.json_values import copy_json
from perdure.agent_workflows.definition.problems import join_path
from perdure.agent_workflows.definition.values import (
    AgentConfig,
    Approval,
    Conversation,
    Handoffs,
    Iterations,
    OnError,
    StructuredOutput,
    TextOutput,
    UnionOutput,
    predicate_parts,
)
from perdure.agent_workflows.errors import AgentWorkflowBuildError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.agent_workflows.definition.values import Definition, Edge, Node, Output

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Exported:
    """A definition as JSON. `left_out` names what JSON cannot hold: its path, what it is, and how to give it again."""

    config: dict[str, Any]
    left_out: tuple[str, ...]


def to_config(definition: Definition) -> Exported:
    """Write a definition as JSON, without values that are the defaults.

    Raises AgentWorkflowBuildError if an output has no JSON schema.
    """
    writer = _Writer(definition)
    return Exported(writer.write(), tuple(writer.left_out))


class _Writer:
    def __init__(self, definition: Definition) -> None:
        self.left_out: list[str] = []
        self._definition = definition
        self._names = _unique_names(_functions(definition))

    def write(self) -> Json:
        definition = self._definition
        iterations = _changes(definition.iterations, Iterations())
        if "ignored_keys" in iterations:
            iterations["ignored_keys"] = sorted(iterations["ignored_keys"])
        settings = _some(
            timeout=_seconds(definition.timeout),
            iterations=iterations or None,
            conversation=_changes(definition.conversation, Conversation()) or None,
        )
        return _some(
            name=definition.name,
            description=definition.description,
            version=definition.version,
            agents={node.id: self._node(node, join_path("agents", node.id)) for node in definition.nodes},
            edges=[self._edge(edge, f"edges[{place}]") for place, edge in enumerate(definition.edges)],
            settings=settings or None,
        )

    def _node(self, node: Node, path: str) -> Json:
        return _some(
            agent=self._agent(node, f"{path}.agent"),
            output=self._output(node.output, f"{path}.output"),
            input_key=node.input_key,
            template=node.template,
            reads=node.reads,
            instructions=node.instructions,
            retry=None if node.retry is None else self._retry(node.retry, f"{path}.retry"),
            timeout=_seconds(node.timeout),
            on_error=_changes(node.on_error, OnError()) or None,
            approval=None if node.approval is None else self._approval(node.approval, f"{path}.approval"),
        )

    def _agent(self, node: Node, path: str) -> Json:
        if isinstance(node.agent, AgentConfig):
            return self._agent_config(node.agent, path)
        self._leave_out(path, f"the agent itself; give it again as agents[{node.id!r}]")
        described = {name: getattr(node.agent, name, None) for name in ("name", "description")}
        options: Any = getattr(node.agent, "default_options", None)
        described["instructions"] = (
            cast("Mapping[str, Any]", options).get("instructions") if isinstance(options, Mapping) else None
        )
        return {"prebuilt": True, **{name: value for name, value in described.items() if isinstance(value, str)}}

    def _agent_config(self, config: AgentConfig, path: str) -> Json:
        for place, tool in enumerate(config.tools):
            self._leave_out(f"{path}.tools[{place}]", f"the tool {tool!r} itself; give the builder one of this name")
        options: Json = {}
        lost: list[str] = []
        for name, value in config.options.items():
            try:
                options[name] = copy_json(value, name)
            except (TypeError, ValueError):
                lost.append(name)
                self._leave_out(f"{path}.options.{name}", f"a {type(value).__name__}, which is not JSON")
        plain = _changes(config, AgentConfig()) | {"tools": list(config.tools) or None, "options": options or None}
        return _some(**plain, options_left_out=lost or None)

    def _output(self, output: Output, path: str) -> Json | None:
        match output:
            case TextOutput(key):
                return None if output == TextOutput() else {"type": "text", "key": key}
            case StructuredOutput(shape, mode):
                written: Json = {"type": "structured", "schema": self._schema(shape, f"{path}.schema")}
                return written if mode == "native" else {**written, "mode": mode}
            case UnionOutput(types):
                schemas = [self._schema(each, f"{path}.types[{place}]") for place, each in enumerate(types)]
                return {"type": "union", "types": schemas}
            case Handoffs(targets, default):
                return _some(type="handoffs", targets=dict(targets), default=default)

    def _schema(self, shape: type[Any] | Mapping[str, Any], path: str) -> Json:
        try:
            if isinstance(shape, Mapping):
                return copy_json(shape, path)
            name = shape.__name__
            self._leave_out(
                path,
                f"the class {name!r}; its JSON schema checks less, none of its validators; give it again as "
                f"types={{{name!r}: {name}}}",
            )
            # Use the names of fields, which are output keys. The title is the name that `matched_type` has.
            return {**copy_json(shape.model_json_schema(by_alias=False), path), "title": name}
        except (TypeError, ValueError, AttributeError) as error:
            raise AgentWorkflowBuildError(f"{path}: it can't be written as a JSON schema: {error}") from error

    def _retry(self, retry: Retry, path: str) -> Json:
        written = _changes(retry, Retry())
        for name in ("backoff", "factor", "longest"):
            value = written.get(name)
            if isinstance(value, int | float | timedelta):
                written[name] = _seconds(value)
            elif value is not None:
                written[name] = self._function(value, f"{path}.{name}")
        if "on" in written:
            written["on"] = self._errors(retry.on, f"{path}.on")
        return written

    def _errors(self, on: object, path: str) -> Any:
        if not isinstance(on, type | tuple):
            return self._function(on, path)
        kinds = cast("tuple[type[Exception], ...]", on if isinstance(on, tuple) else (on,))
        return [self._error(kind, f"{path}[{place}]") for place, kind in enumerate(kinds)]

    def _error(self, kind: type[Exception], path: str) -> Any:
        if ERRORS.get(kind.__name__) is kind:
            return kind.__name__
        self._leave_out(path, f"the class {kind.__name__!r}; give it again as types[{path!r}], or by its name")
        return {"type": "class", "name": kind.__name__}

    def _approval(self, approval: Approval, path: str) -> Json:
        return _some(
            message=approval.message,
            when=None if approval.when is None else self._when(approval.when, f"{path}.when"),
            timeout=_seconds(approval.timeout),
        )

    def _edge(self, edge: Edge, path: str) -> Json:
        return _some(
            **{"from": [edge.source], "to": [edge.target]},
            when=self._edge_when(edge, f"{path}.when"),
            default=edge.is_default or None,
        )

    def _edge_when(self, edge: Edge, path: str) -> Json | None:
        """Write a condition, a function, or an `and` of both."""
        condition = edge.condition
        if condition is not None and edge.predicate is None and _is_readable(condition):
            return condition.to_dict()
        asked: list[object] = [] if condition is None else [condition]
        if isinstance(condition, And) and len(condition.conditions) > 1 and _is_readable(condition):
            asked = [*condition.conditions]
        asked += predicate_parts(edge.predicate)
        if len(asked) > 1:
            inner = [self._when(each, f"{path}.conditions[{place}]") for place, each in enumerate(asked)]
            return {"type": And.type, "conditions": inner}
        return self._when(asked[0], path) if asked else None

    def _when(self, asked: object, path: str) -> Json:
        if isinstance(asked, Condition) and _is_readable(asked):
            return asked.to_dict()
        return self._function(asked, path)

    def _function(self, function: object, path: str) -> Json:
        name = self._names.get(id(function))
        by_name = "" if name is None else f" or predicates[{name!r}]"
        self._leave_out(path, f"the function; give it again as predicates[{path!r}]{by_name}")
        return _some(type="function", name=name)

    def _leave_out(self, path: str, what: str) -> None:
        self.left_out.append(f"{path}: {what}")


def _functions(definition: Definition) -> Iterator[object]:
    for node in definition.nodes:
        if node.retry is not None:
            yield from (node.retry.backoff, node.retry.on)
        if node.approval is not None:
            yield node.approval.when
    yield from (part for edge in definition.edges for part in predicate_parts(edge.predicate))


def _unique_names(functions: Iterable[object]) -> Mapping[int, str]:
    """Return the names of functions by their id, without names that several share."""
    found: dict[str, set[int]] = {}
    for function in functions:
        name: object = getattr(function, "__name__", None)
        if isinstance(function, Callable) and isinstance(name, str) and name.isidentifier():
            found.setdefault(name, set()).add(id(cast("object", function)))
    return {next(iter(ids)): name for name, ids in found.items() if len(ids) == 1}


def _is_readable(condition: Condition) -> bool:
    """Return True if a condition can be read back. A condition of a user's class cannot."""
    try:
        return condition_of(condition.to_dict()) == condition
    except AgentWorkflowBuildError:
        return False


def _some(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _changes(value: Any, default: Any) -> Json:
    """Return the fields of a value that differ from the default."""
    pairs = ((each.name, getattr(value, each.name), getattr(default, each.name)) for each in fields(value))
    return {name: own for name, own, other in pairs if own != other}


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
