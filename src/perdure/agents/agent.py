"""Agents: a model with instructions, tools and sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, cast, overload, runtime_checkable

from perdure.agents.agent_run import AgentRun, Inputs
from perdure.agents.agent_tool import agent_tool
from perdure.agents.client.base import BaseChatClient, OptionsT
from perdure.agents.client.middleware import AgentContext, categorize_middleware, listed_middleware, run_middleware
from perdure.agents.client.options import merged_options
from perdure.agents.client.streaming import retold
from perdure.agents.messages.message import messages_of
from perdure.agents.messages.responses import AgentResponse, declare_format
from perdure.agents.sessions.session import AgentSession
from perdure.agents.tools.tool import normalize_tools
from perdure.agents.tools.tool_list import is_server
from perdure.agents.turn.layer import FunctionInvocationLayer
from perdure.agents.turn.recording import Turn
from perdure.clock import SystemClock
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from perdure.agents.agent_run import AgentStream
    from perdure.agents.agent_tool import StreamCallback
    from perdure.agents.client.base import CompactionStrategy, SupportsChatGetResponse, TokenizerProtocol
    from perdure.agents.client.middleware import MiddlewareTypes
    from perdure.agents.messages.message import AgentRunInputs
    from perdure.agents.messages.responses import AgentResponseUpdate
    from perdure.agents.sessions.providers import ContextProvider
    from perdure.agents.tools.tool import ApprovalMode, FunctionTool

_UNNAMED = "agent"


@runtime_checkable
class SupportsAgentRun(Protocol):
    """Anything that can be told something and answers: agents of every kind."""

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
        """An awaitable AgentResponse, or a ResponseStream of AgentResponseUpdates that ends in one."""
        ...

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """A new session."""
        ...

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """A session that the provider keeps."""
        ...


class BaseAgent:
    """What agents have in common. A subclass says in `run` how it answers."""

    require_per_service_call_history_persistence: bool = False

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the reference's name
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None,
        additional_properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id or SystemClock().new_id()
        self._perdure_drawn_id = None if id else self.id
        self.name = name
        self.description = description
        self.context_providers: list[ContextProvider] = _providers(context_providers)
        self.middleware: list[MiddlewareTypes] = listed_middleware(middleware)
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """A new session."""
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: Any, *, session_id: str | None = None) -> AgentSession:
        """A session that the provider keeps, by the id that it has for it."""
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_name: str = "task",
        arg_description: str | None = None,
        approval_mode: ApprovalMode = "never_require",
        stream_callback: StreamCallback | None = None,
        propagate_session: bool = False,
    ) -> FunctionTool:
        """This agent as a tool of another: it is given a task, and its answer is the result.

        `propagate_session` lets it take part in the session of the other. Raises TypeError, ValueError.
        """
        if not isinstance(self, SupportsAgentRun):
            raise TypeError(f"{type(self).__name__!r} has no run method, so it can't be a tool")
        return agent_tool(
            self,
            name=name,
            description=description,
            arg_name=arg_name,
            arg_description=arg_description,
            approval_mode=approval_mode,
            stream_callback=stream_callback,
            propagate_session=propagate_session,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, id={self.id!r})"


def lasting_name(agent: SupportsAgentRun) -> str:
    """What an agent is called in every process: its name, the id that it was given, or "agent"."""
    drawn: object = getattr(agent, "_perdure_drawn_id", None)
    # An id that was drawn is another one in each process; what is recorded needs a name that stays.
    return agent.name or (agent.id if agent.id != drawn else _UNNAMED)


def _providers(given: object) -> list[ContextProvider]:
    if given is None:
        return []
    several = list(cast("Sequence[object]", given)) if isinstance(given, Sequence) else [given]
    for each in several:
        if not (hasattr(each, "before_run") and hasattr(each, "after_run")):
            raise TypeError(f"context_providers is a list of ContextProviders, and {each!r} is none")
    return cast("list[ContextProvider]", several)


__all__ = ["Agent", "BaseAgent", "SupportsAgentRun"]

logger = logging.getLogger(__name__)


class Agent(BaseAgent, Generic[OptionsT]):
    """A model with instructions, tools and sessions.

    In a workflow each call of the model and of a tool is recorded: when the process dies in the middle of a turn, the
    turn that is taken up again asks for nothing that has come back already.
    """

    def __init__(
        self,
        client: SupportsChatGetResponse,
        instructions: str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the reference's name
        name: str | None = None,
        description: str | None = None,
        tools: Any = None,
        default_options: OptionsT | Mapping[str, Any] | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None,
        require_per_service_call_history_persistence: bool = False,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        additional_properties: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            id=id,
            name=name,
            description=description,
            context_providers=context_providers,
            middleware=middleware,
            additional_properties=additional_properties,
        )
        _require_arguments(client, instructions, default_options)
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
        self.default_options: dict[str, Any] = merged_options(first, options, own)
        declare_format(self.default_options.get("response_format"))
        if given and isinstance(client, BaseChatClient) and not isinstance(client, FunctionInvocationLayer):
            logger.warning("agent %r has tools, and its client has no FunctionInvocationLayer to call them", name)
        self._perdure_exits = AsyncExitStack()
        self._perdure_connecting = asyncio.Lock()

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = ...,
        session: AgentSession | None = None,
        middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None,
        tools: Any = None,
        options: OptionsT | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Awaitable[AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None,
        tools: Any = None,
        options: OptionsT | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> AgentStream: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None,
        tools: Any = None,
        options: OptionsT | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any: ...
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None,
        tools: Any = None,
        options: OptionsT | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer: an awaitable AgentResponse, or with `stream` a ResponseStream of updates that ends in one.

        What is given here stands above what the agent was made with; tools, middleware and instructions are added.
        With a session the conversation goes on, and what was said is written into it when the turn is over.
        """
        _require_session(session)
        found = categorize_middleware(self.middleware, middleware)
        context = AgentContext(
            agent=self,
            messages=messages_of(messages),
            session=session,
            tools=tools,
            options=cast("Mapping[str, Any] | None", options),
            stream=stream,
            compaction_strategy=compaction_strategy or self.compaction_strategy,
            tokenizer=tokenizer or self.tokenizer,
            client_kwargs=_with_middleware(client_kwargs, [*found["function"], *found["chat"]]),
            function_invocation_kwargs=function_invocation_kwargs,
        )
        turn = Turn(lasting_name(self), context.messages, () if self.name else _traits(self))
        if not stream:
            return _whole(self, found["agent"], context, turn)
        streamed: AgentStream = ResponseStream.from_awaitable(_streamed(self, found["agent"], context, turn))
        wanted = merged_options(self.default_options, context.options).get("response_format")

        def rebuilt(updates: Sequence[AgentResponseUpdate]) -> AgentResponse[Any]:
            return AgentResponse[Any].from_updates(updates, output_format_type=wanted)

        return retold(streamed, rebuilt=rebuilt)

    async def connect(self, server: AbstractAsyncContextManager[Any]) -> None:
        """Connect to a server of tools; the agent closes it when it is closed itself."""
        async with self._perdure_connecting:
            if not getattr(server, "is_connected", False):
                await self._perdure_exits.enter_async_context(server)

    async def __aenter__(self) -> Self:
        """Open the client and the servers of tools."""
        if isinstance(self.client, AbstractAsyncContextManager):
            await self._perdure_exits.enter_async_context(cast("AbstractAsyncContextManager[Any]", self.client))
        for server in self.mcp_tools:
            await self.connect(server)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close what was opened."""
        exits, self._perdure_exits = self._perdure_exits, AsyncExitStack()
        await exits.aclose()


def _require_arguments(client: object, instructions: object, default_options: object) -> None:
    if not callable(getattr(client, "get_response", None)):
        raise TypeError(
            f"an agent asks a client of a model, and {client!r} is none: it has no get_response; "
            "give Agent(client, instructions)"
        )
    if instructions is not None and not isinstance(instructions, str):
        raise TypeError(f"instructions are a text, not {instructions!r}; join several by newlines")
    if default_options is not None and not isinstance(default_options, Mapping):
        raise TypeError(f"default_options is a dict of options, such as ChatOptions, not {default_options!r}")


def _require_session(session: object) -> None:
    if session is not None and not isinstance(session, AgentSession):
        raise TypeError(
            f"a session is what create_session() gives, not {session!r}; AgentSession.from_dict() makes one of a dict"
        )


async def _whole(agent: Agent[Any], middleware: Sequence[Any], context: AgentContext, turn: Turn) -> AgentResponse[Any]:
    answered = await run_middleware(middleware, context, lambda: AgentRun(agent, _inputs(context), turn).answered())
    if isinstance(answered, ResponseStream):
        return await cast("AgentStream", answered).get_final_response()
    return AgentResponse() if answered is None else answered


async def _streamed(agent: Agent[Any], middleware: Sequence[Any], context: AgentContext, turn: Turn) -> AgentStream:
    answered = await run_middleware(middleware, context, lambda: AgentRun(agent, _inputs(context), turn).streamed())
    return cast("AgentStream", answered) if isinstance(answered, ResponseStream) else _told(answered)


def _inputs(context: AgentContext) -> Inputs:
    return Inputs(
        context.messages,
        context.session,
        context.tools,
        context.options or {},
        context.compaction_strategy,
        context.tokenizer,
        context.function_invocation_kwargs,
        context.client_kwargs,
    )


def _traits(agent: Agent[Any]) -> list[str]:
    """What tells agents that have no names from each other, in every process."""
    options = agent.default_options
    return [str(options.get("instructions", "")), *(getattr(each, "name", "") for each in options.get("tools", ()))]


def _with_middleware(client_kwargs: Mapping[str, Any] | None, middleware: Sequence[Any]) -> dict[str, Any]:
    kwargs = dict(client_kwargs or {})
    every = [*middleware, *kwargs.pop("middleware", ())]
    return {**kwargs, "middleware": every} if every else kwargs


def _told(response: AgentResponse[Any] | None) -> AgentStream:
    """What a middleware gave in place of a stream, as one."""
    whole: AgentResponse[Any] = AgentResponse() if response is None else response

    async def told() -> AsyncGenerator[AgentResponseUpdate]:
        for update in whole.to_updates():
            yield update

    return ResponseStream(told(), finalizer=lambda _: whole)
