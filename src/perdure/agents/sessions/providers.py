"""Context providers, which add to each run of an agent, and histories, the providers that store its messages."""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from typing_extensions import TypedDict, Unpack, override

from perdure.agents.client.compaction import EXCLUDED
from perdure.agents.client.middleware import ChatMiddleware, categorize_middleware
from perdure.agents.messages.conversation import drop_known_messages
from perdure.agents.messages.message import ATTRIBUTION, Message
from perdure.agents.messages.responses import AgentResponse, ChatResponse
from perdure.errors import ContentError, MiddlewareException
from perdure.log import Log
from perdure.records import digest
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.client.middleware import CallNext, ChatContext, MiddlewareTypes
    from perdure.agents.sessions.session import AgentSession


class SessionContext:
    """The additions of all providers to one run of an agent, by `source_id`, and at the end its `response`."""

    def __init__(
        self,
        *,
        session_id: str | None = None,
        service_session_id: str | None = None,
        input_messages: list[Message],
        context_messages: dict[str, list[Message]] | None = None,
        instructions: list[str] | None = None,
        tools: list[Any] | None = None,
        middleware: Mapping[str, Sequence[MiddlewareTypes]] | None = None,
        options: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.service_session_id = service_session_id
        self.input_messages = input_messages
        self.context_messages: dict[str, list[Message]] = dict(context_messages or {})
        self.instructions: list[str] = list(instructions or ())
        self.tools: list[Any] = list(tools or ())
        self.middleware: dict[str, list[MiddlewareTypes]] = {}
        self.options: dict[str, Any] = options or {}
        self.metadata: dict[str, Any] = metadata or {}
        self.response: AgentResponse[Any] | None = None
        """The agent's response; None before the run has ended."""
        for source_id, each in (middleware or {}).items():
            self.extend_middleware(source_id, each)

    def set_response(self, response: AgentResponse[Any]) -> None:
        """Set the agent's response."""
        self.response = response

    def extend_messages(self, source: str | object, messages: Sequence[Message]) -> None:
        """Show the model more messages, before the new ones.

        `source` is a `source_id` or a provider. The model sees copies whose additional properties name the source.
        """
        source_id: str = source if isinstance(source, str) else cast("Any", source).source_id
        attribution = {"source_id": source_id}
        if not isinstance(source, str):
            attribution["source_type"] = type(source).__name__
        shown = self.context_messages.setdefault(source_id, [])
        for message in messages:
            properties = message.additional_properties
            # A message that is passed on keeps the name of its first source.
            first = {**attribution, **properties.get(ATTRIBUTION, {})}
            attributed = copy(message)
            attributed.additional_properties = {**properties, ATTRIBUTION: first}
            shown.append(attributed)

    def extend_instructions(self, source_id: str, instructions: str | Sequence[str]) -> None:
        """Add to the agent's instructions."""
        del source_id
        self.instructions.extend([instructions] if isinstance(instructions, str) else instructions)

    def extend_tools(self, source_id: str, tools: Sequence[Any]) -> None:
        """Give the model more tools."""
        for tool in tools:
            properties = getattr(tool, "additional_properties", None)
            if isinstance(properties, dict):
                cast("dict[str, Any]", properties)["context_source"] = source_id
        self.tools.extend(tools)

    def extend_middleware(self, source_id: str, middleware: MiddlewareTypes | Sequence[MiddlewareTypes]) -> None:
        """Add chat or function middleware. Raises MiddlewareException for agent middleware."""
        found = categorize_middleware(middleware)
        if found["agent"]:
            raise MiddlewareException(
                f"provider {source_id!r} adds agent middleware, but the run has already begun; give it to the agent"
            )
        self.middleware.setdefault(source_id, []).extend([*found["function"], *found["chat"]])

    def get_middleware(self) -> list[MiddlewareTypes]:
        """Return the middleware of all providers."""
        return [each for found in self.middleware.values() for each in found]

    def get_messages(
        self,
        *,
        sources: set[str] | None = None,
        exclude_sources: set[str] | None = None,
        include_input: bool = False,
        include_response: bool = False,
    ) -> list[Message]:
        """Return the providers' messages in order, or only those of `sources`."""
        found: list[Message] = []
        for source_id, messages in self.context_messages.items():
            if (sources is None or source_id in sources) and source_id not in (exclude_sources or ()):
                found.extend(messages)
        if include_input:
            found.extend(self.input_messages)
        if include_response and self.response is not None:
            found.extend(self.response.messages)
        return found


class ContextProvider:
    """Base of context providers.

    A provider keeps its data in `state`, its own part of the session's state: plain values, stored with the session.
    """

    def __init__(self, source_id: str) -> None:
        self.source_id = source_id

    async def before_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Add to the context before the model is called."""

    async def after_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Read `context.response` after the turn."""


class HistorySelection(TypedDict, total=False):
    """The messages that a history loads and stores: see `HistoryProvider`."""

    load_messages: bool
    store_inputs: bool
    store_context_messages: bool
    store_context_from: set[str] | None
    store_outputs: bool


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
        """Load the history into the context. An input that repeats the whole history is reduced to what follows it."""
        del agent, session
        found = await self.get_messages(context.session_id, state=state)
        if _begins_with(context.input_messages, found):
            context.input_messages = context.input_messages[len(found) :]
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


def _begins_with(messages: Sequence[Message], history: Sequence[Message]) -> bool:
    """Return True if messages repeat a whole history. A user may say the same twice, so it must contain a reply.

    Two authors may say the same. A message without an author may be anybody's.
    """
    return (
        len(messages) >= len(history)
        and any(known.role == "assistant" for known in history)
        and all(
            (message.role, message.contents) == (known.role, known.contents)
            and (message.author_name or known.author_name) == (known.author_name or message.author_name)
            for message, known in zip(messages, history, strict=False)
        )
    )


class InMemoryHistoryProvider(HistoryProvider):
    """Store messages in the session itself, as a `Log`: saving the session costs only what was added."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "in_memory"

    def __init__(
        self, source_id: str | None = None, *, skip_excluded: bool = False, **selected: Unpack[HistorySelection]
    ) -> None:
        super().__init__(source_id or self.DEFAULT_SOURCE_ID, **selected)
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
        return _without_excluded(found) if self.skip_excluded else found

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


class FileHistoryProvider(HistoryProvider):
    """Store messages in a directory, as one file of JSON lines per session. One process may write to it.

    The files are no part of a run: a crash may store a turn twice. In a workflow prefer the session itself.
    """

    def __init__(
        self,
        storage_path: str | Path,
        *,
        source_id: str = "file_history",
        skip_excluded: bool = False,
        **selected: Unpack[HistorySelection],
    ) -> None:
        super().__init__(source_id, **selected)
        self.storage_path = Path(storage_path)
        self.skip_excluded = skip_excluded

    def _path(self, session_id: str | None) -> Path:
        name = session_id or "default"
        # Any other text could name a file outside of the directory, or that of another session.
        name = name if re.fullmatch(r"[a-z0-9_-][a-z0-9_.-]{0,99}", name) else f"~{digest(name.encode())}"
        return self.storage_path / f"{name}.jsonl"

    async def get_messages(self, session_id: str | None, **_: Any) -> list[Message]:
        """Return the messages of the session. Raises ValueError for a damaged file."""
        found = await asyncio.to_thread(_read_messages, self._path(session_id))
        return _without_excluded(found) if self.skip_excluded else found

    async def save_messages(self, session_id: str | None, messages: Sequence[Message], **_: Any) -> None:
        """Append messages to the session's file."""
        lines = "".join(f"{json.dumps(message.to_dict())}\n" for message in messages)
        await asyncio.to_thread(_append_lines, self._path(session_id), lines)


def _read_messages(path: Path) -> list[Message]:
    found: list[Message] = []
    text = path.read_text("utf-8") if path.exists() else ""
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            found += [Message.from_dict(json.loads(line))] if line.strip() else []
        except (ValueError, TypeError, ContentError) as error:
            raise ValueError(f"line {number} of {str(path)!r} is not a message: {error}; restore the file") from error
    return found


def _append_lines(path: Path, lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(lines)


def _without_excluded(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if not message.additional_properties.get(EXCLUDED)]


async def load_context(
    agent: SupportsAgentRun,
    providers: Iterable[ContextProvider],
    session: AgentSession | None,
    messages: Sequence[Message],
    options: dict[str, Any] | None = None,
) -> SessionContext:
    """Return the context of a run, with what the providers of its session add. Histories that only write add nothing.

    Input that repeats the history is dropped: a workflow used as an agent repeats the conversation in each turn.
    """
    context = SessionContext(input_messages=list(messages), options=options)
    if session is not None:
        context.session_id, context.service_session_id = session.session_id, session.service_session_id
        for provider in providers:
            if not isinstance(provider, HistoryProvider) or provider.load_messages:
                state = session.state.setdefault(provider.source_id, {})
                await provider.before_run(agent=agent, session=session, context=context, state=state)
    context.input_messages = drop_known_messages(context.input_messages, context.get_messages())
    return context


async def store_context(
    agent: SupportsAgentRun, providers: Sequence[ContextProvider], session: AgentSession, context: SessionContext
) -> None:
    """Let the providers store a run, the last provider first."""
    for provider in reversed(providers):
        state = session.state.setdefault(provider.source_id, {})
        await provider.after_run(agent=agent, session=session, context=context, state=state)


@dataclass(eq=False, repr=False)
class HistoryPerCall(ChatMiddleware):
    """Store the history after each model call of one run, so that an interrupted turn leaves its messages."""

    _agent: SupportsAgentRun
    _session: AgentSession
    _providers: Sequence[HistoryProvider]
    _run: SessionContext
    _known: list[Message] | None = field(default=None, init=False)
    """The messages of the last model call and its response. None of them is new."""
    _written: list[Message] = field(default_factory=list[Message], init=False)

    @override
    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        new = list(self._run.input_messages)
        if self._known is not None:
            later = context.messages[len(self._run.get_messages()) :]
            new = [message for message in later if message not in self._known]
        await call_next()
        shown = list(context.messages)
        if isinstance(context.result, ResponseStream):
            context.result.with_result_hook(lambda response: self._write(new, shown, response))
        elif context.result is not None:
            await self._write(new, shown, context.result)

    async def _write(self, new: list[Message], shown: list[Message], response: ChatResponse[Any]) -> None:
        call = SessionContext(
            session_id=self._run.session_id,
            input_messages=new,
            # Messages of other providers are stored once per run.
            context_messages=self._run.context_messages if self._known is None else {},
        )
        call.response = AgentResponse(messages=response.messages)
        self._known = [*shown, *response.messages]
        self._written += [*new, *response.messages]
        await store_context(self._agent, self._providers, self._session, call)

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
            call.response = AgentResponse(messages=rest)
            await store_context(self._agent, self._providers, self._session, call)
