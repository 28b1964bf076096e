"""Definitions as JSON: read, written, and described by a JSON schema.

JSON cannot hold agents, classes and functions. A document has marks in their places, and the reader gives the objects
again. Nothing is imported by a name in JSON.
"""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictStr,
    Tag,
    ValidationError,
    model_validator,
    with_config,
)
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict, override

from perdure import (
    AgentException,
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
    ExecutorTimeoutError,
    Retry,
    StepTimeoutError,
    SupportsAgentRun,
    ToolException,
    ToolExecutionException,
)
from perdure.agent_workflows.definition import values
from perdure.agent_workflows.definition.conditions import And, Condition, condition_of, tag_of
from perdure.agent_workflows.errors import (
    AgentWorkflowBuildError,
    AgentWorkflowError,
    MissingInputError,
    Place,
    describe,
    path_of,
    problems_in,
)

_OUR_ERRORS: Final = (
    *(AgentException, ToolException, ToolExecutionException),
    *(ExecutorTimeoutError, StepTimeoutError, AgentWorkflowError, MissingInputError),
    *(ChatClientException, ChatClientInvalidAuthException),
    *(ChatClientInvalidRequestException, ChatClientInvalidResponseException),
)
_ERRORS: Final[Mapping[str, type[Exception]]] = {
    **{name: each for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, Exception)},
    **{each.__name__: each for each in _OUR_ERRORS},
}
"""The exceptions that a document may name: Python's own, and those of agents."""
_FORM: Final = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


@with_config(_FORM)
class MixedForm(TypedDict):
    """Functions and conditions that must all hold."""

    type: Literal["and"]
    conditions: Annotated[list[values.When], Field(min_length=1)]


def _is_mixed(value: Any) -> bool:
    parts = value.get("conditions") if tag_of(value) == And.type else None
    return isinstance(parts, list) and any(callable(each) for each in cast("list[Any]", parts))


_Names: TypeAlias = Annotated[
    Annotated[list[values.Name], Field(min_length=1)],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=values.Name | Annotated[list[values.Name], Field(min_length=1)],
    ),
]


class EdgeForm(BaseModel):
    """Connects each source with each target."""

    model_config = _FORM | ConfigDict(
        json_schema_extra={"not": {"required": ["when", "default"], "properties": {"default": {"const": True}}}}
    )
    sources: _Names = Field(alias="from")
    """Nodes, or START."""
    to: _Names
    """Nodes, or END."""
    when: (
        Annotated[
            Annotated[MixedForm, Tag("mixed")] | Annotated[values.When, Tag("one")],
            Discriminator(lambda value: "mixed" if _is_mixed(value) else "one"),
        ]
        | None
    ) = None
    default: StrictBool = False
    """Take the edge if no edge with a `when` was taken."""

    @model_validator(mode="after")
    def _require_one_reason(self) -> Self:
        if self.default and "when" in self.model_fields_set:
            raise ValueError("it has `when` and is the default; a default edge is taken if no other edge was")
        return self

    def edges(self) -> Iterator[values.Edge]:
        """Return the edges."""
        asked: list[Any] = self.when["conditions"] if isinstance(self.when, dict) else [self.when]
        conditions = [each for each in asked if isinstance(each, Condition)]
        functions: list[values.Predicate] = [
            each for each in asked if each is not None and not isinstance(each, Condition)
        ]
        condition = And(*conditions) if len(conditions) > 1 else next(iter(conditions), None)
        for source in self.sources:
            for target in self.to:
                yield values.Edge(source, target, condition, values.all_of(*functions), self.default)


@with_config(_FORM)
class SettingsForm(TypedDict, total=False):
    """Settings of the whole workflow."""

    timeout: values.Duration
    """Seconds for an execution."""
    iterations: values.Iterations
    conversation: values.Conversation


