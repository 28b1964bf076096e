"""A definition as JSON, and the names of what JSON can't hold."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from perdure import (
    AgentException,
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
    ExecutorTimeoutError,
    Retry,
    StepTimeoutError,
    ToolException,
    ToolExecutionException,
)
from perdure.agent_workflows.agents import AgentConfig
from perdure.agent_workflows.conditions import And, Condition, condition_of
from perdure.agent_workflows.conditions_values import json_of
from perdure.agent_workflows.config_entries import joined
from perdure.agent_workflows.definition import (
    Approval,
    Conversation,
    Handoffs,
    Iterations,
    OnError,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)
from perdure.agent_workflows.errors import AgentWorkflowBuildError, AgentWorkflowError, MissingInputError
from perdure.agent_workflows.predicates import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.agent_workflows.definition import Definition, Edge, Node, Output

Json: TypeAlias = dict[str, Any]

_OURS: Final = (
    *(AgentException, ToolException, ToolExecutionException, ExecutorTimeoutError, StepTimeoutError),
    *(ChatClientException, ChatClientInvalidAuthException, ChatClientInvalidRequestException),
    *(ChatClientInvalidResponseException, AgentWorkflowError, MissingInputError),
)
ERRORS: Final[Mapping[str, type[Exception]]] = {
    **{name: each for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, Exception)},
    **{each.__name__: each for each in _OURS},
}
"""The errors that a definition may name by themselves: Python's own, and those of agents."""


