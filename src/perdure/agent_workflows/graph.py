"""The graph of an agent workflow, and its uses: as an agent, as a tool of an agent, and as a node of another graph."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from perdure import (
    AgentResponse,
    BaseAgent,
    Content,
    FunctionalWorkflow,
    InMemoryCheckpointStorage,
    Message,
    ResponseStream,
    RunContext,
    SystemClock,
    Workflow,
    WorkflowAgent,
    WorkflowBuilder,
    normalize_messages,
)
from perdure.agent_workflows.conductor.conductor import Conductor, OutputForm
from perdure.agent_workflows.conductor.conversations import Conversations
from perdure.agent_workflows.definition.document import to_config
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.messages import NodeApprovalRequest
from perdure.agent_workflows.node import TIMED_OUT, AgentNode
from perdure.agent_workflows.plan import Plan
from perdure.agent_workflows.stores import DefinitionStore, origins_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping

    from perdure import (
        AgentResponseUpdate,
        AgentRunInputs,
        AgentSession,
        CheckpointStorage,
        Clock,
        FunctionTool,
        SupportsAgentRun,
        WorkflowRunResult,
    )
    from perdure.agent_workflows.definition.values import Definition
    from perdure.threads import SessionStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

WAITING_MAX: Final = 1000
"""How many executions of one workflow may wait in memory."""
# The call that an agent asks to permit when a node asks for approval: agents can only ask for approvals of calls.
_APPROVAL: Final = "approve_output_of_node"


def keep_waiting(waiting: dict[str, T], key: str, value: T, what: str, *, limit: int = WAITING_MAX) -> None:
    """Keep an object that waits for an answer in this process only. If there are too many, the oldest is dropped."""
    waiting.pop(key, None)
    waiting[key] = value
    if len(waiting) > limit:
        dropped = next(iter(waiting))
        del waiting[dropped]
        logger.warning(
            "%s %r is dropped: more than %d wait in this process, and it has waited longest; to let them wait in a "
            "store, build the workflow with with_checkpointing() and a workflow store",
            what,
            dropped,
            limit,
        )


class AgentOfWorkflow(WorkflowAgent):
    """An agent workflow as an agent: each message starts an execution, and the final answer is the reply."""

    def __init__(
        self,
        parts: Parts,
        name: str | None,
        description: str | None,
        *,
        storage: CheckpointStorage | None = None,
        id: str | None = None,  # noqa: A002 - the documented name
    ) -> None:
        super().__init__(
            parts.graph("response", storage=storage, author_name=name),
            id=id,
            name=name or parts.name,
            description=description or parts.definition.description,
        )
        self._make_callable = partial(CallableWorkflow, parts, name, description)
        self._make_copy = partial(AgentOfWorkflow, parts, name, description, id=self.id)

    def copy_for_run(self) -> AgentOfWorkflow:
        """Return the same agent with its own executors and no storage: the run around it keeps its state."""
        return self._make_copy()

    def as_tool(self, **options: Any) -> FunctionTool:
        """Return the agent as a tool of another one. Inside a workflow it is part of the run around it."""
        return self._make_callable().as_tool(**options)


class CallableWorkflow(BaseAgent):
    """A workflow as an agent that can be a tool; each call creates a new one.

    Inside a run it is part of that run, which also asks its requests. Elsewhere it has its own run: if it waits for an
    answer, it waits in the store of executions if there is one, or in memory until the same session brings the answer.
    """

    records_itself = True

    def __init__(self, parts: Parts, name: str | None, description: str | None) -> None:
        super().__init__(name=name or parts.name, description=description or parts.definition.description)
        self._make = partial(AgentOfWorkflow, parts, name, description)
        self._inside = _PartOfRun(self._make, name=name or parts.name)
        self._execution_storage = parts.execution_storage
        self._waiting: dict[str, WorkflowAgent] = {}

    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the workflow. The response is its final answer, or its requests."""
        given = normalize_messages(messages)
        kwargs = {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs}
        answer: Awaitable[AgentResponse[Any]]
        try:
            answer = self._inside.answer(given, function_invocation_kwargs or {})
        except _OutsideError:
            answer = self._run_alone(given, session, kwargs)
        return ResponseStream(_updates(answer), finalizer=AgentResponse[Any].from_updates) if stream else answer

    async def _run_alone(
        self, messages: list[Message], session: AgentSession | None, kwargs: Mapping[str, Any]
    ) -> AgentResponse[Any]:
        own = [
            Message(each.role, [*map(_restore_answer, each.contents)], author_name=each.author_name)
            for each in messages
        ]
        waiting = None if session is None else self._waiting.pop(session.session_id, None)
        # Without a store, requests still have to wait somewhere for their answers.
        agent = waiting or self._make(storage=self._execution_storage or InMemoryCheckpointStorage())
        answer: Awaitable[AgentResponse[Any]] = agent.run(own, stream=False, session=session, **kwargs)
        response = await answer
        for message in response.messages:
            message.contents = [_as_approval_request(content) for content in message.contents]
        if session is not None and response.user_input_requests and self._execution_storage is None:
            keep_waiting(self._waiting, session.session_id, agent, f"the request of workflow {self.name!r} in session")
        return response


