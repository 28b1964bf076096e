"""`AgentWorkflow`: a built workflow, which runs executions and resumes stored ones."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, overload

from typing_extensions import Unpack

from perdure import WorkflowExecutor
from perdure.agent_workflows.definition.document import Exported, config_schema, definition_of, read_text, to_config
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.execution import RUN_ERRORS, ResumeOptions, Runner, RunOptions, require_request, translate
from perdure.agent_workflows.graph import AgentOfWorkflow, CallableWorkflow, Parts
from perdure.agent_workflows.mermaid import to_mermaid
from perdure.agent_workflows.stores import DefinitionStore, Keep, executions_of, open_store, require_execution

if TYPE_CHECKING:
    import os

    from perdure import (
        CheckpointStorage,
        Clock,
        FunctionTool,
        PendingRequest,
        ResponseStream,
        RunInfo,
        SupportsAgentRun,
        SupportsChatGetResponse,
        Workflow,
        WorkflowAgent,
        WorkflowEvent,
    )
    from perdure.agent_workflows.builder import AgentWorkflowBuilder
    from perdure.agent_workflows.definition.conditions import Condition
    from perdure.agent_workflows.definition.values import AgentConfig, Definition
    from perdure.agent_workflows.messages import AgentWorkflowResult
    from perdure.threads import SessionStore

EventT = TypeVar("EventT")


class GivenOptions(TypedDict, total=False):
    """Objects that are given with a definition: those that JSON cannot hold, and those that create its agents."""

    agents: Mapping[str, SupportsAgentRun | AgentConfig | AgentWorkflow] | None
    types: Mapping[str, type[Any]] | None
    predicates: Mapping[str, Callable[..., Any] | Condition] | None
    client: SupportsChatGetResponse | None
    tools: Mapping[str, Any] | None
    clock: Clock | None


class AgentWorkflow:
    """Agents as nodes, connected by edges. `AgentWorkflow.create()` returns a builder, whose `build()` makes one.

    Each `run` is a separate execution, and any number may run in parallel: an agent workflow inside one has its own
    executors in each. A `WorkflowAgent` over a `Workflow` does not, and serves one execution at a time. With
    checkpointing, executions are stored, and any process that has built the same workflow can `resume` one.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._runner = Runner(parts)

    @staticmethod
    def create(*, clock: Clock | None = None) -> AgentWorkflowBuilder:
        """Return an empty builder."""
        from perdure.agent_workflows.builder import AgentWorkflowBuilder  # noqa: PLC0415 - the builder makes workflows

        return AgentWorkflowBuilder(clock=clock)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any] | Exported,
        *,
        agents: Mapping[str, SupportsAgentRun | AgentConfig | AgentWorkflow] | None = None,
        types: Mapping[str, type[Any]] | None = None,
        predicates: Mapping[str, Callable[..., Any] | Condition] | None = None,
        client: SupportsChatGetResponse | None = None,
        tools: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> AgentWorkflowBuilder:
        """Return a builder with a definition in JSON. Give again what JSON cannot hold.

        `agents` are by node, `types` and `predicates` by name or path, `tools` by name. The `client` creates agents
        that are data. Raises AgentWorkflowBuildError, which names every wrong place.
        """
        written = config.config if isinstance(config, Exported) else config
        live = {
            node_id: agent.as_agent() if isinstance(agent, AgentWorkflow) else agent
            for node_id, agent in (agents or {}).items()
        }
        definition = definition_of(written, agents=live, types=types or {}, predicates=predicates or {})
        builder = cls.create(clock=clock).include(definition).with_tools(tools or {})
        return builder if client is None else builder.with_chat_client(client)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str], **given: Unpack[GivenOptions]) -> AgentWorkflowBuilder:
        """Return a builder with a definition from the path of a JSON file, or from JSON text. See `from_config`.

        Nothing in it is imported or called. But a hostile regular expression can block the process: see `Matches`.
        """
        return cls.from_config(read_text(source), **given)

    @classmethod
    async def load(
        cls,
        storage: CheckpointStorage | str,
        name: str,
        *,
        version: int | None = None,
        session_store: SessionStore | None = None,
        retention: Keep | None = None,
        **given: Unpack[GivenOptions],
    ) -> AgentWorkflow:
        """Build a workflow from a stored definition: the newest, or that of a version. See `from_config`.

        Its executions are kept in the same store. A store given as a URL keeps the latest checkpoint, or `retention`.
        """
        store = open_store(storage, retention)
        builder = cls.from_config(await DefinitionStore(store).load(name, version), **given)
        if session_store is not None:
            builder.with_session_store(session_store)
        return builder.with_workflow_store(store).with_checkpointing().build()

    @staticmethod
    def config_schema() -> dict[str, Any]:
        """Return the JSON schema of definitions, for editors."""
        return config_schema()

    @property
    def name(self) -> str:
        """Return the name by which the store knows its executions."""
        return self._parts.name

    @property
    def definition(self) -> Definition:
        """Return the definition."""
        return self._parts.definition

    @property
    def storage(self) -> CheckpointStorage | None:
        """Return the workflow store: definitions, and with checkpointing executions."""
        return self._parts.storage

    @property
    def session_store(self) -> SessionStore | None:
        """Return the store of conversations."""
        return self._parts.session_store

    @overload
    def run(
        self, input: Any, *, execution_id: str | None = None, stream: Literal[True], **options: Unpack[RunOptions]
    ) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult]: ...
    @overload
    def run(
        self,
        input: Any,
        *,
        execution_id: str | None = None,
        stream: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, AgentWorkflowResult]: ...
    def run(
        self,
        input: Any,  # noqa: A002 - the documented name
        *,
        execution_id: str | None = None,
        stream: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult] | Coroutine[Any, Any, AgentWorkflowResult]:
        """Begin an execution with a text, a message, several, or a dict, and run it until it ends or waits.

        A result that waits has `requests`; continue with `resume(result.execution_id, responses={id: answer})`. The
        same `execution_id` with the same input is the same execution. With `stream=True` iterate over the events; the
        final response is the result. A node that stops the execution raises its error; with checkpointing, `resume`
        tries it again and repeats nothing else.

        Options: `timeout` instead of that of the workflow; `budget`; `function_invocation_kwargs` and `client_kwargs`
        for tools and models.
        """
        require_request(input)
        return self._runner.call(execution_id, stream=stream, options=options, is_new=True, message=input)

    @overload
    def resume(
        self, execution_id: str | None = None, *, stream: Literal[True], **options: Unpack[ResumeOptions]
    ) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult]: ...
    @overload
    def resume(
        self, execution_id: str | None = None, *, stream: Literal[False] = False, **options: Unpack[ResumeOptions]
    ) -> Coroutine[Any, Any, AgentWorkflowResult]: ...
    def resume(
        self,
        execution_id: str | None = None,
        *,
        responses: Mapping[str, Any] | None = None,
        stream: bool = False,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult] | Coroutine[Any, Any, AgentWorkflowResult]:
        """Continue a stored execution in any process: by its id, or the one that was advanced last.

        `responses` are answers by request id. An execution that has ended returns its result again and runs nothing.
        `takeover` replaces a process that cannot be seen to be dead. The options are those of `run`; a `timeout` counts
        from now, a `budget` is the total.

        Raises AgentWorkflowError if executions are not stored, ExecutionNotFoundError if there is none.
        """
        if responses is not None and not isinstance(cast("object", responses), Mapping):
            raise TypeError(f"responses are answers by the id of the request, as {{id: answer}}, not {responses!r}")
        given = {"responses": responses, "takeover": takeover}
        return self._runner.call(execution_id, stream=stream, options=options, is_new=False, **given)

    async def executions(self) -> list[RunInfo]:
        """List the stored executions of this workflow, in the order of their start."""
        return await executions_of(self._require_storage("executions"), self.name)

    async def requests(self, execution_id: str | None = None) -> list[PendingRequest]:
        """List open requests of an execution, or of all executions of this workflow. It needs the store alone.

        A request that was answered with `respond` is not open, even before the execution continues.
        """
        storage: Any = self._require_storage("requests")
        asked: list[PendingRequest]
        if execution_id is None:
            asked = await storage.requests(workflow_name=self.name)
        else:
            await require_execution(storage, self.name, execution_id)
            asked = await storage.requests(execution_id)
        return [request for request in asked if request.answered_by is None]

    async def events(
        self, execution_id: str, *, from_seq: int = 1, follow: bool = False
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Yield the stored events of an execution, from a number on; with `follow`, also further ones as they come.

        It needs the store alone. The completion event of a node whose failure stops the execution is only emitted live;
        the store has that failure as the `error` of the execution, see `executions`.
        """
        storage: Any = self._require_storage("events")
        if not follow:
            await require_execution(storage, self.name, execution_id)
        async with aclosing(storage.events(execution_id, from_seq=from_seq, follow=follow)) as events:
            async for event in events:
                yield event

    async def respond(self, execution_id: str, responses: Mapping[str, Any], *, by: str | None = None) -> None:
        """Answer requests of an execution by their ids, from any process. The answers are durable when this returns.

        The execution continues with `resume`, or when a host serves the workflow.
        """
        storage: Any = self._require_storage("respond")
        await require_execution(storage, self.name, execution_id)
        try:
            await storage.respond(execution_id, responses, by=by)
        except RUN_ERRORS as error:
            raise translate(error) from error.__cause__

    def subscribe(self, kind: type[EventT], listener: Callable[[EventT], object]) -> Callable[[], None]:
        """Call a function, sync or async, with each event of a class, such as `WorkflowAgentCompletedEvent`.

        It is called during `run` and `resume` of this object. Call the returned function to end the subscription.
        """
        return self._runner.subscribers.add(kind, listener)

    def subscribe_any(self, listener: Callable[[WorkflowEvent[Any]], object]) -> Callable[[], None]:
        """Call a function with every `WorkflowEvent`, also those of the engine and of agents."""
        return self._runner.subscribers.add(None, listener)

    def as_workflow(self) -> Workflow:
        """Return a new `Workflow` that yields the result, for the factory of a `Host`."""
        return self._parts.graph("result", storage=self._parts.execution_storage)

    def as_agent(self, name: str | None = None, *, description: str | None = None) -> WorkflowAgent:
        """Return the workflow as an agent: a message starts an execution, and the reply is its final answer.

        If the execution is no success, the reply says why.
        """
        return AgentOfWorkflow(self._parts, name, description, storage=self._parts.execution_storage)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        approval_mode: Literal["always_require", "never_require"] = "always_require",
    ) -> FunctionTool:
        """Return the workflow as a tool with one argument, `input`. By default a person approves each call.

        Each call is an execution; several may run in parallel. The result is the final answer, or why there is none.
        Inside a workflow it is part of the run around it, which keeps its state and asks its requests. Elsewhere the
        agent asks them; to wait for an answer in another process it needs checkpointing.
        """
        return CallableWorkflow(self._parts, name, description).as_tool(
            name=name,
            description=description,
            arg_name="input",
            arg_description="What the workflow is to work on",
            approval_mode=approval_mode,
        )

    def as_executor(self, id: str) -> WorkflowExecutor:  # noqa: A002 - the documented name
        """Return the workflow as a node of a `WorkflowBuilder` graph: it takes texts and messages, sends its answer.

        The run around it keeps its state and asks its requests.
        """
        return WorkflowExecutor(self._parts.graph("text"), id, propagate_request=True)

    def to_mermaid(self) -> str:
        """Return a Mermaid diagram."""
        return to_mermaid(self._parts.plan)

    def to_config(self) -> Exported:
        """Return the definition as JSON data, with the names of what JSON cannot hold."""
        return to_config(self.definition)

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the definition as JSON text."""
        return json.dumps(self.to_config().config, indent=indent, ensure_ascii=False)

    def _require_storage(self, method: str) -> CheckpointStorage:
        storage = self._parts.execution_storage
        if storage is None:
            raise AgentWorkflowError(
                f"workflow {self.name!r} keeps no executions, and {method}() is about them: build it with "
                "with_checkpointing() and a workflow store"
            )
        return storage

    def __repr__(self) -> str:
        return f"AgentWorkflow({self.name!r}, nodes={[node.id for node in self.definition.nodes]})"
