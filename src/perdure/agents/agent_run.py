"""One run of an agent: what the model is given, how it is asked, and what becomes of its answer."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

from perdure.agents.client.base import (
    BaseChatClient,
    ask_recorded,
    ask_recorded_stream,
    require_response,
)
from perdure.agents.client.options import merged_options
from perdure.agents.client.streaming import chat_stream, retold
from perdure.agents.messages.conversation import unheard
from perdure.agents.messages.message import Message
from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate
from perdure.agents.sessions.history import HistoryPerCall, HistoryProvider, InMemoryHistoryProvider
from perdure.agents.sessions.providers import SessionContext
from perdure.agents.sessions.session import AgentSession
from perdure.agents.tools.tool import normalize_tools
from perdure.agents.tools.tool_list import expanded_tools, is_server, joined_tools
from perdure.agents.turn.recording import taking
from perdure.data import frozen, mutable
from perdure.errors import AgentInvalidRequestException

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents.agent import Agent
    from perdure.agents.client.base import CompactionStrategy, TokenizerProtocol
    from perdure.agents.client.streaming import ChatStream
    from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate
    from perdure.agents.sessions.providers import ContextProvider
    from perdure.agents.turn.recording import Turn
    from perdure.streams import ResponseStream

    AgentStream = ResponseStream[AgentResponseUpdate, AgentResponse[Any]]


@mutable
class Inputs:
    """What a run of an agent was given."""

    messages: list[Message]
    session: AgentSession | None
    tools: Any
    options: Mapping[str, Any]
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None
    function_invocation_kwargs: Mapping[str, Any]
    client_kwargs: Mapping[str, Any]


@mutable
class AgentRun:
    """One run of an agent."""

    agent: Agent[Any]
    given: Inputs
    turn: Turn
    session: AgentSession | None = None
    providers: list[ContextProvider] = field(default_factory=list["ContextProvider"])
    conversation_id: str | None = None
    """What the provider is told that this goes on with."""
    answered_in: str | None = None
    """What the provider calls the conversation from now on."""
    history: HistoryPerCall | None = None
    """Who writes the history after each call of the model, if that is wished."""

    async def answered(self) -> AgentResponse[Any]:
        """The answer as a whole."""
        prepared = await self._prepared()
        response = await prepared.ask()
        return await self._finished(self._agent_response(response, prepared.response_format), prepared.context)

    async def streamed(self) -> AgentStream:
        """The answer in pieces."""
        prepared = await self._prepared()

        def rebuilt(updates: Sequence[AgentResponseUpdate]) -> AgentResponse[Any]:
            return AgentResponse[Any].from_updates(updates, output_format_type=prepared.response_format)

        stream: AgentStream = retold(
            prepared.ask_stream(),
            each=self._agent_update,
            whole=lambda response: self._agent_response(response, prepared.response_format),
            rebuilt=rebuilt,
        )
        return stream.with_result_hook(lambda response: self._finished(response, prepared.context))

    async def _prepared(self) -> _Prepared:
        options = dict(self.given.options)
        tools = options.pop("tools", None) if self.given.tools is None else self.given.tools
        defaults = {name: value for name, value in self.agent.default_options.items() if name != "tools"}
        self._choose_session(merged_options(defaults, options))
        context = await self._context(options)
        told = {"instructions": "\n".join(context.instructions) or None}
        own = await self._tools([*self.agent.default_options.get("tools", ()), *context.tools], tools)
        decided = {"tools": own or None, "conversation_id": self.conversation_id}
        merged = merged_options(defaults, told, options, decided)
        arguments: Mapping[str, Any] = merged.pop("additional_function_arguments", None) or {}
        return _Prepared(
            self,
            context,
            merged,
            {**self.given.function_invocation_kwargs, **arguments},
            self._client_kwargs(context),
        )

    def _choose_session(self, options: Mapping[str, Any]) -> None:
        """The session of this run and who adds to it. Without a session that lasts, providers get one for the run."""
        self.session, self.providers = self.given.session, list(self.agent.context_providers)
        self.conversation_id = conversation_of(self.session) or options.get("conversation_id")
        stores = options.get("store")
        is_kept_elsewhere = getattr(self.agent.client, "STORES_BY_DEFAULT", False) if stores is None else bool(stores)
        if self.session is not None and not (is_kept_elsewhere or self.conversation_id or self._loads_history()):
            self.providers.append(InMemoryHistoryProvider())
        if self.session is None and self.providers:
            self.session = AgentSession()
        if self._histories_per_call() and self.conversation_id and not is_kept_elsewhere:
            raise AgentInvalidRequestException(
                f"agent {self.agent.name!r} is to write its history after each call of the model, and the provider "
                f"keeps the conversation {self.conversation_id!r}; let one of the two keep it"
            )

    def _loads_history(self) -> bool:
        return any(isinstance(each, HistoryProvider) and each.load_messages for each in self.providers)

    def _histories_per_call(self) -> list[HistoryProvider]:
        if not self.agent.require_per_service_call_history_persistence:
            return []
        return [each for each in self.providers if isinstance(each, HistoryProvider)]

    async def _context(self, options: dict[str, Any]) -> SessionContext:
        session = self.session
        context = SessionContext(
            session_id=None if session is None else session.session_id,
            service_session_id=None if session is None else session.service_session_id,
            input_messages=list(self.given.messages),
            options=options,
        )
        for provider in self.providers:
            if session is not None and not (isinstance(provider, HistoryProvider) and not provider.load_messages):
                state = session.state.setdefault(provider.source_id, {})
                await provider.before_run(agent=self.agent, session=session, context=context, state=state)
        # A workflow that is talked to as an agent tells its agents the conversation again each time.
        context.input_messages = unheard(context.input_messages, context.get_messages())
        return context

    async def _tools(self, own: Sequence[Any], more: Any) -> list[Any]:
        """The tools of the agent, of its providers and of this run. Servers are connected when first needed."""
        every = [*normalize_tools(own), *self.agent.mcp_tools, *normalize_tools(more)]
        for tool in every:
            if is_server(tool) and not getattr(tool, "is_connected", False):
                await self.agent.connect(tool)
        return expanded_tools(joined_tools([], every))

    def _client_kwargs(self, context: SessionContext) -> dict[str, Any]:
        kwargs = dict(self.given.client_kwargs)
        middleware = [*kwargs.pop("middleware", ()), *context.get_middleware()]
        if self.session is not None:
            kwargs["session"] = self.session
            if histories := self._histories_per_call():
                self.history = HistoryPerCall(self.agent, self.session, histories, context)
                middleware.append(self.history)
        if middleware:
            kwargs["middleware"] = middleware
        return kwargs

    def _agent_update(self, update: ChatResponseUpdate) -> AgentResponseUpdate:
        self.answered_in = update.conversation_id or self.answered_in
        return AgentResponseUpdate(
            contents=update.contents,
            role=update.role,
            author_name=update.author_name or self.agent.name,
            response_id=update.response_id,
            message_id=update.message_id,
            created_at=update.created_at,
            finish_reason=update.finish_reason,
            continuation_token=update.continuation_token,
            additional_properties=update.additional_properties,
            raw_representation=update,
        )

    def _agent_response(self, response: ChatResponse[Any], response_format: Any) -> AgentResponse[Any]:
        self.answered_in = response.conversation_id or self.answered_in
        return AgentResponse(
            messages=response.messages,
            response_id=response.response_id,
            created_at=response.created_at,
            finish_reason=response.finish_reason,
            usage_details=response.usage_details,
            response_format=response_format,
            continuation_token=response.continuation_token,
            additional_properties=response.additional_properties,
            raw_representation=response,
        )

    async def _finished(self, response: AgentResponse[Any], context: SessionContext) -> AgentResponse[Any]:
        """Say who has spoken, and let the providers keep what they want, the last one first."""
        name = self.agent.name or "UnnamedAgent"
        response.messages = [said_by(name, message) for message in response.messages]
        session = self.session
        if session is None:
            return response
        if self.answered_in is not None:
            session.service_session_id = self.answered_in
        context.answered(response)
        if self.history is not None:
            await self.history.finish(response)
        written = self._histories_per_call()
        for provider in reversed(self.providers):
            if provider not in written:
                state = session.state.setdefault(provider.source_id, {})
                await provider.after_run(agent=self.agent, session=session, context=context, state=state)
        return response


@frozen
class _Prepared:
    """All that the model is given."""

    run: AgentRun
    context: SessionContext
    options: Mapping[str, Any]
    function_invocation_kwargs: Mapping[str, Any]
    client_kwargs: Mapping[str, Any]

    @property
    def response_format(self) -> Any:
        """What the answer is to look like."""
        return self.options.get("response_format")

    async def ask(self) -> ChatResponse[Any]:
        """Ask for a whole answer."""
        client = self.run.agent.client
        if isinstance(client, BaseChatClient):
            with taking(self.run.turn):
                answer = self._asked(stream=False)
            return await answer

        async def whole() -> ChatResponse[Any]:
            return require_response(await self._asked(stream=False), type(client).__name__)

        return await ask_recorded(self.run.turn, whole, self.options)

    def ask_stream(self) -> ChatStream:
        """Ask for an answer in pieces."""
        if isinstance(self.run.agent.client, BaseChatClient):
            with taking(self.run.turn):
                return self._asked(stream=True)
        return ask_recorded_stream(
            self.run.turn, lambda: chat_stream(self._asked(stream=True), self.response_format), self.options
        )

    def _asked(self, *, stream: bool) -> Any:
        run = self.run
        return cast("Any", run.agent.client).get_response(
            messages=self.context.get_messages(include_input=True),
            stream=stream,
            options=dict(self.options),
            compaction_strategy=run.given.compaction_strategy,
            tokenizer=run.given.tokenizer,
            function_invocation_kwargs=dict(self.function_invocation_kwargs),
            client_kwargs=dict(self.client_kwargs),
        )


def conversation_of(session: AgentSession | None) -> str | None:
    """The id that the provider has for a session. Raises AgentInvalidRequestException if no client could use it."""
    found = None if session is None else session.service_session_id
    if found is None or isinstance(found, str):
        return found
    raise AgentInvalidRequestException(
        f"the session has the service_session_id {found!r}, which is no text; this agent's client can't go on with it"
    )


def said_by(name: str, message: Message) -> Message:
    """A message with its author; who gave it keeps theirs as it is."""
    if message.author_name is not None:
        return message
    return Message(
        message.role,
        message.contents,
        author_name=name,
        message_id=message.message_id,
        additional_properties=message.additional_properties,
        raw_representation=message.raw_representation,
    )