class Writing:
    """Writes one definition, and notes what is left out."""

    def __init__(self, definition: Definition) -> None:
        self.left_out: list[str] = []
        self._definition = definition
        self._names = _own_names(_functions(definition))

    def written(self) -> Json:
        """The whole definition."""
        definition = self._definition
        return _some(
            name=definition.name,
            description=definition.description,
            version=definition.version,
            agents={node.id: self._node(node, joined("agents", node.id)) for node in definition.nodes},
            edges=[self._edge(edge, f"edges[{place}]") for place, edge in enumerate(definition.edges)],
            settings=self._settings() or None,
        )

    def _settings(self) -> Json:
        definition = self._definition
        iterations = _changed(definition.iterations, Iterations())
        if "ignored_keys" in iterations:
            iterations["ignored_keys"] = sorted(iterations["ignored_keys"])
        return _some(
            timeout=_seconds(definition.timeout),
            iterations=iterations or None,
            conversation=_changed(definition.conversation, Conversation()) or None,
        )

    def _node(self, node: Node, path: str) -> Json:
        return _some(
            agent=self._agent(node, joined(path, "agent")),
            output=self._output(node.output, joined(path, "output")),
            input_key=node.input_key,
            template=node.template,
            reads=node.reads,
            instructions=node.instructions,
            retry=None if node.retry is None else self._retry(node.retry, joined(path, "retry")),
            timeout=_seconds(node.timeout),
            on_error=_changed(node.on_error, OnError()) or None,
            approval=None if node.approval is None else self._approval(node.approval, joined(path, "approval")),
        )

    def _agent(self, node: Node, path: str) -> Json:
        if isinstance(node.agent, AgentConfig):
            return self._agent_config(node.agent, path)
        self._leave_out(path, f"the agent itself; give it again as agents[{node.id!r}]")
        told = {name: getattr(node.agent, name, None) for name in ("name", "description")}
        options: Any = getattr(node.agent, "default_options", None)
        told["instructions"] = cast("Mapping[str, Any]", options).get("instructions") if _is_dict(options) else None
        return {"prebuilt": True, **{name: value for name, value in told.items() if isinstance(value, str)}}

    def _agent_config(self, config: AgentConfig, path: str) -> Json:
        for place, tool in enumerate(config.tools):
            self._leave_out(f"{path}.tools[{place}]", f"the tool {tool!r} itself; give the builder one of this name")
        options: Json = {}
        lost: list[str] = []
        for name, value in config.options.items():
            try:
                options[name] = json_of(value, name)
            except (TypeError, ValueError):
                lost.append(name)
                self._leave_out(f"{path}.options.{name}", f"a {type(value).__name__}, which is no JSON")
        plain = _changed(config, AgentConfig()) | {"tools": list(config.tools) or None, "options": options or None}
        return _some(**plain, options_left_out=lost or None)

    def _output(self, output: Output, path: str) -> Json | None:
        match output:
            case TextOutput(key):
                return None if output == TextOutput() else {"type": "text", "key": key}
            case StructuredOutput(wanted, mode):
                written: Json = {"type": "structured", "schema": self._schema(wanted, joined(path, "schema"))}
                return written if mode == "native" else {**written, "mode": mode}
            case UnionOutput(types):
                schemas = [self._schema(each, f"{path}.types[{place}]") for place, each in enumerate(types)]
                return {"type": "union", "types": schemas}
            case Handoffs(targets, default):
                return _some(type="handoffs", targets=dict(targets), default=default)

    def _schema(self, wanted: type[Any] | Mapping[str, Any], path: str) -> Json:
        try:
            if isinstance(wanted, Mapping):
                return json_of(wanted, path)
            name = wanted.__name__
            self._leave_out(
                path,
                f"the class {name!r}; its JSON schema is there, which checks less: none of its validators; give it "
                f"again as types={{{name!r}: {name}}}",
            )
            # By the names of fields, which are keys of outputs. The name of the class is what `matched_type` is.
            return {**json_of(wanted.model_json_schema(by_alias=False), path), "title": wanted.__name__}
        except (TypeError, ValueError, AttributeError) as error:
            raise AgentWorkflowBuildError(f"{path}: it can't be written as a JSON schema: {error}") from error

    def _retry(self, retry: Retry, path: str) -> Json:
        written = _changed(retry, Retry())
        for name in ("backoff", "factor", "longest"):
            if name in written:
                written[name] = self._number(written[name], joined(path, name))
        if "on" in written:
            written["on"] = self._errors(retry.on, joined(path, "on"))
        return written

    def _number(self, value: object, path: str) -> Any:
        return _seconds(value) if isinstance(value, int | float | timedelta) else self._function(value, path)

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
            when=None if approval.when is None else self._when(approval.when, joined(path, "when")),
            timeout=_seconds(approval.timeout),
        )

    def _edge(self, edge: Edge, path: str) -> Json:
        return _some(
            **{"from": [edge.source], "to": [edge.target]},
            when=self._edge_when(edge, joined(path, "when")),
            default=edge.is_default or None,
        )

    def _edge_when(self, edge: Edge, path: str) -> Json | None:
        """What has to hold: a condition, a function, or an `and` of both."""
        if edge.condition is not None and edge.predicate is None and _is_ours(edge.condition):
            return edge.condition.to_dict()
        asked = [*_conjuncts(edge.condition), *parts_of(edge.predicate)]
        if len(asked) > 1:
            inner = [self._when(each, f"{path}.conditions[{place}]") for place, each in enumerate(asked)]
            return {"type": And.type, "conditions": inner}
        return self._when(asked[0], path) if asked else None

    def _when(self, asked: object, path: str) -> Json:
        if isinstance(asked, Condition) and _is_ours(asked):
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
    yield from (part for edge in definition.edges for part in parts_of(edge.predicate))


def _conjuncts(condition: Condition | None) -> tuple[Condition, ...]:
    """The conditions that all have to hold. Beside functions they are read back as one."""
    if condition is None:
        return ()
    several = isinstance(condition, And) and len(condition.conditions) > 1 and _is_ours(condition)
    return condition.conditions if isinstance(condition, And) and several else (condition,)


def _own_names(functions: Iterable[object]) -> Mapping[int, str]:
    """By function its name, if no other one has it: giving functions by name must not mix them up."""
    found: dict[str, set[int]] = {}
    for function in functions:
        name: object = getattr(function, "__name__", None)
        if isinstance(function, Callable) and isinstance(name, str) and name.isidentifier():
            found.setdefault(name, set()).add(id(cast("object", function)))
    return {next(iter(ids)): name for name, ids in found.items() if len(ids) == 1}


def _is_ours(condition: Condition) -> bool:
    """Whether a condition can be read back. One of a user's own class can't, and neither can one that holds such."""
    try:
        return condition_of(condition.to_dict()) == condition
    except AgentWorkflowBuildError:
        return False


def _some(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _changed(value: Any, usual: Any) -> Json:
    """The fields of a value that are not as usual."""
    pairs = ((each.name, getattr(value, each.name), getattr(usual, each.name)) for each in fields(value))
    return {name: own for name, own, other in pairs if own != other}


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _is_dict(value: object) -> bool:
    return isinstance(value, Mapping)
