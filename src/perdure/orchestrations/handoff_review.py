"""A person between agents that hand over to each other: a turn counts when somebody has let it pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from perdure import AgentExecutorResponse, Log, response_handler
from perdure.orchestrations.handoff_executor import (
    Context,
    HandoffAgentExecutor,
    forget,
)
from perdure.orchestrations.request_info import AgentRequestInfoResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Agent, Message
    from perdure.orchestrations.handoff_tools import HandoffConfiguration

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
