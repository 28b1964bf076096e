"""Chat clients: the base class, the protocol of its layers, and the layer that traces model calls.

Each model call is a recorded step. Contents are never traced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, cast, runtime_checkable

from typing_extensions import TypeVar, Unpack

from perdure import errors
from perdure.agents.client.compaction import CompactionStrategy, TruncationStrategy, included, is_too_long
from perdure.agents.client.options import ChatOptions, check_options, validate_chat_options
from perdure.agents.client.streaming import ChatStream, chat_stream, stream_updates
from perdure.agents.client.tokens import TOKEN_RESOURCES, MissingUsage, TokenCounter, TokenizerProtocol
from perdure.agents.messages.message import Message, normalize_messages
from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate, ResponseFormat, declare_format
from perdure.agents.turn.recording import Turn, current_turn, record_stream
from perdure.streams import ResponseStream
from perdure.tracing import Span, begin, current, traced

if TYPE_CHECKING:
    from perdure.agents.agent import Agent, AgentSettings

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
    """The input of a model call: the conversation, the options, and the client's own kwargs."""

    messages: Sequence[Message]
    options: Mapping[str, Any]
    kwargs: Mapping[str, Any]
    compaction: CompactionStrategy | None

    async def compacted_messages(self, *, is_too_long: bool = False) -> Sequence[Message]:
        """Return the messages that the model is shown. If the strategy has left too many, keep the newer half."""
        if self.compaction is None:
            return self.messages
        copies = [copy(message) for message in self.messages]
        for each in copies:
            each.contents, each.additional_properties = list(each.contents), dict(each.additional_properties)
        await self.compaction(copies)
        if is_too_long:
            number = len(included(copies))
            await TruncationStrategy(max_n=max(1, number // 2), compact_to=max(1, number // 2))(copies)
        return included(copies)

    def require_shorter(self, error: errors.ChatClientInvalidRequestException, *, is_repeated: bool) -> None:
        """Raise the error, unless the conversation was too long and can be compacted once more."""
        if not is_too_long(error):
            raise error
        if self.compaction is None or is_repeated:
            raise errors.ChatClientContextLengthException(
                "the conversation is too long for the model; give the agent a compaction_strategy that keeps less, "
                f"such as TokenBudgetComposedStrategy, and continue. The provider {error}"
            ) from error


class ChatLayer(Generic[OptionsT]):
    """Base of clients and of their layers. `super()` is the next layer."""

    def get_response(self, messages: Sequence[Message], *, stream: bool = False, **more: Any) -> Any:
        """Return an awaitable ChatResponse, or a stream of updates that ends in one."""
        del messages, stream, more
        raise TypeError(f"{type(self).__name__} has layers but no client; make BaseChatClient the last of its bases")

    async def _perdure_ask(self, request: ModelRequest) -> ChatResponse[Any]:
        """Send the request to the model. Called only if there is no recorded response."""
        raise NotImplementedError

    def _perdure_ask_stream(self, request: ModelRequest) -> ChatStream:
        """Send the request and stream the response."""
        raise NotImplementedError


class BaseChatClient(ChatLayer[OptionsT], ABC, Generic[OptionsT]):
    """Base of chat clients. A subclass implements `_inner_get_response`.

    In a workflow each response is a step: it is durable before the caller gets it, and a resumed run reuses it. Add
    layers in this order: `class MyClient(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer,
    BaseChatClient)`.

    Attributes:
        OTEL_PROVIDER_NAME: The provider's name in traces.
        STORES_BY_DEFAULT: True if the provider stores conversations, so that an agent doesn't.
    """

    OTEL_PROVIDER_NAME: ClassVar[str] = "unknown"

    STORES_BY_DEFAULT: ClassVar[bool] = False

    def __init__(
        self,
        *,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        additional_properties: dict[str, Any] | None = None,
        missing_usage: MissingUsage | None = None,
    ) -> None:
        super().__init__()
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self.compaction_strategy = compaction_strategy
        self.tokenizer = tokenizer
        self.missing_usage: MissingUsage = missing_usage or "estimate"

    @abstractmethod
    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        """Call the model. Return an awaitable ChatResponse, or a ResponseStream if `stream` is True.

        A stream may also be an async iterator of ChatResponseUpdates, or an awaitable of one. Instructions are in
        `options["instructions"]`; `prepend_instructions_to_messages` turns them into the first message. `kwargs` are
        the `client_kwargs` of the call.
        """

    def get_response(  # pyright: ignore[reportIncompatibleMethodOverride] - it spells the arguments out
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
        del function_invocation_kwargs
        kwargs = {name: value for name, value in (client_kwargs or {}).items() if name != "session"}
        if middleware := kwargs.pop("middleware", None):
            raise errors.MiddlewareException(
                f"{type(self).__name__} has no layer that runs {middleware!r}; "
                "add FunctionInvocationLayer and ChatMiddlewareLayer to its bases"
            )
        given = dict(cast("Mapping[str, Any]", options or {}))
        check_options(given)
        request = ModelRequest(
            normalize_messages(messages), given, kwargs, compaction_strategy or self.compaction_strategy
        )
        turn = current_turn(type(self).__name__, request.messages)
        response_format = given.get("response_format")
        shown = prepend_instructions_to_messages(request.messages, given.get("instructions"))
        counter = TokenCounter(turn.activation, shown, tokenizer or self.tokenizer, self.missing_usage)
        ask: Any = partial(self._perdure_ask_stream if stream else self._perdure_ask, request)
        return ask_model(turn, ask, response_format, counter, stream=stream)

    async def _perdure_ask(self, request: ModelRequest) -> ChatResponse[Any]:
        is_repeated = False
        while True:
            try:
                messages = await request.compacted_messages(is_too_long=is_repeated)
                given: object = self._inner_get_response(
                    messages=messages, stream=False, options=request.options, **request.kwargs
                )
                found = await cast("Awaitable[object]", given) if isinstance(given, Awaitable) else given
                return require_response(found, type(self).__name__)
            except errors.ChatClientInvalidRequestException as error:
                request.require_shorter(error, is_repeated=is_repeated)
                is_repeated = True

    def _perdure_ask_stream(self, request: ModelRequest) -> ChatStream:
        response_format, final = request.options.get("response_format"), list[ChatResponse[Any]]()

        async def updates() -> AsyncGenerator[ChatResponseUpdate]:
            has_begun = is_repeated = False
            while not final:
                try:
                    messages = await request.compacted_messages(is_too_long=is_repeated)
                    given = self._inner_get_response(
                        messages=messages, stream=True, options=request.options, **request.kwargs
                    )
                    async with aclosing(chat_stream(given, response_format)) as stream:
                        async for update in stream:
                            has_begun = True
                            yield update
                        final.append(await stream.get_final_response())
                except errors.ChatClientInvalidRequestException as error:
                    request.require_shorter(error, is_repeated=has_begun or is_repeated)
                    is_repeated = True

        rebuild = partial(ChatResponse[Any].from_updates, output_format_type=response_format)
        return stream_updates(updates(), final=lambda: final[0], rebuild=rebuild)

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
        self, *, instructions: str | None = None, **settings: Unpack[AgentSettings[OptionsT]]
    ) -> Agent[OptionsT]:
        """Create an agent that uses this client."""
        from perdure.agents.agent import Agent  # noqa: PLC0415 - agents import clients

        return Agent(self, instructions, **settings)


def prepend_instructions_to_messages(
    messages: Sequence[Message], instructions: str | Sequence[str] | None, role: str = "system"
) -> list[Message]:
    """Return the messages with the instructions in front."""
    texts = [instructions] if isinstance(instructions, str) else list(instructions or ())
    return [*[Message(role, [text]) for text in texts if text], *messages]


def ask_model(
    turn: Turn, ask: Callable[[], Any], response_format: ResponseFormat, counter: TokenCounter, *, stream: bool
) -> Any:
    """Call a model as a step of the turn. Returns an awaitable ChatResponse, or a stream. Its number is taken now."""
    declare_format(response_format)

    def finish(response: ChatResponse[Any]) -> ChatResponse[Any]:
        counter.check(response)
        # A response that was read from a record doesn't know its format.
        response.response_format = response_format or response.response_format
        return response

    if stream:
        split, rebuild = ChatResponse[Any].split, ChatResponse[Any].from_updates
        recorded: ChatStream = record_stream(
            turn, ask, name="model", count=counter.count, split=split, rebuild=rebuild, resources=TOKEN_RESOURCES
        )
        return recorded.with_result_hook(finish)
    number = turn.next_model_call()

    async def respond() -> ChatResponse[Any]:
        return finish(await turn.call_model("model", number, ask, counter.count, TOKEN_RESOURCES))

    return respond()


def require_response(found: object, client: str) -> ChatResponse[Any]:
    """Return what a client gave if it is a ChatResponse. Raises ChatClientInvalidResponseException."""
    if isinstance(found, ChatResponse):
        return cast("ChatResponse[Any]", found)
    raise errors.ChatClientInvalidResponseException(
        f"{client} returned a {type(found).__name__!r}; its _inner_get_response must return a ChatResponse"
    )


_REQUEST_OPTIONS = ("temperature", "top_p", "max_tokens", "frequency_penalty", "presence_penalty", "seed")
_TOKEN_COUNTS = {
    "gen_ai.usage.input_tokens": "input_token_count",
    "gen_ai.usage.output_tokens": "output_token_count",
    "gen_ai.usage.cache_creation.input_tokens": "cache_creation_input_token_count",
    "gen_ai.usage.cache_read.input_tokens": "cache_read_input_token_count",
    "gen_ai.usage.reasoning.output_tokens": "reasoning_output_token_count",
}


class ChatTelemetryLayer(ChatLayer[OptionsT], Generic[OptionsT]):
    """Trace model calls. A call whose recorded response is reused makes no request and has no span."""

    def __init__(self, *, otel_provider_name: str | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.otel_provider_name = otel_provider_name or str(getattr(self, "OTEL_PROVIDER_NAME", "unknown"))

    async def _perdure_ask(self, request: ModelRequest) -> ChatResponse[Any]:
        span = _begin_span(request, self.otel_provider_name, getattr(self, "model", None))
        with traced(span), current(span):
            response = await super()._perdure_ask(request)
            _describe(span, response)
            return response

    def _perdure_ask_stream(self, request: ModelRequest) -> ChatStream:
        inner = super()._perdure_ask_stream(request)
        span = _begin_span(request, self.otel_provider_name, getattr(self, "model", None))
        return ResponseStream(_TracedUpdates(inner, span), finalizer=lambda _: inner.get_final_response())


def _begin_span(request: ModelRequest, provider: str, own_model: object) -> Span:
    model = request.options.get("model") or own_model or "unknown"
    requested = {f"gen_ai.request.{name}": request.options.get(name) for name in _REQUEST_OPTIONS}
    names = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider, "gen_ai.request.model": str(model)}
    return begin(f"chat {model}", linked=None, **names, **requested)


class _TracedUpdates:
    """The updates of a stream. The span ends with the last update or with an error.

    The task that reads the end may not be the one that read the start, so the span is never the current one.
    """

    def __init__(self, inner: ChatStream, span: Span) -> None:
        self._inner = inner
        self._span = span

    def __aiter__(self) -> _TracedUpdates:
        return self

    async def __anext__(self) -> ChatResponseUpdate:
        try:
            return await anext(self._inner)
        except StopAsyncIteration:
            _describe(self._span, await self._inner.get_final_response())
            self._span.end()
            raise
        except BaseException as error:
            self._span.end(error)
            raise

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._span.end()


def _describe(span: Span, response: ChatResponse[Any]) -> None:
    usage: Mapping[str, Any] = response.usage_details or {}
    counts = {name: usage.get(key) for name, key in _TOKEN_COUNTS.items()}
    names = {"gen_ai.response.model": response.model, "gen_ai.response.id": response.response_id}
    span.say(**names, **counts)
