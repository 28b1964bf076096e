"""The definition of an agent workflow as frozen values: nodes, edges and settings. Nothing here runs.

The annotations are also the rules: `validation` checks a whole definition against them with pydantic.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import ConfigDict, Discriminator, Field, InstanceOf, SkipValidation, Tag

from perdure import Retry, SupportsAgentRun  # noqa: TC001 - pydantic reads the annotations
from perdure.agent_workflows.definition.conditions import Condition  # noqa: TC001 - pydantic reads the annotations

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

Name: TypeAlias = Annotated[str, Field(min_length=1)]
Timeout: TypeAlias = Annotated[timedelta, Field(gt=timedelta(0))]
Seconds: TypeAlias = Annotated[int, Field(gt=0)] | Annotated[float, Field(gt=0, allow_inf_nan=False)]
Shape: TypeAlias = type[Any] | Mapping[str, Any]
"""The form of a structured value: a pydantic model or a JSON schema."""


class Value:
    """The base of the values of a definition. Constructors check nothing; `build()` reports all problems at once."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(strict=True, revalidate_instances="always", arbitrary_types_allowed=True)


def copy_plain(value: Any) -> Any:
    """Copy nested dicts, lists and tuples, so that a definition does not change when its input does."""
    try:
        return _copy(value)
    except RecursionError:
        return value  # It is too deep or contains itself; validation reports that.


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if type(value) is list:
        return [_copy(each) for each in cast("list[Any]", value)]
    if type(value) is tuple:
        return tuple(_copy(each) for each in cast("tuple[Any, ...]", value))
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig(Value):
    """An agent as data. `build()` creates it with the chat client of the builder.

    `tools` are names of tools given to the builder. `options` are options of the chat client, such as `temperature`.
    Both are stored with the definition, so wrap an API key or a password in a `Secret`, which is left out.
    """

    name: str | None = None
    instructions: str | None = None
    description: str | None = None
    model: str | None = None
    tools: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", copy_plain(self.options))


@dataclass(frozen=True, slots=True)
class TextOutput(Value):
    """The agent's answer as a text, under one key."""

    key: Name = ANSWER


@dataclass(frozen=True, slots=True)
class StructuredOutput(Value):
    """The agent's answer as a value: a pydantic model or a JSON schema. Its fields are keys, and `result` is the whole.

    `mode` selects how the model is made to answer in this form: the provider's own support, or a forced tool call.
    """

    type: SkipValidation[Shape]
    mode: Literal["native", "tool"] = "native"

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", copy_plain(self.type))


@dataclass(frozen=True, slots=True)
class UnionOutput(Value):
    """A value of one of several types. The model calls the tool of one type; `matched_type` is its name."""

    types: tuple[SkipValidation[Shape], ...]
    """A JSON schema is named by its `title`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", copy_plain(self.types))


@dataclass(frozen=True, slots=True)
class Handoffs(Value):
    """A router's choice between nodes. The model calls the tool `handoff_to_<node>`."""

    targets: Mapping[str, str]
    """Tells the model, by node, when to choose it."""
    default: str | None = None
    """The node to take if the model chooses none, though it was told to."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", copy_plain(self.targets))


Output: TypeAlias = TextOutput | StructuredOutput | UnionOutput | Handoffs
_CheckedOutput: TypeAlias = Annotated[
    Annotated[TextOutput, Tag("TextOutput")]
    | Annotated[StructuredOutput, Tag("StructuredOutput")]
    | Annotated[UnionOutput, Tag("UnionOutput")]
    | Annotated[Handoffs, Tag("Handoffs")],
    Discriminator(lambda value: type(value).__name__),
]

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
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class Approval(Value):
    """Ask a person before a node's output is used. A denial counts as a failure, with the person's reason.

    `when` is a condition or a function of the outputs, sync or async; without it every output needs approval. After
    `timeout` the request counts as denied.
    """

    message: str | None = None
    when: Condition | Callable[[Mapping[str, Any]], bool | Awaitable[bool]] | None = None
    timeout: Timeout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Value):
    """An agent in a workflow: its input, its output, and what happens when it fails.

    Its input is one of: a `template`, the value of an `input_key`, the request (`reads="request"`), the outputs of all
    nodes before it (`reads="upstream"`). Without any of these a first node reads the request, and a node with one node
    before it reads that node's output; for other nodes `build()` asks you to choose.
    """

    id: str
    agent: SkipValidation[SupportsAgentRun | AgentConfig]
    output: _CheckedOutput = field(default_factory=TextOutput)
    input_key: str | None = None
    template: str | None = None
    reads: Literal["request", "upstream"] | None = None
    instructions: str | None = None
    retry: InstanceOf[Retry] | None = None
    timeout: Timeout | Seconds | None = None
    on_error: OnError = field(default_factory=OnError)
    approval: Approval | None = None


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

    source: str
    target: str
    condition: Condition | None = None
    predicate: Predicate | None = None
    is_default: bool = False

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

    limit: Annotated[int, Field(ge=1)] = 25
    then: Literal["fail", "leave"] = "fail"
    converges: bool = True
    ignored_keys: frozenset[str] = frozenset()
    """Output keys that do not count as a change."""
    change_aware: bool = False
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
    thread_id: Name | None = None
    """The id of the shared thread, or of the root."""
    thread_prefix: str | None = None

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
    description: str | None = None
    version: str | None = None
    iterations: Iterations = field(default_factory=Iterations)
    timeout: Timeout | None = None
    conversation: Conversation = field(default_factory=Conversation)

    def node(self, node_id: str) -> Node:
        """Return a node by its id. Raises KeyError."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)
