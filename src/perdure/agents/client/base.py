"""Clients of models. Whoever writes one says how its model is asked; that an answer is recorded is seen to here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, cast, overload, runtime_checkable

from typing_extensions import TypeVar

from perdure.agents.client.options import (
    ChatOptions,
    ToolMode,
    checked_options,
    validate_chat_options,
)
from perdure.agents.client.streaming import chat_stream, updates_of
from perdure.agents.messages.message import Message, messages_of
from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate, declare_format
from perdure.agents.turn.recording import recorded, recorded_stream, turn_of
from perdure.data import frozen
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
    """Anything that answers a conversation: a client of a model."""

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
        """An awaitable ChatResponse, or a ResponseStream of ChatResponseUpdates that ends in one."""
        ...


@frozen
class ModelRequest:
    """What a model is asked: the conversation as it will see it, options, and what is for this client alone."""

    messages: Sequence[Message]
    options: Mapping[str, Any]
    kwargs: Mapping[str, Any]


class ChatLayer(Generic[OptionsT]):
    """The base of clients and of the layers around them: `super()` is what stands behind."""

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
        """The answer to a conversation: an awaitable ChatResponse, or a stream of pieces that ends in one."""
        del messages, stream, more
        raise TypeError(
            f"{type(self).__name__} has layers and no client behind them; let BaseChatClient be the last of its bases"
        )

    def _perdure_ask(self, request: ModelRequest) -> Awaitable[ChatResponse[Any]]:
        """Ask the model. What is done here is done when it is really asked, and not when its answer was recorded."""
        raise NotImplementedError

    def _perdure_ask_stream(self, request: ModelRequest) -> ChatStream:
        """Ask the model for an answer in pieces."""
        raise NotImplementedError


EXCLUDED = "_excluded"
"""Where a strategy says of a message, among its additional properties, that the model is not to see it."""


@runtime_checkable
class TokenizerProtocol(Protocol):
    """Counts tokens, for strategies that look at them."""

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is."""
        ...


@runtime_checkable
class CompactionStrategy(Protocol):
    """Makes a conversation shorter before a model sees it."""

    async def __call__(self, messages: list[Message]) -> bool:
        """Change the list, or mark messages as excluded; True if something was changed.

        The messages are copies: a history keeps what was said.
        """
        ...


async def compacted(messages: Sequence[Message], strategy: CompactionStrategy | None) -> Sequence[Message]:
    """What a model is to see of a conversation."""
    if strategy is None:
        return messages
    copies = [_copy(message) for message in messages]
    await strategy(copies)
    return [message for message in copies if not message.additional_properties.get(EXCLUDED)]


def _copy(message: Message) -> Message:
    return Message(
        message.role,
        message.contents,
        author_name=message.author_name,
        message_id=message.message_id,
        additional_properties=message.additional_properties,
        raw_representation=message.raw_representation,
    )


__all__ = [
    "BaseChatClient",
    "ChatOptions",
    "SupportsChatGetResponse",
    "ToolMode",
    "ask_recorded",
    "prepend_instructions_to_messages",
    "validate_chat_options",
]


