"""What goes wrong at other providers, over the real wire format."""

from __future__ import annotations

import socket
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from tests.agents.anthropic_server import MODEL, AnthropicServer, Dropped, Garbled, Refused, anthropic_server, text

from perdure.agents import Message
from perdure.errors import (
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
)
from perdure.models import ModelClient

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-ant-very-secret-key"
HELLO = [Message("user", ["Hello."])]


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with anthropic_server() as running:
        yield running


def made(url: str, **settings: Any) -> ModelClient[Any]:
    model = AnthropicModel(MODEL, provider=AnthropicProvider(api_key=KEY, base_url=url))
    return ModelClient(model, settings={"max_retries": 0, **settings})


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Refused(401, "authentication_error", "invalid x-api-key"), ChatClientInvalidAuthException),
        (Refused(403, "permission_error", "not for you"), ChatClientInvalidAuthException),
        (Refused(400, "invalid_request_error", "max_tokens is too large"), ChatClientInvalidRequestException),
        (Refused(404, "not_found_error", "no such model"), ChatClientInvalidRequestException),
        (Refused(529, "overloaded_error", "overloaded"), ChatClientException),
        (Refused(500, "api_error", "something broke"), ChatClientException),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_provider_is_raised_as_the_right_kind_with_its_words(
    server: AnthropicServer, reply: Refused, error: type[Exception], *, stream: bool
) -> None:
    server.will(reply)
    async with made(server.url) as client:
        asked = client.get_response(HELLO, stream=stream)
        with pytest.raises(error, match=reply.message) as raised:
            await (asked.get_final_response() if stream else asked)
    assert type(raised.value) is error
    assert f"HTTP {reply.status}" in str(raised.value)


async def test_no_error_shows_the_key_even_if_the_provider_repeats_it(server: AnthropicServer) -> None:
    server.will(Refused(401, "authentication_error", f"the key {KEY} is not known"))
    async with made(server.url) as client:
        with pytest.raises(ChatClientInvalidAuthException) as raised:
            await client.get_response(HELLO)
    assert KEY not in "".join(traceback.format_exception(raised.value))
    assert KEY in str(server.headers[0])


async def test_after_429_the_providers_library_waits_as_it_is_told_and_asks_again(server: AnthropicServer) -> None:
    server.will(Refused(429, "rate_limit_error", "slow down", {"retry-after-ms": "1"}), text("Now."))
    async with made(server.url, max_retries=1) as client:
        response = await client.get_response(HELLO)
    assert response.text == "Now."
    assert len(server.asked) == 2


async def test_429_that_does_not_end_says_how_long_to_wait(server: AnthropicServer) -> None:
    server.will(Refused(429, "rate_limit_error", "slow down", {"retry-after": "7"}))
    async with made(server.url) as client:
        with pytest.raises(ChatClientException, match="slow down; it asks to wait 7 seconds"):
            await client.get_response(HELLO)


@pytest.mark.parametrize("is_proper", [False, True])
@pytest.mark.parametrize("after", [1, 4])
async def test_a_stream_that_breaks_off_raises_and_gives_no_whole(
    server: AnthropicServer, after: int, *, is_proper: bool
) -> None:
    server.will(Dropped(after=after, is_proper=is_proper))
    async with made(server.url) as client:
        stream = client.get_response(HELLO, stream=True)
        with pytest.raises(ChatClientException):
            await stream.get_final_response()


async def test_an_answer_that_breaks_off_raises(server: AnthropicServer) -> None:
    server.will(Dropped())
    async with made(server.url) as client:
        with pytest.raises(ChatClientException):
            await client.get_response(HELLO)


async def test_a_server_that_is_not_there_raises() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with made(f"http://127.0.0.1:{unused.getsockname()[1]}") as client:
            with pytest.raises(ChatClientException, match=r"the call of model .* failed"):
                await client.get_response(HELLO)


def test_a_model_that_nobody_knows_is_refused_when_the_client_is_made() -> None:
    with pytest.raises(ChatClientInvalidRequestException, match="nobody:nothing"):
        ModelClient("nobody:nothing")


def test_a_missing_key_is_told_when_the_client_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ChatClientInvalidRequestException, match="ANTHROPIC_API_KEY"):
        ModelClient(f"anthropic:{MODEL}")


async def test_a_schema_that_is_no_object_is_refused(server: AnthropicServer) -> None:
    async with made(server.url) as client:
        with pytest.raises(ChatClientInvalidRequestException, match="make it a field"):
            await client.get_response(HELLO, options={"response_format": {"type": "array", "title": "Many"}})
    assert server.asked == []


@pytest.mark.parametrize("body", ["{}", "<html>"])
async def test_an_answer_that_makes_no_sense_is_an_error_of_its_own(server: AnthropicServer, body: str) -> None:
    server.will(Garbled(body))
    async with made(server.url) as client:
        with pytest.raises(ChatClientInvalidResponseException):
            await client.get_response(HELLO)
