"""Streams of answers: how one is made of what a client gives, what is told of a whole, and whether hooks changed it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from perdure.agents.messages.content import Content
from perdure.agents.messages.responses import ChatResponse, ChatResponseUpdate
from perdure.errors import ChatClientInvalidResponseException
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from perdure.agents.messages.responses import ResponseFormat

UpdateT = TypeVar("UpdateT")
FinalT = TypeVar("FinalT")

ChatStream = ResponseStream[ChatResponseUpdate, ChatResponse[Any]]


class Told(Generic[UpdateT]):
    """The pieces that came out of a stream, to see later whether a hook has put others in their place."""

    def __init__(self) -> None:
        self._pieces: list[tuple[UpdateT, tuple[Any, ...]]] = []

    def note(self, update: UpdateT) -> UpdateT:
        """Note one piece."""
        self._pieces.append((update, _contents(update)))
        return update

    def are(self, updates: Sequence[UpdateT]) -> bool:
        """Whether these are the very pieces, with the contents that they had. What a hook changes it replaces."""
        return len(updates) == len(self._pieces) and all(
            mine is its and _same(contents, _contents(its))
            for (mine, contents), its in zip(self._pieces, updates, strict=True)
        )


def _contents(update: object) -> tuple[Any, ...]:
    return tuple(getattr(update, "contents", ()))


def _same(mine: tuple[Any, ...], its: tuple[Any, ...]) -> bool:
    return len(mine) == len(its) and all(first is second for first, second in zip(mine, its, strict=True))


class _Pieces:
    """The pieces of another stream, each changed and noted.

    It is no async generator: a loop that shuts down closes all of them at once, and the inner one would be closed
    twice.
    """

    def __init__(self, inner: ResponseStream[Any, Any], each: Callable[[Any], Any], told: Told[Any]) -> None:
        self._inner = inner
        self._each = each
        self._told = told

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> Any:
        return self._told.note(self._each(await anext(self._inner)))

    async def aclose(self) -> None:
        """Close the other stream."""
        await self._inner.aclose()


def retold(
    inner: ResponseStream[Any, Any],
    *,
    rebuilt: Callable[[Sequence[UpdateT]], FinalT],
    each: Callable[[Any], UpdateT] = lambda piece: piece,
    whole: Callable[[Any], FinalT] = lambda final: final,
) -> ResponseStream[UpdateT, FinalT]:
    """A stream told on: its pieces, and its whole. If hooks put others in their place, the whole is `rebuilt`."""
    told: Told[UpdateT] = Told()

    async def finalized(updates: Sequence[UpdateT]) -> FinalT:
        return whole(await inner.get_final_response()) if told.are(updates) else rebuilt(updates)

    pieces = cast("AsyncIterable[UpdateT]", _Pieces(inner, each, told))
    return ResponseStream(pieces, finalizer=finalized)


def updates_of(response: ChatResponse[Any]) -> list[ChatResponseUpdate]:
    """A whole answer as pieces: one for each message, the last with what was counted."""
    updates = [
        ChatResponseUpdate(
            contents=message.contents,
            role=message.role,
            author_name=message.author_name,
            message_id=message.message_id,
            response_id=response.response_id,
            created_at=response.created_at,
            model=response.model,
            conversation_id=response.conversation_id,
        )
        for message in response.messages
    ] or [ChatResponseUpdate(response_id=response.response_id, model=response.model)]
    last = updates[-1]
    if response.usage_details is not None:
        last.contents = [*last.contents, Content.from_usage(response.usage_details)]
    last.finish_reason = response.finish_reason
    last.continuation_token = response.continuation_token
    last.additional_properties = dict(response.additional_properties)
    return updates


def told_as_stream(response: ChatResponse[Any]) -> ChatStream:
    """A whole answer as a stream of its pieces."""

    async def told() -> AsyncGenerator[ChatResponseUpdate]:
        for update in updates_of(response):
            yield update

    return ResponseStream(told(), finalizer=lambda _: response)


def chat_stream(given: object, response_format: ResponseFormat) -> ChatStream:
    """The stream of what a client gave: a ResponseStream, pieces to iterate over, or an awaitable of these.

    Raises ChatClientInvalidResponseException.
    """
    if isinstance(given, ResponseStream):
        return cast("ChatStream", given).with_result_hook(_whole(response_format))
    if isinstance(given, AsyncIterable):
        return ResponseStream(cast("AsyncIterable[ChatResponseUpdate]", given), finalizer=_whole(response_format))
    if isinstance(given, ChatResponse):
        return told_as_stream(cast("ChatResponse[Any]", given))
    if isinstance(given, Awaitable):
        return ResponseStream.from_awaitable(_awaited(cast("Awaitable[object]", given), response_format))
    raise ChatClientInvalidResponseException(
        f"a model was to stream and gave {type(given).__name__!r}; give a ResponseStream, or an async iterator of "
        "ChatResponseUpdates"
    )


async def _awaited(given: Awaitable[object], response_format: ResponseFormat) -> ChatStream:
    return chat_stream(await given, response_format)


def _whole(response_format: ResponseFormat) -> Callable[[Any], ChatResponse[Any]]:
    """Makes the whole of pieces; of a stream that has made it itself, that."""

    def finalized(found: ChatResponse[Any] | Sequence[ChatResponseUpdate]) -> ChatResponse[Any]:
        if isinstance(found, ChatResponse):
            return found
        return ChatResponse[Any].from_updates(found, output_format_type=response_format)

    return finalized
