"""Sessions with an MCP server: connections, calls, errors, and the conversion of results."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

import mcp_types
from mcp import Client, MCPError

from perdure.agents import Content
from perdure.errors import ToolException, ToolExecutionException

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping

    from perdure.providers.mcp.server import MCPTool


class Connection:
    """A connection that is opening, open or closed. It is never opened again.

    It belongs to the event loop on which it was created.
    """

    def __init__(
        self,
        dial: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        on_open: Callable[[Client], Awaitable[None]],
        timeout: float | None,
    ) -> None:
        self._dial = dial
        self._on_open = on_open
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Client] = self._loop.create_future()
        # Mark the error as retrieved: nobody may be waiting for it.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._ended = asyncio.Event()
        # An empty context: the first caller's step or span doesn't belong to the connection.
        self._task = self._loop.create_task(self._run(), context=Context())

    @property
    def is_usable(self) -> bool:
        """Return True if calls can be made over it now or when it is open, as far as is known."""
        is_here = self._loop is asyncio.get_running_loop()
        return is_here and not self._task.done() and not self._ended.is_set()

    async def client(self) -> Client:
        """Return the client when the connection is open. Raises the error that prevented it."""
        return await asyncio.shield(self._ready)

    def end(self) -> None:
        """Start closing without waiting, after a failed call."""
        self._ended.set()

    async def close(self) -> None:
        """Close and wait until it is closed."""
        if self._loop is not asyncio.get_running_loop():
            return
        self._ended.set()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async with Client(_watch(self._dial, self._ended), read_timeout_seconds=self._timeout) as client:
                await self._on_open(client)
                self._ready.set_result(client)
                await self._ended.wait()
        except Exception as error:  # noqa: BLE001 - the waiting caller gets it
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._ended.set()
            if not self._ready.done():
                self._ready.cancel()


class _Watched:
    """The server's messages, watched for their end, which the library ignores."""

    def __init__(self, inner: Any, ended: asyncio.Event) -> None:
        self._inner = inner
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._inner.__aexit__(*raised)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._inner)
        except StopAsyncIteration:
            self._ended.set()
            raise


@asynccontextmanager
async def _watch(dial: Callable[[], AbstractAsyncContextManager[Any]], ended: asyncio.Event) -> AsyncGenerator[Any]:
    async with dial() as (received, sent):
        yield _Watched(received, ended), sent


_ERROR_LENGTH_MAX: Final = 4000
_USER: Final = re.compile(r"(\w://)[^\s/@'\"]*@")
_QUERY: Final = re.compile(r"(\w://[^\s?'\"]*)\?[^\s'\"]*")
_UNKNOWN_EFFECT: Final = "It is unknown if the call had an effect; it was not repeated."


def server_unreachable(server: str, error: BaseException) -> ToolException:
    """Return the error for a server that can't be connected, or lacks listed tools."""
    first = _innermost(error)
    if isinstance(first, ToolException):
        return first
    return ToolException(
        f"the MCP server {server!r} can't be reached: {_reason(first)}; nothing was called. "
        "Check its command or address, and its error output"
    )


def call_failed(server: str, tool: str, error: Exception) -> ToolExecutionException:
    """Return the error for a call without a result."""
    named = f"tool {tool!r} of the MCP server {server!r}"
    code = error.code if isinstance(error, MCPError) else None
    if code == mcp_types.REQUEST_TIMEOUT:
        return ToolExecutionException(f"{named} did not answer in time. {_UNKNOWN_EFFECT}", error)
    if code is None or code == mcp_types.CONNECTION_CLOSED:
        why = _reason(_innermost(error))
        return ToolExecutionException(f"{named}: the connection was lost ({why}). {_UNKNOWN_EFFECT}", error)
    return ToolExecutionException(f"{named} refused the call: {_reason(error)}", error)


def _reason(error: BaseException) -> str:
    """Return an error's text for the model, without the user and the query of an address, which may be secrets."""
    text = _QUERY.sub(r"\1", _USER.sub(r"\1", str(error)))
    return _shorten(text) or type(error).__name__


def _shorten(text: str) -> str:
    left_out = len(text) - _ERROR_LENGTH_MAX
    return text if left_out <= 0 else f"{text[:_ERROR_LENGTH_MAX]}... ({left_out:,} characters left out)"


def is_connection_lost(error: Exception) -> bool:
    """Return True if the connection can't be used any more."""
    return not isinstance(error, MCPError) or error.code == mcp_types.CONNECTION_CLOSED or is_session_forgotten(error)


def is_session_forgotten(error: Exception) -> bool:
    """Return True if the server was restarted and has forgotten the session, so that it has done nothing."""
    return (
        isinstance(error, MCPError) and error.code == mcp_types.INVALID_REQUEST and "session" in error.message.lower()
    )


