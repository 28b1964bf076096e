"""What is said to a server and what it answers, over one connection after the other."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, cast

from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from perdure.agents import Content
from perdure.errors import ToolException, ToolExecutionException

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from mcp_types import CallToolResult, GetPromptResult, Prompt, Tool


class Connection:
    """A connection that is open, being opened, or over. It is never opened a second time.

    It belongs to the event loop that it was made on.
    """

    def __init__(
        self,
        dial: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        opened: Callable[[Client], Awaitable[None]],
        timeout: float | None,
    ) -> None:
        self._dial = dial
        self._opened = opened
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Client] = self._loop.create_future()
        self._ready.add_done_callback(_looked_at)
        self._over = asyncio.Event()
        # Nothing of who happens to call first, such as a step or a span, belongs to the connection.
        self._task = self._loop.create_task(self._kept(), context=Context())

    @property
    def is_usable(self) -> bool:
        """Whether a call can be made over it, as far as is known, or will be when it is open."""
        is_here = self._loop is asyncio.get_running_loop()
        return is_here and not self._task.done() and not self._over.is_set()

    async def client(self) -> Client:
        """What calls are made with, as soon as it is open. Raises what kept it from being opened."""
        return await asyncio.shield(self._ready)

    def end(self) -> None:
        """Let it end, without waiting for that: it has failed a call."""
        self._over.set()

    async def close(self) -> None:
        """End it, and wait until it has."""
        if self._loop is not asyncio.get_running_loop():
            return
        self._over.set()
        await asyncio.wait([self._task])

    async def _kept(self) -> None:
        try:
            async with Client(_watched(self._dial, self._over), read_timeout_seconds=self._timeout) as client:
                await self._opened(client)
                self._ready.set_result(client)
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer has been told
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._over.set()
            if not self._ready.done():
                self._ready.cancel()


def _looked_at(ready: asyncio.Future[Client]) -> None:
    """Nobody may be left who waits for it."""
    if not ready.cancelled():
        ready.exception()


class _Watched:
    """What a server sends, to see where it ends: the library goes on as if nothing had happened."""

    def __init__(self, inner: Any, over: asyncio.Event) -> None:
        self._inner = inner
        self._over = over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._inner.__aexit__(*raised)

    async def receive(self) -> Any:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._inner)
        except StopAsyncIteration:
            self._over.set()
            raise


@asynccontextmanager
async def _watched(dial: Callable[[], AbstractAsyncContextManager[Any]], over: asyncio.Event) -> AsyncGenerator[Any]:
    async with dial() as (received, sent):
        yield _Watched(received, over), sent


_UNKNOWN: Final = "Whether the call was done is not known; it was not made again."


def unreachable(server: str, error: BaseException) -> ToolException:
    """A server that no connection could be opened with, or one that has not what it was to have."""
    first = _innermost(error)
    if isinstance(first, ToolException):
        return first
    return ToolException(
        f"the MCP server {server!r} can't be reached: {_said(first)}; nothing was called. "
        "Check its command or address, and what it says on its error output"
    )


def failed(server: str, tool: str, error: Exception) -> ToolExecutionException:
    """A call that gave no result."""
    named = f"tool {tool!r} of the MCP server {server!r}"
    code = error.code if isinstance(error, MCPError) else None
    if code == REQUEST_TIMEOUT:
        return ToolExecutionException(f"{named} did not answer in time. {_UNKNOWN}", error)
    if code is None or code == CONNECTION_CLOSED:
        why = _said(_innermost(error))
        return ToolExecutionException(f"{named}: the connection was lost ({why}). {_UNKNOWN}", error)
    return ToolExecutionException(f"{named} refused the call: {error}", error)


def is_lost(error: Exception) -> bool:
    """Whether no more calls can be made over the connection."""
    return not isinstance(error, MCPError) or error.code == CONNECTION_CLOSED or is_forgotten(error)


def is_forgotten(error: Exception) -> bool:
    """Whether the server has forgotten the session and so has done nothing: it was started anew."""
    return isinstance(error, MCPError) and error.code == INVALID_REQUEST and "session" in error.message.lower()


def _innermost(error: BaseException) -> BaseException:
    """The first thing that went wrong, out of groups of them."""
    if isinstance(error, BaseExceptionGroup):
        return _innermost(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


_Block: TypeAlias = "TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource"


def contents_of(result: CallToolResult) -> list[Content]:
    """What a tool gave. Structured content is told as JSON if there is nothing else."""
    contents = [_content_of(block) for block in result.content]
    if not contents and result.structured_content is not None:
        return [Content.from_text(json.dumps(result.structured_content, ensure_ascii=False))]
    return contents


def text_of(contents: list[Content]) -> str:
    """What contents say in words."""
    return "\n".join([content.text for content in contents if content.text])


def prompt_of(result: GetPromptResult) -> str:
    """What a prompt says, message by message."""
    return "\n".join([text_of([_content_of(message.content)]) for message in result.messages])


def _content_of(block: _Block) -> Content:
    match block:
        case TextContent():
            return Content.from_text(block.text)
        case ImageContent() | AudioContent():
            return _data(block.data, block.mime_type)
        case ResourceLink():
            named = {"name": block.name} if block.name else {}
            return Content.from_uri(str(block.uri), media_type=block.mime_type, additional_properties=named)
        case EmbeddedResource(resource=TextResourceContents() as found):
            return Content.from_text(found.text, additional_properties=_origin(found))
        case EmbeddedResource(resource=BlobResourceContents() as found):
            data = _data(found.blob, found.mime_type or "application/octet-stream")
            data.additional_properties.update(_origin(found))
            return data
        case _:
            return Content.from_text(json.dumps(block.model_dump(mode="json", by_alias=True, exclude_none=True)))


def _data(base64: str, media_type: str) -> Content:
    """Data as a server sends it: it is base64 there and here."""
    return Content.from_uri(f"data:{media_type};base64,{base64}", media_type=media_type)


def _origin(resource: TextResourceContents | BlobResourceContents) -> dict[str, Any]:
    return {"uri": str(resource.uri)}


ResultT = TypeVar("ResultT")

KEY_NAME: Final = "perdure/idempotency-key"
_PAGES_MAX: Final = 1000


@dataclass(slots=True, kw_only=True)
class Session:
    """A server that is called by name. `learned` is told its tools and prompts whenever a connection is opened."""

    name: str
    dial: Callable[[], AbstractAsyncContextManager[Any]]
    learned: Callable[[list[Tool], list[Prompt]], None]
    timeout: float | None = None
    parse_result: Callable[[CallToolResult], str | list[Content]] | None = None
    parse_prompt: Callable[[GetPromptResult], str] | None = None
    _connection: Connection | None = field(default=None, init=False)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None and self._connection.is_usable

    async def client(self) -> Client:
        """What calls are made with; a connection is opened if there is none. Raises ToolException."""
        connection = self._connection
        if connection is None or not connection.is_usable:
            connection = self._connection = Connection(self.dial, opened=self.learn, timeout=self.timeout)
        try:
            return await connection.client()
        except Exception as error:
            raise unreachable(self.name, error) from error

    async def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def learn(self, client: Client) -> None:
        """Ask what the server has, and tell it."""
        has = client.server_capabilities
        tools = [] if has.tools is None else await _tools(client)
        self.learned(tools, [] if has.prompts is None else await _prompts(client))

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, key: str, seconds_max: float | None
    ) -> str | list[Content]:
        """Call a tool. Raises ToolException, ToolExecutionException."""
        given = dict(arguments)
        found = await self._asked(name, lambda client: client.call_tool(name, given, seconds_max, meta={KEY_NAME: key}))
        contents = contents_of(found)
        if found.is_error:
            said = text_of(contents) or f"tool {name!r} of the MCP server {self.name!r} failed"
            raise ToolExecutionException(said)
        return contents if self.parse_result is None else self.parse_result(found)

    async def prompt(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Read a prompt. Raises ToolException, ToolExecutionException."""
        texts = {each: str(value) for each, value in arguments.items()}
        found = await self._asked(name, lambda client: client.get_prompt(name, texts))
        return prompt_of(found) if self.parse_prompt is None else self.parse_prompt(found)

    async def _asked(self, name: str, ask: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        """Ask something once; a second time only if the server has certainly done nothing."""
        client = await self.client()
        try:
            return await ask(client)
        except Exception as error:
            self._end_if_lost(error)
            if not is_forgotten(error):
                raise failed(self.name, name, error) from error
        client = await self.client()
        try:
            return await ask(client)
        except Exception as error:
            self._end_if_lost(error)
            raise failed(self.name, name, error) from error

    def _end_if_lost(self, error: Exception) -> None:
        if is_lost(error) and self._connection is not None:
            self._connection.end()


async def _tools(client: Client) -> list[Tool]:
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(_PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        found.extend(page.tools)
        if (cursor := page.next_cursor) is None:
            break
    return found


async def _prompts(client: Client) -> list[Prompt]:
    found: list[Prompt] = []
    cursor: str | None = None
    for _ in range(_PAGES_MAX):
        page = await client.list_prompts(cursor=cursor)
        found.extend(page.prompts)
        if (cursor := page.next_cursor) is None:
            break
    return found
