"""Servers by the way to them: a program that is started here, or an address."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from perdure.providers.mcp.tool import MCPTool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import httpx2


class MCPStdioTool(MCPTool):
    """A server that is started here as a program, and spoken with over its input and output.

    It gets `env` and a few harmless variables of this process (`PATH`, `HOME`), and none of its secrets. Other options
    are those of `MCPTool`.
    """

    def __init__(
        self,
        name: str,
        command: str,
        *,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        encoding: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(name, **more)
        self.command = command
        self.args = list(args or ())
        self.env = None if env is None else dict(env)
        self.cwd = cwd
        self.encoding = encoding or "utf-8"

    def dial(self) -> AbstractAsyncContextManager[Any]:
        """Start the program."""
        from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 - it takes a second to load

        server = StdioServerParameters(
            command=self.command, args=self.args, env=self.env, cwd=self.cwd, encoding=self.encoding
        )
        # What stands in for the error output, in a notebook, may be no file that a program can write to.
        return stdio_client(server, errlog=sys.__stderr__ or sys.stderr)


class MCPStreamableHTTPTool(MCPTool):
    """A server at an address, spoken with over HTTP.

    `headers` go with every request, such as one that says who asks; they are not shown. An `http_client` is used in
    place of one of our own, and is not closed. Other options are those of `MCPTool`.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        http_client: httpx2.AsyncClient | None = None,
        terminate_on_close: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(name, **more)
        if headers and http_client is not None:
            raise ValueError(f"MCP server {name!r}: give headers, or an http_client that has them, not both")
        self.url = url
        self.terminate_on_close = terminate_on_close
        self._headers = dict(headers or {})
        self._http_client = http_client

    def dial(self) -> AbstractAsyncContextManager[Any]:
        """Make ready to ask: each request has a connection of its own."""
        return self._dialed()

    @asynccontextmanager
    async def _dialed(self) -> AsyncGenerator[Any]:
        import httpx2  # noqa: PLC0415 - it comes with the mcp package
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - it takes a second to load

        async with AsyncExitStack() as stack:
            asking = self._http_client
            if asking is None:
                # How long an answer may take is said by request_timeout.
                waits = httpx2.Timeout(30, read=None)
                asking = await stack.enter_async_context(httpx2.AsyncClient(headers=self._headers, timeout=waits))
            transport = streamable_http_client(self.url, http_client=asking, terminate_on_close=self.terminate_on_close)
            yield await stack.enter_async_context(transport)
