"""A span for each model call, with OpenTelemetry's names for generative AI. Contents are never traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from perdure.agents.client.base import ChatLayer, ModelRequest, OptionsT
from perdure.streams import ResponseStream
from perdure.tracing import begin, current, traced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agents.client.streaming import ChatStream
    from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate
    from perdure.tracing import Span

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
        span = _begin_span(request, self.otel_provider_name, getattr(self, "model", None))
        try:
            inner = super()._perdure_ask_stream(request)
        except BaseException as error:
            span.end(error)
            raise
        return ResponseStream(_TracedUpdates(inner, span), finalizer=lambda _: inner.get_final_response())


def _begin_span(request: ModelRequest, provider: str, own_model: object) -> Span:
    model = request.options.get("model") or own_model or "unknown"
    requested = {f"gen_ai.request.{name}": request.options.get(name) for name in _REQUEST_OPTIONS}
    names = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": str(model),
    }
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
