"""A server on loopback that speaks the wire format of Anthropic's messages API, as it is told to by a test."""

from __future__ import annotations

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
    from collections.abc import AsyncGenerator, Generator, Mapping

    from starlette.requests import Request

MODEL = "claude-for-tests"
"""A name that no provider has: one that it has will be deprecated some day, and warned of."""


@dataclass(frozen=True)
class Said:
    """An answer: blocks as they stand in the wire format."""

    blocks: list[dict[str, Any]]
    stop_reason: str = "end_turn"
    usage: dict[str, int] = field(default_factory=lambda: {"input_tokens": 10, "output_tokens": 5})


@dataclass(frozen=True)
class Refused:
    """An error."""

    status: int
    kind: str
    message: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dropped:
    """A connection that breaks off: after some events of a stream, or in the middle of a body."""

    after: int = 0
    is_proper: bool = False
    """Whether it is closed as if that were all."""
    said: Said = field(default_factory=lambda: Said([{"type": "text", "text": "never heard to the end"}]))


@dataclass(frozen=True)
class Garbled:
    """An answer that is none."""

    body: str = "{}"


Reply: TypeAlias = Said | Refused | Dropped | Garbled


def text(words: str) -> Said:
    return Said([{"type": "text", "text": words}])


def calls(name: str, arguments: Mapping[str, Any], call_id: str = "toolu_1", *, before: str | None = None) -> Said:
    said = [] if before is None else [{"type": "text", "text": before}]
    return Said([*said, {"type": "tool_use", "id": call_id, "name": name, "input": dict(arguments)}], "tool_use")


class AnthropicServer:
    """Gives its replies one after the other, and notes what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.url = ""

    def will(self, *replies: Reply) -> None:
        self.replies.extend(replies)

    async def answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        reply = self.replies.pop(0)
        if isinstance(reply, Refused):
            error = {"type": "error", "error": {"type": reply.kind, "message": reply.message}}
            return JSONResponse(error, reply.status, reply.headers)
        if isinstance(reply, Garbled):
            return Response(reply.body, media_type="application/json")
        said = reply.said if isinstance(reply, Dropped) else reply
        message_id = f"msg_{len(self.asked)}"
        if body.get("stream"):
            told = _events(said, message_id, body["model"])
            kept = told[: reply.after] if isinstance(reply, Dropped) else told
            return StreamingResponse(
                _sent(kept, is_whole=not isinstance(reply, Dropped) or reply.is_proper), media_type="text/event-stream"
            )
        whole = json.dumps({**_head(said, message_id, body["model"]), "content": said.blocks})
        if isinstance(reply, Dropped):
            headers = {"content-length": str(len(whole)), "content-type": "application/json"}
            return StreamingResponse(_sent([whole[:20]], is_whole=False), headers=headers)
        return Response(whole, media_type="application/json")


def _head(said: Said, message_id: str, model: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": said.stop_reason,
        "stop_sequence": None,
        "usage": said.usage,
    }


def _events(said: Said, message_id: str, model: str) -> list[str]:
    head = {**_head(said, message_id, model), "stop_reason": None, "usage": {**said.usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": head}]
    for index, block in enumerate(said.blocks):
        empty, deltas = _pieces(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events.extend([{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas])
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": said.stop_reason, "stop_sequence": None}
    events.extend([{"type": "message_delta", "delta": stop, "usage": said.usage}, {"type": "message_stop"}])
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins in a stream, and what follows."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": each} for each in _halves(block["text"])]
        case "thinking":
            thoughts = [{"type": "thinking_delta", "thinking": each} for each in _halves(block["thinking"])]
            sealed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*thoughts, sealed]
        case "tool_use":
            halves = _halves(json.dumps(block["input"]))
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": each} for each in halves]
        case _:
            return block, []


def _halves(words: str) -> list[str]:
    middle = len(words) // 2
    return [words[:middle], words[middle:]]


async def _sent(pieces: list[str], *, is_whole: bool) -> AsyncGenerator[str]:
    for piece in pieces:
        yield piece
    if not is_whole:
        raise ConnectionAbortedError("the server breaks off")


@contextmanager
def anthropic_server() -> Generator[AnthropicServer]:
    """A server that runs until the end of the block."""
    server = AnthropicServer()
    app = Starlette(routes=[Route("/v1/messages", server.answer, methods=["POST"])])
    with socket.socket() as listener:
        # Whoever connects before the server accepts waits in the backlog.
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        running = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            running.should_exit = True
            thread.join(timeout=30)
