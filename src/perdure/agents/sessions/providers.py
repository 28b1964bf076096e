"""Context providers: they add messages, instructions, tools and middleware to each run of an agent."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, cast

from perdure.agents.client.middleware import categorize_middleware
from perdure.agents.messages.message import ATTRIBUTION
from perdure.errors import MiddlewareException

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.client.middleware import MiddlewareTypes
    from perdure.agents.messages.message import Message
    from perdure.agents.messages.responses import AgentResponse
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
        self._response: AgentResponse[Any] | None = None
        for source_id, each in (middleware or {}).items():
            self.extend_middleware(source_id, each)

    @property
    def response(self) -> AgentResponse[Any] | None:
        """Return the agent's response; None before the run has ended."""
        return self._response

    def set_response(self, response: AgentResponse[Any]) -> None:
        """Set the agent's response."""
        self._response = response

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
