"""What is said to a server and what it answers, over one connection after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from perdure.agent_errors import ToolExecutionException
from perdure.providers.mcp.connection import Connection
from perdure.providers.mcp.failing import failed, is_forgotten, is_lost, unreachable
from perdure.providers.mcp.results import contents_of, prompt_of, text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from mcp import Client
    from mcp_types import CallToolResult, GetPromptResult, Prompt, Tool

    from perdure.agents import Content

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
