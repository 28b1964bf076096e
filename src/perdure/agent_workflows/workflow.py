"""`AgentWorkflow`: a definition with its agents and stores. It runs executions and goes on with those that are kept."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from typing_extensions import Unpack

from perdure.agent_workflows.config import Exported, definition_of, to_config
from perdure.agent_workflows.config_given import require_known
from perdure.agent_workflows.config_text import config_in
from perdure.agent_workflows.definition_store import DefinitionStore
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.mermaid import mermaid
from perdure.agent_workflows.schema import CONFIG_SCHEMA
from perdure.agent_workflows.stores import given_store
from perdure.agent_workflows.workflow_finding import executions_of, found_execution
from perdure.agent_workflows.workflow_running import Runner
from perdure.agent_workflows.workflow_shapes import agent_of, executor_of, tool_of
from perdure.agent_workflows.workflow_words import ABOUT_RUNS, in_own_words

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping

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
        WorkflowExecutor,
    )
    from perdure.agent_workflows.agents import AgentConfig
    from perdure.agent_workflows.builder import AgentWorkflowBuilder
    from perdure.agent_workflows.conditions import Condition
    from perdure.agent_workflows.config_given import GivenOptions
    from perdure.agent_workflows.definition import Definition
    from perdure.agent_workflows.result import AgentWorkflowResult
    from perdure.agent_workflows.stores import Keep
    from perdure.agent_workflows.workflow_graph import Parts
    from perdure.agent_workflows.workflow_running import RunOptions
    from perdure.threads import SessionStore

EventT = TypeVar("EventT")


class AgentWorkflow:
    """Agents as nodes, joined by edges. `create()` begins one; `build()` of the builder makes it.

    Each `run` is an execution of its own, and any number may go on at once: an agent workflow inside of it has
    executors of its own in each. A `WorkflowAgent` over a workflow of the engine has not, and serves one at a time.
    With checkpointing executions are kept in the workflow store, and `resume` goes on with one in any process that has
    built the same workflow.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._runner = Runner(parts)

    @staticmethod
    def create(*, clock: Clock | None = None) -> AgentWorkflowBuilder:
        """An empty builder."""
        from perdure.agent_workflows.builder import AgentWorkflowBuilder  # noqa: PLC0415 - it makes what is made here

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
        """A builder that says what a definition says. What can't be written down has to be given with it.

        `agents` are by node, `types` and `predicates` by name or path, `tools` by name; agents that are data are made
        with the `client`. Raises AgentWorkflowBuildError, which names every wrong place.
        """
        written = config.config if isinstance(config, Exported) else config
        definition = definition_of(written, agents=agents or {}, types=types or {}, predicates=predicates or {})
        builder = cls.create(clock=clock).include(definition).with_tools(tools or {})
        return builder if client is None else builder.with_chat_client(client)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str], **given: Unpack[GivenOptions]) -> AgentWorkflowBuilder:
        """The same from JSON: the path of a file, or the text itself, which begins with a brace. See `from_config`.

        Nothing is imported or called by it. But patterns of strangers can stop the process: see `Matches`.
        """
        require_known("from_json", given)
        return cls.from_config(config_in(source), **given)

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
        """A workflow by the definition that its store has: the newest, or that of a version. See `from_config`.

        Its executions are kept in the same store; of one that is named by its URL, as `retention` says, or the latest.
        """
        require_known("load", given)
        store = given_store(storage, retention)
        builder = cls.from_config(await DefinitionStore(store).load(name, version), **given)
        if session_store is not None:
            builder.with_session_store(session_store)
        return builder.with_workflow_store(store).with_checkpointing().build()

    @staticmethod
    def config_schema() -> dict[str, Any]:
        """The JSON schema of definitions, for editors."""
        return json.loads(json.dumps(CONFIG_SCHEMA))

    @property
    def name(self) -> str:
        """The name, by which the store knows its executions."""
        return self._parts.name

    @property
    def definition(self) -> Definition:
        """All that was said of it, as a value."""
        return self._parts.definition

    @property
    def storage(self) -> CheckpointStorage | None:
        """The workflow store: definitions, and with checkpointing executions."""
        return self._parts.storage

    @property
    def session_store(self) -> SessionStore | None:
        """Where conversations are kept."""
        return self._parts.session_store

    @overload
    def run(
        self,
        input: Any,
        *,
        execution_id: str | None = None,
        stream: Literal[True],
        **options: Unpack[RunOptions],
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
        input: Any,  # noqa: A002 - what it is
        *,
        execution_id: str | None = None,
        stream: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult] | Coroutine[Any, Any, AgentWorkflowResult]:
        """Begin an execution, and go on until it has ended or waits: with a text, a message, several, or a dict.

        A result that waits has `requests`; `resume(result.execution_id, responses={id: answer})` goes on. The same
        `execution_id` with the same input is the same execution. With `stream` the events are to be read, and their
        final response is the result. A node that fails and stops the execution raises its error; with checkpointing
        `resume` tries it again, and does nothing else twice.

        Options: `timeout`, in place of that of the workflow; `budget`, what it may spend; `function_invocation_kwargs`
        and `client_kwargs`, for tools and models.
        """
        call = self._runner.begin(input, execution_id, stream=stream, options=options)
        return call.stream() if stream else call.stream().get_final_response()

    @overload
    def resume(
        self,
        execution_id: str | None = None,
        *,
        responses: Mapping[str, Any] | None = None,
        stream: Literal[True],
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResponseStream[WorkflowEvent[Any], AgentWorkflowResult]: ...
    @overload
    def resume(
        self,
        execution_id: str | None = None,
        *,
        responses: Mapping[str, Any] | None = None,
        stream: Literal[False] = False,
        takeover: bool = False,
        **options: Unpack[RunOptions],
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
        """Go on with an execution of the workflow store, in any process: that of the id, or the one advanced last.

        `responses` are answers by the id of the request. One that has ended tells its result again and runs nothing.
        `takeover` replaces a process that can't be seen to be dead. Options are those of `run`: a `timeout` counts from
        now on, a `budget` is what it may spend in all.

        Raises AgentWorkflowError if executions are not kept, ExecutionNotFoundError if there is none.
        """
        call = self._runner.go_on(execution_id, responses=responses, stream=stream, takeover=takeover, options=options)
        return call.stream() if stream else call.stream().get_final_response()

    async def executions(self) -> list[RunInfo]:
        """The executions that the store has of this workflow, in the order in which they began."""
        return await executions_of(self._require_kept("executions"), self.name)

    async def requests(self, execution_id: str | None = None) -> list[PendingRequest]:
        """What is asked and not answered: by an execution, or by all of this workflow. Needs the store alone.

        What was answered with `respond` is not asked any more, also before the execution goes on.
        """
        storage: Any = self._require_kept("requests")
        asked: list[PendingRequest]
        if execution_id is None:
            asked = await storage.requests(workflow_name=self.name)
        else:
            await found_execution(storage, self.name, execution_id)
            asked = await storage.requests(execution_id)
        return [request for request in asked if request.answered_by is None]

    async def events(
        self, execution_id: str, *, from_seq: int = 1, follow: bool = False
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        """What an execution has told and kept, from the event of a number on; with `follow`, what it will tell, too.

        It needs the store alone. That a node has failed which stops the execution is told while that happens, and is
        not among them: the store has the failure as `error` of the execution, see `executions`.
        """
        storage: Any = self._require_kept("events")
        if not follow:
            await found_execution(storage, self.name, execution_id)
        async with aclosing(storage.events(execution_id, from_seq=from_seq, follow=follow)) as events:
            async for event in events:
                yield event

    async def respond(self, execution_id: str, responses: Mapping[str, Any], *, by: str | None = None) -> None:
        """Answer requests of an execution by their ids, from any process. Durable when this returns.

        Nothing goes on by this: `resume` does, or a host that serves the workflow.
        """
        storage: Any = self._require_kept("respond")
        await found_execution(storage, self.name, execution_id)
        try:
            await storage.respond(execution_id, responses, by=by)
        except ABOUT_RUNS as error:
            raise in_own_words(error) from error.__cause__

    def subscribe(self, kind: type[EventT], listener: Callable[[EventT], object]) -> Callable[[], None]:
        """Tell a function, sync or async, of the events of a class, as `WorkflowAgentCompletedEvent`.

        It is told while executions of this object go on, by `run` or `resume`. Call what is returned to end it.
        """
        return self._runner.listeners.add(kind, listener)

    def subscribe_any(self, listener: Callable[[WorkflowEvent[Any]], object]) -> Callable[[], None]:
        """Tell a function of every `WorkflowEvent`, those of the engine and of the agents among them."""
        return self._runner.listeners.add(None, listener)

    def as_workflow(self) -> Workflow:
        """A fresh `Workflow` that yields the result: for the factory of a `Host`."""
        return self._parts.graph("result", storage=self._parts.kept_in)

    def as_agent(self, name: str | None = None, *, description: str | None = None) -> WorkflowAgent:
        """The workflow as an agent: a message to it is what it works on, its answer the final one.

        Of an execution that is no success the answer says why.
        """
        return agent_of(self._parts, name, description, storage=self._parts.kept_in)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        approval_mode: Literal["always_require", "never_require"] = "always_require",
    ) -> FunctionTool:
        """The workflow as a tool of an agent, with one argument, `input`. A person is asked first, unless told not to.

        Each call is an execution; several at once are fine. Its result is the final answer, or why there is none. In a
        workflow it is part of the run around it, which keeps what it does and asks what it asks. Elsewhere the agent
        asks it; one that is to wait for the answer in another process needs checkpointing.
        """
        return tool_of(self._parts, name, description, approval_mode)

    def as_executor(self, id: str) -> WorkflowExecutor:  # noqa: A002 - as executors are made
        """The workflow as a node of a `WorkflowBuilder` graph: it takes texts and messages, and sends its answer."""
        return executor_of(self._parts, id)

    def to_mermaid(self) -> str:
        """A picture, as Mermaid."""
        return mermaid(self._parts.plan())

    def to_config(self) -> Exported:
        """The definition as plain data, and the names of what can't be written down."""
        return to_config(self.definition)

    def to_json(self, *, indent: int | None = 2) -> str:
        """The definition as JSON."""
        return json.dumps(self.to_config().config, indent=indent, ensure_ascii=False)

    def _require_kept(self, method: str) -> CheckpointStorage:
        if self._parts.kept_in is None:
            raise AgentWorkflowError(
                f"workflow {self.name!r} keeps no executions, and {method}() is about them: build it with "
                "with_checkpointing() and a workflow store"
            )
        return self._parts.kept_in

    def __repr__(self) -> str:
        return f"AgentWorkflow({self.name!r}, nodes={[node.id for node in self.definition.nodes]})"