def _innermost(error: BaseException) -> BaseException:
    """Return the first error in nested groups."""
    if isinstance(error, BaseExceptionGroup):
        return _innermost(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error


def text_of(contents: list[Content]) -> str:
    """Join the texts of contents."""
    return "\n".join([content.text for content in contents if content.text])


def _content_of(block: mcp_types.ContentBlock) -> Content:
    match block:
        case mcp_types.TextContent():
            return Content.from_text(block.text)
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return _data(block.data, block.mime_type)
        case mcp_types.ResourceLink():
            named = {"name": block.name} if block.name else {}
            return Content.from_uri(str(block.uri), media_type=block.mime_type, additional_properties=named)
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as found):
            return Content.from_text(found.text, additional_properties={"uri": str(found.uri)})
        case mcp_types.EmbeddedResource(resource=mcp_types.BlobResourceContents() as found):
            origin = {"uri": str(found.uri)}
            return _data(found.blob, found.mime_type or "application/octet-stream", additional_properties=origin)
        case _:
            return Content.from_text(json.dumps(block.model_dump(mode="json", by_alias=True, exclude_none=True)))


def _data(base64: str, media_type: str, **more: Any) -> Content:
    """Return inline data. It is base64 on both sides."""
    return Content.from_uri(f"data:{media_type};base64,{base64}", media_type=media_type, **more)


ResultT = TypeVar("ResultT")

KEY_NAME: Final = "perdure/idempotency-key"
_PAGES_MAX: Final = 1000


class Session:
    """Calls to one server, which gets its tools and prompts whenever a connection is opened."""

    def __init__(self, server: MCPTool) -> None:
        self._server = server
        self._connection: Connection | None = None

    @property
    def is_connected(self) -> bool:
        """Return True if there is a connection, as far as is known."""
        return self._connection is not None and self._connection.is_usable

    async def client(self) -> Client:
        """Return the client, and connect if necessary. Raises ToolException."""
        connection, server = self._connection, self._server
        if connection is None or not connection.is_usable:
            connection = self._connection = Connection(
                server.dial, on_open=self.list_tools, timeout=server.request_timeout
            )
        try:
            return await connection.client()
        except Exception as error:
            raise server_unreachable(server.name, error) from error

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def list_tools(self, client: Client) -> None:
        """List the server's tools and prompts."""
        has = client.server_capabilities
        tools: list[mcp_types.Tool] = [] if has.tools is None else await _list_all(client.list_tools, "tools")
        prompts: list[mcp_types.Prompt] = [] if has.prompts is None else await _list_all(client.list_prompts, "prompts")
        self._server.set_functions(tools, prompts)

    async def call(self, name: str, arguments: Mapping[str, Any], *, key: str) -> str | list[Content]:
        """Call a tool. Raises ToolException, ToolExecutionException."""
        given, server = dict(arguments), self._server
        found = await self._request(
            name, lambda client: client.call_tool(name, given, server.request_timeout, meta={KEY_NAME: key})
        )
        contents = [_content_of(block) for block in found.content]
        if not contents and found.structured_content is not None:
            contents = [Content.from_text(json.dumps(found.structured_content, ensure_ascii=False))]
        if found.is_error:
            message = _shorten(text_of(contents)) or f"tool {name!r} of the MCP server {server.name!r} failed"
            raise ToolExecutionException(message)
        return contents if server.parse_tool_results is None else server.parse_tool_results(found)

    async def prompt(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Read a prompt. Raises ToolException, ToolExecutionException."""
        texts = {each: str(value) for each, value in arguments.items()}
        found = await self._request(name, lambda client: client.get_prompt(name, texts))
        if self._server.parse_prompt_results is not None:
            return self._server.parse_prompt_results(found)
        return "\n".join([text_of([_content_of(message.content)]) for message in found.messages])

    async def _request(self, name: str, ask: Callable[[Client], Awaitable[ResultT]], *, again: bool = True) -> ResultT:
        """Send a request. Repeat it once, and only if the server has certainly done nothing."""
        client = await self.client()
        try:
            return await ask(client)
        except Exception as error:
            if is_connection_lost(error) and self._connection is not None:
                self._connection.end()
            if not (again and is_session_forgotten(error)):
                raise call_failed(self._server.name, name, error) from error
        return await self._request(name, ask, again=False)


async def _list_all(ask: Callable[..., Awaitable[Any]], field: str) -> list[Any]:
    """Read all pages of a list."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_PAGES_MAX):
        page = await ask(cursor=cursor)
        found += getattr(page, field)
        if (cursor := page.next_cursor) is None:
            break
    return found
