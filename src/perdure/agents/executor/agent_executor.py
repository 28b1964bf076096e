"""`AgentExecutor`: an agent as a node of a workflow. All that it keeps between two messages is state of the run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from perdure.agents.agent import Agent, BaseAgent, SupportsAgentRun
from perdure.agents.executor.messages import (
    AgentExecutorRequest,
    AgentExecutorResponse,
    resolve_agent_id,
)
from perdure.agents.executor.requests import (
    Answer,
    answer_to,
    asked_outside,
    first_told,
    is_question,
    left_over,
    message_of,
    misfit,
    result_inside,
    told_on,
    what_is_done,
)
from perdure.agents.executor.session import LiveSession, live
from perdure.agents.executor.turn import SESSION_KEY, AgentTurn
from perdure.agents.messages.content import Content
from perdure.agents.messages.message import Message, messages_of
from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate
from perdure.agents.sessions.session import AgentSession
from perdure.clock import SystemClock
from perdure.events import WorkflowEvent
from perdure.graph import (
    ABSENT,
    INTERNAL_SOURCE_ID,
    Executor,
    Shared,
    WorkflowContext,
    current_activation,
    handler,
    private_scope,
    response_handler,
)
from perdure.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.graph import Graph


def said_in(messages: Sequence[Message]) -> list[Message]:
    """Messages without the questions of a workflow inside, and without calls that are asked about beside them.

    A stream tells a call, and then asks about it; a whole answer only asks.
    """
    every = [content for message in messages for content in message.contents]
    asked = {content.function_call.call_id for content in every if content.user_input_request and content.function_call}
    return left_over(
        messages,
        lambda content: is_question(content) or (content.type == "function_call" and content.call_id in asked),
    )


def words_in(messages: Iterable[Message]) -> list[Message]:
    """The words alone, of those messages of the agent that have some."""
    worded = [message for message in messages if message.role == "assistant" and message.text.strip()]
    return left_over(worded, lambda content: content.type != "text")


def with_messages(response: AgentResponse[Any], messages: Sequence[Message]) -> AgentResponse[Any]:
    """The same response with other messages."""
    other = copy(response)
    other.messages = list(messages)
    return other


_RESET = "reset"
"""In the state of the executor: the last wish that was done."""


@dataclass
class Reset:
    """That the next turn is to forget what waits: said outside of any run, whose state only a handler can change.

    It is done when the state says so, and not before: the handler may fail.
    """

    _wish: str | None = None
    _done_by: str | None = None

    def wish_it(self) -> None:
        """Let the next turn do it."""
        self._wish = SystemClock().new_id()

    def is_to_be_done(self, ctx: WorkflowContext[Any, Any]) -> bool:
        """Whether this handler call is the one, and has not done it yet."""
        own = ctx.scope()
        if self._wish is None:
            return False
        if own.get(_RESET) != self._wish:
            own.set(_RESET, self._wish)
            self._done_by = ctx.idempotency_key
            return True
        if self._done_by != ctx.idempotency_key:
            self._wish = None
        return False


logger = logging.getLogger(__name__)

ContextMode: TypeAlias = Literal["full", "last_agent", "custom"]
ContextFilter: TypeAlias = Callable[[list[Message]], list[Message]]
Context: TypeAlias = WorkflowContext[AgentExecutorResponse, AgentResponse | AgentResponseUpdate]

_CACHE = "cache"
"""What the agent is told next."""
_CONVERSATION = "conversation"
"""Of a turn that waits for answers: what was said in it so far."""
_SPOKEN = "spoken"
"""Of such a turn: the words of the agent itself. They were told when it asked."""
_PENDING = "pending"
"""What was asked of the outside, by request."""
_ANSWERS = "answers"
"""The answers so far, if more are to come."""


class AgentExecutor(Executor):
    """Lets an agent take part in a workflow.

    It takes texts, messages, lists of them, an `AgentExecutorRequest` or what another agent has sent. It sends an
    `AgentExecutorResponse`, and its output is the `AgentResponse`; whoever reads a stream is told the updates.

    The agent's session lasts as long as the run. Executors that are given the same session have it in common, also
    after a restart. `context_mode` says what of another agent's response the agent is told: the `"full"` conversation,
    what the `"last_agent"` said, or what a `context_filter` makes of the conversation (`"custom"`).
    """

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        session: AgentSession | None = None,
        id: str | None = None,  # noqa: A002 - the documented name
        context_mode: ContextMode | None = None,
        context_filter: ContextFilter | None = None,
        **kwargs: Any,
    ) -> None:
        _require_agent(agent, session)
        chosen = id or resolve_agent_id(agent)
        if not chosen:
            raise ValueError("an agent in a workflow needs a name, or give AgentExecutor an id")
        if kwargs.get("max_concurrency", 1) != 1:
            raise ValueError(f"agent {chosen!r} has one conversation: it handles one message at a time")
        super().__init__(chosen, **kwargs)
        self._context_mode: ContextMode = _checked_mode(context_mode or "full", context_filter)
        self._context_filter = context_filter
        self._agent = agent
        self._session: Any = session if session is not None else agent.create_session()
        self.__live: LiveSession | None = live(self._session) if isinstance(self._session, AgentSession) else None
        self.__reset = Reset()

    @property
    def agent(self) -> SupportsAgentRun:
        """The agent."""
        return self._agent

    @property
    def description(self) -> str | None:
        """What the agent is for."""
        return self._agent.description

    @property
    def session(self) -> Any:
        """The session that the agent was given, as the last turn has left it."""
        return self._session

    def child_graph(self) -> Graph | None:
        """The graph inside of an agent that is a workflow itself: its run is part of the run around it."""
        return getattr(getattr(self._agent, "workflow", None), "graph", None)

    @staticmethod
    def remembers(executor: Executor) -> bool:
        """Whether an executor is an agent that knows what it was told before, and is not told of all by a filter."""
        return (
            type(executor) is AgentExecutor
            and executor._context_filter is None
            and (isinstance(executor.agent, Agent) or executor.child_graph() is not None)
        )

    def shares(self) -> Shared | None:
        """The session: others may have been given the same."""
        return None if self.__live is None else Shared(self._session, SESSION_KEY, self.__live.merged)

    def reset(self) -> None:
        """Forget the messages that the agent has not been told yet."""
        activation = current_activation()
        if activation is None:
            self.__reset.wish_it()
        else:
            activation.write(private_scope(self.id), _CACHE, Log())

    def renew_session(self) -> None:
        """In a handler of this executor: begin a new session, under an id of its own, and forget what was not told yet.

        A session that others have too stays as it is. Raises RuntimeError outside of a handler.
        """
        activation = current_activation()
        if activation is None:
            raise RuntimeError(f"the session of agent {self.id!r} belongs to a run: renew it in a handler")
        own = private_scope(self.id)
        for key in list(activation.keys(own)):
            activation.erase(own, key)
        if self.__live is not None and activation.common_scope() is None:
            activation.write(own, SESSION_KEY, self.__live.renewed(activation.idempotency_key))

    @property
    def tells_turns(self) -> bool:
        """Whether what the agent says is an output at once. A subclass that says no yields it when it counts."""
        return True

    @handler
    async def run(self, request: AgentExecutorRequest, ctx: Context) -> None:
        """Take messages in, and answer if that is wanted."""
        self.__take_in(request.messages, ctx)
        if request.should_respond:
            await self.__respond(ctx)

    @handler
    async def from_response(self, prior: AgentExecutorResponse, ctx: Context) -> None:
        """Go on with what another agent has said."""
        self.__take_in(await self.__context(prior), ctx)
        await self.__respond(ctx)

    async def __context(self, prior: AgentExecutorResponse) -> Iterable[Message]:
        """What the agent is told of the response of another."""
        if self._context_mode == "full":
            return prior.full_conversation
        if self._context_mode == "last_agent":
            return prior.agent_response.messages
        assert self._context_filter is not None, "it was checked"
        chosen: Any = self._context_filter(prior.full_conversation)
        return await chosen if inspect.isawaitable(chosen) else chosen

    @handler
    async def from_str(self, text: str, ctx: Context) -> None:
        """Answer a text."""
        if not self.__cache(ctx) and ctx.source_executor_ids != [INTERNAL_SOURCE_ID(self.id)]:
            logger.warning(
                "agent %r is given a bare text by another executor, without the conversation that led there; if that "
                "executor changes what an agent has said, let it send AgentExecutorResponse.with_text(...)",
                self.id,
            )
        self.__take_in(messages_of(text), ctx)
        await self.__respond(ctx)

    @handler
    async def from_message(self, message: Message, ctx: Context) -> None:
        """Answer a message."""
        self.__take_in([message], ctx)
        await self.__respond(ctx)

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: Context) -> None:
        """Answer messages."""
        self.__take_in(messages_of(messages), ctx)
        await self.__respond(ctx)

    @response_handler
    async def handle_user_input_response(self, original_request: Content, response: Answer, ctx: Context) -> None:
        """Take an answer to what the agent has asked. When all have come, the agent goes on."""
        own, request_id = ctx.scope(), ctx.request_id
        assert request_id is not None, "an answer has its request"
        pending: dict[str, Content] = own.get(_PENDING, {})
        asked = pending.get(request_id, original_request)
        reason = misfit(asked, response)
        if reason is not None:
            await ctx.add_event(WorkflowEvent.warning(f"request {request_id!r} is open again: {reason}"))
            await self.__ask(ctx, request_id, asked)
            return
        done = what_is_done(asked)
        if done is not None:
            ctx.require_approved(done)
        await self.__go_on(ctx, pending, answer_to(asked, response))

    @response_handler
    async def handle_nested_response(self, original_request: object, response: object, ctx: Context) -> None:
        """Take an answer to what a workflow inside of the agent has asked."""
        del original_request
        pending: dict[str, Content] = ctx.scope().get(_PENDING, {})
        await self.__go_on(ctx, pending, result_inside(pending[ctx.request_id or ""], response))

    async def __go_on(self, ctx: Context, pending: dict[str, Content], answer: Content) -> None:
        own = ctx.scope()
        answers: list[Content] = [*own.get(_ANSWERS, ()), answer]
        left = {key: content for key, content in pending.items() if key != ctx.request_id}
        own.set(_PENDING, left)
        own.set(_ANSWERS, answers if left else [])
        if not left:
            # The results of calls follow the calls; what others have said meanwhile comes after them.
            own.set(_CACHE, Log([message_of(answers), *self.__cache(ctx)]))
            await self.__respond(ctx)

    def __cache(self, ctx: Context) -> Log[Message]:
        if self.__reset.is_to_be_done(ctx):
            ctx.scope().set(_CACHE, Log())
        return cast("Log[Message]", ctx.scope().get(_CACHE) or Log())

    def __take_in(self, messages: Iterable[Message], ctx: Context) -> None:
        cache = self.__cache(ctx)
        cache.extend(messages)
        ctx.scope().set(_CACHE, cache)

    async def on_answer(self, answer: AgentExecutorResponse, ctx: WorkflowContext[Any, Any]) -> Sequence[Message]:
        """What becomes of an answer of the agent: it is sent on.

        A subclass may do something else. What it returns the agent is told next, and answers again at once.
        """
        await ctx.send_message(answer)
        return ()

    async def __respond(self, ctx: Context) -> None:
        """Let the agent answer, until there is nothing more to tell it."""
        while more := await self.__answered(ctx):
            self.__take_in(more, ctx)

    async def __answered(self, ctx: Context) -> Sequence[Message]:
        """Let the agent answer once, or ask what it asks; what it is told next."""
        cached = list(self.__cache(ctx))
        told = cached if self.child_graph() is None else first_told(cached)
        if not told:
            logger.warning("agent %r is run without a message, which some models refuse", self.id)
        turn = AgentTurn(self._agent, self.id, self._session, self.__live, ctx, is_told=self.tells_turns)
        response = await turn.taken(told)
        own, said = ctx.scope(), said_in(response.messages)
        conversation = [*own.get(_CONVERSATION, ()), *told, *said]
        own.set(_CACHE, Log(cached[len(told) :]))
        if turn.asked or turn.questions:
            words = words_in(said)
            own.set(_CONVERSATION, Log(conversation))
            own.set(_SPOKEN, Log([*own.get(_SPOKEN, ()), *words]))
            if words:
                self.__tell(with_messages(response, words), ctx)
            await self.__ask_all(ctx, turn)
            return ()
        self.__tell(response, ctx)
        if spoken := own.get(_SPOKEN, ()):
            response = with_messages(response, [*spoken, *response.messages])
        for key in filter(own.has, (_CONVERSATION, _SPOKEN)):
            own.delete(key)
        return await self.on_answer(AgentExecutorResponse(self.id, response, told_on(conversation)), ctx)

    def __tell(self, response: AgentResponse[Any], ctx: Context) -> None:
        """Tell a response as an output. Who reads a stream has its pieces already."""
        if self.tells_turns:
            ctx.activation.output(response, in_pieces=True)

    async def __ask_all(self, ctx: Context, turn: AgentTurn) -> None:
        own = ctx.scope()
        pending: dict[str, Content] = own.get(_PENDING, {})
        for place, content in enumerate(turn.asked):
            request_id = await self.__ask(ctx, content.id or f"{ctx.idempotency_key}-{place}", content)
            pending[request_id] = content
        own.set(_PENDING, {**pending, **asked_outside(ctx.activation, turn.questions)} if turn.questions else pending)

    async def __ask(self, ctx: Context, request_id: str, asked: Content) -> str:
        """Open a request; the id that it has. Ids of calls are made by models, and two of them may choose the same."""
        done = what_is_done(asked)
        for chosen in (request_id, f"{request_id}-{ctx.idempotency_key}"):
            if not ctx.activation.is_open(chosen):
                break
        await ctx.request_info(
            asked if chosen == request_id else Content.from_dict({**asked.to_dict(), "id": chosen}),
            Content if done is None else Answer,
            request_id=chosen,
            approves=ABSENT if done is None else done,
        )
        return chosen


def _require_agent(agent: object, session: object) -> None:
    if not isinstance(agent, SupportsAgentRun):
        raise TypeError(f"AgentExecutor takes an agent, which has run and create_session, and {agent!r} is none")
    # Agents that are none of ours may have sessions of any kind.
    if session is not None and isinstance(agent, BaseAgent) and not isinstance(session, AgentSession):
        raise TypeError(
            f"the session of agent {agent.name!r} is an AgentSession, not a {type(session).__name__}: make one with "
            "agent.create_session() or AgentSession.from_dict(...)"
        )


def _checked_mode(mode: str, context_filter: ContextFilter | None) -> ContextMode:
    if mode not in {"full", "last_agent", "custom"}:
        raise ValueError(f"context_mode is 'full', 'last_agent' or 'custom', not {mode!r}")
    if mode == "custom" and context_filter is None:
        raise ValueError("context_mode='custom' needs a context_filter: a function from a conversation to messages")
    return cast("ContextMode", mode)
