"""The early end where all speak at once: nobody is asked, or nobody takes another turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Never

from typing_extensions import override

from perdure import (
    INTERNAL_SOURCE_ID,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentResponse,
    Log,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.orchestrations.aggregators import AnswersTogether
from perdure.orchestrations.concurrent_dispatch import DispatchToAllParticipants
from perdure.orchestrations.orchestrator_messages import create_completion_message, spoken
from perdure.orchestrations.request_info import AgentApprovalExecutor, AgentRequestInfoResponse, TooLateResponse
from perdure.orchestrations.termination import is_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import Message
    from perdure.orchestrations.termination import TerminationCondition

_SAID: Final = "said"
"""The conversation so far: inputs, and the answers in the order in which they came."""
_SCOPE: Final = "concurrent"
"""The state that the dispatcher writes, and participants read."""
_IS_OVER: Final = "is_over"
_TERMINATION_CONDITION_MET: Final = "The conversation has reached its termination condition."


class DispatchUnlessOver(DispatchToAllParticipants):
    """Asks all participants the same, hears their answers, and looks after each whether it is over."""

    def __init__(self, id: str, condition: TerminationCondition, aggregator_id: str) -> None:  # noqa: A002 - as an executor's
        super().__init__(id)
        self._condition = condition
        self._aggregator_id = aggregator_id

    @property
    @override
    def output_types(self) -> list[Any]:
        """What participants are asked, and what the aggregator is told if nobody is."""
        return [AgentExecutorRequest, list[AgentExecutorResponse]]

    @handler
    async def from_response(self, answer: AgentExecutorResponse, ctx: WorkflowContext[Any]) -> None:
        """Hear what a participant says. What comes from outside is asked as another agent has left it."""
        if ctx.source_executor_ids == [INTERNAL_SOURCE_ID(self.id)]:
            await self._ask(AgentExecutorRequest(answer.full_conversation), ctx)
            return
        said = spoken(answer.agent_response.messages, ctx.get_source_executor_id())
        if said and await self._is_over_with(said, ctx):
            ctx.scope(_SCOPE).set(_IS_OVER, True)  # noqa: FBT003 - the value that is kept

    @override
    async def _ask(self, request: AgentExecutorRequest, ctx: WorkflowContext[Any]) -> None:
        """Ask, unless it is over before anybody has spoken. A new input may go on with what was over."""
        is_the_end = await self._is_over_with(request.messages, ctx)
        ctx.scope(_SCOPE).set(_IS_OVER, is_the_end)
        if is_the_end:
            # With the last word in the conversation, the next input is a turn of its own.
            self._note([_last_word(self._aggregator_id)], ctx)
            await ctx.send_message([], target_id=self._aggregator_id)
        else:
            await ctx.send_message(request)

    async def _is_over_with(self, messages: Sequence[Message], ctx: WorkflowContext[Any]) -> bool:
        return await is_over(self._condition, self._note(messages, ctx))

    def _note(self, messages: Sequence[Message], ctx: WorkflowContext[Any]) -> Log[Message]:
        """Add to the conversation; all of it."""
        said: Log[Message] = ctx.scope().get(_SAID) or Log()
        said.extend(messages)
        ctx.scope().set(_SAID, said)
        return said


def is_about_the_end(message: object) -> bool:
    """Whether it goes to the aggregator what the dispatcher sends: there are no answers to wait for."""
    return message == []


class ApprovalUnlessOver(AgentApprovalExecutor):
    """An agent and who asks about its turns. Once it is over, it takes no other turn."""

    @response_handler
    async def process_propagated(self, request: object, response: object, ctx: WorkflowContext[Any, Any]) -> None:
        """An answer of a person. Sent back when it is over, the agent has said nothing: the turn has not passed."""
        if isinstance(response, AgentRequestInfoResponse) and response.messages and _is_over(ctx):
            response = TooLateResponse(response.messages)
        await super().process_propagated(request, response, ctx)


def _is_over(ctx: WorkflowContext[Any, Any]) -> bool:
    return ctx.scope(_SCOPE).get(_IS_OVER, default=False)


class AnswersIfThereAreSome(AnswersTogether):
    """One message of each participant; if nobody was asked, a last word that says so."""

    @handler
    async def aggregate(self, results: list[AgentExecutorResponse], ctx: WorkflowContext[Never, AgentResponse]) -> None:
        """Take the words of each, or have the last word."""
        if results:
            await super().aggregate(results, ctx)
            return
        await ctx.yield_output(AgentResponse(messages=[_last_word(self.id)]))


def _last_word(name: str) -> Message:
    return create_completion_message(text=_TERMINATION_CONDITION_MET, author_name=name)
