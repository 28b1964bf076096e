"""A history that is written after each call of the model, so that a turn which ends early has left what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from perdure.agents.contexts import ChatMiddleware
from perdure.agents.responses import AgentResponse
from perdure.agents.sessions import SessionContext
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.contexts import CallNext, ChatContext
    from perdure.agents.messages import Message
    from perdure.agents.responses import ChatResponse
    from perdure.agents.sessions import AgentSession, HistoryProvider


class HistoryPerCall(ChatMiddleware):
    """Writes what was new in a call of the model, and its answer, for one run of an agent."""

    def __init__(
        self,
        agent: SupportsAgentRun,
        session: AgentSession,
        providers: Sequence[HistoryProvider],
        run: SessionContext,
    ) -> None:
        self._agent = agent
        self._session = session
        self._providers = providers
        self._run = run
        self._shown: list[Message] | None = None
        """What the model was shown last, and what it said: None of it is new any more."""
        self._written: list[Message] = []

    @override
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        new = self._new(context.messages)
        await call_next()
        shown = list(context.messages)
        if isinstance(context.result, ResponseStream):
            context.result.with_result_hook(lambda response: self._write(new, shown, response))
        elif context.result is not None:
            await self._write(new, shown, context.result)

    def _new(self, messages: Sequence[Message]) -> list[Message]:
        if self._shown is None:
            return list(self._run.input_messages)
        return [message for message in messages[len(self._run.get_messages()) :] if message not in self._shown]

    async def _write(self, new: list[Message], shown: list[Message], response: ChatResponse[Any]) -> None:
        call = SessionContext(
            session_id=self._run.session_id,
            input_messages=new,
            # What providers have added to the run is kept once, if it is to be kept.
            context_messages=self._run.context_messages if self._shown is None else None,
        )
        call.answered(AgentResponse(messages=response.messages))
        self._shown = [*shown, *response.messages]
        self._written += [*new, *response.messages]
        await self._keep(call)

    async def finish(self, response: AgentResponse[Any]) -> None:
        """Write results that the model was not shown as something new.

        Calls that had been approved were made before it was asked, and a turn may end with a call.
        """
        written = [content for message in self._written for content in message.contents]
        rest = [
            message
            for message in response.messages
            if message.role == "tool" and not all(content in written for content in message.contents)
        ]
        if rest:
            call = SessionContext(session_id=self._run.session_id, input_messages=[])
            call.answered(AgentResponse(messages=rest))
            await self._keep(call)

    async def _keep(self, call: SessionContext) -> None:
        for provider in reversed(self._providers):
            state = self._session.state.setdefault(provider.source_id, {})
            await provider.after_run(agent=self._agent, session=self._session, context=call, state=state)
