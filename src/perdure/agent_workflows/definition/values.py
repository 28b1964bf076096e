"""The definition of an agent workflow as frozen values: nodes, edges and settings. Nothing here runs.

The annotations are also the rules: pydantic checks a definition against them, and reads one from JSON.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias, Union, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    WithJsonSchema,
    WrapValidator,
    with_config,
)
from typing_extensions import TypedDict

from perdure import Retry, SupportsAgentRun
from perdure.agent_workflows.definition.conditions import AnyCondition, Condition, Tagged, read_as, tag_of

START: Final = "START"
"""The request, as the source of an edge."""
END: Final = "END"
"""The result, as the target of an edge: nodes with an edge to it give the final answer."""
INPUT: Final = "input"
"""The name under which nodes read the request; `input.topic` is an entry of a request that is a dict."""
ANSWER: Final = "answer"
"""The default key of a text output."""
RESULT: Final = "result"
"""The key of a structured output as a whole."""
MATCHED_TYPE: Final = "matched_type"
"""The key that names the type of a union output."""
HANDOFF_TARGET: Final = "handoff_target"
"""The key that names the node which a router chose."""
ERROR: Final = "error"
"""The key of an isolated failure."""

Name: TypeAlias = Annotated[StrictStr, Field(min_length=1)]
Shape: TypeAlias = type[Any] | Mapping[str, Any]
"""The form of a structured value: a pydantic model or a JSON schema."""
_FORM: Final = ConfigDict(extra="forbid", allow_inf_nan=False)


def _to_duration(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        return timedelta(seconds=value)
    except OverflowError:
        raise ValueError("the number of seconds is too large") from None


def _require_finite(value: Any) -> Any:
    try:
        float(0 if isinstance(value, timedelta) else value)
    except OverflowError:
        raise ValueError("the number is too large") from None
    return value


_POSITIVE: Final = WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
_Timeout: TypeAlias = Annotated[timedelta, Strict(), Field(gt=timedelta(0))]
_Seconds: TypeAlias = Annotated[StrictInt, Field(gt=0)] | Annotated[StrictFloat, Field(gt=0)]
_Number: TypeAlias = Annotated[
    Annotated[StrictInt, Field(ge=0)] | Annotated[StrictFloat, Field(ge=0)], AfterValidator(_require_finite)
]
Duration: TypeAlias = Annotated[_Timeout, BeforeValidator(_to_duration), _POSITIVE]
"""A timedelta, or seconds."""


@with_config(_FORM)
class FunctionMark(TypedDict):
    """A function, which JSON cannot hold. The reader of the document gives it again."""

    type: Literal["function"]
    name: NotRequired[Name]


@with_config(_FORM)
class ClassMark(TypedDict):
    """A class of errors, which JSON cannot hold. The reader of the document gives it again."""

    type: Literal["class"]
    name: Name


def _function_or(value: Any, validate: Callable[[Any], Any]) -> Any:
    return value if callable(value) else validate(value)


When: TypeAlias = Annotated[
    AnyCondition, WrapValidator(_function_or, json_schema_input_type=AnyCondition | FunctionMark)
]
"""A condition or a function."""


class Value:
    """The base of the values of a definition. Constructors check nothing; `build()` reports all problems at once.

    The annotations are the rules, for Python and for JSON.
    """

    __slots__ = ()
    __pydantic_config__ = ConfigDict(
        extra="forbid",
        revalidate_instances="always",
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
        validate_by_name=True,
        use_attribute_docstrings=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(Value):
    """An agent as data. `build()` creates it with the chat client of the builder.

    `tools` are names of tools given to the builder. `options` are options of the chat client, such as `temperature`.
    Both are stored with the definition, so wrap an API key or a password in a `Secret`, which is left out.
    """

    name: Name | None = None
    """The name of the agent; by default the id of the node."""
    instructions: StrictStr | None = None
    description: StrictStr | None = None
    """The purpose of the agent."""
    model: Name | None = None
    """The model, if not that of the client."""
    tools: tuple[Name, ...] = ()
    """Names of tools that are given to the builder."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the chat client, such as temperature."""


def _agent(value: Any, validate: Callable[[Any], Any]) -> Any:
    return value if isinstance(value, SupportsAgentRun) else validate(value)


