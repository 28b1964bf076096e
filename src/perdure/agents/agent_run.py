"""One run of an agent: prepare the model call, make it, and let the context providers store the result."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from perdure.agents.client.base import BaseChatClient, ask_model, require_response
from perdure.agents.client.options import merge_options
from perdure.agents.client.streaming import ChatStream, chat_stream, forward_stream
from perdure.agents.client.tokens import TokenCounter
from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate
from perdure.agents.sessions import providers
from perdure.agents.sessions.session import AgentSession
from perdure.agents.tools.context import expand_tools, is_server, join_tools
from perdure.agents.tools.tool import normalize_tools
from perdure.agents.turn.recording import Turn, use_turn
from perdure.errors import AgentInvalidRequestException

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agents.agent import Agent
    from perdure.agents.client.middleware import AgentContext
    from perdure.streams import ResponseStream

    AgentStream = ResponseStream[AgentResponseUpdate, AgentResponse[Any]]


class AgentRun:
    """One run of an agent. `given` is its input as the agent middleware left it.

    Attributes:
        _per_call: The histories that are stored after each model call.
        _conversation_id: The provider's id of the conversation that this run continues.
        _new_conversation_id: The provider's id of the conversation after this run.
    """

    def __init__(self, agent: Agent[Any], given: AgentContext, turn: Turn) -> None:
        self._agent = agent
        self._given = given
        self._turn = turn
        self._session: AgentSession | None = given.session
        self._providers: list[providers.ContextProvider] = list(agent.context_providers)
        self._per_call: list[providers.HistoryProvider] = []
        self._history: providers.HistoryPerCall | None = None
        self._conversation_id: str | None = None
        self._new_conversation_id: str | None = None
        self._context = providers.SessionContext(input_messages=[])
        self._converted: dict[int, AgentResponseUpdate] = {}
        """The updates of the agent by the identity of those of the model, which they refer to."""
        self._options: dict[str, Any] = {}
        self._kwargs: dict[str, Any] = {}

    async def respond(self) -> AgentResponse[Any]:
        """Return the complete response."""
        await self._prepare()
        return await self._finish(self._to_response(await self._ask(stream=False)))

    async def stream(self) -> AgentStream:
        """Return the stream of updates."""
        await self._prepare()
        rebuild = partial(AgentResponse[Any].from_updates, output_format_type=self._options.get("response_format"))
        stream: AgentStream = forward_stream(
            self._ask(stream=True), convert=self._to_update, convert_final=self._to_response, rebuild=rebuild
        )
        return stream.with_result_hook(self._finish)

    def _ask(self, *, stream: bool) -> Any:
        """Call the client. Ours record each of their calls themselves; the call of another is recorded here."""
        client, turn, response_format = self._agent.client, self._turn, self._options.get("response_format")
        messages = self._context.get_messages(include_input=True)
        ask = partial(cast("Any", client).get_response, messages=messages, options=dict(self._options), **self._kwargs)
        if isinstance(client, BaseChatClient):
            with use_turn(turn):
                return ask(stream=stream)
        counter = TokenCounter(
            turn.activation, messages, self._given.tokenizer, getattr(client, "missing_usage", "estimate")
        )

        async def whole() -> ChatResponse[Any]:
            return require_response(await ask(stream=False), type(client).__name__)

        def updates() -> ChatStream:
            return chat_stream(ask(stream=True), response_format)

        return ask_model(turn, updates if stream else whole, response_format, counter, stream=stream)

    async def _prepare(self) -> None:
        """Collect messages, options and tools from the agent, its providers and this run."""
        given, agent = self._given, self._agent
        options = dict(given.options or {})
        run_tools = options.pop("tools", None) if given.tools is None else given.tools
        defaults = {name: value for name, value in agent.default_options.items() if name != "tools"}
        self._choose_session(merge_options(defaults, options))
        session = self._session
        context = self._context = await providers.load_context(agent, self._providers, session, given.messages, options)
        own_tools = [*agent.default_options.get("tools", ()), *context.tools]
        every = [*normalize_tools(own_tools), *agent.mcp_tools, *normalize_tools(run_tools)]
        for tool in every:
            if is_server(tool) and not getattr(tool, "is_connected", False):
                await agent.connect(tool)
        instructions = {"instructions": "\n".join(context.instructions) or None}
        decided = {"tools": expand_tools(join_tools([], every)) or None, "conversation_id": self._conversation_id}
        self._options = merge_options(defaults, instructions, options, decided)
        arguments: Mapping[str, Any] = self._options.pop("additional_function_arguments", None) or {}
        client_kwargs = dict(given.client_kwargs)
        middleware = [*client_kwargs.pop("middleware", ()), *context.get_middleware()]
        if session is not None:
            client_kwargs["session"] = session
            if self._per_call:
                self._history = providers.HistoryPerCall(agent, session, self._per_call, context)
                middleware.append(self._history)
        if middleware:
            client_kwargs["middleware"] = middleware
        self._kwargs = {
            "compaction_strategy": given.compaction_strategy,
            "tokenizer": given.tokenizer,
            "function_invocation_kwargs": {**given.function_invocation_kwargs, **arguments},
            "client_kwargs": client_kwargs,
        }

    def _choose_session(self, options: Mapping[str, Any]) -> None:
        """Choose the session and its history provider. Providers without a session get one for this run."""
        session, agent = self._session, self._agent
        service_id = None if session is None else session.service_session_id
        if service_id is not None and not isinstance(service_id, str):
            raise AgentInvalidRequestException(
                f"the session's service_session_id is {service_id!r}, not a str; this agent's client can't continue it"
            )
        self._conversation_id = service_id or options.get("conversation_id")
        stores = options.get("store")
        by_provider = getattr(agent.client, "STORES_BY_DEFAULT", False) if stores is None else bool(stores)
        has_history = any(
            isinstance(each, providers.HistoryProvider) and each.load_messages for each in self._providers
        )
        if session is not None and not (by_provider or self._conversation_id or has_history):
            self._providers.append(providers.InMemoryHistoryProvider())
        if session is None and self._providers:
            self._session = AgentSession()
        if agent.require_per_service_call_history_persistence:
            self._per_call = [each for each in self._providers if isinstance(each, providers.HistoryProvider)]
        if self._per_call and self._conversation_id and not by_provider:
            raise AgentInvalidRequestException(
                f"agent {agent.name!r} must store its history after each model call, but the provider stores "
                f"conversation {self._conversation_id!r}; let only one of them store it"
            )

    def _to_update(self, update: ChatResponseUpdate) -> AgentResponseUpdate:
        self._new_conversation_id = update.conversation_id or self._new_conversation_id
        converted = self._converted[id(update)] = AgentResponseUpdate.from_model(update)
        converted.discards = [self._converted[id(each)] for each in update.discards if id(each) in self._converted]
        converted.author_name = update.author_name or self._agent.name
        return converted

    def _to_response(self, response: ChatResponse[Any]) -> AgentResponse[Any]:
        self._new_conversation_id = response.conversation_id or self._new_conversation_id
        return AgentResponse[Any].from_model(response, self._options.get("response_format"))

    async def _finish(self, response: AgentResponse[Any]) -> AgentResponse[Any]:
        """Name the author of the messages, and let the providers store them, the last provider first."""
        for place, message in enumerate(response.messages):
            if message.author_name is None:
                response.messages[place] = named = copy(message)
                named.author_name = self._agent.name or "UnnamedAgent"
        session = self._session
        if session is None:
            return response
        if self._new_conversation_id is not None:
            session.service_session_id = self._new_conversation_id
        self._context.response = response
        if self._history is not None:
            await self._history.finish(response)
        others = [provider for provider in self._providers if provider not in self._per_call]
        await providers.store_context(self._agent, others, session, self._context)
        return response