async def _updates(answer: Awaitable[AgentResponse[Any]]) -> AsyncGenerator[AgentResponseUpdate]:
    for update in (await answer).to_updates():
        yield update


def _as_approval_request(content: Content) -> Content:
    """Return a node's request as the approval of a call. Raises AgentWorkflowError for other requests."""
    if not _is_request(content):
        return content
    asked = WorkflowAgent.RequestInfoFunctionArgs.from_dict(content.parse_arguments() or {})
    request: object = asked.request_event.data
    if not isinstance(request, NodeApprovalRequest):
        raise AgentWorkflowError(
            f"a workflow that is a tool can only ask for approvals, and this one asks {type(request).__name__!r}: run "
            "it by itself, where every request can be answered"
        )
    arguments = {"node": request.node_id, "message": request.message, "outputs": dict(request.outputs)}
    call = Content.from_function_call(asked.request_id, _APPROVAL, arguments=arguments)
    return Content.from_function_approval_request(asked.request_id, call)


def _restore_answer(content: Content) -> Content:
    """Return an approval of `_as_approval_request` as an answer for the workflow."""
    call = content.function_call
    is_answer = content.type == "function_approval_response" and call is not None and call.name == _APPROVAL
    if not is_answer or content.id is None:
        return content
    answer = NodeApprovalRequest.approve() if content.approved is True else NodeApprovalRequest.deny()
    return Content.from_function_result(content.id, result=answer)


def _is_request(content: Content) -> bool:
    return content.type == "function_call" and content.name == WorkflowAgent.REQUEST_INFO_FUNCTION_NAME


class _OutsideError(Exception):
    """There is no run here that could contain the workflow."""


class _PartOfRun(FunctionalWorkflow):
    """A workflow as a part of the run around it. It has no runs of its own: `run` raises _OutsideError instead."""

    def __init__(self, make: Callable[[], WorkflowAgent], *, name: str) -> None:
        async def act(told: list[Message], ctx: RunContext) -> AgentResponse[Any]:
            return await _run_inside(make(), told, ctx)

        super().__init__(act, name=f"agent workflow {name}")

    def answer(self, messages: list[Message], kwargs: Mapping[str, Any]) -> Awaitable[AgentResponse[Any]]:
        """Run the workflow as a part of the run around it. Raises _OutsideError."""
        return _output_of(self.run(messages, function_invocation_kwargs=kwargs))

    def stream(self, call: Any, *, include_status_events: bool = False) -> NoReturn:  # noqa: ARG002 - nothing starts
        """Refuse to start a run."""
        raise _OutsideError


async def _output_of(running: Awaitable[WorkflowRunResult]) -> AgentResponse[Any]:
    [response] = (await running).get_outputs()
    return response


async def _run_inside(agent: WorkflowAgent, messages: list[Message], ctx: RunContext) -> AgentResponse[Any]:
    """Run the workflow to its end. The run around it asks its requests."""
    kwargs = dict(ctx.kwargs)
    response: AgentResponse[Any] = await agent.run(messages, stream=False, function_invocation_kwargs=kwargs)
    while requests := _requests_in(response):
        # The handler is suspended until all are answered, and re-entered then.
        answers = await asyncio.gather(*[_ask(each, ctx) for each in requests])
        contents = [_as_content(each, answer) for each, answer in zip(requests, answers, strict=True)]
        response = await agent.run([Message("user", contents)], stream=False, function_invocation_kwargs=kwargs)
    return response


def _requests_in(response: AgentResponse[Any]) -> list[Content]:
    contents = [content for message in response.messages for content in message.contents]
    return [content for content in contents if _is_request(content) or content.user_input_request is True]