@with_config(ConfigDict(extra="allow"))
class ObjectSchema(TypedDict, total=False):
    """The JSON schema of an object."""

    type: Literal["object"]
    properties: dict[str, Any]
    title: StrictStr


@with_config(ConfigDict(extra="allow"))
class TitledSchema(TypedDict):
    """The JSON schema of one of several types, which is known by its title."""

    type: NotRequired[Literal["object"]]
    properties: NotRequired[dict[str, Any]]
    title: Name


def _shape(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Accept a class, or a JSON schema, of which a copy is kept."""
    if isinstance(value, type):
        return cast("object", value)
    validate(value)
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class TextOutput(Value):
    """The agent's answer as a text, under one key."""

    key: Name = ANSWER


@dataclass(frozen=True, slots=True)
class StructuredOutput(Value):
    """The agent's answer as a value: a pydantic model or a JSON schema. Its fields are keys, and `result` is the whole.

    `mode` selects how the model is made to answer in this form: the provider's own support, or a forced tool call.
    """

    type: Annotated[Shape, read_as(Annotated[ObjectSchema, WrapValidator(_shape)]), Field(alias="schema")]
    mode: Literal["native", "tool"] = "native"


@dataclass(frozen=True, slots=True)
class UnionOutput(Value):
    """A value of one of several types. The model calls the tool of one type; `matched_type` is its name."""

    types: tuple[Annotated[Shape, read_as(Annotated[TitledSchema, WrapValidator(_shape)])], ...]
    """A JSON schema is named by its `title`."""


@dataclass(frozen=True, slots=True)
class Handoffs(Value):
    """A router's choice between nodes. The model calls the tool `handoff_to_<node>`."""

    targets: Annotated[Mapping[StrictStr, StrictStr], Field(min_length=1)]
    """Tells the model, by node, when to choose it."""
    default: Name | None = None
    """The node to take if the model chooses none, though it was told to."""


Output: TypeAlias = TextOutput | StructuredOutput | UnionOutput | Handoffs
OUTPUT_TYPES: Final[Mapping[type[Any], str]] = {
    TextOutput: "text",
    StructuredOutput: "structured",
    UnionOutput: "union",
    Handoffs: "handoffs",
}
"""The `type` of an output in JSON."""
_OUTPUT_FORMS: Final[Any] = Union[  # noqa: UP007 - made from a table
    tuple(Annotated[kind, Tagged(tag), Tag(tag)] for kind, tag in OUTPUT_TYPES.items())
]


def _output_type(value: Any) -> str | None:
    return OUTPUT_TYPES.get(cast("type[Any]", type(value))) or tag_of(value)


_OUTPUT: Final = read_as(Annotated[_OUTPUT_FORMS, Discriminator(_output_type)])

ErrorMode: TypeAlias = Literal["stop", "skip_dependents", "isolate", "fallback"]


@dataclass(frozen=True, slots=True)
class OnError(Value):
    """The reaction to a node that failed in all its attempts.

    `stop`: the run fails; `resume` tries the node again. `skip_dependents`: nodes that depend on it are skipped, others
    go on. `isolate`: all go on; the node's only output is its `error`. `fallback`: another node gets the same task and
    the error, and its output stands for that of the failed node. If the task itself could not be made, because a value
    is missing, `fallback` stops the run too.
    """

    mode: ErrorMode = "stop"
    """The effect on the other nodes."""
    fallback: Name | None = None
    """The node that gets the task, if the mode is `fallback`."""


def _long_on_error(value: Any) -> Any:
    return OnError(cast("ErrorMode", value)) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Approval(Value):
    """Ask a person before a node's output is used. A denial counts as a failure, with the person's reason.

    `when` is a condition or a function of the outputs, sync or async; without it every output needs approval. After
    `timeout` the request counts as denied.
    """

    message: StrictStr | None = None
    """The question."""
    when: Annotated[Condition | Callable[[Mapping[str, Any]], bool | Awaitable[bool]] | None, read_as(When | None)] = (
        None
    )
    """The outputs that need approval; by default all."""
    timeout: Duration | None = None
    """Seconds, after which the request counts as denied."""


def _long_approval(value: Any) -> Any:
    match value:
        case bool():
            return Approval() if value else None
        case str():
            return Approval(value)
        case _:
            return value


@with_config(_FORM)
class RetryForm(TypedDict, total=False):
    """The attempts of a failing node."""

    attempts: Annotated[StrictInt, Field(ge=1)]
    """The number of attempts in all."""
    backoff: Annotated[_Number, WrapValidator(_function_or, json_schema_input_type=_Number | FunctionMark)]
    """Seconds to wait after the first failure."""
    factor: _Number
    """By this factor each further wait is longer."""
    longest: _Number
    """The longest wait in seconds."""
    on: Annotated[
        tuple[type[Exception], ...],
        WrapValidator(_function_or, json_schema_input_type=list[Name | ClassMark] | FunctionMark),
    ]
    """The errors that are worth another attempt."""


def _retry(value: Any, validate: Callable[[Any], RetryForm]) -> Retry:
    if isinstance(value, Retry):
        return value
    return Retry(**validate({"attempts": value} if isinstance(value, int | float) else value))


_RETRY: Final = read_as(
    Annotated[RetryForm, WrapValidator(_retry, json_schema_input_type=Annotated[int, Field(ge=1)] | RetryForm)]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Value):
    """An agent in a workflow: its input, its output, and what happens when it fails.

    Its input is one of: a `template`, the value of an `input_key`, the request (`reads="request"`), the outputs of all
    nodes before it (`reads="upstream"`). Without any of these a first node reads the request, and a node with one node
    before it reads that node's output; for other nodes `build()` asks you to choose.
    """

    id: StrictStr
    agent: Annotated[SupportsAgentRun | AgentConfig, read_as(Annotated[AgentConfig, WrapValidator(_agent)])]
    output: Annotated[Output, _OUTPUT] = field(default_factory=TextOutput)
    input_key: Name | None = None
    """The value that the node reads: key, node.key, or input."""
    template: StrictStr | None = None
    """The text that the node reads, with {{key}}, {{node.key}} or {{input}} in it."""
    reads: Literal["request", "upstream"] | None = None
    """The node reads the request, or the outputs of all nodes before it."""
    instructions: StrictStr | None = None
    """Instructions in addition to those of the agent."""
    retry: Annotated[Retry, _RETRY] | None = None
    timeout: Annotated[_Timeout | _Seconds, AfterValidator(_require_finite), _POSITIVE] | None = None
    """Seconds for each attempt."""
    on_error: Annotated[OnError, BeforeValidator(_long_on_error, json_schema_input_type=ErrorMode | OnError)] = field(
        default_factory=OnError
    )
    approval: Annotated[
        Approval | None, BeforeValidator(_long_approval, json_schema_input_type=bool | str | Approval | None)
    ] = None


@dataclass(frozen=True, slots=True)
class EdgeContext:
    """The argument of a predicate: an edge, the outputs of its source, and the request."""

    source: str
    target: str
    outputs: Mapping[str, Any]
    input: Any


Predicate: TypeAlias = Callable[[EdgeContext], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class AllOf:
    """A predicate that holds if all its parts do. It calls them in order, up to the first that does not hold."""

    parts: tuple[Predicate, ...]

    async def __call__(self, context: EdgeContext) -> bool:
        """Return True if every part holds."""
        for part in self.parts:
            answer = part(context)
            if not (await answer if inspect.isawaitable(answer) else answer):
                return False
        return True


def all_of(*predicates: Predicate | None) -> Predicate | None:
    """Combine predicates into one that holds if all do; return None if there are none."""
    parts = tuple(part for each in predicates for part in predicate_parts(each))
    return AllOf(parts) if len(parts) > 1 else next(iter(parts), None)


def predicate_parts(predicate: Predicate | None) -> tuple[Predicate, ...]:
    """Return the user's functions that a predicate is made of."""
    if predicate is None:
        return ()
    return predicate.parts if isinstance(predicate, AllOf) else (predicate,)


def predicate_name(predicate: Predicate) -> str | None:
    """Return the name of a function; None for a lambda."""
    name = getattr(predicate, "__name__", type(predicate).__name__)
    return name if name.isidentifier() else None


@dataclass(frozen=True, slots=True)
class Edge(Value):
    """A connection of two nodes. It is taken always, or when its condition and its predicate hold, or by default.

    With both a condition and a predicate, both must hold. A default edge is taken if no conditional edge of its source
    was taken.
    """

    source: StrictStr
    target: StrictStr
    condition: Annotated[Condition, read_as(AnyCondition)] | None = None
    predicate: Predicate | None = None
    is_default: StrictBool = False

    @property
    def is_conditional(self) -> bool:
        """Return True if the edge depends on the output of its source."""
        return self.condition is not None or self.predicate is not None

    @property
    def name(self) -> str:
        """Return the edge as texts name it: `'a' -> 'b'`."""
        return f"{self.source!r} -> {self.target!r}"

    @property
    def requirement(self) -> str | None:
        """Describe what must hold for the edge to be taken; None if it is always taken."""
        if self.is_default:
            return "no other condition holds"
        parts = [] if self.condition is None else [self.condition.describe()]
        names = map(predicate_name, predicate_parts(self.predicate))
        parts += ["a predicate holds" if name is None else f"{name}() holds" for name in names]
        return " and ".join(parts) or None


@dataclass(frozen=True, slots=True)
class Iterations(Value):
    """The limits of loops: at most `limit` passes, and none after a pass that changed nothing (`converges`).

    Nested loops share their passes; other loops count their own. At the limit the run fails, or with `then="leave"` the
    loop is left as if its condition did not hold.
    """

    limit: Annotated[StrictInt, Field(ge=1)] = 25
    """The most passes."""
    then: Literal["fail", "leave"] = "fail"
    """The effect of the limit."""
    converges: StrictBool = True
    """Leave a loop after a pass that changed nothing."""
    ignored_keys: frozenset[Name] = frozenset()
    """Output keys that do not count as a change."""
    change_aware: StrictBool = False
    """Skip a node in a further pass if its task is the same as in the pass before."""


ConversationKind: TypeAlias = Literal["none", "shared", "per_agent", "fork_per_agent"]


@dataclass(frozen=True, slots=True)
class Conversation(Value):
    """The threads that keep the messages of agents, apart from checkpoints.

    `shared`: one thread for all. `per_agent`: one thread per node. `fork_per_agent`: a root thread with the request,
    and a fork of it per node. Without a `session_id` each execution has its own session.
    """

    kind: ConversationKind = "none"
    session_id: Name | None = None
    """The session; by default each execution has its own."""
    thread_id: Name | None = None
    """The id of the shared thread, or of the root."""
    thread_prefix: StrictStr | None = None
    """The prefix of the threads of agents."""

    @property
    def root_id(self) -> str | None:
        """Return the id of the root thread, if the other threads are forks of one."""
        return (self.thread_id or "root") if self.kind == "fork_per_agent" else None

    def thread_of(self, node_id: str) -> str:
        """Return the id of a node's thread."""
        if self.kind == "shared":
            return self.thread_id or "main"
        return f"{'agent-' if self.thread_prefix is None else self.thread_prefix}{node_id}"


class ConversationPolicies:
    """The conversation policies by name. All but `none` need a session store."""

    @staticmethod
    def none() -> Conversation:
        """Keep no messages."""
        return Conversation()

    @staticmethod
    def shared_thread(*, session_id: str | None = None, thread_id: str | None = None) -> Conversation:
        """Let all nodes share one thread: each sees all messages before its own."""
        return Conversation("shared", session_id=session_id, thread_id=thread_id)

    @staticmethod
    def thread_per_agent(*, session_id: str | None = None, thread_prefix: str | None = None) -> Conversation:
        """Give each node its own thread, with its own earlier messages."""
        return Conversation("per_agent", session_id=session_id, thread_prefix=thread_prefix)

    @staticmethod
    def fork_thread_per_agent(
        *, session_id: str | None = None, root_thread_id: str | None = None, thread_prefix: str | None = None
    ) -> Conversation:
        """Put the request into a root thread, and give each node a fork of it."""
        return Conversation(
            "fork_per_agent", session_id=session_id, thread_id=root_thread_id, thread_prefix=thread_prefix
        )


def fallback(node_id: str) -> OnError:
    """Return the `on_error` that hands the task and the error to another node."""
    return OnError("fallback", node_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition(Value):
    """A whole agent workflow."""

    name: Name | None
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    """The declared edges. `Plan` adds the implied ones from START and to END."""
    description: StrictStr | None = None
    version: StrictStr | None = None
    iterations: Iterations = field(default_factory=Iterations)
    timeout: Duration | None = None
    conversation: Conversation = field(default_factory=Conversation)

    def node(self, node_id: str) -> Node:
        """Return a node by its id. Raises KeyError."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)
