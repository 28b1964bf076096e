"""`WorkflowAgent`: a workflow used as an agent."""

from __future__ import annotations

import logging
import weakref
from dataclasses import InitVar, asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, overload

from typing_extensions import Unpack

from perdure import agents
from perdure.engine import Closing, InvocationKwargs
from perdure.errors import AgentInvalidRequestException, UnknownRequestError, WorkflowException
from perdure.graph import activation_at_work
from perdure.storage import CheckpointStorage, given_storage
from perdure.streams import ResponseStream
from perdure.types import is_type_compatible
from perdure.workflows.as_agent.nested import HandlerRun, NestedRun
from perdure.workflows.as_agent.runs import Conversation, RecentRuns, RunMemory, RunPosition, close_stream
from perdure.workflows.as_agent.translation import (
    REQUEST_INFO_FUNCTION_NAME,
    RequestInfoFunctionArgs,
    ResponseBuilder,
    TurnInput,
    answered_ids,
    merge_responses,
    stores_own_output,
    to_plain_messages,
)
from perdure.workflows.workflow import CallOptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence

    from perdure.events import WorkflowEvent
    from perdure.workflows.workflow import Workflow


logger = logging.getLogger(__name__)

Outcome: TypeAlias = tuple[agents.AgentResponse[Any], dict[str, Any]]
"""The response of a call, and what the session must know after it."""
_STEP = "answer of a workflow"


class AgentRunOptions(CallOptions, total=False):
    """The options of `WorkflowAgent.run`, beside `stream`."""

    session: agents.AgentSession | None