class Document(BaseModel):
    """A workflow of agents."""

    model_config = _FORM | ConfigDict(title="Agent workflow")
    json_schema: str = Field(default="", alias="$schema")
    """The schema of this file, for editors."""
    name: values.Name | None = None
    """The name of the workflow."""
    description: StrictStr | None = None
    """The purpose of the workflow."""
    version: StrictStr | None = None
    """The version of the workflow, in words of its author."""
    agents: Annotated[dict[values.Name, values.Node], Field(min_length=1)]
    """The nodes by id."""
    edges: list[EdgeForm] = Field(default_factory=list[EdgeForm])
    """The edges."""
    settings: SettingsForm = Field(default_factory=SettingsForm)

    def definition(self) -> values.Definition:
        """Return the definition."""
        return values.Definition(
            name=self.name,
            description=self.description,
            version=self.version,
            nodes=tuple(self.agents.values()),
            edges=tuple(edge for form in self.edges for edge in form.edges()),
            **self.settings,
        )


class _JsonSchema(GenerateJsonSchema):
    """Generate a schema without titles of fields and without nulls as defaults."""

    @override
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    @override
    def default_schema(self, schema: Any) -> dict[str, Any]:
        inner = self.generate_inner(schema["schema"])
        return inner if schema.get("default") in {None, ""} else super().default_schema(schema)

    @override
    def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
        written = super().tagged_union_schema(schema)
        return {"anyOf": written.pop("oneOf"), **written}


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of documents, draft 2020-12. It is also in docs/agent-workflow.schema.json."""
    schema = Document.model_json_schema(schema_generator=_JsonSchema)
    agent, node = schema["$defs"]["AgentConfig"]["properties"], schema["$defs"]["Node"]
    text = {"type": "string"}
    agent["options_left_out"] = {"type": "array", "items": text, "description": "Options that JSON cannot hold."}
    prebuilt = {"prebuilt": {"const": True}, "name": text, "description": text, "instructions": text}
    schema["$defs"]["PrebuiltAgent"] = {
        "description": "An agent that JSON cannot hold. The reader of the document gives it again.",
        "type": "object",
        "properties": prebuilt,
        "required": ["prebuilt"],
        "additionalProperties": False,
    }
    node["properties"]["agent"] = {"anyOf": [node["properties"]["agent"], {"$ref": "#/$defs/PrebuiltAgent"}]}
    del node["properties"]["id"]  # The id of a node is its key.
    node["required"].remove("id")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


_NONE: Final[dict[str, Any]] = {}


def definition_of(
    config: Any,
    *,
    agents: Mapping[str, SupportsAgentRun | values.AgentConfig] = _NONE,
    types: Mapping[str, type[Any]] = _NONE,
    predicates: Mapping[str, Callable[..., Any] | Condition] = _NONE,
) -> values.Definition:
    """Read a definition from JSON, with what JSON cannot hold given again.

    `agents` are by node. `types` replace JSON schemas and name errors, by path (`agents.draft.output.schema`) or name.
    `predicates` are functions of edges, approvals and retries, by path (`edges[0].when`) or name.

    Raises AgentWorkflowBuildError with all problems, each with its path.
    """
    if not isinstance(config, Mapping):
        raise AgentWorkflowBuildError(f"a definition is a JSON object, not {describe(config)}")
    reader = _Reader(agents=agents, types=types, predicates=predicates)
    filled = reader.fill(config)
    problems = reader.problems
    try:
        document = Document.model_validate(filled)
    except ValidationError as error:
        raise AgentWorkflowBuildError([*problems_in(error, filled).values(), *problems, *reader.unused()]) from error
    problems += reader.unused()
    if problems:
        raise AgentWorkflowBuildError(problems)
    return document.definition()


def _not_given(*_: Any) -> None:
    """Take the place of a missing function, so that only its absence is reported."""


class _Reader:
    """Puts live objects into a document in place of what JSON cannot hold, and notes what was not given."""

    def __init__(self, **given: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self._given = given
        self._used: set[tuple[str, str]] = set()

    def fill(self, value: Any, place: Place = ()) -> Any:
        """Return a part of the document with live objects."""
        match place:
            case ("agents", str(node_id)) if isinstance(value, Mapping):
                return self._node(cast("Mapping[str, Any]", value), node_id)
            case ("agents", _, "agent"):
                return self._agent(value, place)
            case ("agents", _, "output", "schema") | ("agents", _, "output", "types", int()):
                return self._found("types", place, _get(value, "title")) or value
            case ("agents", _, "retry", "on", int()):
                return self._error(value, place)
            case ("edges", int(), "when") if tag_of(value) not in {"function", And.type}:
                return value
            case (
                ("agents", _, "retry", "backoff" | "on")
                | ("agents", _, "approval", "when")
                | ("edges", int(), "when")
                | ("edges", int(), "when", "conditions", int())
            ) if tag_of(value) == "function":
                return self._function(value, place)
            case _:
                return self._inner(value, place)

    def _inner(self, value: Any, place: Place) -> Any:
        if isinstance(value, Mapping):
            return {key: self.fill(each, (*place, key)) for key, each in cast("Mapping[str, Any]", value).items()}
        if isinstance(value, list):
            return [self.fill(each, (*place, number)) for number, each in enumerate(cast("list[Any]", value))]
        return cast("object", value)

    def _node(self, entry: Mapping[str, Any], node_id: str) -> dict[str, Any]:
        given = self._found("agents", (), node_id)
        agent = {} if given is None else {"agent": given}
        filled = self._inner({key: each for key, each in entry.items() if key not in agent}, ("agents", node_id))
        if "id" in entry:
            self._report(("agents", node_id, "id"), "the id of a node is its key; remove this one")
        return {**filled, **agent, "id": node_id}

    def _agent(self, value: Any, place: Place) -> Any:
        if not isinstance(value, Mapping):
            return value
        entry = dict(cast("Mapping[str, Any]", value))
        if "prebuilt" in entry:
            self._report(place, f"it is an agent, which JSON can't hold; give it as agents[{place[1]!r}]")
            return values.AgentConfig()
        if lost := entry.pop("options_left_out", None):
            self._report(
                (*place, "options_left_out"),
                f"JSON can't hold the options {', '.join(map(repr, lost))}; put values for them into `options` and "
                "remove this key, or give the agent again in agents=",
            )
        return entry

    def _function(self, mark: Mapping[str, Any], place: Place) -> Any:
        name = mark.get("name")
        found = self._found("predicates", place, name)
        if found is None:
            by_name = f", or as predicates[{name!r}]" if name else ""
            what = f"it is a function, which JSON can't hold; give it as predicates[{path_of(place)!r}]{by_name}"
            self._report(place, what)
        return _not_given if found is None else found

    def _error(self, value: Any, place: Place) -> Any:
        is_mark = tag_of(value) == "class"
        name = value.get("name") if is_mark else value
        found = self._found("types", place, name) or (None if is_mark or name is None else _ERRORS.get(str(name)))
        if found is None and isinstance(name, str):
            what = (
                "it is a class of errors, which JSON can't hold" if is_mark else f"there is no built-in error {name!r}"
            )
            self._report(place, f"{what}; give it as types[{name!r}]")
            return Exception
        return value if found is None else found

    def _found(self, kind: str, place: Place, name: object) -> Any:
        """Return an object that was given by its path or its name."""
        for key in (path_of(place), name):
            if isinstance(key, str) and key in self._given[kind]:
                self._used.add((kind, key))
                return self._given[kind][key]
        return None

    def _report(self, place: Place, problem: str) -> None:
        self.problems.append(f"{path_of(place)}: {problem}")

    def unused(self) -> list[str]:
        """Name what nothing in the document asked for: a typing error in a path would go unnoticed otherwise."""
        return [
            f"{kind}[{key!r}] was given, but nothing in the definition asks for it; check its spelling"
            for kind, given in self._given.items()
            for key in given
            if (kind, key) not in self._used
        ]


@dataclass(frozen=True, slots=True)
class Exported:
    """A definition as JSON. `left_out` names what JSON cannot hold: its path, what it is, and how to give it again."""

    config: dict[str, Any]
    left_out: tuple[str, ...]


def to_config(definition: values.Definition) -> Exported:
    """Write a definition as JSON, without values that are the defaults.

    Raises AgentWorkflowBuildError if an output has no JSON schema.
    """
    writer = _Writer(_unique_names(_functions(definition)))
    changes = _changes(definition)
    # Stored definitions are compared as texts, so the order of keys stays that of the form.
    changed = {name: changes[name] for name in SettingsForm.__annotations__ if name in changes}
    config: dict[str, Any] = {
        **{name: getattr(definition, name) for name in ("name", "description", "version")},
        "agents": {node.id: writer.node(node, f"agents.{node.id}") for node in definition.nodes},
        "edges": [writer.edge(edge, f"edges[{place}]") for place, edge in enumerate(definition.edges)],
        "settings": {name: writer.write(value, f"settings.{name}") for name, value in changed.items()} or None,
    }
    return Exported({key: value for key, value in config.items() if value is not None}, tuple(writer.left_out))


class _Writer:
    """Writes values as JSON, and notes what JSON cannot hold."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.left_out: list[str] = []
        self._names = names

    def write(self, value: Any, path: str) -> Any:  # noqa: C901, PLR0912 - one case per kind of value
        """Write any value of a definition."""
        match value:
            case None | bool() | int() | float() | str():
                return value
            case timedelta():
                return value.total_seconds()
            case frozenset():
                return sorted(cast("frozenset[str]", value))
            case Mapping():
                return {
                    key: self.write(each, f"{path}.{key}") for key, each in cast("Mapping[str, Any]", value).items()
                }
            case list() | tuple():
                elements = cast("list[Any]", value)
                return [self.write(each, f"{path}[{place}]") for place, each in enumerate(elements)]
            case Condition() if _is_readable(value):
                return value.to_dict()
            case values.AgentConfig():
                return self._agent_config(value, path)
            case values.StructuredOutput():
                mode = {} if value.mode == "native" else {"mode": value.mode}
                return {"type": "structured", "schema": self.write(value.type, f"{path}.schema"), **mode}
            case Retry() if isinstance(value.on, type) and value.on is not Exception:
                return self.write(replace(value, on=(value.on,)), path)
            case type() if issubclass(value, Exception):
                return self._error(value, path)
            case type():
                return self._schema(value, path)
            case _ if hasattr(value, "__dataclass_fields__") and not isinstance(value, Condition):
                written = {name: self.write(each, f"{path}.{name}") for name, each in _changes(value).items()}
                tag = values.OUTPUT_TYPES.get(cast("type[Any]", type(value)))
                return written if tag is None else {"type": tag, **written}
            case _:
                return self._function(value, path)

    def node(self, node: values.Node, path: str) -> dict[str, Any]:
        """Write a node without its id."""
        is_data = isinstance(node.agent, values.AgentConfig)
        agent = self.write(node.agent, f"{path}.agent") if is_data else self._prebuilt(node, path)
        changes = {name: value for name, value in _changes(node).items() if name not in {"id", "agent"}}
        return {"agent": agent, **{name: self.write(value, f"{path}.{name}") for name, value in changes.items()}}

    def edge(self, edge: values.Edge, path: str) -> dict[str, Any]:
        """Write an edge: its condition, its function, or an `and` of both."""
        written: dict[str, Any] = {"from": [edge.source], "to": [edge.target]}
        condition, functions = edge.condition, values.predicate_parts(edge.predicate)
        asked: list[object] = [] if condition is None else [condition]
        if functions and isinstance(condition, And) and len(condition.conditions) > 1 and _is_readable(condition):
            asked = [*condition.conditions]
        asked += functions
        if len(asked) > 1:
            written["when"] = {"type": And.type, "conditions": self.write(asked, f"{path}.when.conditions")}
        elif asked:
            written["when"] = self.write(asked[0], f"{path}.when")
        return {**written, "default": True} if edge.is_default else written

    def _prebuilt(self, node: values.Node, path: str) -> dict[str, Any]:
        self._leave_out(f"{path}.agent", f"the agent itself; give it again as agents[{node.id!r}]")
        described = {
            "name": getattr(node.agent, "name", None),
            "description": getattr(node.agent, "description", None),
            "instructions": _get(getattr(node.agent, "default_options", None), "instructions"),
        }
        return {"prebuilt": True, **{name: value for name, value in described.items() if isinstance(value, str)}}

    def _agent_config(self, config: values.AgentConfig, path: str) -> dict[str, Any]:
        for place, tool in enumerate(config.tools):
            self._leave_out(f"{path}.tools[{place}]", f"the tool {tool!r} itself; give the builder one of this name")
        lost = [name for name, value in config.options.items() if not _is_json(value)]
        for name in lost:
            kind = type(config.options[name]).__name__
            self._leave_out(f"{path}.options.{name}", f"a {kind}, which is not JSON")
        options = {name: self.write(value, path) for name, value in config.options.items() if name not in lost}
        written = {**_changes(config), "tools": list(config.tools), "options": options, "options_left_out": lost}
        return {name: value for name, value in written.items() if value not in ([], {})}

    def _schema(self, model: type[Any], path: str) -> dict[str, Any]:
        name = model.__name__
        self._leave_out(
            path,
            f"the class {name!r}; its JSON schema checks less, none of its validators; give it again as "
            f"types={{{name!r}: {name}}}",
        )
        try:
            # Use the names of fields, which are output keys. The title is the name that `matched_type` has.
            return {**model.model_json_schema(by_alias=False), "title": name}
        except (TypeError, ValueError, AttributeError) as error:
            raise AgentWorkflowBuildError(f"{path}: it can't be written as a JSON schema: {error}") from error

    def _error(self, kind: type[Exception], path: str) -> Any:
        if _ERRORS.get(kind.__name__) is kind:
            return kind.__name__
        self._leave_out(path, f"the class {kind.__name__!r}; give it again as types[{path!r}], or by its name")
        return {"type": "class", "name": kind.__name__}

    def _function(self, function: object, path: str) -> dict[str, Any]:
        name = self._names.get(id(function))
        by_name = "" if name is None else f" or predicates[{name!r}]"
        self._leave_out(path, f"the function; give it again as predicates[{path!r}]{by_name}")
        return {"type": "function"} if name is None else {"type": "function", "name": name}

    def _leave_out(self, path: str, what: str) -> None:
        self.left_out.append(f"{path}: {what}")


