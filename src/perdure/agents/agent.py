"""Agents: a model with instructions, tools and sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, cast, overload, runtime_checkable

from typing_extensions import TypedDict, Unpack

from perdure.agents.agent_run import AgentRun
from perdure.agents.agent_tool import agent_mcp_server, agent_tool
from perdure.agents.client.base import BaseChatClient, OptionsT, SupportsChatGetResponse
from perdure.agents.client.middleware import (
    AgentContext,
    MiddlewareTypes,
    call_through,
    categorize_middleware,
    list_middleware,
)
from perdure.agents.client.options import merge_options
from perdure.agents.client.streaming import forward_stream
from perdure.agents.messages.message import AgentRunInputs, normalize_messages
from perdure.agents.messages.responses import AgentResponse, declare_format
from perdure.agents.sessions.session import AgentSession
from perdure.agents.tools.context import is_server
from perdure.agents.tools.tool import normalize_tools
from perdure.agents.turn.loop import FunctionInvocationLayer
from perdure.agents.turn.recording import Turn, is_returning_requests
from perdure.clock import SystemClock

if TYPE_CHECKING:
    from perdure.agents.agent_run import AgentStream
    from perdure.agents.client.compaction import CompactionStrategy
    from perdure.agents.client.tokens import TokenizerProtocol
    from perdure.agents.sessions.providers import ContextProvider

_UNNAMED = "agent"

logger = logging.getLogger(__name__)


@runtime_checkable
class SupportsAgentRun(Protocol):
    """Any agent."""

    id: str
    name: str | None
    description: str | None

    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return an awaitable AgentResponse, or a ResponseStream of AgentResponseUpdates that ends in one."""
        ...

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """Create a session."""
        ...

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """Return a session that the provider stores."""
        ...


class BaseAgent:
    """Base of agents. A subclass implements `run`."""

    require_per_service_call_history_persistence: bool = False

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002 - public name
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None,
        additional_properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id or SystemClock().new_id()
        self._perdure_generated_id = None if id else self.id
        self.name = name
        self.description = description
        providers = context_providers or ()
        self.context_providers: list[ContextProvider] = (
            list(providers) if isinstance(cast("object", providers), Sequence) else [cast("Any", providers)]
        )
        for each in self.context_providers:
            if not (hasattr(each, "before_run") and hasattr(each, "after_run")):
                raise TypeError(f"context_providers must be a list of ContextProviders; it contains {each!r}")
        self.middleware: list[MiddlewareTypes] = list_middleware(middleware)
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """Create a session."""
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: Any, *, session_id: str | None = None) -> AgentSession:
        """Return a session that the provider stores under `service_session_id`."""
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    as_tool = agent_tool
    as_mcp_server = agent_mcp_server

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, id={self.id!r})"


def resolve_agent_id(agent: SupportsAgentRun) -> str:
    """Return the name of an agent that is the same in every process: its name, its given id, or "agent".

    A generated id would differ in the process that resumes the run.
    """
    generated: object = getattr(agent, "_perdure_generated_id", None)
    return agent.name or (agent.id if agent.id != generated else _UNNAMED)


class BaseAgentSettings(TypedDict, total=False):
    """The settings of every agent."""

    id: str | None
    name: str | None
    description: str | None
    context_providers: Sequence[ContextProvider] | None
    middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None
    additional_properties: Mapping[str, Any] | None


class AgentSettings(BaseAgentSettings, Generic[OptionsT], total=False):
    """The settings of an `Agent` besides its client and instructions."""

    tools: Any
    default_options: OptionsT | Mapping[str, Any] | None
    require_per_service_call_history_persistence: bool
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None


class _Options(TypedDict, Generic[OptionsT], total=False):
    session: AgentSession | None
    middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None
    tools: Any
    options: OptionsT | Mapping[str, Any] | None
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None
    function_invocation_kwargs: Mapping[str, Any] | None
    client_kwargs: Mapping[str, Any] | None


