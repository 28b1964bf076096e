"""Chat clients: the base class and the protocol of its layers. Each model call is a record_call step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, cast, overload, runtime_checkable

from typing_extensions import TypeVar

from perdure.agents.client.options import (
    ChatOptions,
    check_options,
    validate_chat_options,
)
from perdure.agents.client.streaming import chat_stream, split_response
from perdure.agents.messages.message import Message, normalize_messages
from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate, declare_format
from perdure.agents.turn.recording import current_turn, record_call, record_stream
from perdure.errors import ChatClientInvalidResponseException, MiddlewareException
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perdure.agents.agent import Agent
    from perdure.agents.client.streaming import ChatStream
    from perdure.agents.messages.responses import ResponseFormat
    from perdure.agents.turn.recording import Turn

OptionsT = TypeVar("OptionsT", default=ChatOptions[Any])


@runtime_checkable
class SupportsChatGetResponse(Protocol):
    """Any chat client."""

    additional_properties: dict[str, Any]

    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: Any = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return an awaitable ChatResponse, or a ResponseStream of updates that ends in one."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The input of a model call: messages as the model sees them, options, and the client's own kwargs."""

    messages: Sequence[Message]
    options: Mapping[str, Any]
    kwargs: Mapping[str, Any]


class ChatLayer(Generic[OptionsT]):
    """Base of clients and of their layers. `super()` is the next layer."""

    @overload
    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: Literal[False] = ...,
        options: OptionsT | ChatOptions[Any] | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Awaitable[ChatResponse[Any]]: ...
    @overload
    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: Literal[True],
        options: OptionsT | ChatOptions[Any] | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> ChatStream: ...
    @overload
    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: OptionsT | ChatOptions[Any] | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any: ...
    def get_response(self, messages: Sequence[Message], *, stream: bool = False, **more: Any) -> Any:
        """Return an awaitable ChatResponse, or a stream of updates that ends in one."""
        del messages, stream, more
        raise TypeError(f"{type(self).__name__} has layers but no client; make BaseChatClient the last of its bases")

    def _perdure_ask(self, request: ModelRequest) -> Awaitable[ChatResponse[Any]]:
        """Send the request to the model. Called only if there is no record_call response."""
        raise NotImplementedError

    def _perdure_ask_stream(self, request: ModelRequest) -> ChatStream:
        """Send the request and stream the response."""
        raise NotImplementedError


EXCLUDED = "_excluded"
"""Key in `additional_properties` by which a strategy hides a message from the model."""


