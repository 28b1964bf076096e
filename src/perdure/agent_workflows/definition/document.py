"""The JSON document of a definition: pydantic models, which validate it, convert it, and describe it to editors.

JSON cannot hold agents, classes and functions. The document marks their places; `reading` puts live objects there
before validation.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType, override

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
from perdure.agent_workflows.definition.conditions import And, Condition, ConditionEntry, require_flat
from perdure.agent_workflows.definition.json_values import copy_json
from perdure.agent_workflows.definition.values import (
    AgentConfig,
    Approval,
    Conversation,
    ConversationKind,
    Definition,
    Edge,
    Handoffs,
    Iterations,
    Name,
    Node,
    OnError,
    Predicate,
    Seconds,
    StructuredOutput,
    TextOutput,
    UnionOutput,
    all_of,
)
from perdure.agent_workflows.errors import AgentWorkflowError, MissingInputError

_OUR_ERRORS: Final = (
    *(AgentException, ToolException, ToolExecutionException, ExecutorTimeoutError, StepTimeoutError),
    *(ChatClientException, ChatClientInvalidAuthException, ChatClientInvalidRequestException),
    *(ChatClientInvalidResponseException, AgentWorkflowError, MissingInputError),
)
ERRORS: Final[Mapping[str, type[Exception]]] = {
    **{name: each for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, Exception)},
    **{each.__name__: each for each in _OUR_ERRORS},
}
"""The exceptions that a document may name: Python's own, and those of agents."""
OMITTED: Final[Any] = None
"""The default of an optional key. The key may be absent, but null is refused."""


class _Entry(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True, arbitrary_types_allowed=True
    )

    def given(self) -> dict[str, Any]:
        """Return the values of the keys that the document has."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


def _refuse(what: str) -> PydanticCustomError:
    return PydanticCustomError("left_out", cast("Any", what.replace("{", "{{").replace("}", "}}")))


def _require_finite(value: float) -> float:
    try:
        float(value)
    except OverflowError:
        raise ValueError("the number is too large") from None
    return value


def _to_duration(seconds: float) -> timedelta:
    try:
        duration = timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError("the number of seconds is too large") from None
    if not duration:
        raise ValueError("give at least a millionth of a second")
    return duration


_NodeSeconds: TypeAlias = Annotated[Seconds, AfterValidator(_require_finite)]
_Duration: TypeAlias = Annotated[Seconds, AfterValidator(_to_duration)]
_Number: TypeAlias = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)], AfterValidator(_require_finite)
]


class FunctionMark(_Entry):
    """A function, which JSON cannot hold. The reader of the document gives it again."""

    type: Literal["function"]
    name: Name = OMITTED
    """The name by which the function may be given."""


class ClassMark(_Entry):
    """A class of errors, which JSON cannot hold. The reader of the document gives it again."""

    type: Literal["class"]
    name: Name
    """The name of the class."""


def is_function_mark(value: object) -> bool:
    """Return True if a JSON value stands for a function."""
    return isinstance(value, Mapping) and cast("Mapping[str, Any]", value).get("type") == "function"


def is_live(value: object) -> bool:
    """Return True if a value is a function or a condition, and not JSON."""
    return isinstance(value, Condition) or (callable(value) and not isinstance(value, type))


def _function(value: Any, validate: Callable[[Any], Any]) -> Any:
    if is_live(value):
        return value
    mark: FunctionMark = validate(value)
    name = "" if mark.name is OMITTED else f", or as predicates[{mark.name!r}]"
    raise _refuse(f"it is a function, which JSON can't hold; give it as predicates[<path>]{name}")


_Function: TypeAlias = Annotated[FunctionMark, WrapValidator(_function)]


def _kind_of_when(value: Any) -> str:
    return "function" if is_function_mark(value) or is_live(value) else "condition"


def kind_of_edge_when(value: Any) -> str:
    """Return the member of the union of an edge's `when`."""
    if isinstance(value, Mapping):
        entry = cast("Mapping[str, Any]", value)
        inner: object = entry.get("conditions")
        parts = cast("list[Any]", inner) if isinstance(inner, list) else []
        if entry.get("type") == And.type and any(_kind_of_when(each) == "function" for each in parts):
            return "mixed"
    return _kind_of_when(value)


_Condition: TypeAlias = Annotated[ConditionEntry, BeforeValidator(require_flat)]
When = TypeAliasType(
    "When",
    Annotated[
        Annotated[_Function, Tag("function")] | Annotated[_Condition, Tag("condition")], Discriminator(_kind_of_when)
    ],
)


class MixedEntry(_Entry):
    """Functions and conditions that must all hold."""

    type: Literal["and"]
    conditions: list[When] = Field(
        json_schema_extra={"contains": {"required": ["type"], "properties": {"type": {"const": "function"}}}}
    )


