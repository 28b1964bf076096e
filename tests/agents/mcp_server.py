"""A real MCP server for tests: `python mcp_server.py stdio NOTES`, or `http NOTES FD` on a socket that is handed in.

What it does it notes in a file, a line for each call: that is what a test counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp import MCPError
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import (
    INTERNAL_ERROR,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    TextContent,
    TextResourceContents,
)

server = MCPServer("notes", log_level="CRITICAL")
notes = Path(sys.argv[2])


def note(name: str, ctx: Context[Any, Any]) -> None:
    with notes.open("a") as file:
        file.write(json.dumps({"tool": name, "meta": dict(ctx.request_context.meta or {})}) + "\n")


@server.tool()
def add(first: int, second: int, ctx: Context[Any, Any]) -> int:
    """Add two numbers."""
    note("add", ctx)
    return first + second


@server.tool(name="books/order")
def order(title: str, ctx: Context[Any, Any]) -> str:
    """Order a book."""
    note("order", ctx)
    return f"ordered {title}"


@server.tool()
def picture() -> Image:
    """Show a picture."""
    return Image(data=b"\x89PNG-not-really", format="png")


@server.tool(structured_output=False)
def papers() -> list[EmbeddedResource]:
    """Give two papers."""
    return [
        EmbeddedResource(resource=TextResourceContents(uri="memo://1", text="a memo")),
        EmbeddedResource(resource=BlobResourceContents(uri="memo://2", blob="AAEC", mime_type="application/pdf")),
    ]


@server.tool()
def refuses(ctx: Context[Any, Any]) -> CallToolResult:
    """Say no."""
    note("refuses", ctx)
    return CallToolResult(content=[TextContent(text="the shelf is empty")], is_error=True)


@server.tool()
def complains(length: int) -> CallToolResult:
    """Say no at length."""
    return CallToolResult(content=[TextContent(text="no " * (length // 3))], is_error=True)


@server.tool()
def protests() -> str:
    """Answer with an error of the protocol."""
    raise MCPError(INTERNAL_ERROR, "the catalogue is on loan")


@server.tool()
def dies(ctx: Context[Any, Any]) -> str:
    """Do it, and die before anybody hears of it."""
    note("dies", ctx)
    os._exit(9)


@server.tool()
def kills(ctx: Context[Any, Any]) -> str:
    """Do it, and kill whoever has asked."""
    note("kills", ctx)
    os.kill(int((ctx.headers or {})["x-who"]), signal.SIGKILL)
    return "killed"


@server.tool()
async def hangs(ctx: Context[Any, Any]) -> str:
    """Do it, and never answer."""
    note("hangs", ctx)
    await asyncio.Event().wait()
    return "never"


@server.tool()
def who(ctx: Context[Any, Any]) -> str:
    """Say who asks."""
    return (ctx.headers or {}).get("x-who", "nobody")


@server.tool()
def environment(name: str) -> str:
    """Tell a variable of the environment."""
    return os.environ.get(name, "")


@server.prompt()
def greeting(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


async def serve(listener: socket.socket) -> None:
    config = uvicorn.Config(server.streamable_http_app(), log_config=None, log_level="critical")
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        asyncio.run(serve(socket.socket(fileno=int(sys.argv[3]))))