@dataclass(eq=False)
class AgentCall:
    """One call of a workflow agent.

    Attributes:
        state: The state of the session, or its stand-in in calls without one.
        has_news: True if the providers have something to store.
        asked_again: Open requests that were sent before and are repeated.
    """

    agent: WorkflowAgent
    messages: list[agents.Message]
    streaming: bool
    memory: RunMemory
    state: dict[str, Any]
    session: agents.AgentSession | None = None
    checkpoint_id: str | None = None
    checkpoint_storage: InitVar[CheckpointStorage | str | None] = None
    tools: Any = None
    function_invocation_kwargs: InitVar[InvocationKwargs | None] = None
    client_kwargs: InitVar[InvocationKwargs | None] = None
    context: agents.SessionContext = field(init=False)
    has_news: bool = field(default=False, init=False)
    asked_again: set[str] = field(default_factory=set[str], init=False)
    _stored_in: agents.AgentSession | None = field(default=None, init=False)

    def __post_init__(
        self,
        checkpoint_storage: CheckpointStorage | str | None,
        function_invocation_kwargs: InvocationKwargs | None,
        client_kwargs: InvocationKwargs | None,
    ) -> None:
        self.workflow = self.agent.workflow
        given = given_storage(checkpoint_storage)
        self.storage: object = self.workflow.checkpoint_storage if given is None else given
        if self.checkpoint_id is not None and self.storage is None:
            raise AgentInvalidRequestException(
                f"checkpoint {self.checkpoint_id!r} needs a storage to read it from; give checkpoint_storage too"
            )
        self.kwargs = {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs}
        self.tools = None if self.tools is None else agents.normalize_tools(self.tools)
        name = self.agent.name or self.workflow.name
        self.turn = agents.Turn(f"workflow {name}", self.messages)
        # A name that is derived from the graph changes with it, so it is no name in sessions.
        is_derived = name == f"workflow-{self.workflow.graph_signature_hash[:12]}"
        self.position = RunPosition.of(self.state, "" if is_derived else name)
        # An enclosing handler call may keep the run, unless the call names a checkpoint or a storage.
        parent = activation_at_work() if self.checkpoint_id is None and given is None else None
        # True if the run is the child run of an executor that contains the workflow.
        self.is_in_executor = parent is not None and parent.executor.child_graph() is self.workflow.graph
        self._run: Conversation | NestedRun
        if parent is None or (self.storage is not None and not self.is_in_executor):
            self._run = Conversation(self)
        else:
            self._run = NestedRun(self, parent) if self.is_in_executor else HandlerRun(self, parent)
        # A call of a handler that knows nothing of the run is one step.
        self._is_step = not self.is_in_executor and self.turn.activation is not None

    async def respond(self) -> agents.AgentResponse[Any]:
        """Return the response when it is complete."""
        await self._begin()
        if self._is_step:
            response, outcome = await self.turn.call_model(
                _STEP, self.turn.next_model_call(), self._complete, self._count
            )
            self._apply(outcome)
        else:
            response, _ = await self._complete()
        await self._finish(response)
        return response

    async def _complete(self) -> Outcome:
        return self._builder().complete([event async for event in self._events()]), self._outcome()

    async def updates(self) -> AsyncGenerator[agents.AgentResponseUpdate]:
        """Yield the response in pieces."""
        await self._begin()
        stream = self._stream_updates()
        if self._is_step:
            stream = agents.record_stream(
                self.turn,
                self._stream_updates,
                name=_STEP,
                count=self._count,
                split=lambda outcome: outcome[0].to_updates(),
            )
        try:
            async for update in stream:
                yield update
        finally:
            await close_stream(stream)
        response, outcome = await stream.get_final_response()
        self._apply(outcome)
        await self._finish(response)

    def _stream_updates(self) -> ResponseStream[agents.AgentResponseUpdate, Outcome]:
        async def updates() -> AsyncGenerator[agents.AgentResponseUpdate]:
            builder = self._builder()
            async with Closing(self._events()) as events:
                async for event in events:
                    for update in builder.updates(event):
                        yield update

        return ResponseStream(
            updates(), finalizer=lambda updates: (agents.AgentResponse[Any].from_updates(updates), self._outcome())
        )

    def _builder(self) -> ResponseBuilder:
        clock = self.workflow.blueprint_on(self.storage).clock
        return ResponseBuilder(self.agent.name, clock.new_id(), clock)

    def _count(self, outcome: Outcome) -> None:
        """Report the cost of a run of its own to the enclosing run. A nested run reports as it spends."""
        if isinstance(self._run, Conversation):
            self.turn.spend(**agents.token_spending(outcome[0]))

    def _outcome(self) -> dict[str, Any]:
        """Return what the session must know after the call."""
        return {"mark": asdict(self.position), "has_news": self.has_news, "asked_again": sorted(self.asked_again)}

    def _apply(self, outcome: Mapping[str, Any]) -> None:
        """Store it in the session, also if an earlier attempt made the call."""
        self.has_news, self.asked_again = outcome["has_news"], set(outcome["asked_again"])
        if self.is_in_executor:
            return
        for name, value in outcome["mark"].items():
            setattr(self.position, name, value)
        self.position.store(self.state)
        if isinstance(self._run, HandlerRun):
            self._run.restore()

    async def _begin(self) -> None:
        """Let the context providers add to the input."""
        agent, session = self.agent, self.session
        loads = any(isinstance(each, agents.HistoryProvider) and each.load_messages for each in agent.context_providers)
        if session is not None and not loads:
            agent.context_providers.append(agents.InMemoryHistoryProvider())
        if session is None and agent.context_providers:
            session = agents.AgentSession()
        self._stored_in = session
        self.context = await agents.load_context(agent, agent.context_providers, session, self.messages)
        self.messages = self.context.input_messages

    async def _events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Yield the workflow's events until it is idle."""
        given = TurnInput.of(self.agent, self.context, self.messages)
        before, asked = asdict(self.position), set[str]()
        async with Closing(self._run.events(given)) as events:
            async for event in events:
                if event.type == "request_info":
                    asked.add(event.request_id)
                for each in event.discards:
                    asked.discard(each.request_id if each.type == "request_info" else "")
                yield event
        is_nested = isinstance(self._run, NestedRun)
        self.has_news = is_nested or bool(self.messages) or asdict(self.position) != before
        for event in self._run.pending():
            if event.request_id not in asked:
                self.asked_again.add(event.request_id)
                yield event

    async def _finish(self, response: agents.AgentResponse[Any]) -> None:
        """Let the providers store the turn, the last provider first, as plain data that a session can save."""
        if self.session is None:
            self.agent.remember_questions(response, self.state)
        session = self._stored_in
        if session is None or not self.has_news:
            return
        self.context.input_messages = to_plain_messages(self.context.input_messages)
        # Repeated questions are not part of the history.
        new = [
            message
            for message in response.messages
            if not message.contents or any(self.asked_again.isdisjoint((c.id, c.call_id)) for c in message.contents)
        ]
        id_, created_at, usage = response.response_id, response.created_at, response.usage_details
        messages = to_plain_messages(new)
        self.context.set_response(
            agents.AgentResponse(messages=messages, response_id=id_, created_at=created_at, usage_details=usage)
        )
        await agents.store_context(self.agent, self.agent.context_providers, session, self.context)
        for provider in self.agent.context_providers if stores_own_output(self.agent) else ():
            if type(provider) is agents.InMemoryHistoryProvider:
                known = await provider.get_messages(session.session_id, state=session.state[provider.source_id])
                self.position.heard[provider.source_id] = len(known)
                self.position.store(self.state)