@runtime_checkable
class TokenizerProtocol(Protocol):
    """Count tokens for compaction strategies."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        ...


@runtime_checkable
class CompactionStrategy(Protocol):
    """Shorten a conversation before a model sees it."""

    async def __call__(self, messages: list[Message]) -> bool:
        """Change the list or mark messages as excluded. Returns True if anything changed.

        The messages are copies: the history keeps the originals.
        """
        ...


async def compact(messages: Sequence[Message], strategy: CompactionStrategy) -> list[Message]:
    """Return the messages that a model is shown after compaction."""
    copies = [copy(message) for message in messages]
    for each in copies:
        each.contents, each.additional_properties = list(each.contents), dict(each.additional_properties)
    await strategy(copies)
    return [message for message in copies if not message.additional_properties.get(EXCLUDED)]


class BaseChatClient(ChatLayer[OptionsT], ABC, Generic[OptionsT]):
    """Base of chat clients. A subclass implements `_inner_get_response`.

    In a workflow each response is a step: it is durable before the caller gets it, and a resumed run reuses it. Add
    layers in this order: `class MyClient(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer,
    BaseChatClient)`.
    """

    OTEL_PROVIDER_NAME: ClassVar[str] = "unknown"
    """The provider's name in traces."""

    STORES_BY_DEFAULT: ClassVar[bool] = False
    """True if the provider stores conversations, so that an agent doesn't."""

    def __init__(
        self,
        *,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        additional_properties: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.compaction_strategy = compaction_strategy
        self.tokenizer = tokenizer

    @abstractmethod
    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        """Call the model. Return an awaitable ChatResponse, or a ResponseStream if `stream` is True.

        A stream may also be an async iterator of ChatResponseUpdates, or an awaitable of one. Instructions are in
        `options["instructions"]`; `prepend_instructions_to_messages` turns them into the first message. `kwargs` are
        the `client_kwargs` of the call.
        """

    def get_response(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: OptionsT | ChatOptions[Any] | Mapping[str, Any] | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return an awaitable ChatResponse, or a stream of updates that ends in one."""
        del tokenizer, function_invocation_kwargs
        kwargs = {name: value for name, value in (client_kwargs or {}).items() if name != "session"}
        if middleware := kwargs.pop("middleware", None):
            raise MiddlewareException(
                f"{type(self).__name__} has no layer that runs {middleware!r}; "
                "add FunctionInvocationLayer and ChatMiddlewareLayer to its bases"
            )
        given = dict(cast("Mapping[str, Any]", options or {}))
        check_options(given)
        request = ModelRequest(normalize_messages(messages), given, kwargs)
        strategy = compaction_strategy or self.compaction_strategy
        turn = current_turn(type(self).__name__, request.messages)
        response_format = given.get("response_format")
        if strategy is None:
            if stream:
                return ask_model_stream(turn, lambda: self._perdure_ask_stream(request), response_format)
            return ask_model(turn, lambda: self._perdure_ask(request), response_format)

        async def compacted() -> ModelRequest:
            return replace(request, messages=await compact(request.messages, strategy))

        async def whole() -> ChatResponse[Any]:
            return await self._perdure_ask(await compacted())

        async def streamed() -> ChatStream:
            return self._perdure_ask_stream(await compacted())

        if stream:
            return ask_model_stream(turn, lambda: ResponseStream.from_awaitable(streamed()), response_format)
        return ask_model(turn, whole, response_format)

    async def _perdure_ask(self, request: ModelRequest) -> ChatResponse[Any]:
        given: object = self._inner_get_response(
            messages=request.messages, stream=False, options=request.options, **request.kwargs
        )
        found = await cast("Awaitable[object]", given) if isinstance(given, Awaitable) else given
        return require_response(found, type(self).__name__)

    def _perdure_ask_stream(self, request: ModelRequest) -> ChatStream:
        given = self._inner_get_response(
            messages=request.messages, stream=True, options=request.options, **request.kwargs
        )
        return chat_stream(given, request.options.get("response_format"))

    async def _validate_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options if a model can accept them. Raises ValueError."""
        return await validate_chat_options(options)

    def _build_response_stream(self, stream: Any, *, response_format: ResponseFormat = None) -> ChatStream:
        """Return a stream of these updates that ends in the ChatResponse they form."""
        return chat_stream(stream, response_format)

    def service_url(self) -> str:
        """Return the address of the model's server."""
        return "Unknown"

    def as_agent(
        self,
        *,
        id: str | None = None,  # noqa: A002 - public name
        name: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        tools: Any = None,
        default_options: OptionsT | Mapping[str, Any] | None = None,
        context_providers: Sequence[Any] | None = None,
        middleware: Any | Sequence[Any] | None = None,
        require_per_service_call_history_persistence: bool = False,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        additional_properties: Mapping[str, Any] | None = None,
    ) -> Agent[OptionsT]:
        """Create an agent that uses this client."""
        from perdure.agents.agent import Agent  # noqa: PLC0415 - agents import clients

        return Agent(
            self,
            instructions,
            id=id,
            name=name,
            description=description,
            tools=tools,
            default_options=default_options,
            context_providers=context_providers,
            middleware=middleware,
            require_per_service_call_history_persistence=require_per_service_call_history_persistence,
            compaction_strategy=compaction_strategy,
            tokenizer=tokenizer,
            additional_properties=additional_properties,
        )


def prepend_instructions_to_messages(
    messages: Sequence[Message], instructions: str | Sequence[str] | None, role: str = "system"
) -> list[Message]:
    """Return the messages with the instructions in front."""
    texts = [instructions] if isinstance(instructions, str) else list(instructions or ())
    return [*[Message(role, [text]) for text in texts if text], *messages]


def ask_model(
    turn: Turn, ask: Callable[[], Awaitable[ChatResponse[Any]]], response_format: ResponseFormat
) -> Awaitable[ChatResponse[Any]]:
    """Call a model as a record_call step of the turn."""
    declare_format(response_format)
    answer = record_call(turn, ask, name="model", count=lambda response: _count_tokens(turn, response))

    async def respond() -> ChatResponse[Any]:
        response = await answer
        # A response that was read from a record doesn't know its format.
        response.response_format = response_format or response.response_format
        return response

    return respond()


def ask_model_stream(turn: Turn, ask: Callable[[], ChatStream], response_format: ResponseFormat) -> ChatStream:
    """Stream a model call as a record_call step of the turn."""
    declare_format(response_format)

    def rebuild(updates: Sequence[ChatResponseUpdate]) -> ChatResponse[Any]:
        return ChatResponse[Any].from_updates(updates, output_format_type=response_format)

    def set_format(response: ChatResponse[Any]) -> None:
        response.response_format = response_format or response.response_format

    stream = record_stream(
        turn,
        ask,
        name="model",
        count=lambda response: _count_tokens(turn, response),
        split=split_response,
        rebuild=rebuild,
    )
    return stream.with_result_hook(set_format)


def _count_tokens(turn: Turn, response: ChatResponse[Any]) -> None:
    usage = response.usage_details or {}
    spent = {
        "input_tokens": usage.get("input_token_count") or 0,
        "output_tokens": usage.get("output_token_count") or 0,
    }
    spent["total_tokens"] = usage.get("total_token_count") or sum(spent.values())
    if turn.activation is not None and any(spent.values()):
        turn.activation.spend(spent)


def require_response(found: object, client: str) -> ChatResponse[Any]:
    """Return what a client gave if it is a ChatResponse. Raises ChatClientInvalidResponseException."""
    if isinstance(found, ChatResponse):
        return cast("ChatResponse[Any]", found)
    raise ChatClientInvalidResponseException(
        f"{client} returned a {type(found).__name__!r}; its _inner_get_response must return a ChatResponse"
    )
