"""`Conductor`: leads the nodes of an agent workflow. It gives them tasks, hears them, and has the last word."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

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
from perdure.agent_workflows.conductor_score import Score
from perdure.agent_workflows.conductor_work import Work
from perdure.agent_workflows.messages import GoOn, NodeResult, NodeTask
from perdure.agent_workflows.result import AgentWorkflowResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure import Clock
    from perdure.agent_workflows.conversations import Conversations
    from perdure.agent_workflows.plan import Plan

Context: TypeAlias = WorkflowContext[NodeTask | GoOn, AgentWorkflowResult | AgentResponse | str]
Gives: TypeAlias = Literal["result", "text", "response"]
"""What a conductor yields at the end."""
RESULT_PROPERTY: Final = "agent_workflow_result"
"""Where an `AgentResponse` carries the result of the execution, as a dict: among its additional properties."""


class Conductor(Executor):
    """Leads an execution: who acts is decided by the plan, and all that it keeps is state of the run.

    It takes a request: a text, a message, messages, a dict, or what another agent has said. At the end it `gives` the
    result, the final answer as a text, or an `AgentResponse` that carries the result, too, under `RESULT_PROPERTY`. Of
    an execution that is no success the last two say why: its error is the answer.

    `on_begin` is called once when an execution begins, and returns the version of the definition that it begins with.
    `origins` says of an execution which ones it is a fork of, the first of them first.
    `author_name` is who an `AgentResponse` is of, if that is not the workflow.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        conversations: Conversations | None = None,
        gives: Gives = "result",
        clock: Clock | None = None,
        on_begin: Callable[[], Awaitable[int | None]] | None = None,
        origins: Callable[[str], Awaitable[tuple[str, ...]]] | None = None,
        author_name: str | None = None,
    ) -> None:
        super().__init__(CONDUCTOR)
        self._score = Score(
            plan=plan,
            conversations=conversations,
            clock=clock or SystemClock(),
            name=name,
            on_begin=on_begin,
            origins=origins,
        )
        self._gives: Gives = gives
        self._author_name = author_name or name

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

    @handler
    async def go_on(self, _: GoOn, ctx: Context) -> None:
        """Do what may fail: all that came before it is kept by now."""
        await self._end(await Work(self._score, ctx).go_on(), ctx)

    async def _begin(self, request: Any, ctx: Context) -> None:
        await self._end(await Work(self._score, ctx).begin(request), ctx)

    async def _end(self, result: AgentWorkflowResult | None, ctx: Context) -> None:
        """Give what the execution has come to, if it has ended."""
        if result is None:
            return
        answer = (result.final_answer if result.success else result.error) or ""
        match self._gives:
            case "result":
                await ctx.yield_output(result)
            case "text":
                await ctx.yield_output(answer)
            case "response":
                said = Message("assistant", [answer], author_name=self._author_name)
                carried = {RESULT_PROPERTY: asdict(result)}
                await ctx.yield_output(AgentResponse(messages=[said], additional_properties=carried), in_pieces=True)
