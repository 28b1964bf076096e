"""MCP servers as collections of tools. A server is connected on first use, and again after a lost connection."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, cast, get_args

from typing_extensions import TypedDict

from perdure.agents import ApprovalMode, Content, FunctionInvocationContext, FunctionTool, IfToolInterrupted
from perdure.clock import SystemClock
from perdure.errors import ToolException
from perdure.providers import needs_extra

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2
    from mcp_types import CallToolResult, GetPromptResult, Prompt, Tool

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
    if isinstance(mode, Mapping) and set(cast("Mapping[Any, Any]", mode)) <= set(_APPROVAL_LISTS):
        for name, listed in cast("Mapping[str, Any]", mode).items():
            require_names(server, f"approval_mode[{name!r}]", listed)
    elif mode is not None and mode not in get_args(ApprovalMode):
        raise ValueError(
            f"MCP server {server!r}: approval_mode must be 'always_require', 'never_require' or a dict with "
            f"{' and '.join(map(repr, _APPROVAL_LISTS))}, not {mode!r}"
        )
    return cast("Approval", mode)


def require_names(server: str, what: str, names: object) -> frozenset[str] | None:
    """Return a list of tool names as a set. Raises TypeError."""
    if names is None:
        return None
    is_several = isinstance(names, Collection) and not isinstance(names, str | bytes | Mapping)
    if not is_several or not all(isinstance(name, str) for name in cast("Collection[Any]", names)):
        raise TypeError(f"MCP server {server!r}: {what} must be a list of tool names, not {names!r}")
    return frozenset(cast("Collection[str]", names))


def exposed_name(name: str, prefix: str | None) -> str:
    """Return the name that models see: servers may use more characters than models accept."""
    own, before = _FOREIGN.sub("-", name), _FOREIGN.sub("-", prefix or "").rstrip(_JOINTS)
    if not before:
        return own
    own = own.lstrip(_JOINTS)
    return f"{before}_{own}" if own else before


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
        return await self._session().call(tool_name, arguments, key=SystemClock().new_id())

    async def get_prompt(self, prompt_name: str, **arguments: Any) -> str:
        """Return a prompt of the server as text. Raises ToolException, ToolExecutionException."""
        return await self._session().prompt(prompt_name, arguments)

    def _session(self) -> Session:
        """Return the session with the server. Raises ImportError without the `mcp` package."""
        if self._opened is None:
            with needs_extra("MCP servers need", "mcp"):
                from perdure.providers.mcp.session import Session  # noqa: PLC0415 - mcp takes a second to load
            self._opened = Session(self)
        return self._opened

    def set_functions(self, tools: list[Tool], prompts: list[Prompt]) -> None:
        """Make functions of what the server has listed. Raises ToolException if it lacks a tool that is named here."""
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
        lists: dict[str, Any] = {"allowed_tools": self.allowed_tools}
        if isinstance(self.approval_mode, dict):
            lists |= {f"approval_mode[{name!r}]": listed for name, listed in self.approval_mode.items()}
        for what, listed in lists.items():
            if missing := sorted(set(listed or ()) - known):
                raise ToolException(
                    f"MCP server {self.name!r} has no {', '.join(map(repr, missing))}, which {what} lists; "
                    f"it has {', '.join(map(repr, sorted(known)))}"
                )

    def _tool(self, found: Tool) -> FunctionTool:
        async def call(_call: FunctionInvocationContext, **_more: Any) -> str | list[Content]:
            # Only the model's arguments are sent, not the run's kwargs for tools.
            return await self._session().call(found.name, _call.arguments, key=_call.idempotency_key)

        return self._function(found, call, found.input_schema, "mcp_tool", self.if_interrupted)

    def _prompt(self, found: Prompt) -> FunctionTool:
        async def get(_call: FunctionInvocationContext, **_more: Any) -> str:
            return await self._session().prompt(found.name, _call.arguments)

        given = found.arguments or []
        described = {each.name: {"description": each.description} if each.description else {} for each in given}
        schema = {
            "type": "object",
            "properties": {name: {"type": "string", **more} for name, more in described.items()},
            "required": [each.name for each in given if each.required],
        }
        # Reading a prompt twice is harmless.
        return self._function(found, get, schema, "mcp_prompt", "rerun")

    def _function(
        self,
        found: Tool | Prompt,
        func: Callable[..., Any],
        schema: Mapping[str, Any],
        kind: str,
        if_interrupted: IfToolInterrupted,
    ) -> FunctionTool:
        names, mode = self._names(found.name), self.approval_mode
        if mode is not None and not isinstance(mode, str):
            is_listed = not set(names).isdisjoint(mode.get("always_require_approval") or ())
            mode = "always_require" if is_listed else "never_require"
        return FunctionTool(
            name=names[1],
            description=found.description or "",
            func=func,
            input_model=schema,
            approval_mode=mode,
            if_interrupted=if_interrupted,
            additional_properties={"mcp_server": self.name, kind: found.name},
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


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

    @asynccontextmanager
    async def dial(self) -> AsyncGenerator[Any]:
        """Open the transport. Each request has its own connection."""
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
