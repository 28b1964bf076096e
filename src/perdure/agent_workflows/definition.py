"""What an agent workflow is made of: nodes, edges and settings, as frozen values. Nothing here runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from perdure.agent_workflows.copying import plain_copy

if TYPE_CHECKING:
    from datetime import timedelta

    from perdure import Retry, SupportsAgentRun
    from perdure.agent_workflows.agents import AgentConfig
    from perdure.agent_workflows.conditions import Condition

START: Final = "START"
"""Stands for the request: an edge from it makes a node one of the first."""
END: Final = "END"
"""Stands for the result: what has an edge to it gives the final answer."""
INPUT: Final = "input"
"""The key under which the request itself is read; `input.topic` is an entry of a request that is a dict."""
ANSWER: Final = "answer"
"""The key of what an agent says, unless the node names another."""
RESULT: Final = "result"
"""The key of a structured output as a whole."""
MATCHED_TYPE: Final = "matched_type"
"""The key that says which of several types an output has."""
HANDOFF_TARGET: Final = "handoff_target"
"""The key that says whom a router has chosen."""
ERROR: Final = "error"
"""The key of an isolated failure, in place of an output."""


@dataclass(frozen=True, slots=True)
class TextOutput:
    """What the agent says, as a text under one key."""

    key: str = ANSWER


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What the agent says, as a value: a pydantic model, or a JSON schema. Its fields are keys, beside `result`.

    `mode` says how the model is made to answer so: by what its provider has for that, or by a tool that it has to call.
    """

    type: type[Any] | Mapping[str, Any]
    mode: Literal["native", "tool"] = "native"

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", plain_copy(self.type))


@dataclass(frozen=True, slots=True)
class UnionOutput:
    """A value of one of several types: the model calls the tool of one of them. `matched_type` is its name."""

    types: tuple[type[Any] | Mapping[str, Any], ...]
    """A JSON schema is named by its `title`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", plain_copy(self.types))


@dataclass(frozen=True, slots=True)
class Handoffs:
    """The choice of a router: one of several nodes, by calling the tool `handoff_to_<node>`."""

    targets: Mapping[str, str]
    """By node: when to choose it, as the model is told."""
    default: str | None = None
    """Who is chosen if the model chooses nobody, though it was told to."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", plain_copy(self.targets))


Output: TypeAlias = TextOutput | StructuredOutput | UnionOutput | Handoffs

ErrorMode: TypeAlias = Literal["stop", "skip_dependents", "isolate", "fallback"]


@dataclass(frozen=True, slots=True)
class OnError:
    """What a failure of a node does, once all attempts have failed.

    `stop`: the run fails, and goes on with that node when it is resumed. `skip_dependents`: what depends on the node is
    skipped, the rest goes on. `isolate`: all goes on as if the node had said nothing; its output is its `error`.
    `fallback`: another node is given the same task and the error, and what it says stands for the output of the node.
    A node that could not be told its task stops the run with this mode, too.
    """

    mode: ErrorMode = "stop"
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """Asks a person when a node has spoken, before its output is used. Denied is failed, with the reason.

    `when` is a condition, or a function of the outputs, sync or async; without it every output is asked about. When the
    `timeout` has passed it is denied.
    """

    message: str | None = None
    when: Condition | Callable[[Mapping[str, Any]], bool | Awaitable[bool]] | None = None
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An agent in a workflow: what it reads, what it writes, and what happens when it fails.

    It reads one of: a `template`, the value of an `input_key`, the request (`reads="request"`), all that nodes
    before it said (`reads="upstream"`). With none of them: the request if it is a first node, what the one node
    before it has put out, if there is one; else `build()` says that it has to be named.
    """

    id: str
    agent: SupportsAgentRun | AgentConfig
    output: Output = field(default_factory=TextOutput)
    input_key: str | None = None
    template: str | None = None
    reads: Literal["request", "upstream"] | None = None
    instructions: str | None = None
    retry: Retry | None = None
    timeout: timedelta | float | None = None
    on_error: OnError = field(default_factory=OnError)
    approval: Approval | None = None


@dataclass(frozen=True, slots=True)
class EdgeContext:
    """What a predicate is asked about: an edge, and the outputs of the node that it comes from."""

    source: str
    target: str
    outputs: Mapping[str, Any]
    input: Any


Predicate: TypeAlias = Callable[[EdgeContext], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Edge:
    """Joins two nodes. It is taken always, or when its condition and its predicate hold, or if no other one was taken.

    With both of them, both have to hold. `is_default`: taken if none of the edges of its source that have a condition
    or predicate was.
    """

    source: str
    target: str
    condition: Condition | None = None
    predicate: Predicate | None = None
    is_default: bool = False

    @property
    def is_conditional(self) -> bool:
        """Whether it depends on what the source has put out."""
        return self.condition is not None or self.predicate is not None


@dataclass(frozen=True, slots=True)
class Iterations:
    """How loops end: after `limit` passes at the latest, or when a pass has changed nothing (`converges`).

    Loops inside of each other have their passes together, any others each for itself.
    `then` says what happens at the limit: the run fails, or the loop is left as if its condition did not hold.
    """

    limit: int = 25
    then: Literal["fail", "leave"] = "fail"
    converges: bool = True
    ignored_keys: frozenset[str] = frozenset()
    """Keys that don't count when it is compared what a pass has changed."""
    change_aware: bool = False
    """In a further pass, a node whose task is the same as in the one before does not act again."""


ConversationKind: TypeAlias = Literal["none", "shared", "per_agent", "fork_per_agent"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Where what agents say is kept as conversations, apart from checkpoints.

    `shared`: one thread for all. `per_agent`: a thread for each node. `fork_per_agent`: a root thread with the request,
    and for each node a fork of it. Without a `session_id` each execution has a session of its own.
    """

    kind: ConversationKind = "none"
    session_id: str | None = None
    thread_id: str | None = None
    """Of the shared thread, or of the root."""
    thread_prefix: str | None = None

    @property
    def root_id(self) -> str | None:
        """The thread with the request, of which the others are forks, if there is one."""
        return (self.thread_id or "root") if self.kind == "fork_per_agent" else None

    def thread_of(self, node_id: str) -> str:
        """The thread that a node speaks in."""
        if self.kind == "shared":
            return self.thread_id or "main"
        return f"{'agent-' if self.thread_prefix is None else self.thread_prefix}{node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A whole agent workflow. `checked` of the module `checking` says whether it makes sense."""

    name: str | None
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    """As they were declared; those that are implied, from START and to END, are for `plan`."""
    description: str | None = None
    version: str | None = None
    iterations: Iterations = field(default_factory=Iterations)
    timeout: timedelta | None = None
    conversation: Conversation = field(default_factory=Conversation)

    def node(self, node_id: str) -> Node:
        """A node by its id. Raises KeyError."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)