class BaseChatClient(ChatLayer[OptionsT], ABC, Generic[OptionsT]):
    """A client of a model: subclasses say in `_inner_get_response` how it is asked.

    In a workflow each answer is a step: it is on disk before anybody has it, and another life gets it from there. Give
    a client its abilities by layers, in this order: `class MyClient(FunctionInvocationLayer, ChatMiddlewareLayer,
    ChatTelemetryLayer, BaseChatClient)`.
    """

    OTEL_PROVIDER_NAME: ClassVar[str] = "unknown"
    """What traces call the provider."""

    STORES_BY_DEFAULT: ClassVar[bool] = False
    """Whether the provider keeps conversations itself, so that an agent need not."""

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
        """Ask the model: give an awaitable ChatResponse, or if it is to stream a ResponseStream.

        A stream may also be an async iterator of ChatResponseUpdates, or an awaitable of one. Instructions come as
        `options["instructions"]`: `prepend_instructions_to_messages` makes them the first message. `kwargs` are the
        `client_kwargs` of the call.
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
        """The answer to a conversation: an awaitable ChatResponse, or a stream of pieces that ends in one."""
        del tokenizer, function_invocation_kwargs
        kwargs = {name: value for name, value in (client_kwargs or {}).items() if name != "session"}
        _require_none(kwargs.pop("middleware", None), type(self).__name__)
        given = dict(cast("Mapping[str, Any]", options or {}))
        checked_options(given)
        request = ModelRequest(messages_of(messages), given, kwargs)
        strategy = compaction_strategy or self.compaction_strategy
        turn = turn_of(type(self).__name__, request.messages)
        if stream:
            return ask_recorded_stream(turn, lambda: _streamed(self._perdure_ask_stream, request, strategy), given)
        return ask_recorded(turn, lambda: _whole(self._perdure_ask, request, strategy), given)

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
        """The options, if a model can take them. Raises ValueError."""
        return await validate_chat_options(options)

    def _build_response_stream(self, stream: Any, *, response_format: ResponseFormat = None) -> ChatStream:
        """A stream of these pieces that ends in the ChatResponse that they make."""
        return chat_stream(stream, response_format)

    def service_url(self) -> str:
        """Where the model is asked."""
        return "Unknown"

    def as_agent(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the reference's name
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
        """An agent that asks this client."""
        from perdure.agents.agent import Agent  # noqa: PLC0415 - agents are made of clients

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


async def _whole(
    ask: Callable[[ModelRequest], Awaitable[ChatResponse[Any]]],
    request: ModelRequest,
    strategy: CompactionStrategy | None,
) -> ChatResponse[Any]:
    return await ask(replace(request, messages=await compacted(request.messages, strategy)))


def _streamed(
    ask: Callable[[ModelRequest], ChatStream], request: ModelRequest, strategy: CompactionStrategy | None
) -> ChatStream:
    if strategy is None:
        return ask(request)

    async def asked() -> ChatStream:
        return ask(replace(request, messages=await compacted(request.messages, strategy)))

    return ResponseStream.from_awaitable(asked())


def prepend_instructions_to_messages(
    messages: Sequence[Message], instructions: str | Sequence[str] | None, role: str = "system"
) -> list[Message]:
    """A conversation that begins with instructions."""
    texts = [instructions] if isinstance(instructions, str) else list(instructions or ())
    return [*[Message(role, [text]) for text in texts if text], *messages]


def ask_recorded(turn: Turn, ask: Any, options: Mapping[str, Any]) -> Awaitable[ChatResponse[Any]]:
    """Ask a model for a whole answer, as a step of the turn."""
    declare_format(options.get("response_format"))
    return _answered(recorded(turn, ask, name="model", counted=lambda whole: _count(turn, whole)), options)


def ask_recorded_stream(turn: Turn, make: Any, options: Mapping[str, Any]) -> ChatStream:
    """Ask a model for an answer in pieces, as a step of the turn."""
    response_format = options.get("response_format")
    declare_format(response_format)

    def rebuilt(updates: Sequence[ChatResponseUpdate]) -> ChatResponse[Any]:
        return ChatResponse[Any].from_updates(updates, output_format_type=response_format)

    stream = recorded_stream(
        turn, make, name="model", counted=lambda whole: _count(turn, whole), pieces=updates_of, rebuilt=rebuilt
    )
    return stream.with_result_hook(lambda whole: _formatted(whole, response_format))


async def _answered(answer: Awaitable[ChatResponse[Any]], options: Mapping[str, Any]) -> ChatResponse[Any]:
    return _formatted(await answer, options.get("response_format"))


def _formatted(response: ChatResponse[Any], response_format: ResponseFormat) -> ChatResponse[Any]:
    """What comes from a record does not know what it was to look like."""
    if response_format is not None:
        response.response_format = response_format
    return response


def _count(turn: Turn, response: ChatResponse[Any]) -> None:
    usage = response.usage_details or {}
    spent = {
        "input_tokens": usage.get("input_token_count") or 0,
        "output_tokens": usage.get("output_token_count") or 0,
    }
    spent["total_tokens"] = usage.get("total_token_count") or sum(spent.values())
    if any(spent.values()):
        turn.spend(**spent)


def require_response(found: object, client: str) -> ChatResponse[Any]:
    """What a client gave, if it is an answer. Raises ChatClientInvalidResponseException."""
    if isinstance(found, ChatResponse):
        return cast("ChatResponse[Any]", found)
    raise ChatClientInvalidResponseException(
        f"{client} gave {type(found).__name__!r} for an answer; its _inner_get_response is to give a ChatResponse"
    )


def _require_none(middleware: Any, client: str) -> None:
    """Middleware that nobody has taken would be left out without a word."""
    if middleware:
        raise MiddlewareException(
            f"{client} has no layer for {middleware!r}; "
            "let FunctionInvocationLayer and ChatMiddlewareLayer be among its bases"
        )
