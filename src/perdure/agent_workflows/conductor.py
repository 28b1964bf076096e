"""`Conductor`: leads the nodes of an agent workflow. It gives them tasks, hears them, and has the last word."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perdure import (
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    FailedMessage,
    Message,
    SystemClock,
    WorkflowContext,
    handler,
)
from perdure.agent_workflows.checking import CONDUCTOR
from perdure.agent_workflows.conductor_request import request_in, request_of
from perdure.agent_workflows.conductor_work import Score, Work
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.messages import NodeResult, NodeTask
from perdure.agent_workflows.result import AgentWorkflowResult

if TYPE_CHECKING:
    from perdure import Clock
    from perdure.agent_workflows.conversations import Conversations
    from perdure.agent_workflows.plan import Plan

Context: TypeAlias = WorkflowContext[NodeTask, AgentWorkflowResult | AgentResponse | str]


class Conductor(Executor):
    """Leads an execution: who acts is decided by the plan, and all that it keeps is state of the run.

    It takes a request: a text, a message, messages, a dict, or what another agent has said. At the end it `gives` the
    result, the final answer as a text, or an `AgentResponse`; the last two raise AgentWorkflowError for an execution
    that is no success. Without an `execution_id` the first request of a run gives it one, the same in every life.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        conversations: Conversations | None = None,
        gives: Literal["result", "text", "response"] = "result",
        clock: Clock | None = None,
        execution_id: str | None = None,
    ) -> None:
        super().__init__(CONDUCTOR)
        digest = sha256("\n".join(plan.ways).encode()).hexdigest()
        self._score = Score(plan, conversations, clock or SystemClock(), name, digest)
        self._gives = gives
        self._execution_id = execution_id

    @handler
    async def begin_with_text(self, request: str, ctx: Context) -> None:
        """Begin with a text."""
        await self._begin(request, ctx)

    @handler
    async def begin_with_message(self, request: Message, ctx: Context) -> None:
        """Begin with a message."""
        await self._begin(request_in([request]), ctx)

    @handler
    async def begin_with_messages(self, request: list[str | Message], ctx: Context) -> None:
        """Begin with messages: what counts is what was said since an agent has spoken last."""
        await self._begin(request_in(request), ctx)

    @handler
    async def begin_with_values(self, request: dict[str, Any], ctx: Context) -> None:
        """Begin with values, which nodes read as `input.<key>`."""
        await self._begin(request, ctx)

    @handler
    async def begin_with_response(self, request: AgentExecutorResponse, ctx: Context) -> None:
        """Begin with what another agent has said."""
        await self._begin(request_of(request), ctx)

    @handler
    async def hear(self, result: NodeResult, ctx: Context) -> None:
        """Take what a node has put out, and let those act who waited for it."""
        await self._end(await Work(self._score, ctx).hear(result), ctx)

    @handler
    async def hear_failure(self, failed: FailedMessage, ctx: Context) -> None:
        """Take that a node has failed for good, and do what it says of that."""
        error = f"{failed.error.error_type}: {failed.error.message}"
        await self._end(await Work(self._score, ctx).hear_failure(failed.executor_id, error), ctx)

    async def _begin(self, request: Any, ctx: Context) -> None:
        execution_id = self._execution_id or ctx.run_id
        await self._end(await Work(self._score, ctx).begin(request, execution_id), ctx)

    async def _end(self, result: AgentWorkflowResult | None, ctx: Context) -> None:
        """Give what the execution has come to, if it has ended. Raises AgentWorkflowError."""
        if result is None:
            return
        if self._gives == "result":
            await ctx.yield_output(result)
            return
        if not result.success:
            raise AgentWorkflowError(f"workflow {self._score.name!r} is no success: {result.error}")
        answer = result.final_answer or ""
        if self._gives == "text":
            await ctx.yield_output(answer)
        else:
            said = Message("assistant", [answer], author_name=self._score.name)
            await ctx.yield_output(AgentResponse(messages=[said]), in_pieces=True)