_EdgeWhen: TypeAlias = Annotated[
    Annotated[_Function, Tag("function")]
    | Annotated[MixedEntry, Tag("mixed")]
    | Annotated[_Condition, Tag("condition")],
    Discriminator(kind_of_edge_when),
]


class PrebuiltEntry(_Entry):
    """An agent that JSON cannot hold. The reader of the document gives it again. The other keys are information."""

    prebuilt: Literal[True]
    name: str = OMITTED
    """The name of the agent."""
    description: str = OMITTED
    """The purpose of the agent."""
    instructions: str = OMITTED
    """The instructions of the agent."""

    def agent(self) -> AgentConfig:
        """Refuse the entry: no agent was given for it."""
        raise _refuse("it is an agent, which JSON can't hold; give it as agents[<node>]")


def _refuse_lost_options(names: list[str]) -> list[str]:
    if names:
        raise _refuse(
            f"JSON can't hold the options {', '.join(map(repr, names))}; put values for them into `options` and remove "
            "this key, or give the agent again in agents="
        )
    return names


def _copy_options(options: dict[str, Any]) -> dict[str, Any]:
    try:
        return copy_json(options, "an option")
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


class AgentEntry(_Entry):
    """An agent that is created with the chat client of the workflow."""

    name: Name = OMITTED
    """The name of the agent; by default the id of the node."""
    instructions: str = OMITTED
    """The instructions of the agent."""
    description: str = OMITTED
    """The purpose of the agent."""
    model: Name = OMITTED
    """The model, if not that of the client."""
    tools: list[Name] = OMITTED
    """Names of tools that are given to the builder."""
    options: Annotated[dict[str, Any], AfterValidator(_copy_options)] = OMITTED
    """Options of the chat client, such as temperature."""
    options_left_out: Annotated[list[Name], AfterValidator(_refuse_lost_options)] = OMITTED
    """Options that JSON cannot hold: give values, or the agent again."""

    def agent(self) -> AgentConfig:
        """Return the agent as a value."""
        values = {name: value for name, value in self.given().items() if name != "options_left_out"}
        values["tools"] = tuple(values.get("tools", ()))
        return AgentConfig(**values)


def _kind_of_agent(value: Any) -> str:
    return "prebuilt" if isinstance(value, Mapping) and "prebuilt" in value else "agent"


def _agent(value: Any, validate: Callable[[Any], Any]) -> Any:
    return value if isinstance(value, AgentConfig | SupportsAgentRun) else validate(value).agent()


_Agent: TypeAlias = Annotated[
    Annotated[
        Annotated[AgentEntry, Tag("agent")] | Annotated[PrebuiltEntry, Tag("prebuilt")], Discriminator(_kind_of_agent)
    ],
    WrapValidator(_agent),
]


class SchemaEntry(BaseModel):
    """The JSON schema of an object."""

    model_config = ConfigDict(extra="allow", strict=True)
    type: Literal["object"] = OMITTED
    properties: dict[str, Any] = OMITTED
    title: str = OMITTED


class TitledSchemaEntry(SchemaEntry):
    """The JSON schema of one of several types, which is known by its title."""

    title: Name = Field()


