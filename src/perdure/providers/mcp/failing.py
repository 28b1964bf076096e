"""What a failed call means: that it was not made, that nobody knows, or that the server said no."""

from __future__ import annotations

from typing import Final, cast

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, REQUEST_TIMEOUT

from perdure.agent_errors import ToolException, ToolExecutionException

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
