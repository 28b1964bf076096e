"""What a provider does wrong, as errors of ours: of a real server, in both modes."""

from __future__ import annotations

import asyncio
import socket
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.openai_server import Fail, OpenAIServer, Raw, Say, serving, text

from perdure.agents import Message
from perdure.errors import (
    ChatClientException,
    ChatClientInvalidAuthException,
    ChatClientInvalidRequestException,
    ChatClientInvalidResponseException,
)
from perdure.openai import OpenAIChatClient, OpenAIContentFilterException

if TYPE_CHECKING:
    from perdure.agents import ChatResponse

HELLO = [Message("user", ["Hello"])]
KEY = "sk-very-secret-key"
LIMIT = Fail(429, {"message": "slow down", "code": "rate_limit_exceeded"}, {"retry-after": "0.01"})
BROKEN = Fail(500, {"message": "out of order"})
BOTH = pytest.mark.parametrize("stream", [False, True])


def client_of(server: OpenAIServer, **settings: Any) -> OpenAIChatClient:
    usual: dict[str, Any] = {"base_url": server.url, "api_key": KEY, "max_retries": 0}
    return OpenAIChatClient("model-x", **usual | settings)


async def answer(client: OpenAIChatClient, *, stream: bool) -> ChatResponse[Any]:
    async with client:
        if stream:
            return await client.get_response(HELLO, stream=True).get_final_response()
        return await client.get_response(HELLO)


@BOTH
async def test_too_many_requests_are_tried_again_after_the_time_that_the_server_names(*, stream: bool) -> None:
    with serving(LIMIT, LIMIT, text("Now")) as server:
        assert (await answer(client_of(server, max_retries=2), stream=stream)).text == "Now"
        assert len(server.requests) == 3


@BOTH
@pytest.mark.parametrize("failure", [LIMIT, BROKEN])
async def test_what_still_fails_after_all_retries_is_told_with_what_the_server_said(
    failure: Fail, *, stream: bool
) -> None:
    with serving(failure) as server, pytest.raises(ChatClientException) as caught:
        await answer(client_of(server), stream=stream)
    assert type(caught.value) is ChatClientException
    assert failure.error["message"] in str(caught.value)
    assert "max_retries" in str(caught.value)


@BOTH
@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Fail(401, {"message": "who are you?"}), ChatClientInvalidAuthException),
        (Fail(403, {"message": "not you"}), ChatClientInvalidAuthException),
        (Fail(400, {"message": "no such option"}), ChatClientInvalidRequestException),
        (Fail(404, {"message": "no such model"}), ChatClientInvalidRequestException),
        (Fail(422, {"message": "not so"}), ChatClientInvalidRequestException),
        (Fail(400, {"message": "not that", "code": "content_filter"}), OpenAIContentFilterException),
    ],
)
async def test_a_refusal_is_of_the_kind_that_says_what_to_do(
    failure: Fail, kind: type[Exception], *, stream: bool
) -> None:
    with serving(failure) as server, pytest.raises(kind, match=failure.error["message"]) as caught:
        await answer(client_of(server, max_retries=2), stream=stream)
    assert type(caught.value) is kind
    assert len(server.requests) == 1


@BOTH
async def test_a_key_that_the_server_repeats_is_not_repeated(*, stream: bool) -> None:
    failure = Fail(401, {"message": f"Incorrect key {KEY}, header Bearer {KEY}"})
    with serving(failure) as server, pytest.raises(ChatClientInvalidAuthException) as caught:
        await answer(client_of(server), stream=stream)
    shown = "".join(traceback.format_exception(caught.value))
    assert "Incorrect key ***" in shown
    assert KEY not in shown


async def test_a_connection_that_is_dropped_in_the_middle_of_a_stream_is_no_answer() -> None:
    with serving(Say({"content": "Hello"}, deltas=[{"content": "Hel"}, {"content": "lo"}], drops_after=2)) as server:
        async with client_of(server) as client:
            stream = client.get_response(HELLO, stream=True)
            with pytest.raises(ChatClientException, match="connection"):
                await stream.get_final_response()
    assert [update.text for update in stream.updates] == ["Hel"]


async def test_a_stream_that_ends_before_the_answer_does_is_no_answer() -> None:
    with (
        serving(Say({"content": "Hello"}, ends_after=2)) as server,
        pytest.raises(ChatClientException, match="ended before"),
    ):
        await answer(client_of(server), stream=True)


async def test_an_abandoned_stream_closes_its_connection() -> None:
    with serving(Say({"content": "Hello"}, waits_after=2)) as server:
        async with client_of(server) as client:
            stream = client.get_response(HELLO, stream=True)
            assert (await anext(stream)).text == "Hello"
            await stream.aclose()
            assert await asyncio.to_thread(server.hung_up.wait, 20)


@BOTH
async def test_a_server_that_is_not_there_is_named(*, stream: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = OpenAIChatClient("m", base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0)
    with pytest.raises(ChatClientException, match=f"127.0.0.1:{port}"):
        await answer(client, stream=stream)


async def test_a_server_that_does_not_answer_in_time_is_given_up() -> None:
    with (
        serving(Say({"content": "Hello"}, waits_after=2)) as server,
        pytest.raises(ChatClientException, match="timeout="),
    ):
        await answer(client_of(server, timeout=0.2), stream=True)


@pytest.mark.parametrize("raw", [Raw("<html>Welcome</html>"), Raw('{"object": "list"}', "application/json")])
async def test_something_else_than_an_answer_is_told_as_that(raw: Raw) -> None:
    with serving(raw) as server, pytest.raises(ChatClientInvalidResponseException):
        await answer(client_of(server), stream=False)


async def test_an_error_inside_of_a_stream_is_an_error() -> None:
    failed = Raw('data: {"error": {"message": "lost my mind", "code": 500}}\n\n', "text/event-stream")
    with serving(failed) as server, pytest.raises(ChatClientException, match="lost my mind"):
        await answer(client_of(server), stream=True)


async def test_a_stream_that_is_no_json_is_told_as_that() -> None:
    with (
        serving(Raw("data: {oops\n\n", "text/event-stream")) as server,
        pytest.raises(ChatClientInvalidResponseException),
    ):
        await answer(client_of(server), stream=True)