def _shape(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Accept a class that was given for a schema, or a JSON schema, of which a copy is kept."""
    if isinstance(value, type):
        return cast("object", value)
    validate(value)
    try:
        return copy_json(value, "the schema")
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


class TextOutputEntry(_Entry):
    """A text under one key."""

    type: Literal["text"]
    key: Name = OMITTED
    """The output key."""

    def output(self) -> TextOutput:
        """Return the output."""
        return TextOutput() if self.key is OMITTED else TextOutput(self.key)


class StructuredOutputEntry(_Entry):
    """A value. Its fields are output keys, and `result` is the whole."""

    type: Literal["structured"]
    shape: Annotated[SchemaEntry, WrapValidator(_shape)] = Field(alias="schema")
    mode: Literal["native", "tool"] = "native"
    """The way in which the model is made to answer in this form."""

    def output(self) -> StructuredOutput:
        """Return the output."""
        return StructuredOutput(cast("Any", self.shape), self.mode)


class UnionOutputEntry(_Entry):
    """A value of one of several types, known by their titles."""

    type: Literal["union"]
    types: Annotated[list[Annotated[TitledSchemaEntry, WrapValidator(_shape)]], Field(min_length=1)]

    def output(self) -> UnionOutput:
        """Return the output."""
        return UnionOutput(tuple(cast("list[Any]", self.types)))


class HandoffsEntry(_Entry):
    """The choice of a router."""

    type: Literal["handoffs"]
    targets: Annotated[dict[str, str], Field(min_length=1)]
    """Tells the model, by node, when to choose it."""
    default: Name = OMITTED
    """The node to take if the model chooses none."""

    def output(self) -> Handoffs:
        """Return the output."""
        return Handoffs(self.targets, self.default)


OutputEntry: TypeAlias = Annotated[
    TextOutputEntry | StructuredOutputEntry | UnionOutputEntry | HandoffsEntry, Field(discriminator="type")
]
_Output: TypeAlias = Annotated[OutputEntry, AfterValidator(lambda entry: entry.output())]


class OnErrorEntry(_Entry):
    """The reaction to a failure."""

    mode: Literal["stop", "skip_dependents", "isolate"] = "stop"
    """The effect on the other nodes."""


class FallbackEntry(_Entry):
    """Another node gets the task of a failed one."""

    mode: Literal["fallback"]
    fallback: Name
    """The node that gets the task."""


def _kind_of_on_error(value: Any) -> str:
    mode: object = cast("Mapping[str, Any]", value).get("mode") if isinstance(value, Mapping) else None
    return "fallback" if mode == "fallback" else "plain"


_OnErrorLong: TypeAlias = Annotated[
    Annotated[OnErrorEntry, Tag("plain")] | Annotated[FallbackEntry, Tag("fallback")],
    Discriminator(_kind_of_on_error),
]
_OnError: TypeAlias = Annotated[
    _OnErrorLong,
    BeforeValidator(
        lambda value: {"mode": value} if isinstance(value, str) else value,
        json_schema_input_type=Literal["stop", "skip_dependents", "isolate"] | _OnErrorLong,
    ),
    AfterValidator(lambda entry: OnError(**entry.given())),
]


class ApprovalEntry(_Entry):
    """A request for approval, before the output is used."""

    message: str = OMITTED
    """The question."""
    when: When = OMITTED
    """The outputs that need approval; by default all."""
    timeout: _Duration = OMITTED
    """Seconds, after which the request counts as denied."""


def _approval(value: Any, validate: Callable[[Any], Any]) -> Approval | None:
    if value is False:
        return None
    short = {} if value is True else {"message": value} if isinstance(value, str) else None
    return Approval(**validate(value if short is None else short).given())


_Approval: TypeAlias = Annotated[
    ApprovalEntry, WrapValidator(_approval, json_schema_input_type=bool | str | ApprovalEntry)
]


def _error_class(value: Any) -> type[Exception]:
    if isinstance(value, type) and issubclass(value, Exception):
        return value
    if not isinstance(value, str):
        name = ClassMark.model_validate(value).name
        raise _refuse(f"it is a class of errors, which JSON can't hold; give it as types[{name!r}]")
    if value not in ERRORS:
        raise _refuse(f"there is no built-in error {value!r}; give its class as types[{value!r}]")
    return ERRORS[value]


_ErrorClass: TypeAlias = Annotated[Any, PlainValidator(_error_class, json_schema_input_type=Name | ClassMark)]


def _kind_of_backoff(value: Any) -> str:
    return "function" if is_function_mark(value) or is_live(value) else "plain"


class RetryEntry(_Entry):
    """The attempts of a failing node."""

    attempts: Annotated[int, Field(ge=1)] = OMITTED
    """The number of attempts in all."""
    backoff: Annotated[
        Annotated[_Number, Tag("plain")] | Annotated[_Function, Tag("function")], Discriminator(_kind_of_backoff)
    ] = OMITTED
    """Seconds to wait after the first failure."""
    factor: _Number = OMITTED
    """By this factor each further wait is longer."""
    longest: _Number = OMITTED
    """The longest wait in seconds."""
    on: Annotated[
        Annotated[list[_ErrorClass], Tag("plain")] | Annotated[_Function, Tag("function")],
        Discriminator(_kind_of_backoff),
    ] = OMITTED
    """The errors that are worth another attempt."""


def _retry(value: Any, validate: Callable[[Any], Any]) -> Retry:
    entry = validate({"attempts": value} if isinstance(value, int | float) else value)
    values: dict[str, Any] = entry.given()
    if isinstance(values.get("on"), list):
        values["on"] = tuple(values["on"])
    return Retry(**values)


_Retry: TypeAlias = Annotated[
    RetryEntry, WrapValidator(_retry, json_schema_input_type=Annotated[int, Field(ge=1)] | RetryEntry)
]


class NodeEntry(_Entry):
    """An agent in the workflow: its input, its output, and what happens when it fails."""

    agent: _Agent
    output: _Output = OMITTED
    input_key: Name = OMITTED
    """The value that the node reads: key, node.key, or input."""
    template: str = OMITTED
    """The text that the node reads, with {{key}}, {{node.key}} or {{input}} in it."""
    reads: Literal["request", "upstream"] = OMITTED
    """The node reads the request, or the outputs of all nodes before it."""
    instructions: str = OMITTED
    """Instructions in addition to those of the agent."""
    retry: _Retry = OMITTED
    timeout: _NodeSeconds = OMITTED
    """Seconds for each attempt."""
    on_error: _OnError = OMITTED
    approval: _Approval = OMITTED


_Names: TypeAlias = Annotated[
    Annotated[list[Name], Field(min_length=1)],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=Name | Annotated[list[Name], Field(min_length=1)],
    ),
]


class EdgeEntry(_Entry):
    """Connects each source with each target."""

    model_config = ConfigDict(
        json_schema_extra={"not": {"required": ["when", "default"], "properties": {"default": {"const": True}}}}
    )
    sources: _Names = Field(alias="from")
    """Nodes, or START."""
    to: _Names
    """Nodes, or END."""
    when: _EdgeWhen = OMITTED
    default: bool = False
    """Take the edge if no edge with a `when` was taken."""

    @model_validator(mode="after")
    def _require_one_reason(self) -> Self:
        if self.default and self.when is not OMITTED:
            raise ValueError("it has `when` and is the default; a default edge is taken if no other edge was")
        return self

    def edges(self) -> Iterator[Edge]:
        """Return the edges."""
        when: object = self.when
        asked: list[Any] = when.conditions if isinstance(when, MixedEntry) else [when]
        conditions = [each for each in asked if isinstance(each, Condition)]
        functions: list[Predicate] = [each for each in asked if each is not None and not isinstance(each, Condition)]
        condition = And(*conditions) if len(conditions) > 1 else next(iter(conditions), None)
        for source in self.sources:
            for target in self.to:
                yield Edge(source, target, condition, all_of(*functions), self.default)


class IterationsEntry(_Entry):
    """The limits of loops."""

    limit: Annotated[int, Field(ge=1)] = OMITTED
    """The most passes."""
    then: Literal["fail", "leave"] = OMITTED
    """The effect of the limit."""
    converges: bool = OMITTED
    """Leave a loop after a pass that changed nothing."""
    ignored_keys: list[Name] = OMITTED
    """Output keys that do not count as a change."""
    change_aware: bool = OMITTED
    """Skip a node whose task is the same as in the pass before."""

    def iterations(self) -> Iterations:
        """Return the limits."""
        values = self.given()
        values["ignored_keys"] = frozenset(values.get("ignored_keys", ()))
        return Iterations(**values)


class ConversationEntry(_Entry):
    """The threads that keep the messages of agents."""

    kind: ConversationKind = OMITTED
    """One thread, one per agent, or a fork per agent."""
    session_id: Name = OMITTED
    """The session; by default each execution has its own."""
    thread_id: Name = OMITTED
    """The shared thread, or the root."""
    thread_prefix: str = OMITTED
    """The prefix of the threads of agents."""


class SettingsEntry(_Entry):
    """Settings of the whole workflow."""

    timeout: _Duration = OMITTED
    """Seconds for an execution."""
    iterations: Annotated[IterationsEntry, AfterValidator(lambda entry: entry.iterations())] = OMITTED
    conversation: Annotated[ConversationEntry, AfterValidator(lambda entry: Conversation(**entry.given()))] = OMITTED


class Document(_Entry):
    """A workflow of agents."""

    model_config = ConfigDict(title="Agent workflow")
    json_schema: str = Field(default=OMITTED, alias="$schema")
    """The schema of this file, for editors."""
    name: Name = OMITTED
    """The name of the workflow."""
    description: str = OMITTED
    """The purpose of the workflow."""
    version: str = OMITTED
    """The version of the workflow, in words of its author."""
    agents: Annotated[dict[Name, NodeEntry], Field(min_length=1)]
    """The nodes by id."""
    edges: list[EdgeEntry] = OMITTED
    """The edges."""
    settings: SettingsEntry = OMITTED

    def definition(self) -> Definition:
        """Return the definition."""
        return Definition(
            name=self.name,
            description=self.description,
            version=self.version,
            nodes=tuple(Node(id=node_id, **entry.given()) for node_id, entry in self.agents.items()),
            edges=tuple(edge for entry in self.edges or () for edge in entry.edges()),
            **({} if self.settings is OMITTED else self.settings.given()),
        )


class _JsonSchema(GenerateJsonSchema):
    """Generate a schema without titles of fields and without nulls as defaults."""

    @override
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    @override
    def default_schema(self, schema: Any) -> JsonSchemaValue:
        return (
            self.generate_inner(schema["schema"]) if schema.get("default") is None else super().default_schema(schema)
        )


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of documents, draft 2020-12. It is also in docs/agent-workflow.schema.json."""
    schema = Document.model_json_schema(schema_generator=_JsonSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
