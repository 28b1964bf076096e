"""`WorkflowAgent`: a workflow that is talked to as an agent."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from dataclasses import asdict, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from perdure.agents import (
    AgentResponse,
    AgentSession,
    BaseAgent,
    HistoryProvider,
    InMemoryHistoryProvider,
    Message,
    SessionContext,
    Turn,
    messages_of,
    recorded,
    recorded_stream,
    tokens_in,
    unheard,
)
from perdure.data import mutable
from perdure.engine import Closing, output_events
from perdure.errors import AgentInvalidRequestException, WorkflowException
from perdure.storage import given_storage
from perdure.streams import ResponseStream
from perdure.types import is_type_compatible
from perdure.workflows.as_agent.nested import HandlerSeat, NestedRun, NodeSeat, host
from perdure.workflows.as_agent.runs import Bookmark, Conversation, Memory
from perdure.workflows.as_agent.translation import (
    REQUEST_INFO_FUNCTION_NAME,
    Given,
    RequestInfoFunctionArgs,
    Teller,
    hears_itself,
    merged,
    plain_messages,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence

    from perdure.agents import AgentResponseUpdate, AgentRunInputs, ContextProvider
    from perdure.engine import Call
    from perdure.events import WorkflowEvent
    from perdure.storage import CheckpointStorage
    from perdure.workflows.as_agent.nested import Seat
    from perdure.workflows.workflow import Workflow


@mutable
class Talk:
    """One call of an agent."""

    agent: WorkflowAgent
    said: list[Message]
    session: AgentSession | None
    checkpoint_id: str | None
    storage: object
    kwargs: Mapping[str, Mapping[str, Any] | None]
    streaming: bool
    turn: Turn
    is_plain: bool
    """Whether nothing was said of checkpoints: then a handler call that is in progress here may keep the run."""
    memory: Memory
    own_state: dict[str, Any]
    """What a session would hold, for calls without one."""
    mark: Bookmark = field(init=False)
    context: SessionContext = field(init=False)
    has_news: bool = field(default=False, init=False)
    """Whether there is anything to be kept of the call."""
    seat: NodeSeat | HandlerSeat | None = field(default=None, init=False)
    """Where the run is, if a handler call keeps it."""
    asked_again: set[str] = field(default_factory=set[str], init=False)
    """The requests that are told though they were told before, since they still wait."""
    _still_open: Sequence[WorkflowEvent[Any]] = field(default=(), init=False)
    _kept_in: AgentSession | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.mark = Bookmark.of(self._state, _lasting_name(self.agent))
        parent, workflow = host() if self.is_plain else None, self.agent.workflow
        if parent is not None and parent.executor.child_graph() is workflow.graph:
            self.seat = NodeSeat(workflow, parent)
        elif parent is not None and self.storage is None:
            self.seat = HandlerSeat(workflow, parent, turn=self.turn, mark=self.mark, memory=self.memory)

    @property
    def _state(self) -> dict[str, Any]:
        return self.own_state if self.session is None else self.session.state

    @property
    def is_step(self) -> bool:
        """Whether the call is made in a handler that knows nothing of the run: then all of it is one step."""
        return not isinstance(self.seat, NodeSeat) and self.turn.activation is not None

    def count(self, outcome: tuple[AgentResponse[Any], dict[str, Any]]) -> None:
        """Count what a run of its own has cost, in the run around it. What that one keeps is counted as it is spent."""
        if self.seat is None:
            self.turn.spend(**tokens_in(outcome[0]))

    def kept(self) -> dict[str, Any]:
        """What the session has to know after the call."""
        return {"mark": asdict(self.mark), "has_news": self.has_news, "asked_again": sorted(self.asked_again)}

    def take(self, kept: Mapping[str, Any]) -> None:
        """Let the session know it, also if the call was made in an earlier life."""
        self.has_news, self.asked_again = kept["has_news"], set(kept["asked_again"])
        if isinstance(self.seat, NodeSeat):
            return
        for name, value in kept["mark"].items():
            setattr(self.mark, name, value)
        self.mark.put(self._state)
        if isinstance(self.seat, HandlerSeat):
            self.seat.recall()

    async def begin(self) -> None:
        """Let the providers say what the workflow is to know."""
        agent, session = self.agent, self.session
        loads = any(isinstance(each, HistoryProvider) and each.load_messages for each in agent.context_providers)
        if session is not None and not loads:
            agent.context_providers.append(InMemoryHistoryProvider())
        if session is None and agent.context_providers:
            session = AgentSession()
        self._kept_in = session
        self.context = SessionContext(
            session_id=None if session is None else session.session_id,
            service_session_id=None if session is None else session.service_session_id,
            input_messages=list(self.said),
        )
        for provider in agent.context_providers:
            if session is not None and not (isinstance(provider, HistoryProvider) and not provider.load_messages):
                state = session.state.setdefault(provider.source_id, {})
                await provider.before_run(agent=agent, session=session, context=self.context, state=state)
        # Inside of another workflow that is talked to as an agent, this one may be told the conversation again.
        self.said = self.context.input_messages = unheard(self.context.input_messages, self.context.get_messages())

    async def events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """What the workflow tells until it rests."""
        given = Given.of(self.agent, self.context, self.said)
        told = self._nested(self.seat, given) if self.seat is not None else self._plain(given)
        asked: set[str] = set()
        async with Closing(told) as events:
            async for event in events:
                if event.type == "request_info":
                    asked.add(event.request_id)
                yield event
        for event in self._still_open:
            if event.request_id not in asked:
                self.asked_again.add(event.request_id)
                yield event

    async def _nested(self, seat: Seat, given: Given) -> AsyncGenerator[WorkflowEvent[Any]]:
        run = NestedRun(self.agent.workflow, seat, kwargs=self.kwargs, streaming=self.streaming)
        async with Closing(run.events(given, self.mark.heard)) as events:
            async for event in events:
                yield event
        self._still_open = run.pending()
        if run.has_begun_turn:
            self.mark.heard = dict(given.counts)
            self.mark.put(self._state)
        self.has_news = True

    async def _plain(self, given: Given) -> AsyncGenerator[WorkflowEvent[Any]]:
        await self.memory.let_go()
        run = self._conversation()
        before = asdict(self.mark)
        try:
            if self.checkpoint_id is not None:
                resumed = await run.resume(self.checkpoint_id)
                if not self.said:
                    for event in resumed:
                        yield event
            if self.checkpoint_id is None or self.said:
                async with Closing(self._told(run, await run.next_call(given))) as events:
                    async for event in events:
                        yield event
            run.rest()
            self._still_open = run.still_open()
        except BaseException:
            run.fail()
            raise
        finally:
            self.mark.put(self._state)
        self.has_news = bool(self.said) or asdict(self.mark) != before

    def _conversation(self) -> Conversation:
        activation, session = self.turn.activation, self.session
        # Of a call inside of a workflow the handler call lasts, which may make a new session each time it is entered.
        seed = None if session is None else session.session_id
        if activation is not None:
            seed = f"{activation.idempotency_key}/{self.turn.number}"
        return Conversation(
            workflow=self.agent.workflow,
            storage=self.storage,
            bookmark=self.mark,
            memory=self.memory,
            has_session=session is not None,
            seed=seed,
            kwargs=self.kwargs,
            streaming=self.streaming,
        )

    async def _told(self, run: Conversation, call: Call) -> AsyncGenerator[WorkflowEvent[Any]]:
        if call.only_goes_on:
            for event in self._told_again(run):
                yield event
        stream = self.agent.workflow.stream(call)
        self.memory.reading(stream)
        try:
            async for event in stream:
                yield event
        finally:
            # An event loop that shuts down closes all generators at once: this one may be on its way.
            with suppress(RuntimeError):
                await stream.aclose()

    def _told_again(self, run: Conversation) -> list[WorkflowEvent[Any]]:
        """What the run has told that the session has not got, and what it asks."""
        tenure, mark = self.agent.workflow.tenure, self.mark
        assert tenure is not None, "a run that goes on is there"
        skipped = mark.told if tenure.snapshot.turn == mark.turn else 0
        outputs = list(tenure.snapshot.outputs)[skipped:]
        return [
            *output_events(outputs, tenure.values, in_pieces=self.streaming),
            *run.pending(tenure).values(),
        ]

    async def finish(self, response: AgentResponse[Any]) -> None:
        """Let the providers keep what they want, the last one first: as plain data, so that a session can be saved."""
        session = self._kept_in
        if session is None or not self.has_news:
            return
        self.context.input_messages = plain_messages(self.context.input_messages)
        self.context.answered(_kept(response, self.asked_again))
        for provider in reversed(self.agent.context_providers):
            state = session.state.setdefault(provider.source_id, {})
            await provider.after_run(agent=self.agent, session=session, context=self.context, state=state)
            if type(provider) is InMemoryHistoryProvider and hears_itself(self.agent):
                known = await provider.get_messages(session.session_id, state=state)
                self.mark.heard[provider.source_id] = len(known)
                self.mark.put(self._state)


def _lasting_name(agent: WorkflowAgent) -> str:
    """What tells the agent from others in a session. The name that a workflow has from its graph changes with that."""
    workflow, name = agent.workflow, agent.name or agent.workflow.name
    return "" if name == f"workflow-{workflow.graph_signature_hash[:12]}" else name


def _kept(response: AgentResponse[Any], asked_again: Collection[str]) -> AgentResponse[Any]:
    """What the history has of an answer. What is asked in it already is not asked twice."""
    asked = [message for message in response.messages if not _only_asks(message, asked_again)]
    return AgentResponse(
        messages=plain_messages(asked),
        response_id=response.response_id,
        created_at=response.created_at,
        usage_details=response.usage_details,
    )


def _only_asks(message: Message, asked: Collection[str]) -> bool:
    return bool(message.contents) and all({content.id, content.call_id} & set(asked) for content in message.contents)


logger = logging.getLogger(__name__)

_STEP = "answer of a workflow"


class _Caller:
    """Stands for a call that is being answered, as long as it is."""


class WorkflowAgent(BaseAgent):
    """A workflow as an agent: a message to it is a turn of a run, and what the run yields and asks is the answer.

    A session stands for one run: `session.state["workflow"]` names it, so that whoever has the session and the storage
    goes on with it in any process. Without a session the run is that of the workflow instance. Requests are told as
    calls of the function `request_info`, or as the content that an agent inside asks; they are answered by the next
    message, with `Content.from_function_result(request_id, result=...)` or the content's own answer.

    A turn that failed, or that a process did not survive, goes on when the same message is given again, or none: what
    was done is not done again. Another message leaves it, and goes on from where the turn before had ended.

    One call at a time: the workflow is one instance, whose executors serve one run at once. Sessions may take turns.
    Serve people side by side with an agent each, over workflows that are built for each.
    """

    REQUEST_INFO_FUNCTION_NAME: ClassVar[str] = REQUEST_INFO_FUNCTION_NAME
    RequestInfoFunctionArgs = RequestInfoFunctionArgs

    records_itself: ClassVar[bool] = True
    """In a workflow, what it does is recorded as it is done: the executor around it need not record it as a whole."""

    def __init__(
        self,
        workflow: Workflow,
        *,
        id: str | None = None,  # noqa: A002 - the documented name
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        **kwargs: Any,
    ) -> None:
        start = workflow.get_start_executor()
        if not any(is_type_compatible(list[Message], type_) for type_ in start.input_types):
            raise ValueError(
                f"the start executor {start.id!r} of workflow {workflow.name!r} can't handle list[Message], which is "
                "what an agent is told: give it a handler for that, or start with an executor that has one"
            )
        super().__init__(
            id=id or f"WorkflowAgent_{workflow.blueprint.clock.new_id()[:8]}",
            name=name,
            description=description,
            context_providers=context_providers,
            **kwargs,
        )
        self._workflow = workflow
        self._memory = Memory()
        self._own_state: dict[str, Any] = {}
        """What a session would hold, for calls without one."""
        self._caller: weakref.ref[Any] | None = None
        self._has_warned = False

    @property
    def workflow(self) -> Workflow:
        """The workflow."""
        return self._workflow

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Awaitable[AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any: ...
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | str | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]] | Awaitable[AgentResponse[Any]]:
        """Say something to the workflow, and get what it yields and asks until it rests.

        With a session the workflow gets the conversation so far, and what is new behind it. `checkpoint_id` lets the
        run go on from a checkpoint first; without a message that is all, and what it tells is the answer.
        `checkpoint_storage` is used in place of the workflow's own. Without a message the run of the session goes on
        with what it has not finished, and tells again what the session has not got.

        Raises AgentInvalidResponseException if the run waits for answers and the message holds something else.
        """
        given = given_storage(checkpoint_storage)
        if checkpoint_id is not None and given is None and self._workflow.checkpoint_storage is None:
            raise AgentInvalidRequestException(
                f"checkpoint {checkpoint_id!r} has to be read from somewhere: give checkpoint_storage with it"
            )
        said = messages_of(messages)
        talk = Talk(
            agent=self,
            said=said,
            session=session,
            checkpoint_id=checkpoint_id,
            storage=self._workflow.checkpoint_storage if given is None else given,
            kwargs={"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs},
            streaming=stream,
            turn=Turn(f"workflow {self.name or self._workflow.name}", said),
            is_plain=checkpoint_id is None and given is None,
            memory=self._memory,
            own_state=self._own_state,
        )
        self._warn_of_storage(talk)
        if not stream:
            return self._answered(talk)
        updates: ResponseStream[AgentResponseUpdate, AgentResponse[Any]] = ResponseStream(
            self._updates(talk), finalizer=AgentResponse[Any].from_updates
        )
        self._take_place(updates)
        return updates.with_cleanup_hook(partial(self._make_room, weakref.ref(updates)))

    def _warn_of_storage(self, talk: Talk) -> None:
        if isinstance(talk.seat, NodeSeat) and self._workflow.checkpoint_storage is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the storage of workflow %r is not used inside of executor %r: the run around it holds its run",
                self._workflow.name,
                talk.seat.parent.executor_id,
            )

    @staticmethod
    def merge_updates(updates: Sequence[AgentResponseUpdate], response_id: str) -> AgentResponse[Any]:
        """One answer of pieces that were told one among the other: by answer, then by message, in the order of time."""
        return merged(updates, response_id)

    async def _answered(self, talk: Talk) -> AgentResponse[Any]:
        caller = _Caller()
        self._take_place(caller)
        try:
            await talk.begin()
            if talk.is_step:
                response, kept = await recorded(talk.turn, partial(self._outcome, talk), name=_STEP, counted=talk.count)
                talk.take(kept)
            else:
                response = await self._whole(talk)
            await talk.finish(response)
            return response
        finally:
            self._make_room(weakref.ref(caller))

    async def _outcome(self, talk: Talk) -> tuple[AgentResponse[Any], dict[str, Any]]:
        return await self._whole(talk), talk.kept()

    async def _whole(self, talk: Talk) -> AgentResponse[Any]:
        return self._teller().whole([event async for event in talk.events()])

    async def _updates(self, talk: Talk) -> AsyncGenerator[AgentResponseUpdate]:
        await talk.begin()
        stream = self._pieces(talk)
        if talk.is_step:
            stream = recorded_stream(
                talk.turn, partial(self._pieces, talk), name=_STEP, counted=talk.count, pieces=_pieces_of
            )
        try:
            async for update in stream:
                yield update
        finally:
            # An event loop that shuts down closes all generators at once: this one may be on its way.
            with suppress(RuntimeError):
                await stream.aclose()
        response, kept = await stream.get_final_response()
        talk.take(kept)
        await talk.finish(response)

    def _pieces(self, talk: Talk) -> ResponseStream[AgentResponseUpdate, tuple[AgentResponse[Any], dict[str, Any]]]:
        async def told() -> AsyncGenerator[AgentResponseUpdate]:
            teller = self._teller()
            async with Closing(talk.events()) as events:
                async for event in events:
                    for update in teller.pieces(event):
                        yield update

        return ResponseStream(told(), finalizer=lambda updates: (AgentResponse[Any].from_updates(updates), talk.kept()))

    def _teller(self) -> Teller:
        clock = self._workflow.blueprint.clock
        return Teller(self.name, clock.new_id(), clock)

    def _take_place(self, caller: object) -> None:
        if self._caller is not None and self._caller() is not None:
            raise WorkflowException(
                f"agent {self.name!r} is answering already: workflow {self._workflow.name!r} is one instance, and "
                "serves one call at a time; wait for the answer, or use an agent over a workflow of its own"
            )
        self._caller = weakref.ref(caller)

    def _make_room(self, caller: weakref.ref[Any]) -> None:
        if self._caller == caller:
            self._caller = None


def _pieces_of(outcome: tuple[AgentResponse[Any], dict[str, Any]]) -> list[AgentResponseUpdate]:
    return outcome[0].to_updates()
