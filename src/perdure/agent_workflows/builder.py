"""`AgentWorkflowBuilder`: agents, edges and settings, put together with method calls and validated as a whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypedDict, cast

from typing_extensions import Unpack

from perdure import (
    Agent,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Retry,
    SqliteCheckpointStorage,
    SupportsAgentRun,
    WorkflowException,
)
from perdure.agent_workflows.definition import conditions, values
from perdure.agent_workflows.definition.conditions import Condition, Equals
from perdure.agent_workflows.errors import AgentWorkflowBuildError, AgentWorkflowError, describe, quoted
from perdure.agent_workflows.graph import Parts
from perdure.agent_workflows.node import AgentNode
from perdure.agent_workflows.outputs import title_of
from perdure.agent_workflows.stores import LATEST, Keep, open_store, retention_of
from perdure.agent_workflows.validation import check_kinds, structure_problems
from perdure.agent_workflows.workflow import AgentWorkflow
from perdure.threads import FileSessionStore, InMemorySessionStore, SessionStore, SqliteSessionStore

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from perdure import CheckpointStorage, Clock, SupportsChatGetResponse

    AgentLike: TypeAlias = SupportsAgentRun | values.AgentConfig | AgentWorkflow
    OnErrorLike: TypeAlias = Literal["stop", "skip_dependents", "isolate"] | values.OnError

_SESSION_STORE_METHODS: Final = ("append", "messages", "thread", "fork")


class NodeOptions(TypedDict, total=False):
    """Options of every node."""

    input_key: str | None
    template: str | None
    reads: Literal["request", "upstream"] | None
    instructions: str | None
    retry: Retry | int | None
    timeout: timedelta | float | None
    on_error: OnErrorLike
    approval: bool | str | values.Approval | None


class AgentWorkflowBuilder:
    """Describe an agent workflow; every method returns the builder.

    `AgentWorkflow.create()` returns an empty one, `from_config` and `from_json` one with a definition. `build()`
    validates the whole, and reports all problems at once.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        # The nodes and edges, and the agents, are added by `build`.
        self._parts = Parts(definition=values.Definition(name=None, nodes=(), edges=()), agents={}, clock=clock)
        self._problems: list[str] = []
        self._nodes: list[values.Node] = []
        self._edges: list[values.Edge] = []
        self._sources: tuple[str, ...] = ()
        # `to` was called after the last `from_`.
        self._has_target = True
        # The number of edges that the last `to` added.
        self._latest = 0
        # Pairs of a node and a type by which `when_type` routes.
        self._routed_types: list[tuple[str, str]] = []
        self._client: SupportsChatGetResponse | None = None
        self._tools: dict[str, Any] = {}

    def include(self, definition: values.Definition) -> AgentWorkflowBuilder:
        """Add the nodes and edges of a definition, and take over its settings."""
        self._parts.definition = replace(definition, nodes=(), edges=())
        self._nodes += definition.nodes
        self._edges += definition.edges
        return self

    def _set(self, **settings: Any) -> Self:
        self._parts.definition = replace(self._parts.definition, **settings)
        return self

    def with_name(self, name: str) -> Self:
        """Name the workflow. The store finds its executions and definitions by this name."""
        return self._set(name=name)

    def with_description(self, description: str) -> Self:
        """Describe the workflow, for people and for models that use it as a tool."""
        return self._set(description=description)

    def with_version(self, version: str) -> Self:
        """Set the author's version of the workflow. It is stored with the definition and has no effect."""
        return self._set(version=version)

    def with_checkpointing(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - part of the public API
        """Store executions in the workflow store, so that they can be resumed. Without this only definitions are."""
        self._parts.is_checkpointed = enabled
        return self

    def with_in_memory_workflow_store(self, retention: Keep = LATEST) -> Self:
        """Keep definitions and checkpoints in this process: for tests and short-lived executions."""
        return self.with_workflow_store(InMemoryCheckpointStorage(**self._store_options(retention)))

    def with_json_workflow_store(self, root_directory: str | os.PathLike[str], retention: Keep = LATEST) -> Self:
        """Keep definitions and checkpoints in a directory of readable files."""
        return self.with_workflow_store(FileCheckpointStorage(root_directory, **self._store_options(retention)))

    def with_sqlite_workflow_store(self, path: str | os.PathLike[str], retention: Keep = LATEST) -> Self:
        """Keep definitions and checkpoints in one SQLite file."""
        return self.with_workflow_store(SqliteCheckpointStorage(path, **self._store_options(retention)))

    def _store_options(self, retention: Keep) -> dict[str, Any]:
        return {"retention": retention_of(retention), "clock": self._parts.clock}

    def with_workflow_store(self, storage: CheckpointStorage | str, retention: Keep | None = None) -> Self:
        """Keep definitions and checkpoints in a storage, or in the one of a URL.

        The storage of a URL keeps the latest checkpoint of each execution, unless `retention` is given. A storage
        object has its own retention. Executions use its clock. A storage of your own class keeps no definitions.
        """
        try:
            self._parts.storage = open_store(storage, retention)
        except TypeError as error:
            self._problems.append(f"with_workflow_store: {error}")
            self._parts.storage = cast("Any", storage)
        return self

    def with_session_store(self, store: SessionStore) -> Self:
        """Keep conversations in this store, if there is a conversation policy."""
        if not all(callable(getattr(store, name, None)) for name in _SESSION_STORE_METHODS):
            given = "a text" if isinstance(store, str) else describe(store)  # A URL may contain a password.
            self._problems.append(
                "with_session_store takes a session store, such as SqliteSessionStore(path) of perdure.threads, "
                f"not {given}"
            )
        self._parts.session_store = store
        return self

    def with_in_memory_session_store(self) -> Self:
        """Keep conversations in this process."""
        return self.with_session_store(InMemorySessionStore(clock=self._parts.clock))

    def with_json_session_store(self, root_directory: str | os.PathLike[str]) -> Self:
        """Keep conversations in a directory of readable files."""
        return self.with_session_store(FileSessionStore(root_directory, clock=self._parts.clock))

    def with_sqlite_session_store(self, path: str | os.PathLike[str]) -> Self:
        """Keep conversations in one SQLite file."""
        return self.with_session_store(SqliteSessionStore(path, clock=self._parts.clock))

    def with_conversation(self, policy: values.Conversation) -> Self:
        """Set the conversation policy: one of `ConversationPolicies`."""
        return self._set(conversation=policy)

    def with_chat_client(self, client: SupportsChatGetResponse) -> Self:
        """Create the agents that are `AgentConfig`s with this client."""
        self._client = client
        return self

    def with_tools(self, tools: Mapping[str, Any]) -> Self:
        """Give the tools that `AgentConfig`s name."""
        self._tools |= tools
        return self

    def with_max_iterations(
        self,
        limit: int,
        *,
        then: Literal["fail", "leave"] = "fail",
        converges: bool = True,
        ignored_keys: Iterable[str] = (),
        change_aware: bool = False,
    ) -> Self:
        """Limit the passes of loops. At the limit the execution fails, or the loop is left.

        With `converges` a loop is left after a pass that changed no output but `ignored_keys`. With `change_aware` a
        node whose task is the same as in the pass before is not run again.
        """
        return self._set(iterations=values.Iterations(limit, then, converges, cast("Any", ignored_keys), change_aware))

    def with_timeout(self, timeout: timedelta) -> Self:
        """Limit the time of an execution, waiting included. It is cancelled then, and can be resumed."""
        return self._set(timeout=timeout)

    def add_agent(
        self,
        node_id: str,
        agent: AgentLike,
        *,
        output_key: str | None = None,
        structured_output: values.Shape | None = None,
        structured_mode: Literal["native", "tool"] | None = None,
        union_output: Sequence[values.Shape] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self:
        """Add an agent as a node. Edges decide the order of execution; the order of adding does not matter.

        The input is one of: `template`, a text with `{{key}}`, `{{node.key}}`, `{{input}}`; `input_key`, one such
        value; `reads="request"`; `reads="upstream"`, the outputs of all nodes before it. By default a first node reads
        the request, and a node with one node before it reads that node's output.

        The output is a text under `output_key`, or a value: `structured_output` is a pydantic model or a JSON schema,
        `union_output` several of which the agent chooses one. `instructions` are added to those of the agent.

        A failing node is tried again by `retry`, a number or a `Retry`, each time for at most `timeout`; then
        `on_error` applies: "stop", "skip_dependents", "isolate" or `fallback("node")`. With `approval` a person is
        asked before the output is used: True, the question, or an `Approval`.
        """
        shapes = {"output_key": output_key, "structured_output": structured_output, "union_output": union_output}
        given = [name for name, value in shapes.items() if value is not None]
        if len(given) > 1:
            self._problems.append(f"node {node_id!r}: its output is given by {' and '.join(given)}: give one of them")
        if structured_mode is not None and structured_output is None:
            self._problems.append(f"node {node_id!r}: structured_mode goes with structured_output: give both or none")
        output: values.Output = values.TextOutput() if output_key is None else values.TextOutput(output_key)
        if structured_output is not None:
            output = values.StructuredOutput(structured_output, structured_mode or "native")
        elif union_output is not None:
            output = values.UnionOutput(cast("Any", union_output))
        return self._add(node_id, agent, output, options)

    def add_router_agent(
        self,
        node_id: str,
        agent: AgentLike,
        *,
        handoffs: Mapping[str, str] | None = None,
        default_handoff: str | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self:
        """Add an agent that chooses the next node. `handoffs` tell the model, by node, when to choose it.

        The edges to these nodes are added automatically. `with_handoff` and `with_default_handoff` can follow instead
        of the arguments. The default is taken if the model chooses none.
        """
        return self._add(node_id, agent, values.Handoffs(handoffs or {}, default_handoff), options)

    def with_handoff(self, target: str, description: str) -> Self:
        """Let the router that was just added choose this node."""
        output = self._last_router("with_handoff")
        return self._set_router(replace(output, targets={**output.targets, target: description}))

    def with_default_handoff(self, target: str) -> Self:
        """Set the default of the router that was just added."""
        return self._set_router(replace(self._last_router("with_default_handoff"), default=target))

    def _last_router(self, method: str) -> values.Handoffs:
        output = self._nodes[-1].output if self._nodes else None
        if not isinstance(output, values.Handoffs):
            raise AgentWorkflowBuildError(
                f"{method} changes the router that was just added, and there is none: call it right after "
                "add_router_agent"
            )
        return output

    def _set_router(self, output: values.Handoffs) -> Self:
        self._nodes[-1] = replace(self._nodes[-1], output=output)
        return self

    def _add(self, node_id: str, agent: AgentLike, output: values.Output, options: NodeOptions) -> Self:
        node_agent = agent.as_agent() if isinstance(agent, AgentWorkflow) else agent
        # Validation turns short forms into values: 3 into Retry(3), "isolate" into OnError("isolate").
        self._nodes.append(values.Node(id=node_id, agent=node_agent, output=output, **cast("Any", options)))
        return self

    def from_(self, *nodes: str) -> Self:
        """Set the sources of the next edges: nodes, or `START`."""
        self._problems += self._dangling()
        self._sources, self._latest, self._has_target = self._require_ids("from_", nodes), 0, False
        return self

    def to(self, *nodes: str, when: Condition | values.Predicate | None = None) -> Self:
        """Add an edge from each node of `from_` to each of these nodes, or to `END`."""
        targets = self._require_ids("to", nodes)
        added = [values.Edge(source, target) for source in self._require_sources("to") for target in targets]
        self._edges += added
        self._latest, self._has_target = len(added), True
        return self if when is None else self.when(when)

    def when(self, condition: Condition | values.Predicate) -> Self:
        """Take the edges just added only if this holds for the output of their source; several must all hold.

        A condition can be stored with the workflow. A predicate is a function of an `EdgeContext`, sync or async.
        """
        if isinstance(condition, Condition):
            return self._change("when", lambda edge: _with_condition(edge, condition))
        if not callable(condition):
            raise TypeError(f"when takes a condition or a function of an EdgeContext, not {condition!r}")
        return self._change("when", lambda edge: replace(edge, predicate=values.all_of(edge.predicate, condition)))

    def as_default(self) -> Self:
        """Take the edges just added if no conditional edge of their source was taken."""
        return self._change("as_default", lambda edge: replace(edge, is_default=True))

    def when_equals(self, key: str, value: Any) -> Self:
        """Require that the value of the key is this one."""
        return self.when(conditions.Equals(key, value))

    def when_not_equals(self, key: str, value: Any) -> Self:
        """Require that the value of the key is another one, or missing."""
        return self.when(conditions.NotEquals(key, value))

    def when_exists(self, key: str) -> Self:
        """Require a value under the key."""
        return self.when(conditions.Exists(key))

    def when_not_exists(self, key: str) -> Self:
        """Require that there is no value under the key."""
        return self.when(conditions.NotExists(key))

    def when_greater_than(self, key: str, value: float | str) -> Self:
        """Require that the value of the key is greater."""
        return self.when(conditions.GreaterThan(key, value))

    def when_less_than(self, key: str, value: float | str) -> Self:
        """Require that the value of the key is less."""
        return self.when(conditions.LessThan(key, value))

    def when_at_least(self, key: str, value: float | str) -> Self:
        """Require that the value of the key is this or greater."""
        return self.when(conditions.AtLeast(key, value))

    def when_at_most(self, key: str, value: float | str) -> Self:
        """Require that the value of the key is this or less."""
        return self.when(conditions.AtMost(key, value))

    def when_contains(self, key: str, value: Any) -> Self:
        """Require that the text, list or dict under the key contains this."""
        return self.when(conditions.Contains(key, value))

    def when_starts_with(self, key: str, value: str) -> Self:
        """Require that the text under the key starts so."""
        return self.when(conditions.StartsWith(key, value))

    def when_ends_with(self, key: str, value: str) -> Self:
        """Require that the text under the key ends so."""
        return self.when(conditions.EndsWith(key, value))

    def when_matches(self, key: str, pattern: str, *, ignore_case: bool = False) -> Self:
        """Require that the regular expression is found in the text under the key."""
        return self.when(conditions.Matches(key, pattern, ignore_case=ignore_case))

    def when_empty(self, key: str) -> Self:
        """Require that there is nothing under the key: no value, an empty text or list."""
        return self.when(conditions.Empty(key))

    def when_not_empty(self, key: str) -> Self:
        """Require that there is something under the key."""
        return self.when(conditions.NotEmpty(key))

    def when_contains_any(self, key: str, values: Sequence[Any]) -> Self:
        """Require one of these in the text, list or dict under the key."""
        return self.when(conditions.ContainsAny(key, values))

    def when_contains_all(self, key: str, values: Sequence[Any]) -> Self:
        """Require all of these in the text, list or dict under the key."""
        return self.when(conditions.ContainsAll(key, values))

    def route_by_type(self) -> Self:
        """Route by the type of the output of the one node of `from_`: `when_type` and `default` follow."""
        sources = self._require_sources("route_by_type")
        if len(sources) > 1:
            raise AgentWorkflowBuildError(
                f"route_by_type is about the output of one node, not of {quoted(sources)}: call from_ and "
                "route_by_type for each"
            )
        return self

    def when_type(self, type_: type[Any] | Mapping[str, Any] | str, *targets: str) -> Self:
        """Go to these nodes if the output has this type: a class of the `union_output`, or the title of a schema."""
        name = type_ if isinstance(type_, str) else title_of(type_)
        self._routed_types += [(source, name) for source in self._require_sources("when_type")]
        return self.to(*targets).when(Equals(values.MATCHED_TYPE, name))

    def default(self, *targets: str) -> Self:
        """Go to these nodes if no conditional edge was taken."""
        return self.to(*targets).as_default()

    @staticmethod
    def _require_ids(method: str, nodes: tuple[str, ...]) -> tuple[str, ...]:
        if not nodes:
            raise AgentWorkflowBuildError(f"{method} needs the id of a node at least")
        for each in nodes:
            if not isinstance(each, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
                raise TypeError(f"{method} takes the ids of nodes, as {method}('a', 'b'), not {describe(each)}")
        return nodes

    def _dangling(self) -> list[str]:
        if self._has_target:
            return []
        return [f"from_({quoted(self._sources)}) leads nowhere: call to('node') after it, or leave it out"]

    def _require_sources(self, method: str) -> tuple[str, ...]:
        if not self._sources:
            raise AgentWorkflowBuildError(f"{method} has to know where its edges begin: call from_('node') before it")
        return self._sources

    def _change(self, method: str, change: Callable[[values.Edge], values.Edge]) -> Self:
        if not self._latest:
            raise AgentWorkflowBuildError(
                f"{method} is about edges that were just added, and there are none: call it right after "
                "from_('node').to('node')"
            )
        self._edges[-self._latest :] = [change(edge) for edge in self._edges[-self._latest :]]
        return self

    def build(self) -> AgentWorkflow:
        """Validate the whole and create a workflow. Raises AgentWorkflowBuildError with all problems."""
        given = replace(self._parts.definition, nodes=tuple(self._nodes), edges=tuple(self._edges))
        checked, wrong_kinds = check_kinds(given)
        edges = _with_router_edges(checked.nodes, checked.edges)
        definition = replace(checked, name=checked.name or _derive_name(checked.nodes, edges), edges=tuple(edges))
        agents, agent_problems = self._create_agents(definition.nodes)
        parts = replace(self._parts, definition=definition, agents=agents)
        problems = [*self._problems, *self._dangling(), *wrong_kinds]
        problems += [*structure_problems(definition, self._routed_types), *agent_problems]
        problems += [*_node_problems(definition.nodes, agents, problems), *_store_problems(parts)]
        if problems:
            raise AgentWorkflowBuildError(problems)
        try:
            parts.graph("result")
        except (WorkflowException, TypeError, ValueError) as error:
            raise AgentWorkflowBuildError(f"no execution can begin: {error}") from error
        return AgentWorkflow(parts)

    def _create_agents(self, nodes: Sequence[values.Node]) -> tuple[dict[str, SupportsAgentRun], list[str]]:
        agents: dict[str, SupportsAgentRun] = {}
        problems: list[str] = []
        for node in nodes:
            try:
                agents[node.id] = (
                    create_agent(node.agent, name=node.id, client=self._client, tools=self._tools)
                    if isinstance(node.agent, values.AgentConfig)
                    else node.agent
                )
            except AgentWorkflowBuildError as error:
                problems += error.problems
        return agents, problems


def create_agent(
    config: values.AgentConfig, *, name: str, client: SupportsChatGetResponse | None, tools: Mapping[str, Any]
) -> Agent[Any]:
    """Create the agent of a config. Its default name is `name`.

    Raises AgentWorkflowBuildError if there is no client, a tool was not given, or the options are wrong.
    """
    known = quoted(tools) or "none"
    problems = [
        f"agent {name!r} names the tool {tool!r}, and the builder was given {known}; give it that tool, too"
        for tool in config.tools
        if tool not in tools
    ]
    if client is None:
        problems.insert(0, f"agent {name!r} is data and needs a chat client; give the builder one")
    if client is None or problems:
        raise AgentWorkflowBuildError(problems)
    try:
        return Agent(
            client,
            config.instructions,
            id=name,  # A generated id would differ between processes.
            name=config.name or name,
            description=config.description,
            tools=[tools[tool] for tool in config.tools] or None,
            default_options={**config.options, **({} if config.model is None else {"model": config.model})},
        )
    except (TypeError, ValueError) as error:
        raise AgentWorkflowBuildError(f"agent {name!r} can't be created: {error}") from error


def _with_condition(edge: values.Edge, condition: Condition) -> values.Edge:
    return replace(edge, condition=condition if edge.condition is None else edge.condition & condition)


def _with_router_edges(nodes: Sequence[values.Node], edges: Sequence[values.Edge]) -> list[values.Edge]:
    """Return the declared edges, those of routers with their condition, and the undeclared edges of routers."""
    routers = {node.id: node.output for node in nodes if isinstance(node.output, values.Handoffs)}
    declared: list[values.Edge] = []
    for edge in edges:
        router = routers.get(edge.source)
        is_choice = router is not None and edge.target in router.targets and not edge.is_default
        has_condition = edge.condition is not None and values.HANDOFF_TARGET in edge.condition.fields()
        is_added = is_choice and not has_condition
        declared.append(_with_condition(edge, Equals(values.HANDOFF_TARGET, edge.target)) if is_added else edge)
    joined = {(edge.source, edge.target) for edge in declared}
    return declared + [
        values.Edge(router, target, condition=Equals(values.HANDOFF_TARGET, target))
        for router, output in routers.items()
        for target in output.targets
        if (router, target) not in joined
    ]


def _derive_name(nodes: Sequence[values.Node], edges: Sequence[values.Edge]) -> str:
    """Return a name for an unnamed workflow: the same for the same nodes and edges, in every process and order."""
    keys = sorted((edge.source, edge.target) for edge in edges)
    shape = json.dumps([sorted(node.id for node in nodes), keys])
    return f"agent-workflow-{hashlib.blake2b(shape.encode(), digest_size=6).hexdigest()}"


def _node_problems(
    nodes: Sequence[values.Node], agents: Mapping[str, SupportsAgentRun], known: Sequence[str]
) -> Iterator[str]:
    """Name what agents cannot do for their nodes. Nodes with known problems are left out."""
    for node in nodes:
        if node.id not in agents or any(repr(node.id) in problem for problem in known):
            continue
        try:
            AgentNode(node, agents[node.id])
        except (AgentWorkflowError, TypeError, ValueError) as error:
            yield f"node {node.id!r}: {error}"


def _store_problems(parts: Parts) -> Iterator[str]:
    if parts.is_checkpointed and parts.storage is None:
        yield (
            "with_checkpointing() needs a place for checkpoints: add with_json_workflow_store(...), "
            "with_sqlite_workflow_store(...) or with_in_memory_workflow_store()"
        )
    kind, storage = parts.definition.conversation.kind, parts.execution_storage
    if kind == "none":
        return
    is_lasting = storage is not None and not isinstance(storage, InMemoryCheckpointStorage)
    if parts.session_store is None:
        yield (
            f"the conversation policy {kind!r} needs a place for conversations: add with_json_session_store(...), "
            "with_sqlite_session_store(...) or with_in_memory_session_store()"
        )
    elif is_lasting and isinstance(parts.session_store, InMemorySessionStore):
        yield (
            "executions outlast this process and their conversations don't, so a resumed one would not know what was "
            "said: add with_json_session_store(...) or with_sqlite_session_store(...)"
        )