class Agent(BaseAgent, Generic[OptionsT]):
    """A model with instructions, tools and sessions.

    In a workflow every model and tool call is recorded: a turn that is resumed after a crash repeats none of them.
    """

    records_itself: ClassVar[bool] = True

    def __init__(
        self,
        client: SupportsChatGetResponse,
        instructions: str | None = None,
        *,
        tools: Any = None,
        default_options: OptionsT | Mapping[str, Any] | None = None,
        require_per_service_call_history_persistence: bool = False,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        **settings: Unpack[BaseAgentSettings],
    ) -> None:
        super().__init__(**settings)
        if not callable(getattr(client, "get_response", None)):
            raise TypeError(
                f"an agent needs a chat client with get_response, not {client!r}; use Agent(client, instructions)"
            )
        if not isinstance(cast("object", instructions), str | None):
            raise TypeError(f"instructions must be a str, not {instructions!r}; join several with newlines")
        if not isinstance(cast("object", default_options), Mapping | None):
            raise TypeError(f"default_options must be a dict of options, such as ChatOptions, not {default_options!r}")
        self.client = client
        self.compaction_strategy = compaction_strategy
        self.tokenizer = tokenizer
        self.require_per_service_call_history_persistence = require_per_service_call_history_persistence
        options = dict(cast("Mapping[str, Any]", default_options or {}))
        given = normalize_tools(options.pop("tools", None) if tools is None else tools)
        self.mcp_tools: list[Any] = [tool for tool in given if is_server(tool)]
        own = {"tools": [tool for tool in given if not is_server(tool)]}
        first = {"model": getattr(client, "model", None), "tool_choice": "auto"}
        if instructions is not None:
            options["instructions"] = instructions
        self.default_options: dict[str, Any] = merge_options(first, options, own)
        declare_format(self.default_options.get("response_format"))
        if given and isinstance(client, BaseChatClient) and not isinstance(client, FunctionInvocationLayer):
            logger.warning("agent %r has tools, but its client has no FunctionInvocationLayer to call them", self.name)
        self._perdure_exits = AsyncExitStack()
        self._perdure_connecting = asyncio.Lock()

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = ...,
        **more: Unpack[_Options[OptionsT]],
    ) -> Awaitable[AgentResponse[Any]]: ...
    @overload
    def run(
        self, messages: AgentRunInputs | None = None, *, stream: Literal[True], **more: Unpack[_Options[OptionsT]]
    ) -> AgentStream: ...
    @overload
    def run(
        self, messages: AgentRunInputs | None = None, *, stream: bool = False, **more: Unpack[_Options[OptionsT]]
    ) -> Any: ...
    def run(
        self, messages: AgentRunInputs | None = None, *, stream: bool = False, **more: Unpack[_Options[OptionsT]]
    ) -> Any:
        """Return an awaitable AgentResponse, or with `stream` a ResponseStream of updates that ends in one.

        Arguments override the agent's own; tools, middleware and instructions are added. A session continues its
        conversation and stores the new messages when the turn is over.

        Inside a handler or a workflow function, approvals and other questions of the agent are requests of the run:
        the code is suspended until they are answered. Elsewhere, and inside `return_requests(agent)`, the response
        holds them as `user_input_requests`.
        """
        given = cast("dict[str, Any]", {**more})
        session = given.get("session")
        if not isinstance(session, AgentSession | None):
            raise TypeError(
                f"session must be an AgentSession, not {session!r}; use create_session() or AgentSession.from_dict()"
            )
        found = categorize_middleware(self.middleware, given.pop("middleware", None))
        kwargs = dict(given.pop("client_kwargs", None) or {})
        if every := [*found["function"], *found["chat"], *kwargs.pop("middleware", ())]:
            kwargs["middleware"] = every
        given |= {name: given.get(name) or getattr(self, name) for name in ("compaction_strategy", "tokenizer")}
        messages = normalize_messages(messages)
        context = AgentContext(agent=self, messages=messages, stream=stream, client_kwargs=kwargs, **given)
        options_of = self.default_options
        # An agent without a name is identified by its instructions and tools, which are equal in every process.
        names = [getattr(each, "name", "") for each in options_of.get("tools", ())]
        traits = () if self.name else [str(options_of.get("instructions", "")), *names]
        turn = Turn(resolve_agent_id(self), context.messages, traits, returns_requests=is_returning_requests(self))

        def start() -> Any:
            run = AgentRun(self, context, turn)
            return run.stream() if stream else run.respond()

        answer = call_through(found["agent"], context, start, AgentResponse)
        if not stream:
            return answer
        wanted = merge_options(options_of, context.options).get("response_format")
        return forward_stream(answer, rebuild=partial(AgentResponse[Any].from_updates, output_format_type=wanted))

    async def connect(self, server: AbstractAsyncContextManager[Any]) -> None:
        """Connect to an MCP server. The agent closes it when it is closed itself."""
        async with self._perdure_connecting:
            if not getattr(server, "is_connected", False):
                await self._perdure_exits.enter_async_context(server)

    async def open(self) -> Self:
        """Open the client and the MCP servers. `close` closes them, and so does `async with`."""
        try:
            if isinstance(self.client, AbstractAsyncContextManager):
                await self._perdure_exits.enter_async_context(cast("AbstractAsyncContextManager[Any]", self.client))
            for server in self.mcp_tools:
                await self.connect(server)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Close everything that was opened."""
        exits, self._perdure_exits = self._perdure_exits, AsyncExitStack()
        await exits.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
