"""`HandoffAgentExecutor`: an agent that hears what all others say, and speaks when the conversation is handed to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from typing_extensions import override

from perdure import (
    INTERNAL_SOURCE_ID,
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentInvalidResponseException,
    AgentResponse,
    AgentResponseUpdate,
    Log,
    Message,
    WorkflowContext,
    WorkflowEvent,
    handler,
    response_handler,
)
from perdure.orchestrations.handoff.tools import (
    HandoffAgentUserRequest,
    Handoffs,
    HandoffSentEvent,
    clean_conversation_for_handoff,
    news,
    with_handoffs,
)
from perdure.orchestrations.messages import messages_of
from perdure.orchestrations.request_info import AgentRequestInfoResponse
from perdure.orchestrations.termination import is_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Agent, AgentSession
    from perdure.orchestrations.handoff.tools import HandoffConfiguration
    from perdure.orchestrations.termination import TerminationCondition

Context: TypeAlias = WorkflowContext[Any, AgentResponse | AgentResponseUpdate]

AUTONOMOUS_PROMPT: Final = "Nobody has answered. Go on by yourself with what you know."
AUTONOMOUS_TURN_LIMIT: Final = 50
_CORRECTIONS_MAX: Final = 2
_NO_WORDS: Final = "there is no text, image or file in what was said"
_TURNS = "autonomous_turns"
"""How often the agent has gone on by itself since somebody else spoke."""
_SAID = "said"
"""The conversation as this agent has heard it, without calls of tools."""
_CORRECTIONS = "corrections"
"""How often the agent was told that it can hand over to one agent only."""


class HandoffAgentExecutor(AgentExecutor):
    """An agent in a handoff. It works on a copy of the agent, which has the tools to hand over.

    It tells all others what it says, in words only. Then it hands over, if the agent has called for that; goes on by
    itself in autonomous mode; or asks the user.
    """

    def __init__(
        self,
        agent: Agent[Any],
        handoffs: Sequence[HandoffConfiguration],
        *,
        agent_session: AgentSession | None = None,
        is_start_agent: bool = False,
        user_response_target_id: str | None = None,
        termination_condition: TerminationCondition | None = None,
        autonomous_mode: bool = False,
        autonomous_mode_prompt: str | None = None,
        autonomous_mode_turn_limit: int | None = None,
    ) -> None:
        super().__init__(with_handoffs(agent, handoffs), session=agent_session)
        self._handoffs = Handoffs.of(handoffs)
        self._is_start = is_start_agent
        self._answers_go_to = user_response_target_id or self.id
        self._condition = termination_condition
        self._prompt = autonomous_mode_prompt or AUTONOMOUS_PROMPT
        limit = AUTONOMOUS_TURN_LIMIT if autonomous_mode_turn_limit is None else autonomous_mode_turn_limit
        self._turns_max = limit if autonomous_mode else 0

    @override
    @handler
    async def run(self, request: AgentExecutorRequest, ctx: Context) -> None:
        """Hear what others say, and speak if that is wanted."""
        if ctx.source_executor_ids == [INTERNAL_SOURCE_ID(self.id)]:
            await self._begin(request.messages, ctx, should_respond=request.should_respond)
        else:
            await self._hear(request.messages, ctx, should_respond=request.should_respond)

    @override
    @handler
    async def from_response(self, prior: AgentExecutorResponse, ctx: Context) -> None:
        """Begin with what another agent has said."""
        await self._begin(prior.full_conversation, ctx)

    @override
    @handler
    async def from_str(self, text: str, ctx: Context) -> None:
        """Begin with a text."""
        await self._begin(messages_of(text), ctx)

    @override
    @handler
    async def from_message(self, message: Message, ctx: Context) -> None:
        """Begin with a message."""
        await self._begin([message], ctx)

    @override
    @handler
    async def from_messages(self, messages: list[str | Message], ctx: Context) -> None:
        """Begin with messages."""
        await self._begin(messages_of(messages), ctx)

    @response_handler
    async def handle_response(
        self, original_request: HandoffAgentUserRequest, response: list[Message], ctx: Context
    ) -> None:
        """Take what the user says. Nothing said ends the conversation."""
        if not response:
            return
        said = clean_conversation_for_handoff(response)
        if not said:
            await ctx.add_event(WorkflowEvent.warning(f"request {ctx.request_id!r} is asked again: {_NO_WORDS}"))
            await ctx.request_info(original_request, list[Message])
            return
        await self._tell_others(said, ctx)
        is_mine = self._answers_go_to == self.id
        await self._hear(said, ctx, should_respond=is_mine)
        if not is_mine:
            await ctx.send_message(AgentExecutorRequest([], should_respond=True), self._answers_go_to)

    @override
    async def on_answer(self, answer: AgentExecutorResponse, ctx: WorkflowContext[Any, Any]) -> Sequence[Message]:
        """Take the turn as it is, unless the agent hands over to several at once."""
        targets = self._handoffs.made(answer.full_conversation)
        if len(targets) > 1:
            await self._on_misstep(answer, ctx)
            return self._corrected(targets, answer, ctx)
        forget(_CORRECTIONS, ctx)
        if targets and (unshown := self._unshown(answer)):
            await self._tell_agent(unshown, ctx, should_respond=False)
        return await self._on_turn(answer, targets[0] if targets else None, ctx)

    async def _on_misstep(self, answer: AgentExecutorResponse, ctx: Context) -> None:
        """What becomes of the words of an agent that hands over to several at once: the others hear them."""
        await self._say(answer.agent_response, ctx)

    async def _on_turn(self, answer: AgentExecutorResponse, target: str | None, ctx: Context) -> Sequence[Message]:
        """What becomes of a turn: it counts. What is returned the agent is told next, and answers again."""
        return await self._end_turn(answer.agent_response, target, ctx)

    async def _end_turn(self, response: AgentResponse[Any], target: str | None, ctx: Context) -> Sequence[Message]:
        """Tell the others what the agent has said, and hand over, go on or ask the user."""
        await self._say(response, ctx)
        if target is not None:
            await self._hand_over(target, ctx)
            return ()
        if await self._is_over(ctx):
            return ()
        return await self._go_on(response, ctx)

    async def _begin(self, messages: Sequence[Message], ctx: Context, *, should_respond: bool = True) -> None:
        """Take what comes from outside, and tell it to the others."""
        said = clean_conversation_for_handoff(messages)
        if not said:
            raise ValueError(f"agent {self.id!r} is told nothing: {_NO_WORDS}")
        new = news(said, self._said(ctx))
        if self._is_start:
            await self._tell_others(new, ctx)
        await self._hear(new, ctx, should_respond=should_respond)

    async def _hear(self, messages: Sequence[Message], ctx: Context, *, should_respond: bool) -> None:
        self._note(messages, ctx)
        speaks = should_respond and not await self._is_over(ctx)
        await self._tell_agent(messages, ctx, should_respond=speaks)

    async def _tell_agent(self, messages: Sequence[Message], ctx: Context, *, should_respond: bool = True) -> None:
        """Tell the agent something, and nobody else; it answers if that is wanted."""
        await super().run(AgentExecutorRequest(list(messages), should_respond=should_respond), ctx)

    async def _say(self, response: AgentResponse[Any], ctx: Context) -> None:
        said = clean_conversation_for_handoff(response.messages)
        self._note(said, ctx)
        await self._tell_others(said, ctx)

    async def _tell_others(self, messages: Sequence[Message], ctx: Context) -> None:
        if messages:
            await ctx.send_message(AgentExecutorRequest(list(messages), should_respond=False))

    async def _hand_over(self, target: str, ctx: Context) -> None:
        await ctx.send_message(AgentExecutorRequest([], should_respond=True), target)
        await ctx.add_event(WorkflowEvent("handoff_sent", HandoffSentEvent(self.id, target)))
        forget(_TURNS, ctx)

    def _corrected(self, targets: Sequence[str], answer: AgentExecutorResponse, ctx: Context) -> list[Message]:
        """What the agent is told that hands over to several at once: nobody knows whom it means."""
        named = ", ".join(map(repr, targets))
        corrections = ctx.scope().get(_CORRECTIONS, 0)
        if corrections == _CORRECTIONS_MAX:
            raise AgentInvalidResponseException(
                f"agent {self.id!r} hands over to {named} at once, and was told {corrections} times that it can't; "
                "say in its instructions that it hands over to one agent at a time"
            )
        ctx.scope().set(_CORRECTIONS, corrections + 1)
        told = f"You have handed over to {named} at once, so nobody has taken over. Hand over to one of them only."
        return [*self._unshown(answer), Message("user", [told])]

    def _unshown(self, answer: AgentExecutorResponse) -> list[Message]:
        """Results that the model has not been shown, if its provider keeps the conversation: it waits for them."""
        if getattr(self.session, "service_session_id", None) is None:
            return []
        return [message for message in answer.agent_response.messages[-1:] if message.role == "tool"]

    async def _go_on(self, response: AgentResponse[Any], ctx: Context) -> Sequence[Message]:
        own = ctx.scope()
        turns = own.get(_TURNS, 0)
        if turns >= self._turns_max:
            forget(_TURNS, ctx)
            await ctx.request_info(HandoffAgentUserRequest(response), list[Message])
            return ()
        own.set(_TURNS, turns + 1)
        prompt = Message("user", [self._prompt])
        self._note([prompt], ctx)
        return () if await self._is_over(ctx) else [prompt]

    def _said(self, ctx: Context) -> Log[Message]:
        return cast("Log[Message]", ctx.scope().get(_SAID) or Log())

    def _note(self, messages: Sequence[Message], ctx: Context) -> None:
        if messages:
            said = self._said(ctx)
            said.extend(messages)
            ctx.scope().set(_SAID, said)

    async def _is_over(self, ctx: Context) -> bool:
        return self._condition is not None and await is_over(self._condition, self._said(ctx))


def forget(key: str, ctx: Context) -> None:
    """Forget a key of the executor's own state, if there is one."""
    if ctx.scope().has(key):
        ctx.scope().delete(key)


