"""Histories: providers that load a session's messages before a turn and store them after it."""

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
    """Store the messages of sessions. A subclass implements loading and saving; the flags select messages.

    `load_messages=False` only writes, for an audit. `store_context_messages` also stores what other providers added:
    all of it, or that of the providers in `store_context_from`.
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
        """Return the messages of a session."""

    @abstractmethod
    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Store messages. If they are stored outside `state`, a crash may store a turn twice."""

    async def before_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Load the history into the context."""
        del agent, session
        found = await self.get_messages(context.session_id, state=state)
        # Extend directly: `extend_messages` would copy each message of a long history to attribute it.
        context.context_messages.setdefault(self.source_id, []).extend(found)

    async def after_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Store the messages of the turn."""
        del agent, session
        messages: list[Message] = []
        if self.store_context_messages:
            sources = self.store_context_from
            exclude = None if sources is not None else {self.source_id}
            messages += context.get_messages(sources=sources, exclude_sources=exclude)
        if self.store_inputs:
            messages += context.input_messages
        if self.store_outputs and context.response is not None:
            messages += context.response.messages
        if messages:
            await self.save_messages(context.session_id, messages, state=state)


class InMemoryHistoryProvider(HistoryProvider):
    """Store messages in the session itself, as a `Log`: saving the session costs only what was added."""

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
        """Return the messages of the session."""
        del session_id, kwargs
        given: object = (state or {}).get("messages", ())
        found: list[Any] = list(cast("Iterable[Any]", given)) if isinstance(given, Iterable) else [given]
        for each in found:
            if not isinstance(each, Message):
                raise TypeError(
                    f"the history in session.state[{self.source_id!r}]['messages'] must be a list of Messages; it "
                    f"contains {each!r}"
                )
        if self.skip_excluded:
            return [message for message in found if not message.additional_properties.get(EXCLUDED)]
        return found

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Append messages to the session."""
        del session_id, kwargs
        if state is None:
            return
        known: Any = state.get("messages", ())
        if not isinstance(known, Log):
            known = state["messages"] = Log[Message](known)
        cast("Log[Message]", known).extend(messages)


class HistoryPerCall(ChatMiddleware):
    """Store the history after each model call of one run, so that an interrupted turn leaves its messages."""

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
        self._known: list[Message] | None = None
        """The messages of the last model call and its response. None of them is new."""
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
        if self._known is None:
            return list(self._run.input_messages)
        return [message for message in messages[len(self._run.get_messages()) :] if message not in self._known]

    async def _write(self, new: list[Message], shown: list[Message], response: ChatResponse[Any]) -> None:
        call = SessionContext(
            session_id=self._run.session_id,
            input_messages=new,
            # Messages of other providers are stored once per run.
            context_messages=self._run.context_messages if self._known is None else None,
        )
        call.set_response(AgentResponse(messages=response.messages))
        self._known = [*shown, *response.messages]
        self._written += [*new, *response.messages]
        await self._store(call)

    async def finish(self, response: AgentResponse[Any]) -> None:
        """Store results that no model call got as new messages.

        Approved calls were made before the first model call, and a turn may end with a call.
        """
        written = [content for message in self._written for content in message.contents]
        rest = [
            message
            for message in response.messages
            if message.role == "tool" and not all(content in written for content in message.contents)
        ]
        if rest:
            call = SessionContext(session_id=self._run.session_id, input_messages=[])
            call.set_response(AgentResponse(messages=rest))
            await self._store(call)

    async def _store(self, call: SessionContext) -> None:
        for provider in reversed(self._providers):
            state = self._session.state.setdefault(provider.source_id, {})
            await provider.after_run(agent=self._agent, session=self._session, context=call, state=state)
