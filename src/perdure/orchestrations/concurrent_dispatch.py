"""Who asks participants that speak side by side: all of them get the same."""

from __future__ import annotations

from typing import Any

from perdure import AgentExecutorRequest, Executor, Message, WorkflowContext, handler
from perdure.orchestrations.conversation import messages_of, some_messages_of


class DispatchToAllParticipants(Executor):
    """Asks all participants the same."""

    @handler
    async def from_request(self, request: AgentExecutorRequest, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask what was asked."""
        await self._ask(request, ctx)

    @handler
    async def from_str(self, prompt: str, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a text."""
        await self._ask(AgentExecutorRequest(messages_of(prompt)), ctx)

    @handler
    async def from_message(self, message: Message, ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a message."""
        await self._ask(AgentExecutorRequest(messages_of(message)), ctx)

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: WorkflowContext[AgentExecutorRequest]) -> None:
        """Ask with a conversation. Raises ValueError if it is empty."""
        await self._ask(AgentExecutorRequest(some_messages_of(messages)), ctx)

    async def _ask(self, request: AgentExecutorRequest, ctx: WorkflowContext[Any]) -> None:
        await ctx.send_message(request)