def _get(value: Any, key: str) -> Any:
    return cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None


def _functions(definition: values.Definition) -> Iterator[object]:
    for node in definition.nodes:
        if node.retry is not None:
            yield from (node.retry.backoff, node.retry.on)
        if node.approval is not None:
            yield node.approval.when
    yield from (part for edge in definition.edges for part in values.predicate_parts(edge.predicate))


def _unique_names(functions: Iterable[object]) -> Mapping[int, str]:
    """Return the names of functions by their id, without names that several share."""
    found: dict[str, set[int]] = {}
    for function in functions:
        name: object = getattr(function, "__name__", None)
        if isinstance(name, str) and name.isidentifier():
            found.setdefault(name, set()).add(id(function))
    return {next(iter(ids)): name for name, ids in found.items() if len(ids) == 1}


def _is_readable(condition: Condition) -> bool:
    """Return True if a condition can be read back. A condition of a user's class cannot."""
    try:
        return condition_of(condition.to_dict()) == condition
    except AgentWorkflowBuildError:
        return False


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _changes(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    found: dict[str, Any] = {}
    for each in fields(value):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if getattr(value, each.name) != default:
            found[each.name] = getattr(value, each.name)
    return found


_BOM: Final = "\N{ZERO WIDTH NO-BREAK SPACE}"


def read_text(source: str | os.PathLike[str]) -> Any:
    """Parse the JSON of a file, or of a text that starts with a brace. Raises AgentWorkflowBuildError or TypeError."""
    if not isinstance(source, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"from_json reads a file or a text, not a {type(source).__name__}; from_config takes a dict")
    is_text = isinstance(source, str) and source.lstrip(f"{_BOM} \t\r\n").startswith(("{", "["))
    try:
        text = str(source) if is_text else Path(source).read_text(encoding="utf-8")
        return json.loads(text.removeprefix(_BOM), object_pairs_hook=_object)
    except OSError as error:
        raise AgentWorkflowBuildError(
            f"the file {describe(str(source))} can't be read: {error.strerror}; give the path of a file, or JSON "
            "itself, which starts with a brace"
        ) from error
    except (ValueError, RecursionError) as error:
        what = "this" if is_text else f"the file {describe(str(source))}"
        raise AgentWorkflowBuildError(f"{what} is not JSON in UTF-8: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict, and refuse a repeated key: JSON would silently take the last of them."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} appears twice in one object; rename or remove one")
    return found
