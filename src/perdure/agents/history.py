"""Histories: what was said in a session before, loaded for a turn and written when it is over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from perdure.agents.compaction import EXCLUDED
from perdure.agents.messages import Message
from perdure.agents.providers import ContextProvider
from perdure.log import Log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.providers import SessionContext
    from perdure.agents.sessions import AgentSession


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
