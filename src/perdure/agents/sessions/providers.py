"""What an agent is given beside the new messages: providers of context, and what they put together for one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from perdure.agents.client.middleware import categorize_middleware
from perdure.agents.messages.message import Message
from perdure.errors import MiddlewareException

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.client.middleware import MiddlewareTypes
    from perdure.agents.messages.responses import AgentResponse
    from perdure.agents.sessions.session import AgentSession

ATTRIBUTION = "_attribution"
"""Where a message says what provider it comes from."""


class SessionContext:
    """What providers add to one run of an agent, each under its `source_id`; when it is over, the `response`."""

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
        """What the agent has answered; None before."""
        return self._response

    def answered(self, response: AgentResponse[Any]) -> None:
        """Note what the agent has answered."""
        self._response = response

    def extend_messages(self, source: str | object, messages: Sequence[Message]) -> None:
        """Let the model see more messages, before the new ones.

        `source` is a `source_id`, or a provider. The model is shown copies, which say among their additional
        properties where they come from.
        """
        source_id, attribution = _source(source)
        told = [_attributed(message, attribution) for message in messages]
        self.context_messages.setdefault(source_id, []).extend(told)

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
        """Add chat or function middleware. Raises MiddlewareException if it is of another kind."""
        found = categorize_middleware(middleware)
        if found["agent"]:
            raise MiddlewareException(
                f"provider {source_id!r} adds agent middleware, and the run has begun; give it to the agent"
            )
        self.middleware.setdefault(source_id, []).extend([*found["function"], *found["chat"]])

    def get_middleware(self) -> list[MiddlewareTypes]:
        """The middleware of all providers."""
        return [each for found in self.middleware.values() for each in found]

    def get_messages(
        self,
        *,
        sources: set[str] | None = None,
        exclude_sources: set[str] | None = None,
        include_input: bool = False,
        include_response: bool = False,
    ) -> list[Message]:
        """The messages of providers, those of some of them if `sources` are given, in the order of the conversation."""
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
    """Adds something to each run of an agent: messages, instructions, tools, middleware.

    What it wants to remember it puts into `state`, its own part of the session's state: plain values, which are kept
    with the session.
    """

    def __init__(self, source_id: str) -> None:
        self.source_id = source_id

    async def before_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Add to the context, before the model is asked."""

    async def after_run(
        self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Look at `context.response`, when the turn is over."""


def _source(source: str | object) -> tuple[str, dict[str, Any]]:
    if isinstance(source, str):
        return source, {"source_id": source}
    source_id: str = cast("Any", source).source_id
    return source_id, {"source_id": source_id, "source_type": type(source).__name__}


def _attributed(message: Message, attribution: Mapping[str, Any]) -> Message:
    """A copy that says where it comes from; who first had it stays named."""
    properties = message.additional_properties
    return Message(
        message.role,
        message.contents,
        author_name=message.author_name,
        message_id=message.message_id,
        additional_properties={**properties, ATTRIBUTION: {**attribution, **properties.get(ATTRIBUTION, {})}},
        raw_representation=message.raw_representation,
    )