_BEFORE = "before"
"""What was said before the turn that is looked at, if the agent was told more."""
_DRAFTS = "drafts"
"""Whom each turn that is looked at hands over to, or nobody, by request."""


class ReviewedHandoffAgentExecutor(HandoffAgentExecutor):
    """An agent in a handoff, about whose turns a person is asked.

    Until a turn has passed the others don't hear of it, nobody takes over, and it is no output. What the person says
    the agent alone is told. With `shows_drafts`, turns that are looked at are told as well.
    """

    def __init__(
        self, agent: Agent[Any], handoffs: Sequence[HandoffConfiguration], *, shows_drafts: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(agent, handoffs, **kwargs)
        self._shows_drafts = shows_drafts

    @property
    @override
    def tells_turns(self) -> bool:
        """Whether drafts are told."""
        return self._shows_drafts

    @override
    async def _on_misstep(self, answer: AgentExecutorResponse, ctx: Context) -> None:
        """Nobody is asked about a turn that can't be taken: the person sees it when there is another."""
        ctx.scope().set(_BEFORE, Log(_with_before(answer, ctx)))

    @override
    async def _on_turn(self, answer: AgentExecutorResponse, target: str | None, ctx: Context) -> Sequence[Message]:
        """Ask, with all that was said since the agent was first asked."""
        whole = AgentExecutorResponse(answer.executor_id, answer.agent_response, _with_before(answer, ctx))
        forget(_BEFORE, ctx)
        request_id = f"{ctx.idempotency_key}-review"
        ctx.scope().set(_DRAFTS, {**ctx.scope().get(_DRAFTS, {}), request_id: target})
        await ctx.request_info(whole, AgentRequestInfoResponse, request_id=request_id)
        return ()

    @response_handler
    async def handle_request_info_response(
        self, original_request: AgentExecutorResponse, response: AgentRequestInfoResponse, ctx: Context
    ) -> None:
        """Let the turn pass, or let the agent take another."""
        target = _taken_draft(ctx)
        if response.messages:
            speaks = not await self._is_over(ctx)
            if speaks:
                ctx.scope().set(_BEFORE, Log(original_request.full_conversation))
            await self._tell_agent(response.messages, ctx, should_respond=speaks)
            return
        await ctx.yield_output(original_request.agent_response, in_pieces=True)
        more = await self._end_turn(original_request.agent_response, target, ctx)
        if more:
            await self._tell_agent(more, ctx)


def _with_before(answer: AgentExecutorResponse, ctx: Context) -> list[Message]:
    return [*ctx.scope().get(_BEFORE, ()), *answer.full_conversation]


def _taken_draft(ctx: Context) -> str | None:
    """Whom the turn hands over to that was looked at. It is looked at no more."""
    drafts: dict[str, str | None] = dict(ctx.scope().get(_DRAFTS, {}))
    target = drafts.pop(ctx.request_id or "")
    ctx.scope().set(_DRAFTS, drafts)
    return target
