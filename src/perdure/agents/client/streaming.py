"""Chat streams: convert what a client returns, and forward streams through hooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate, Response, ResponseFormat
from perdure.errors import ChatClientInvalidResponseException
from perdure.streams import ResponseStream

UpdateT = TypeVar("UpdateT")
FinalT = TypeVar("FinalT")

ChatStream = ResponseStream[ChatResponseUpdate, ChatResponse[Any]]


def forward_stream(
    inner: ResponseStream[Any, Any],
    *,
    rebuild: Callable[[Sequence[UpdateT]], FinalT],
    convert: Callable[[Any], UpdateT] = lambda update: update,
    convert_final: Callable[[Any], FinalT] = lambda final: final,
) -> ResponseStream[UpdateT, FinalT]:
    """Forward a stream with converted updates. If hooks replace updates, `rebuild` makes the final response."""
    sent: list[tuple[UpdateT, list[Any]]] = []

    def send(given: Any) -> UpdateT:
        update = convert(given)
        sent.append((update, list(getattr(update, "contents", ()))))
        return update

    async def finalize(updates: Sequence[UpdateT]) -> FinalT:
        is_unchanged = len(updates) == len(sent) and all(
            before is update and list(map(id, contents)) == list(map(id, getattr(update, "contents", ())))
            for (before, contents), update in zip(sent, updates, strict=True)
        )
        return convert_final(await inner.get_final_response()) if is_unchanged else rebuild(updates)

    return inner.map(send, finalize)


def stream_updates(
    source: AsyncIterable[UpdateT], *, final: Callable[[], FinalT], rebuild: Callable[[Sequence[UpdateT]], FinalT]
) -> ResponseStream[UpdateT, FinalT]:
    """Stream updates that end in `final()`. If hooks replace updates, `rebuild` makes the final response."""
    # Not a generator around the source: a loop that shuts down closes all generators at once.
    inner = ResponseStream[UpdateT, FinalT](source, finalizer=lambda _: final(), keeps_updates=False)
    return forward_stream(inner, rebuild=rebuild)


def stream_response(response: Response[Any]) -> ResponseStream[Any, Any]:
    """Stream a complete response."""

    async def updates() -> AsyncGenerator[Any]:
        for update in response.split():
            yield update

    return ResponseStream(updates(), finalizer=lambda _: response)


def chat_stream(given: object, response_format: ResponseFormat) -> ChatStream:
    """Convert what a client returned: a ResponseStream, an async iterable of updates, or an awaitable of these.

    Raises ChatClientInvalidResponseException.
    """

    def finalize(found: Any) -> ChatResponse[Any]:
        if isinstance(found, ChatResponse):
            return cast("ChatResponse[Any]", found)
        return ChatResponse[Any].from_updates(found, output_format_type=response_format)

    async def resolve(awaitable: Awaitable[object]) -> ChatStream:
        return chat_stream(await awaitable, response_format)

    if isinstance(given, ResponseStream):
        return cast("ChatStream", given).with_result_hook(finalize)
    if isinstance(given, AsyncIterable):
        return ResponseStream(cast("AsyncIterable[ChatResponseUpdate]", given), finalizer=finalize)
    if isinstance(given, ChatResponse):
        return stream_response(cast("ChatResponse[Any]", given))
    if isinstance(given, Awaitable):
        return ResponseStream.from_awaitable(resolve(cast("Awaitable[object]", given)))
    raise ChatClientInvalidResponseException(
        f"a client must stream a ResponseStream or an async iterator of ChatResponseUpdates, not "
        f"{type(given).__name__!r}"
    )
