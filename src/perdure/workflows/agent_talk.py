"""One call of a workflow as agent: the conversation so far, the run that it is about, and what is kept of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from perdure.agents import (
    AgentResponse,
    AgentSession,
    HistoryProvider,
    InMemoryHistoryProvider,
    SessionContext,
    tokens_in,
    unheard,
)
from perdure.data import mutable
from perdure.engine import Closing, output_events
from perdure.workflows.agent_bookmark import Bookmark
from perdure.workflows.agent_given import Given, hears_itself
from perdure.workflows.agent_nested import NestedRun
from perdure.workflows.agent_requests import plain_messages
from perdure.workflows.agent_runs import Conversation
from perdure.workflows.agent_seats import HandlerSeat, NodeSeat, host

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

    from perdure.agents import Message, Turn
    from perdure.engine import Call
    from perdure.events import WorkflowEvent
    from perdure.workflows.agent import WorkflowAgent
    from perdure.workflows.agent_runs import Memory
    from perdure.workflows.agent_seats import Seat


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
