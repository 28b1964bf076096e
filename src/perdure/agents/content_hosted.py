"""Contents that tell of tools which the provider runs itself: what was called there, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class HostedContents:
    """Makes contents of what a provider's own tools were asked and gave."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, type: Any, **fields: Any) -> None: ...  # noqa: A002 - the reference's name

    @classmethod
    def from_search_tool_call(
        cls, call_id: str, *, tool_name: str, arguments: str | Mapping[str, Any] | None = None, **more: Any
    ) -> Self:
        """A search."""
        return cls("search_tool_call", call_id=call_id, tool_name=tool_name, arguments=arguments, **more)

    @classmethod
    def from_search_tool_result(cls, call_id: str, *, tool_name: str, result: Any = None, **more: Any) -> Self:
        """What a search has found."""
        return cls("search_tool_result", call_id=call_id, tool_name=tool_name, result=result, **more)

    @classmethod
    def from_code_interpreter_tool_call(
        cls, *, call_id: str | None = None, inputs: Sequence[Any] | None = None, **more: Any
    ) -> Self:
        """Code that was run."""
        return cls("code_interpreter_tool_call", call_id=call_id, inputs=inputs, **more)

    @classmethod
    def from_code_interpreter_tool_result(
        cls, *, call_id: str | None = None, outputs: Sequence[Any] | None = None, **more: Any
    ) -> Self:
        """What code gave that was run."""
        return cls("code_interpreter_tool_result", call_id=call_id, outputs=outputs, **more)

    @classmethod
    def from_image_generation_tool_call(cls, *, image_id: str | None = None, **more: Any) -> Self:
        """A picture that was asked for."""
        return cls("image_generation_tool_call", image_id=image_id, **more)

    @classmethod
    def from_image_generation_tool_result(
        cls, *, image_id: str | None = None, outputs: Any = None, **more: Any
    ) -> Self:
        """A picture that was made."""
        return cls("image_generation_tool_result", image_id=image_id, outputs=outputs, **more)

    @classmethod
    def from_shell_tool_call(
        cls, *, call_id: str | None = None, commands: Sequence[str] | None = None, **more: Any
    ) -> Self:
        """Commands that were given to a shell."""
        return cls("shell_tool_call", call_id=call_id, commands=commands, **more)

    @classmethod
    def from_shell_tool_result(
        cls, *, call_id: str | None = None, outputs: Sequence[Any] | None = None, **more: Any
    ) -> Self:
        """What the commands gave, one content of type `shell_command_output` for each."""
        return cls("shell_tool_result", call_id=call_id, outputs=outputs, **more)

    @classmethod
    def from_shell_command_output(
        cls, *, stdout: str | None = None, stderr: str | None = None, exit_code: int | None = None, **more: Any
    ) -> Self:
        """What one command gave."""
        return cls("shell_command_output", stdout=stdout, stderr=stderr, exit_code=exit_code, **more)

    @classmethod
    def from_mcp_server_tool_call(
        cls, call_id: str, tool_name: str, *, server_name: str | None = None, arguments: Any = None, **more: Any
    ) -> Self:
        """A call that the provider has made at an MCP server."""
        told = {"server_name": server_name, "arguments": arguments, "informational_only": True, **more}
        return cls("mcp_server_tool_call", call_id=call_id, tool_name=tool_name, **told)

    @classmethod
    def from_mcp_server_tool_result(cls, call_id: str, *, output: Any = None, **more: Any) -> Self:
        """What an MCP server gave to the provider."""
        return cls("mcp_server_tool_result", call_id=call_id, output=output, **more)
