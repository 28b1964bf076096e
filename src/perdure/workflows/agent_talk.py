"""One call of a workflow as agent: the conversation so far, the run that it is about, and what is kept of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.agents.executor_requests import told_on
from perdure.agents.history import HistoryProvider, InMemoryHistoryProvider
from perdure.agents.providers import SessionContext
from perdure.agents.responses import AgentResponse
from perdure.agents.sessions import AgentSession
from perdure.runtime.closing import Closing
from perdure.runtime.narration import output_events
from perdure.workflows.agent_bookmark import Bookmark
from perdure.workflows.agent_nested import NestedRun
from perdure.workflows.agent_requests import plain_messages
from perdure.workflows.agent_runs import Conversation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from perdure.agents.messages import Message
    from perdure.agents.recording import Turn
    from perdure.events import WorkflowEvent
    from perdure.runtime.activation import ActivationRecorder
    from perdure.runtime.call import Call
    from perdure.workflows.agent import WorkflowAgent
    from perdure.workflows.agent_runs import Memory


@dataclass(slots=True)
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
    parent: ActivationRecorder | None
    """The handler call whose run keeps this one."""
    memory: Memory
    own_state: dict[str, Any]
    """What a session would hold, for calls without one."""
    mark: Bookmark = field(init=False)
    context: SessionContext = field(init=False)
    has_news: bool = field(default=False, init=False)
    """Whether there is anything to be kept of the call."""
    _kept_in: AgentSession | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.mark = Bookmark.of(self._state, _lasting_name(self.agent))

    @property
    def _state(self) -> dict[str, Any]:
        return self.own_state if self.session is None else self.session.state

    @property
    def is_step(self) -> bool:
        """Whether the call is made in a handler that knows nothing of the run: then all of it is one step."""
        return self.parent is None and self.turn.activation is not None

    def kept(self) -> dict[str, Any]:
        """What the session has to know after the call."""
        return {"mark": asdict(self.mark), "has_news": self.has_news}

    def take(self, kept: Mapping[str, Any]) -> None:
        """Let the session know it, also if the call was made in an earlier life."""
        self.has_news = kept["has_news"]
        if self.parent is None:
            self.mark = Bookmark(**kept["mark"])
            self.mark.put(self._state)

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

    async def events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """What the workflow tells until it rests."""
        given = self._given()
        told = self._nested(self.parent, given) if self.parent is not None else self._plain(given)
        async with Closing(told) as events:
            async for event in events:
                yield event

    def _given(self) -> list[Message]:
        """The conversation so far, and what is new. What is told again says so: an agent that knows it skips it."""
        before = SessionContext(input_messages=[])
        for source_id, messages in self.context.context_messages.items():
            before.extend_messages(source_id, told_on(messages))
        return [*before.get_messages(), *self.said]

    async def _nested(self, parent: ActivationRecorder, given: list[Message]) -> AsyncGenerator[WorkflowEvent[Any]]:
        run = NestedRun(self.agent.workflow, parent, kwargs=self.kwargs, streaming=self.streaming)
        async with Closing(run.events(self.said, given)) as events:
            async for event in events:
                yield event
        self.has_news = True

    async def _plain(self, given: list[Message]) -> AsyncGenerator[WorkflowEvent[Any]]:
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
                async with Closing(self._told(run, await run.next_call(self.said, given))) as events:
                    async for event in events:
                        yield event
            run.rest()
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
        self.context.answered(_kept(response))
        for provider in reversed(self.agent.context_providers):
            state = session.state.setdefault(provider.source_id, {})
            await provider.after_run(agent=self.agent, session=session, context=self.context, state=state)


def _lasting_name(agent: WorkflowAgent) -> str:
    """What tells the agent from others in a session. The name that a workflow has from its graph changes with that."""
    workflow, name = agent.workflow, agent.name or agent.workflow.name
    return "" if name == f"workflow-{workflow.graph_signature_hash[:12]}" else name


def _kept(response: AgentResponse[Any]) -> AgentResponse[Any]:
    return AgentResponse(
        messages=plain_messages(response.messages),
        response_id=response.response_id,
        created_at=response.created_at,
        usage_details=response.usage_details,
    )
