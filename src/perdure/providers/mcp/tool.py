"""A server as a collection of tools: connected when first used, and again when the connection was lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self, cast

from perdure.agents import FunctionInvocationContext, FunctionTool
from perdure.clock import SystemClock
from perdure.providers.mcp.choosing import (
    Approval,
    MCPSpecificApproval,
    exposed_name,
    require_approval,
    require_names,
    require_there,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractAsyncContextManager

    from mcp_types import CallToolResult, GetPromptResult, Prompt, Tool

    from perdure.agents import ApprovalMode, Content, IfToolInterrupted
    from perdure.providers.mcp.session import Session

__all__ = ["Approval", "MCPSpecificApproval", "MCPTool"]


class MCPTool(ABC):
    """A server of the Model Context Protocol. Its tools and prompts are `functions`, once it is connected.

    A call is recorded like that of any tool, and its idempotency key goes along in the `_meta` of the request, as
    `perdure/idempotency-key`. A call that a lost connection cuts off is not made again: the model is told that nobody
    knows whether it was done. The next call opens the connection again.
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
        """The way to the server: a transport of the `mcp` package."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._opened is not None and self._opened.is_connected

    @property
    def functions(self) -> list[FunctionTool]:
        """The server's tools and prompts, as they were when it was last connected; none before."""
        return list(self._functions)

    async def connect(self, *, reset: bool = False) -> None:
        """Open the connection, and learn what the server has. Raises ToolException if it can't be reached."""
        if reset:
            await self.close()
        await self._session().client()

    async def close(self) -> None:
        """End the connection. What is called afterwards opens it again."""
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the connection."""
        await self.close()

    async def load_tools(self) -> None:
        """Learn anew what the server has. Raises ToolException."""
        session = self._session()
        await session.learn(await session.client())

    load_prompts = load_tools

    async def call_tool(self, tool_name: str, **arguments: Any) -> str | list[Content]:
        """Call a tool of the server by the name that it has there. Raises ToolException, ToolExecutionException."""
        return await self._call(tool_name, arguments, SystemClock().new_id())

    async def get_prompt(self, prompt_name: str, **arguments: Any) -> str:
        """A prompt of the server, as text. Raises ToolException, ToolExecutionException."""
        return await self._session().prompt(prompt_name, arguments)

    async def _call(self, name: str, arguments: Mapping[str, Any], key: str) -> str | list[Content]:
        return await self._session().call(name, arguments, key=key, seconds_max=self.request_timeout)

    def _session(self) -> Session:
        """What speaks with the server. Raises ImportError that says how to get the library."""
        if self._opened is None:
            try:
                # It takes a second to load, and a program that only names a server need not wait.
                from perdure.providers.mcp.session import Session  # noqa: PLC0415
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("perdure"):
                    raise
                said = "MCP servers are called through the mcp package; pip install 'perdure[mcp]'"
                raise ImportError(said) from error
            self._opened = Session(
                name=self.name,
                dial=self.dial,
                learned=self._learned,
                timeout=self.request_timeout,
                parse_result=self.parse_tool_results,
                parse_prompt=self.parse_prompt_results,
            )
        return self._opened

    def _learned(self, tools: list[Tool], prompts: list[Prompt]) -> None:
        self._require_listed([each.name for each in [*tools, *prompts]])
        made = [self._tool(each) for each in tools if self._has_tools and self._is_allowed(each.name)]
        read = [self._prompt(each) for each in prompts if self._has_prompts and self._is_allowed(each.name)]
        self._functions = [*made, *read]

    def _is_allowed(self, name: str) -> bool:
        return self.allowed_tools is None or not self.allowed_tools.isdisjoint(self._names(name))

    def _names(self, name: str) -> tuple[str, str]:
        """The name that a tool has there, and the one that models know it by."""
        return name, exposed_name(name, self.tool_name_prefix)

    def _require_listed(self, names: list[str]) -> None:
        known = {alias for name in names for alias in self._names(name)}
        require_there(self.name, "allowed_tools", self.allowed_tools or (), known)
        if isinstance(self.approval_mode, dict):
            for what, listed in self.approval_mode.items():
                require_there(self.name, f"approval_mode[{what!r}]", cast("Collection[str]", listed or ()), known)

    def _approval(self, name: str) -> ApprovalMode | None:
        mode = self.approval_mode
        if mode is None or isinstance(mode, str):
            return mode
        names = set(self._names(name))
        return "always_require" if names & set(mode.get("always_require_approval") or ()) else "never_require"

    def _tool(self, found: Tool) -> FunctionTool:
        async def call(_call: FunctionInvocationContext, **_more: Any) -> str | list[Content]:
            # What the run was given for tools is not for servers: only the arguments of the model go there.
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
                "properties": {each.name: _text(each.description) for each in given},
                "required": [each.name for each in given if each.required],
            },
            approval_mode=self._approval(found.name),
            # A prompt is read, and that may be done twice.
            if_interrupted="rerun",
            additional_properties={"mcp_server": self.name, "mcp_prompt": found.name},
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


def _text(description: str | None) -> dict[str, str]:
    return {"type": "string"} if description is None else {"type": "string", "description": description}
