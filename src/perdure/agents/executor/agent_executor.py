"""`AgentExecutor`: an agent as a node of a workflow. All its state belongs to the run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from typing_extensions import TypedDict

from perdure import graph
from perdure.agents.agent import Agent, BaseAgent, SupportsAgentRun, resolve_agent_id
from perdure.agents.executor import requests
from perdure.agents.executor.agent_turn import SESSION_KEY, AgentTurn, LiveSession, live_session
from perdure.agents.messages.content import Content
from perdure.agents.messages.message import Message, normalize_messages
from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate
from perdure.agents.sessions.session import AgentSession
from perdure.clock import SystemClock
from perdure.codec import register_type
from perdure.events import WorkflowEvent
from perdure.log import Log


@dataclass
class AgentExecutorRequest:
    """Messages for an agent. With `should_respond=False` the agent only stores them for its next response."""

    messages: list[Message]
    should_respond: bool = True


@dataclass
class AgentExecutorResponse:
    """An agent's response, and the conversation up to and including it."""

    executor_id: str
    agent_response: AgentResponse[Any]
    full_conversation: list[Message]

    def with_text(self, text: str) -> AgentExecutorResponse:
        """Replace the response's text. Send this on after changing an agent's text, so that the context is kept."""
        said = Message("assistant", [text])
        left, conversation = list(self.agent_response.messages), [said]
        # The messages of the response may be apart: others speak meanwhile.
        for message in reversed(self.full_conversation):
            if left and message == left[-1]:
                left.pop()
            else:
                conversation.append(message)
        return AgentExecutorResponse(self.executor_id, AgentResponse(messages=[said]), conversation[::-1])


class AgentExecutorCheckpointState(TypedDict, total=False):
    """The state that agent-framework stores of an agent executor, for annotations. Here the run stores it."""

    cache: list[Message]
    full_conversation: list[Message]
    agent_session: dict[str, Any]
    pending_agent_requests: dict[str, Content]
    pending_responses_to_agent: list[Content]
    pending_request_order: list[str]


register_type(AgentExecutorRequest, name="perdure:AgentExecutorRequest")
register_type(AgentExecutorResponse, name="perdure:AgentExecutorResponse")


def _own_state(ctx: graph.WorkflowContext[Any, Any]) -> graph.State:
    """Return the executor's private state. It keeps long conversations without copying: nobody changes what is set."""
    return graph.State(ctx.activation, ctx.activation.private_scope(), copies=False)


_RESET = "reset"
"""Where the executor's state keeps the id of the last reset that was requested outside any run."""

logger = logging.getLogger(__name__)

ContextMode: TypeAlias = Literal["full", "last_agent", "custom"]
ContextFilter: TypeAlias = Callable[[list[Message]], list[Message]]
Context: TypeAlias = graph.WorkflowContext[AgentExecutorResponse, AgentResponse | AgentResponseUpdate]

_OF_ANSWERS = frozenset({"function_result", "function_approval_response"})
_CONTINUE = "please continue."
_CANCELLED = "Error: the request was cancelled."
_CACHE = "cache"
"""Messages that the agent has not seen yet."""
_CONVERSATION = "conversation"
"""The conversation of a turn that waits for answers."""
_SPOKEN = "spoken"
"""The agent's own texts in such a turn. They were outputs when it asked."""
_PENDING = "pending"
"""Open questions by request id."""
_ANSWERS = "answers"
"""The answers so far, if more are missing."""


