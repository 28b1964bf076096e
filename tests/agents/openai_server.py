"""A real server on loopback that speaks the language of chat completions, and misbehaves on demand.

Replies are used up in order, one for each request that gets so far; the last one stays. Every request is kept.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator, Sequence

    from starlette.requests import Request

Reply: TypeAlias = "Say | Fail | Raw"
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


@dataclass(frozen=True)
class Say:
    """An answer: a message as the wire has it. Streamed, it comes in the pieces `deltas`, or in one."""

    message: dict[str, Any]
    finish_reason: str = "stop"
    deltas: Sequence[dict[str, Any]] = ()
    usage: dict[str, Any] | None = field(default_factory=lambda: dict(USAGE))
    counts_always: bool = False
    """Whether each piece has a count so far."""
    drops_after: int | None = None
    """After so many pieces the connection is gone, in the middle of the body."""
    ends_after: int | None = None
    """After so many pieces the body ends, as if it were whole."""
    waits_after: int | None = None
    """After so many pieces nothing comes any more, until the other side goes."""


@dataclass(frozen=True)
class Fail:
    """A refusal."""

    status: int
    error: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Raw:
    """Something else altogether."""

    text: str
    media_type: str = "text/html"


def text(said: str) -> Say:
    """An answer in words, which streams word by word."""
    words = said.split(" ")
    pieces = [word if place == 0 else f" {word}" for place, word in enumerate(words)]
    return Say({"content": said}, deltas=[{"content": piece} for piece in pieces])


def calls(*asked: tuple[str, str, str], content: str | None = None) -> Say:
    """An answer that wants tools called: id, name and arguments of each. Streamed, arguments come in two pieces."""
    every = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in asked
    ]
    deltas: list[dict[str, Any]] = [{"content": content}] if content else []
    for index, (call_id, name, _) in enumerate(asked):
        first = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [first]})
    for half in (0, 1):
        for index, (_, _, arguments) in enumerate(asked):
            middle = len(arguments) // 2
            piece = arguments[middle:] if half else arguments[:middle]
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return Say({"content": content, "tool_calls": every}, "tool_calls", deltas)


@dataclass
class OpenAIServer:
    """What the server was asked, and what it will say."""

    replies: list[Reply]
    root: str
    """The address, up to what says which interface is asked."""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    paths: list[str] = field(default_factory=list[str])
    hung_up: threading.Event = field(default_factory=threading.Event)
    """Set when somebody has left a stream before its end."""

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{self.root}/v1"

    async def answer(self, request: Request) -> Response:
        """Do what comes next."""
        body = json.loads(await request.body())
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path_params["path"])
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        number = len(self.requests)
        match reply:
            case Fail(status, error, headers):
                return JSONResponse({"error": error}, status, headers)
            case Raw(said, media_type):
                return Response(said, media_type=media_type)
            case Say() if body.get("stream"):
                wished: dict[str, Any] = body.get("stream_options") or {}
                counts = bool(wished.get("include_usage"))
                pieces = self._told(reply, number, counts=counts)
                return StreamingResponse(pieces, media_type="text/event-stream")
            case Say():
                return JSONResponse(_completion(reply, number))

    async def _told(self, reply: Say, number: int, *, counts: bool) -> AsyncIterator[str]:
        pieces = list(_chunks(reply, number, counts=counts))
        try:
            for place, chunk in enumerate(pieces):
                if place == reply.drops_after:
                    raise ConnectionError("dropped, as it was told to")
                if place == reply.ends_after:
                    return
                if place == reply.waits_after:
                    await asyncio.Event().wait()
                yield f"data: {json.dumps(chunk)}\n\n"
            yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.hung_up.set()
            raise


def _completion(reply: Say, number: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, **reply.message}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "model-x",
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}],
        "usage": reply.usage,
    }


def _chunks(reply: Say, number: int, *, counts: bool) -> Iterator[dict[str, Any]]:
    shared = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "model-x",
    }
    always = {"usage": reply.usage} if reply.counts_always else {}
    deltas = [{"role": "assistant", "content": ""}, *(reply.deltas or [reply.message])]
    for delta in deltas:
        yield shared | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} | always
    yield shared | {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}]} | always
    if counts and reply.usage is not None:
        yield shared | {"choices": [], "usage": reply.usage}


class House:
    """One server for all tests of a process, in a thread of its own: each of them has an address in it."""

    def __init__(self) -> None:
        self.tenants: dict[int, OpenAIServer] = {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        routes = [Route("/{tenant:int}/{path:path}", self._answer, methods=["POST"])]
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off", ws="none")
        config.timeout_graceful_shutdown = 1
        self._runner = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._runner.run, kwargs={"sockets": [self._listening]}, daemon=True)
        self._thread.start()

    async def _answer(self, request: Request) -> Response:
        return await self.tenants[request.path_params["tenant"]].answer(request)

    def close(self) -> None:
        """Stop."""
        self._runner.should_exit = True
        self._thread.join(timeout=20)
        self._listening.close()


@functools.cache
def _house() -> House:
    house = House()
    atexit.register(house.close)
    return house


@contextmanager
def serving(*replies: Reply) -> Generator[OpenAIServer]:
    """A server that has this to say, until the block ends."""
    house = _house()
    tenant = len(house.tenants)
    server = house.tenants[tenant] = OpenAIServer(list(replies), f"http://127.0.0.1:{house.port}/{tenant}")
    yield server
