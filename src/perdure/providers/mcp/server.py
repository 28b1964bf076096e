"""MCP servers as collections of tools. A server is connected on first use, and again after a lost connection."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, cast, get_args

from typing_extensions import TypedDict

from perdure.agents import ApprovalMode, FunctionInvocationContext, FunctionTool
from perdure.clock import SystemClock
from perdure.errors import ToolException

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import httpx2
    from mcp_types import CallToolResult, GetPromptResult, Prompt, Tool

    from perdure.agents import Content, IfToolInterrupted
    from perdure.providers.mcp.session import Session

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.-]")
_JOINTS: Final = "_.-"


class MCPSpecificApproval(TypedDict, total=False):
    """The tools of a server that need approval, by name. A tool in both lists needs it."""

    always_require_approval: Collection[str] | None
    never_require_approval: Collection[str] | None


Approval: TypeAlias = "Literal['always_require', 'never_require'] | MCPSpecificApproval | None"
_APPROVAL_LISTS: Final = tuple(MCPSpecificApproval.__annotations__)


def require_approval(server: str, mode: object) -> Approval:
    """Return a valid approval mode: a misspelled one would ask nobody. Raises TypeError, ValueError."""
    if mode is None or (isinstance(mode, str) and mode in get_args(ApprovalMode)):
        return cast("Approval", mode)
    if not isinstance(mode, Mapping):
        raise ValueError(
            f"MCP server {server!r}: approval_mode must be 'always_require', 'never_require' or a dict with "
            f"{' and '.join(map(repr, _APPROVAL_LISTS))}, not {mode!r}"
        )
    lists = cast("Mapping[Any, Any]", mode)
    if unknown := [name for name in lists if name not in _APPROVAL_LISTS]:
        raise ValueError(
            f"MCP server {server!r}: approval_mode has no {unknown[0]!r}; "
            f"it may have {' and '.join(map(repr, _APPROVAL_LISTS))}"
        )
    for name, listed in lists.items():
        require_names(server, f"approval_mode[{name!r}]", listed)
    return cast("Approval", mode)


def require_names(server: str, what: str, names: object) -> frozenset[str] | None:
    """Return a list of tool names as a set. Raises TypeError."""
    if names is None:
        return None
    is_several = isinstance(names, Collection) and not isinstance(names, str | bytes | Mapping)
    found: list[Any] = list(cast("Collection[Any]", names)) if is_several else [None]
    if not all(isinstance(name, str) for name in found):
        raise TypeError(f"MCP server {server!r}: {what} must be a list of tool names, not {names!r}")
    return frozenset(found)


def require_listed(server: str, what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ToolException if the server lacks a listed tool."""
    missing = sorted(set(names).difference(known))
    if missing:
        raise ToolException(
            f"MCP server {server!r} has no {', '.join(map(repr, missing))}, which {what} lists; "
            f"it has {', '.join(map(repr, sorted(known)))}"
        )


def exposed_name(name: str, prefix: str | None) -> str:
    """Return the name that models see: servers may use more characters than models accept."""
    own, before = _FOREIGN.sub("-", name), _FOREIGN.sub("-", prefix or "").rstrip(_JOINTS)
    if not before:
        return own
    own = own.lstrip(_JOINTS)
    return f"{before}_{own}" if own else before


__all__ = ["Approval", "MCPSpecificApproval", "MCPTool"]


