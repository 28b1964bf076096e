"""A model below the layers of a client, for tests of these: it says what it was shown, and notes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agents import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    ChatTelemetryLayer,
    Content,
    FunctionInvocationLayer,
    Message,
    prepend_instructions_to_messages,
)
from perdure.codec import Codec, Trust

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

USAGE: Any = {"input_token_count": 3, "output_token_count": 4, "total_token_count": 7}


def kept(value: Any) -> Any:
    """A value after a checkpoint of a program that trusts no types of its own."""
    codec = Codec(Trust.of())
    encoded = codec.encode(value, path="it")
    return codec.decode(encoded.text, {blob.hash: blob.data for blob in encoded.blobs}, path="it")


def echo(messages: Sequence[Message]) -> list[Content]:
    """What was shown, in words: `user: hi | assistant: ...`."""
    return [Content.from_text(" | ".join([f"{message.role}: {message.text}" for message in messages]))]


class BareModel(BaseChatClient[Any]):
    """A client without layers."""

    OTEL_PROVIDER_NAME = "stub"

    def __init__(self, say: Callable[[Sequence[Message]], list[Content]] = echo, **more: Any) -> None:
        super().__init__(**more)
        self.model = "stub-1"
        self.say = say
        self.calls: list[tuple[list[Message], Mapping[str, Any], Mapping[str, Any]]] = []
        """For each call: the messages, the options, and what was for the client alone."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        self.calls.append((list(messages), options, kwargs))
        contents = self.say(prepend_instructions_to_messages(messages, options.get("instructions")))
        return self.streamed(contents) if stream else self.whole(contents)

    async def whole(self, contents: list[Content]) -> ChatResponse[Any]:
        """The answer at once."""
        return ChatResponse(
            messages=Message("assistant", contents), usage_details=USAGE, model=self.model, response_id="r"
        )

    async def streamed(self, contents: list[Content]) -> AsyncGenerator[ChatResponseUpdate]:
        """The answer in pieces, texts word by word."""
        for content in contents:
            words = [f"{word} " for word in (content.text or "").split()]
            for piece in [Content.from_text(word) for word in words] or [content]:
                yield ChatResponseUpdate(contents=[piece], role="assistant", message_id="m", response_id="r")
        yield ChatResponseUpdate(contents=[Content.from_usage(USAGE)], model=self.model)


class Model(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], ChatTelemetryLayer[Any], BareModel):
    """A client with all layers."""


class Foreign:
    """A client that is none of ours."""

    def __init__(self) -> None:
        self.additional_properties: dict[str, Any] = {}
        self.calls = 0

    def get_response(self, messages: Sequence[Message], *, stream: bool = False, **more: Any) -> Any:
        del more
        self.calls += 1
        text = f"{self.calls}: {messages[-1].text}"
        return self._streamed(text) if stream else self._whole(text)

    async def _whole(self, text: str) -> ChatResponse[Any]:
        return ChatResponse(messages=Message("assistant", [text]))

    async def _streamed(self, text: str) -> AsyncGenerator[ChatResponseUpdate]:
        for word in text.split():
            yield ChatResponseUpdate(contents=[word], role="assistant")