class AgentExecutor(graph.Executor):
    """Run an agent as a node of a workflow.

    It takes texts, messages, lists of them, an `AgentExecutorRequest`, or the response of another agent. It sends an
    `AgentExecutorResponse`, and its output is the `AgentResponse`; a stream gets the updates.

    The agent's session lasts as long as the run. Executors with the same session share it, also after a restart.
    `context_mode` selects what the agent sees of another agent's response: the `"full"` conversation, the response of
    the `"last_agent"`, or the result of a `context_filter` (`"custom"`). With `ensure_trailing_user_turn`, a user
    message follows input that ends with an assistant's message, because some models reject such input.
    """

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        session: AgentSession | None = None,
        id: str | None = None,  # noqa: A002 - the documented name
        context_mode: ContextMode | None = None,
        context_filter: ContextFilter | None = None,
        ensure_trailing_user_turn: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(cast("object", agent), SupportsAgentRun):
            raise TypeError(f"AgentExecutor needs an agent with run and create_session, not {agent!r}")
        # Other agents may have sessions of any kind.
        if isinstance(agent, BaseAgent) and not isinstance(cast("object", session), AgentSession | None):
            raise TypeError(
                f"the session of agent {agent.name!r} must be an AgentSession, not a {type(session).__name__}; use "
                "agent.create_session() or AgentSession.from_dict(...)"
            )
        mode: ContextMode = context_mode or "full"
        if mode not in get_args(ContextMode):
            raise ValueError(f"context_mode must be 'full', 'last_agent' or 'custom', not {mode!r}")
        if mode == "custom" and context_filter is None:
            raise ValueError("context_mode='custom' needs a context_filter, a function from a conversation to messages")
        chosen = id or resolve_agent_id(agent)
        if not chosen:
            raise ValueError("an agent in a workflow needs a name; name it, or use AgentExecutor(agent, id=...)")
        if kwargs.get("max_concurrency", 1) != 1:
            raise ValueError(f"agent {chosen!r} has one conversation, so max_concurrency must be 1")
        super().__init__(chosen, **kwargs)
        self._context_mode: ContextMode = mode
        self._context_filter = context_filter
        self._ensure_trailing_user_turn = ensure_trailing_user_turn
        self._agent = agent
        self._session: Any = session if session is not None else agent.create_session()
        self.__live: LiveSession | None = (
            live_session(self._session) if isinstance(self._session, AgentSession) else None
        )
        self.__reset_id: str | None = None
        self.__reset_by: str | None = None

    @property
    def agent(self) -> SupportsAgentRun:
        """Return the agent."""
        return self._agent

    @property
    def description(self) -> str | None:
        """Return the agent's description."""
        return self._agent.description

    @property
    def session(self) -> Any:
        """Return the session as the last turn left it."""
        return self._session

    def child_graph(self) -> graph.Graph | None:
        """Return the graph of an agent that is a workflow: its run is part of the enclosing run."""
        return getattr(getattr(self._agent, "workflow", None), "graph", None)

    @staticmethod
    def remembers(executor: graph.Executor) -> bool:
        """Return True for an agent that remembers earlier turns and has no filter."""
        return (
            type(executor) is AgentExecutor
            and executor._context_filter is None
            and (isinstance(executor.agent, Agent) or executor.child_graph() is not None)
        )

    def cancelled_answer(self, request_data: Any) -> Any:
        """Return a refusal of an approval, or an error as the result of a call that the user answers.

        Raises ValueError for a question of the workflow that is the agent: that workflow would wait for ever.
        """
        if not isinstance(request_data, Content):
            if self.child_graph() is not None:
                raise ValueError(f"it is asked by the workflow inside agent {self.id!r}, which has to be answered")
            return graph.ABSENT
        if request_data.type == requests.APPROVAL:
            return False
        if request_data.type == "function_call":
            return Content.from_function_result(request_data.call_id or "", result=_CANCELLED)
        return Content.from_error(message=_CANCELLED)

    def shares(self) -> graph.Shared | None:
        """Return the session, which other executors may share."""
        return None if self.__live is None else graph.Shared(self._session, SESSION_KEY, self.__live.merge)

    def reset(self) -> None:
        """Forget the messages that the agent has not seen yet."""
        activation = graph.current_activation()
        if activation is None:
            # The run's state can't be changed here: the next handler call does it.
            self.__reset_id = SystemClock().new_id()
        else:
            activation.write(graph.private_scope(self.id), _CACHE, Log())

    def renew_session(self) -> None:
        """Start a new session with a new id, and forget unseen messages. Call it in a handler of this executor.

        A shared session stays as it is. Raises RuntimeError outside a handler.
        """
        activation = graph.current_activation()
        if activation is None:
            raise RuntimeError(f"the session of agent {self.id!r} belongs to a run; renew it in a handler")
        own = graph.private_scope(self.id)
        for key in list(activation.keys(own)):
            activation.erase(own, key)
        if self.__live is not None and activation.common_scope() is None:
            activation.write(own, SESSION_KEY, self.__live.renew(activation.idempotency_key))

    @property
    def yields_responses(self) -> bool:
        """Return True if a response is an output at once. A subclass that returns False yields it itself.

        The former name, `tells_turns`, still works.
        """
        return getattr(self, "tells_turns", True)

    @graph.handler
    async def run(self, request: AgentExecutorRequest, ctx: Context) -> None:
        """Store the messages, and respond if requested."""
        self.__store(request.messages, ctx)
        if request.should_respond:
            await self.__respond(ctx)

    @graph.handler
    async def from_response(self, prior: AgentExecutorResponse, ctx: Context) -> None:
        """Continue from the response of another agent."""
        messages: Any = prior.full_conversation
        if self._context_mode == "last_agent":
            messages = prior.agent_response.messages
        elif self._context_mode == "custom":
            assert self._context_filter is not None, "checked in the constructor"
            messages = self._context_filter(prior.full_conversation)
        await self.__respond(ctx, await messages if inspect.isawaitable(messages) else messages)

    @graph.handler
    async def from_str(self, text: str, ctx: Context) -> None:
        """Respond to a text."""
        if not self.__cache(ctx) and ctx.source_executor_ids != [graph.INTERNAL_SOURCE_ID(self.id)]:
            logger.warning(
                "agent %r got a bare text from another executor, without the conversation; if that executor changes an "
                "agent's text, let it send AgentExecutorResponse.with_text(...)",
                self.id,
            )
        await self.__respond(ctx, normalize_messages(text))

    @graph.handler
    async def from_message(self, message: Message, ctx: Context) -> None:
        """Respond to a message."""
        await self.__respond(ctx, [message])

    @graph.handler
    async def from_messages(self, messages: list[str | Message], ctx: Context) -> None:
        """Respond to messages."""
        await self.__respond(ctx, normalize_messages(messages))

    @graph.response_handler
    async def handle_user_input_response(
        self, original_request: Content, response: requests.Answer, ctx: Context
    ) -> None:
        """Handle the answer to a question of the agent. The agent continues when all answers are in."""
        own, request_id = _own_state(ctx), ctx.request_id
        assert request_id is not None, "an answer has its request"
        pending: dict[str, Content] = own.get(_PENDING, {})
        asked = pending.get(request_id, original_request)
        reason = requests.find_mismatch(asked, response)
        if reason is not None:
            await ctx.add_event(WorkflowEvent.warning(f"request {request_id!r} is open again: {reason}"))
            await self.__ask(ctx, request_id, asked)
            return
        done = requests.approved_call(asked)
        if done is not None:
            ctx.require_approved(done)
        await self.__continue(ctx, pending, requests.to_answer(asked, response))

    @graph.response_handler
    async def handle_nested_response(self, original_request: object, response: object, ctx: Context) -> None:
        """Handle the answer to a question of the inner workflow."""
        del original_request
        pending: dict[str, Content] = _own_state(ctx).get(_PENDING, {})
        await self.__continue(ctx, pending, requests.to_inner_result(pending[ctx.request_id or ""], response))

    async def __continue(self, ctx: Context, pending: dict[str, Content], answer: Content) -> None:
        own = _own_state(ctx)
        answers: list[Content] = [*own.get(_ANSWERS, ()), answer]
        left = {key: content for key, content in pending.items() if key != ctx.request_id}
        own.set(_PENDING, left)
        own.set(_ANSWERS, answers if left else [])
        if not left:
            # Results come from a tool. They must follow their calls, so messages that came meanwhile go after them.
            role = "tool" if all(each.type == "function_result" for each in answers) else "user"
            own.set(_CACHE, Log([Message(role, answers), *self.__cache(ctx)]))
            await self.__respond(ctx)

    def __cache(self, ctx: Context) -> Log[Message]:
        own = _own_state(ctx)
        if self.__reset_id is not None and own.get(_RESET) != self.__reset_id:
            own.set(_RESET, self.__reset_id)
            own.set(_CACHE, Log())
            self.__reset_by = ctx.idempotency_key
        elif self.__reset_by != ctx.idempotency_key:
            # A handler may fail, so the reset is done only when the state of a later call says so.
            self.__reset_id = None
        return cast("Log[Message]", own.get(_CACHE) or Log())

    def __store(self, messages: Iterable[Message], ctx: Context) -> None:
        cache = self.__cache(ctx)
        cache.extend(messages)
        _own_state(ctx).set(_CACHE, cache)

    async def on_answer(self, answer: AgentExecutorResponse, ctx: graph.WorkflowContext[Any, Any]) -> Sequence[Message]:
        """Send a response of the agent on.

        A subclass may do something else. The agent gets the returned messages next and responds again at once.
        """
        await ctx.send_message(answer)
        return ()

    def unsent_results(self, answer: AgentExecutorResponse) -> list[Message]:
        """Return tool results that the provider, if it stores the conversation, has not seen and waits for."""
        if getattr(self.session, "service_session_id", None) is None:
            return []
        return [message for message in answer.agent_response.messages[-1:] if message.role == "tool"]

    async def __respond(self, ctx: Context, messages: Iterable[Message] = ()) -> None:
        """Let the agent respond to these and to all stored messages."""
        self.__store(messages, ctx)
        while more := await self.__respond_once(ctx):
            self.__store(more, ctx)

    async def __respond_once(self, ctx: Context) -> Sequence[Message]:
        """Let the agent respond or ask once. Returns the messages for its next response."""
        cached = list(self.__cache(ctx))
        messages = cached
        if self.child_graph() is not None and cached and all(each.type in _OF_ANSWERS for each in cached[0].contents):
            # A waiting workflow gets its answers alone, later messages after them.
            messages = cached[:1]
        if not messages:
            logger.warning("agent %r runs without a message, which some models reject", self.id)
        turn = AgentTurn(self._agent, self.id, self._session, self.__live, ctx, streams_response=self.yields_responses)
        is_unprompted = self._ensure_trailing_user_turn and messages and messages[-1].role == "assistant"
        response = await turn.run([*messages, Message("user", [_CONTINUE])] if is_unprompted else messages)
        own, said = _own_state(ctx), requests.visible_messages(response.messages)
        conversation = [*own.get(_CONVERSATION, ()), *messages, *said]
        own.set(_CACHE, Log(cached[len(messages) :]))
        if turn.questions or turn.inner_requests:
            words = requests.spoken_messages(said)
            own.set(_CONVERSATION, Log(conversation))
            own.set(_SPOKEN, Log([*own.get(_SPOKEN, ()), *words]))
            if words:
                self.__yield_response(_with_messages(response, words), ctx)
            await self.__ask_all(ctx, turn)
            return ()
        self.__yield_response(response, ctx)
        if spoken := own.get(_SPOKEN, ()):
            response = _with_messages(response, [*spoken, *response.messages])
        for key in filter(own.has, (_CONVERSATION, _SPOKEN)):
            own.delete(key)
        return await self.on_answer(
            AgentExecutorResponse(self.id, response, requests.share_conversation(conversation)), ctx
        )

    def __yield_response(self, response: AgentResponse[Any], ctx: Context) -> None:
        """Yield a response as an output. A stream already has its updates."""
        if self.yields_responses:
            ctx.activation.output(response, in_pieces=True)

    async def __ask_all(self, ctx: Context, turn: AgentTurn) -> None:
        own = _own_state(ctx)
        pending: dict[str, Content] = own.get(_PENDING, {})
        for place, content in enumerate(turn.questions):
            request_id = await self.__ask(ctx, content.id or f"{ctx.idempotency_key}-{place}", content)
            pending[request_id] = content
        own.set(_PENDING, {**pending, **requests.open_outer_requests(ctx.activation, turn.inner_requests)})

    async def __ask(self, ctx: Context, request_id: str, asked: Content) -> str:
        """Open a request and return its id. Models choose call ids, so two requests may want the same one."""
        done = requests.approved_call(asked)
        for chosen in (request_id, f"{request_id}-{ctx.idempotency_key}"):
            if not ctx.activation.is_open(chosen):
                break
        await ctx.request_info(
            asked if chosen == request_id else Content.from_dict({**asked.to_dict(), "id": chosen}),
            Content if done is None else requests.Answer,
            request_id=chosen,
            approves=graph.ABSENT if done is None else done,
        )
        return chosen


def _with_messages(response: AgentResponse[Any], messages: Sequence[Message]) -> AgentResponse[Any]:
    other = copy(response)
    other.messages = list(messages)
    return other