class WorkflowAgent(agents.BaseAgent):
    """A workflow used as an agent: a message is a turn of a run, and its outputs and requests are the response.

    A session has one run: `session.state["workflow"]` names it, so that any process with the session and the storage
    can continue it. Without a session each message is a run of its own, and answers find the run that asked. Requests
    become calls of the function `request_info`, or the content that an inner agent asks. Answer them in the next
    message, with `Content.from_function_result(request_id, result=...)` or the content's own answer. In a session,
    plain text answers the only open request that takes text; other requests stay open.

    A turn that failed or was interrupted continues when the same message is sent again, or none: finished work is not
    repeated. Another message leaves that turn and starts from the end of the turn before.

    The agent answers one call at a time, because the workflow is one instance. Sessions may take turns. To serve users
    in parallel, use an agent with its own workflow instance for each.

    Attributes:
        records_itself: Its calls are recorded one by one, so the enclosing executor doesn't record the turn as a whole.
        _asked: By request: the state of the call without a session that it belongs to.
        _last_state: The state of the last call without a session.
    """

    REQUEST_INFO_FUNCTION_NAME: ClassVar[str] = REQUEST_INFO_FUNCTION_NAME
    RequestInfoFunctionArgs = RequestInfoFunctionArgs

    records_itself: ClassVar[bool] = True

    def __init__(
        self,
        workflow: Workflow,
        *,
        id: str | None = None,  # noqa: A002 - the documented name
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[agents.ContextProvider] | None = None,
        **kwargs: Any,
    ) -> None:
        start = workflow.get_start_executor()
        if not any(is_type_compatible(list[agents.Message], type_) for type_ in start.input_types):
            raise ValueError(
                f"the start executor {start.id!r} of workflow {workflow.name!r} can't handle list[Message], the input "
                "of an agent; give it a handler for that, or start with an executor that has one"
            )
        super().__init__(
            id=id or f"WorkflowAgent_{workflow.blueprint.clock.new_id()[:8]}",
            name=name,
            description=description,
            context_providers=context_providers,
            **kwargs,
        )
        self._workflow = workflow
        self._memory = RunMemory()
        self._asked = RecentRuns[dict[str, Any]]()
        self._last_state: dict[str, Any] = {}
        self._caller: weakref.ref[Any] | None = None
        self._has_warned = False

    @property
    def workflow(self) -> Workflow:
        """Return the workflow."""
        return self._workflow

    @overload
    def run(
        self,
        messages: agents.AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        **options: Unpack[AgentRunOptions],
    ) -> ResponseStream[agents.AgentResponseUpdate, agents.AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: agents.AgentRunInputs | None = None,
        *,
        stream: Literal[False] = False,
        **options: Unpack[AgentRunOptions],
    ) -> Awaitable[agents.AgentResponse[Any]]: ...
    @overload
    def run(
        self, messages: agents.AgentRunInputs | None = None, *, stream: bool = False, **options: Unpack[AgentRunOptions]
    ) -> Any: ...
    def run(
        self, messages: agents.AgentRunInputs | None = None, *, stream: bool = False, **options: Unpack[AgentRunOptions]
    ) -> ResponseStream[agents.AgentResponseUpdate, agents.AgentResponse[Any]] | Awaitable[agents.AgentResponse[Any]]:
        """Send a message to the workflow, and return its outputs and requests until it is idle.

        With a session the workflow gets the conversation so far and the new messages. `checkpoint_id` first resumes the
        run from a checkpoint; without a message that is all. `checkpoint_storage` replaces the workflow's own. Without
        a message the session's run continues its unfinished work, and repeats what the session doesn't have. `tools`
        are for the agents of the workflow in this call only, as in `Workflow.run`.

        Raises AgentInvalidResponseException if the run waits for answers and the message is not clearly one.
        """
        said, session = agents.normalize_messages(messages), options.get("session")
        state = self._state_without_session(said, options.get("checkpoint_id")) if session is None else session.state
        call = AgentCall(self, said, stream, self._memory, state, **options)
        if call.is_in_executor and self._workflow.checkpoint_storage is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the storage of workflow %r is not used inside the executor that runs it: the enclosing run keeps its "
                "run",
                self._workflow.name,
            )
        if not stream:
            return self._respond(call)
        updates: ResponseStream[agents.AgentResponseUpdate, agents.AgentResponse[Any]] = ResponseStream(
            call.updates(), finalizer=agents.AgentResponse[Any].from_updates
        )
        self._occupy(updates)
        return updates.with_cleanup_hook(partial(self._release, weakref.ref(updates)))

    def _state_without_session(self, said: Sequence[agents.Message], checkpoint_id: str | None) -> dict[str, Any]:
        """Return what stands in for a session's state: that of the call that asked, if this one answers, or a new one.

        A call without a message continues the last one, unless a handler makes it: another run may have been the last.
        """
        if not said and checkpoint_id is None and activation_at_work() is None:
            return self._last_state
        answered = answered_ids(said) if checkpoint_id is None else []
        found = next((self._asked[each] for each in answered if each in self._asked), None)
        if found is None and answered and self._asked:
            raise UnknownRequestError(answered[0], pending=())
        self._last_state = {} if found is None else found
        return self._last_state

    def remember_questions(self, response: agents.AgentResponse[Any], state: dict[str, Any]) -> None:
        """Remember the open requests of a call without a session, to find its run when they are answered."""
        for content in (content for message in response.messages for content in message.contents):
            if content.type == "function_call" or content.user_input_request:
                for each in filter(None, {content.id, content.call_id}):
                    self._asked[each] = state

    @staticmethod
    def merge_updates(updates: Sequence[agents.AgentResponseUpdate], response_id: str) -> agents.AgentResponse[Any]:
        """Merge interleaved updates: by response, then by message, ordered by time."""
        return merge_responses(updates, response_id)

    async def _respond(self, call: AgentCall) -> agents.AgentResponse[Any]:
        self._occupy(call)
        try:
            return await call.respond()
        finally:
            self._release(weakref.ref(call))

    def _occupy(self, caller: object) -> None:
        if self._caller is not None and self._caller() is not None:
            raise WorkflowException(
                f"agent {self.name!r} is already answering: workflow {self._workflow.name!r} is one instance and "
                "serves one call at a time; wait for the response, or use an agent with its own workflow instance"
            )
        self._caller = weakref.ref(caller)

    def _release(self, caller: weakref.ref[Any]) -> None:
        if self._caller == caller:
            self._caller = None