class MCPTool(ABC):
    """A server of the Model Context Protocol. Its tools and prompts are its `functions` once it is connected.

    A call is recorded like that of any tool. Its idempotency key is sent in the `_meta` of the request, as
    `perdure/idempotency-key`. A call that a lost connection interrupts is not repeated: the model is told that its
    effect is unknown. The next call connects again.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str | None = None,
        approval_mode: Approval = None,
        allowed_tools: Collection[str] | None = None,
        tool_name_prefix: str | None = None,
        load_tools: bool = True,
        load_prompts: bool = True,
        parse_tool_results: Callable[[CallToolResult], str | list[Content]] | None = None,
        parse_prompt_results: Callable[[GetPromptResult], str] | None = None,
        request_timeout: float | None = None,
        if_interrupted: IfToolInterrupted = "tell",
        additional_properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.description = description or ""
        self.approval_mode: Approval = require_approval(name, approval_mode)
        self.allowed_tools = require_names(name, "allowed_tools", allowed_tools)
        self.tool_name_prefix = tool_name_prefix
        self.parse_tool_results = parse_tool_results
        self.parse_prompt_results = parse_prompt_results
        self.request_timeout = request_timeout
        self.if_interrupted: IfToolInterrupted = if_interrupted
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})
        self._has_tools = load_tools
        self._has_prompts = load_prompts
        self._opened: Session | None = None
        self._functions: list[FunctionTool] = []

    @abstractmethod
    def dial(self) -> AbstractAsyncContextManager[Any]:
        """Return the transport to the server, from the `mcp` package."""

    @property
    def is_connected(self) -> bool:
        """Return True if there is a connection, as far as is known."""
        return self._opened is not None and self._opened.is_connected

    @property
    def functions(self) -> list[FunctionTool]:
        """Return the server's tools and prompts as of the last connection."""
        return list(self._functions)

    async def connect(self, *, reset: bool = False) -> None:
        """Connect, and list the server's tools. Raises ToolException if it can't be reached."""
        if reset:
            await self.close()
        await self._session().client()

    async def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.close()

    async def load_tools(self) -> None:
        """List the server's tools again. Raises ToolException."""
        session = self._session()
        await session.list_tools(await session.client())

    load_prompts = load_tools

    async def call_tool(self, tool_name: str, **arguments: Any) -> str | list[Content]:
        """Call a tool by its name on the server. Raises ToolException, ToolExecutionException."""
        return await self._call(tool_name, arguments, SystemClock().new_id())

    async def get_prompt(self, prompt_name: str, **arguments: Any) -> str:
        """Return a prompt of the server as text. Raises ToolException, ToolExecutionException."""
        return await self._session().prompt(prompt_name, arguments)

    async def _call(self, name: str, arguments: Mapping[str, Any], key: str) -> str | list[Content]:
        return await self._session().call(name, arguments, key=key, seconds_max=self.request_timeout)

    def _session(self) -> Session:
        """Return the session with the server. Raises ImportError without the `mcp` package."""
        if self._opened is None:
            try:
                # The library takes a second to load, so load it with the first connection.
                from perdure.providers.mcp.session import Session  # noqa: PLC0415
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("perdure"):
                    raise
                message = "MCP servers need the mcp package: pip install 'perdure[mcp]'"
                raise ImportError(message) from error
            self._opened = Session(
                name=self.name,
                dial=self.dial,
                on_listed=self._set_functions,
                timeout=self.request_timeout,
                parse_result=self.parse_tool_results,
                parse_prompt=self.parse_prompt_results,
            )
        return self._opened

    def _set_functions(self, tools: list[Tool], prompts: list[Prompt]) -> None:
        self._require_listed([each.name for each in [*tools, *prompts]])
        made = [self._tool(each) for each in tools if self._has_tools and self._is_allowed(each.name)]
        read = [self._prompt(each) for each in prompts if self._has_prompts and self._is_allowed(each.name)]
        self._functions = [*made, *read]

    def _is_allowed(self, name: str) -> bool:
        return self.allowed_tools is None or not self.allowed_tools.isdisjoint(self._names(name))

    def _names(self, name: str) -> tuple[str, str]:
        """Return a tool's name on the server and the one that models see."""
        return name, exposed_name(name, self.tool_name_prefix)

    def _require_listed(self, names: list[str]) -> None:
        known = {alias for name in names for alias in self._names(name)}
        require_listed(self.name, "allowed_tools", self.allowed_tools or (), known)
        if isinstance(self.approval_mode, dict):
            for what, listed in self.approval_mode.items():
                require_listed(self.name, f"approval_mode[{what!r}]", cast("Collection[str]", listed or ()), known)

    def _approval(self, name: str) -> ApprovalMode | None:
        mode = self.approval_mode
        if mode is None or isinstance(mode, str):
            return mode
        names = set(self._names(name))
        return "always_require" if names & set(mode.get("always_require_approval") or ()) else "never_require"

    def _tool(self, found: Tool) -> FunctionTool:
        async def call(_call: FunctionInvocationContext, **_more: Any) -> str | list[Content]:
            # Only the model's arguments are sent, not the run's kwargs for tools.
            return await self._call(found.name, _call.arguments, _call.idempotency_key)

        return FunctionTool(
            name=self._names(found.name)[1],
            description=found.description or "",
            func=call,
            input_model=found.input_schema,
            approval_mode=self._approval(found.name),
            if_interrupted=self.if_interrupted,
            additional_properties={"mcp_server": self.name, "mcp_tool": found.name},
        )

    def _prompt(self, found: Prompt) -> FunctionTool:
        async def get(_call: FunctionInvocationContext, **_more: Any) -> str:
            return await self._session().prompt(found.name, _call.arguments)

        given = found.arguments or []
        return FunctionTool(
            name=self._names(found.name)[1],
            description=found.description or "",
            func=get,
            input_model={
                "type": "object",
                "properties": {each.name: _text_schema(each.description) for each in given},
                "required": [each.name for each in given if each.required],
            },
            approval_mode=self._approval(found.name),
            # Reading a prompt twice is harmless.
            if_interrupted="rerun",
            additional_properties={"mcp_server": self.name, "mcp_prompt": found.name},
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


def _text_schema(description: str | None) -> dict[str, str]:
    return {"type": "string"} if description is None else {"type": "string", "description": description}


class MCPStdioTool(MCPTool):
    """A server that runs as a child process and communicates over stdin and stdout.

    It gets `env` and a few harmless variables of this process (`PATH`, `HOME`), but no secrets. The other options are
    those of `MCPTool`.
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
        """Start the process."""
        from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 - it takes a second to load

        server = StdioServerParameters(
            command=self.command, args=self.args, env=self.env, cwd=self.cwd, encoding=self.encoding
        )
        # In a notebook sys.stderr may not be a file that a process can write to.
        return stdio_client(server, errlog=sys.__stderr__ or sys.stderr)


class MCPStreamableHTTPTool(MCPTool):
    """A server that is reached over HTTP.

    `headers` are sent with every request, for example for authentication, and never shown. An `http_client` is used
    instead of our own and not closed. The other options are those of `MCPTool`.
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
            raise ValueError(f"MCP server {name!r}: give headers or an http_client, not both")
        self.url = url
        self.terminate_on_close = terminate_on_close
        self._headers = dict(headers or {})
        self._http_client = http_client

    def dial(self) -> AbstractAsyncContextManager[Any]:
        """Open the transport. Each request has its own connection."""
        return self._open_transport()

    @asynccontextmanager
    async def _open_transport(self) -> AsyncGenerator[Any]:
        import httpx2  # noqa: PLC0415 - it comes with the mcp package
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - it takes a second to load

        async with AsyncExitStack() as stack:
            client = self._http_client
            if client is None:
                # request_timeout limits how long a response may take.
                timeout = httpx2.Timeout(30, read=None)
                client = await stack.enter_async_context(httpx2.AsyncClient(headers=self._headers, timeout=timeout))
            transport = streamable_http_client(self.url, http_client=client, terminate_on_close=self.terminate_on_close)
            yield await stack.enter_async_context(transport)