def _ask(request: Content, ctx: RunContext) -> Coroutine[Any, Any, Any]:
    """Ask a request of the workflow as a request of the run around it."""
    if not _is_request(request):
        return ctx.request_info(request, Content | bool)
    event = WorkflowAgent.RequestInfoFunctionArgs.from_dict(request.parse_arguments() or {}).request_event
    data: object = event.data
    if not isinstance(data, NodeApprovalRequest):
        return ctx.request_info(data, event.response_type)
    # Deadlines inside are not watched, so the request outside has its own.
    limit: dict[str, Any] = {} if data.timeout is None else {"deadline": data.timeout, "default": TIMED_OUT}
    return ctx.request_info(data, event.response_type, approves=dict(data.outputs), **limit)


def _as_content(request: Content, answer: Any) -> Content:
    if isinstance(answer, bool) and request.type == "function_approval_request":
        return request.to_function_approval_response(approved=answer)
    if isinstance(answer, Content) and not _is_request(request):
        return answer
    return Content.from_function_result(request.call_id or "", result=answer)


SUPERSTEPS_MAX: Final = 1_000_000_000
"""The engine's limit is out of reach: the definition limits the passes of loops."""


@dataclass(kw_only=True)
class Parts:
    """The parts of a built workflow: its definition, an agent for each node, and its stores.

    Attributes:
        _version: The version of the definition in the store, once it is saved.
    """

    definition: Definition
    agents: Mapping[str, SupportsAgentRun]
    storage: CheckpointStorage | None = None
    is_checkpointed: bool = False
    session_store: SessionStore | None = None
    clock: Clock | None = None
    _version: int | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """Return the name of the workflow."""
        assert self.definition.name is not None, "the builder gives every workflow a name"
        return self.definition.name

    @property
    def execution_storage(self) -> CheckpointStorage | None:
        """Return the storage of executions; None without checkpointing."""
        return self.storage if self.is_checkpointed else None

    @cached_property
    def active_clock(self) -> Clock:
        """Return the given clock, or the storage's, or the system's."""
        return self.clock or getattr(self.storage, "clock", None) or SystemClock()

    @cached_property
    def stopping(self) -> frozenset[str]:
        """Return the nodes whose failure stops the run."""
        return frozenset(node.id for node in self.definition.nodes if node.on_error.mode == "stop")

    @cached_property
    def plan(self) -> Plan:
        """Return the plan of the definition."""
        return Plan(self.definition)

    async def save_definition(self) -> int | None:
        """Save the definition in the workflow store and return its version; None if there is no store for it."""
        # A storage of a user's own class keeps no definitions.
        has_definitions = hasattr(getattr(self.storage, "store", None), "tenant")
        if self.storage is not None and has_definitions and self._version is None:
            self._version = await DefinitionStore(self.storage).save(to_config(self.definition).config)
        return self._version

    def graph(
        self, gives: OutputForm, *, storage: CheckpointStorage | None = None, author_name: str | None = None
    ) -> Workflow:
        """Build a workflow of the engine with its own executors. `author_name` is the author of its responses."""
        conversations = None
        if self.session_store is not None:
            # Nodes get them even if the policy is "none": a node may have a task from before the policy changed.
            conversations = Conversations(self.session_store, self.definition.conversation, workflow_name=self.name)
        conductor = Conductor(
            self.plan,
            conversations=None if self.definition.conversation.kind == "none" else conversations,
            gives=gives,
            clock=self.active_clock,
            name=self.name,
            on_begin=self.save_definition,
            origins=None if storage is None else partial(origins_of, storage),
            author_name=author_name,
        )
        builder = WorkflowBuilder(
            SUPERSTEPS_MAX,
            self.name,
            self.definition.description,
            start_executor=conductor,
            checkpoint_storage=storage,
            output_from=[conductor],
            # An agent or a node of a graph gives only its answer; a result also has the outputs on the way.
            intermediate_output_from="all_other" if gives == "result" else None,
            clock=self.clock,
        )
        builder.add_edge(conductor, conductor)  # For the conductor's messages to itself.
        for node in self.definition.nodes:
            agent = self.agents[node.id]
            # A nested agent workflow serves one run at a time, so each graph gets its own copy.
            own = agent.copy_for_run() if isinstance(agent, AgentOfWorkflow) else agent
            executor = AgentNode(node, own, conversations)
            builder.add_edge(conductor, executor).add_edge(executor, conductor)
        return builder.build()
