"""Histories: what was said in a session before, loaded for a turn and written when it is over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from typing_extensions import override

from perdure.agents.client.base import EXCLUDED
from perdure.agents.client.middleware import ChatMiddleware
from perdure.agents.messages.message import Message
from perdure.agents.messages.responses import AgentResponse
from perdure.agents.sessions.providers import ContextProvider, SessionContext
from perdure.log import Log
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.client.middleware import CallNext, ChatContext
    from perdure.agents.messages.responses import ChatResponse
    from perdure.agents.sessions.session import AgentSession


class HistoryProvider(ContextProvider, ABC):
    """Keeps what was said. Subclasses say how messages are found and saved; the flags say which.

    `load_messages=False` only writes, for an audit. `store_context_messages` keeps what other providers have added as
    well, of all or of those in `store_context_from`.
    """

    def __init__(
        self,
        source_id: str,
        *,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
    ) -> None:
        super().__init__(source_id)
        self.load_messages = load_messages
        self.store_inputs = store_inputs
        self.store_context_messages = store_context_messages
        self.store_context_from = store_context_from
        self.store_outputs = store_outputs

    @abstractmethod
    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """What was said in a session."""

    @abstractmethod
    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Keep what was said. Where the messages are kept outside of `state`, a turn may come twice after a crash."""

    async def before_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Load the history into the context."""
        del agent, session
        found = await self.get_messages(context.session_id, state=state)
        # A history is told as it is, however long: no copies that say where they come from.
        context.context_messages.setdefault(self.source_id, []).extend(found)

    async def after_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Write what is to be kept of the turn."""
        del agent, session
        messages = _context_to_store(self, context)
        if self.store_inputs:
            messages += context.input_messages
        if self.store_outputs and context.response is not None:
            messages += context.response.messages
        if messages:
            await self.save_messages(context.session_id, messages, state=state)


class InMemoryHistoryProvider(HistoryProvider):
    """Keeps what was said in the session itself, as a `Log`: keeping the session costs what was added."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "in_memory"

    def __init__(
        self,
        source_id: str | None = None,
        *,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        skip_excluded: bool = False,
    ) -> None:
        super().__init__(
            source_id or self.DEFAULT_SOURCE_ID,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self.skip_excluded = skip_excluded

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """What was said in the session."""
        del session_id, kwargs
        found = _require_messages(self.source_id, (state or {}).get("messages", ()))
        if self.skip_excluded:
            found = [message for message in found if not message.additional_properties.get(EXCLUDED)]
        return found

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Add to what was said."""
        del session_id, kwargs
        if state is None:
            return
        known: Any = state.get("messages", ())
        if not isinstance(known, Log):
            known = state["messages"] = Log[Message](known)
        cast("Log[Message]", known).extend(messages)


def _context_to_store(provider: HistoryProvider, context: SessionContext) -> list[Message]:
    if not provider.store_context_messages:
        return []
    if provider.store_context_from is not None:
        return context.get_messages(sources=provider.store_context_from)
    return context.get_messages(exclude_sources={provider.source_id})


def _require_messages(source_id: str, given: object) -> list[Message]:
    found: list[Any] = list(cast("Iterable[Any]", given)) if isinstance(given, Iterable) else [given]
    for each in found:
        if not isinstance(each, Message):
            raise TypeError(
                f"the history in session.state[{source_id!r}]['messages'] is a list of Messages, and {each!r} is none"
            )
    return found


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
