"""The context of a tool call, and operations on lists of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from perdure.clock import SystemClock
from perdure.engine import is_inside_step, step_key

if TYPE_CHECKING:
    from pydantic import BaseModel

    from perdure.agents.messages.content import Content
    from perdure.agents.tools.tool import FunctionTool


class FunctionInvocationContext:
    """One tool call, as function middleware and a tool with a parameter of this type see it.

    In a workflow, the tools of one response that take this context are called one after the other, so that each sees
    the session as the previous one left it.

    Attributes:
        result: The tool's result. Middleware may replace it.
        kwargs: The `function_invocation_kwargs` of the run.
        tools: The model's tools in this turn; None outside a turn.
        answers: The answers, if the tool has asked with UserInputRequiredException.
        added_tools: The tools that this call added.
        removed_tools: The names of the tools that this call removed.
        idempotency_key: A key for services that do a thing once per key, such as payment providers. In a workflow every
            attempt of the call has the same key, in any process.
    """

    def __init__(  # noqa: PLR0917 - public signature
        self,
        function: FunctionTool,
        arguments: BaseModel | Mapping[str, Any],
        session: Any = None,
        metadata: Mapping[str, Any] | None = None,
        result: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        tools: list[Any] | None = None,
        *,
        answers: Sequence[Content] = (),
        idempotency_key: str | None = None,
    ) -> None:
        self.function = function
        self.arguments: Any = arguments
        self.session = session
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.result = result
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        self.tools = tools
        self.answers: tuple[Content, ...] = tuple(answers)
        self.added_tools: list[Any] = []
        self.removed_tools: list[str] = []
        self.idempotency_key = idempotency_key or (step_key() if is_inside_step() else SystemClock().new_id())

    def add_tools(self, tools: Any) -> None:
        """Give the model more tools, from its next response to the end of the turn.

        After a crash they are looked up in the client's `additional_tools`. A call of a tool that is not found there
        raises ToolException.

        Raises:
            RuntimeError: the call is not part of a turn.
            ValueError: another tool has the same name.
        """
        from perdure.agents.tools.tool import normalize_tools  # noqa: PLC0415 - tools import their context

        current, more = self._require_tools(), normalize_tools(tools)
        current[:] = join_tools(current, more)
        self.added_tools += more

    def remove_tools(self, tools: Any) -> None:
        """Take tools away from the model, from its next response on. Give names or tools.

        Raises:
            RuntimeError: the call is not part of a turn.
        """
        from perdure.agents.tools.tool import normalize_tools  # noqa: PLC0415 - tools import their context

        current = self._require_tools()
        names = {each if isinstance(each, str) else tool_name(each) for each in normalize_tools(tools)}
        current[:] = [each for each in current if tool_name(each) not in names]
        self.removed_tools += sorted(each for each in names if each is not None)

    def _require_tools(self) -> list[Any]:
        if self.tools is None:
            raise RuntimeError(
                f"tool {self.function.name!r} was not called by an agent, so there are no tools to change; "
                "change them inside a turn"
            )
        return self.tools


def is_function_tool(given: object) -> bool:
    """Return True if a model can be told of it as a function."""
    return hasattr(given, "to_json_schema_spec")


def is_server(given: object) -> bool:
    """Return True for an MCP server, which lists its tools after connecting."""
    return hasattr(given, "functions") and hasattr(given, "connect")


def expand_tools(tools: Iterable[Any]) -> list[Any]:
    """Replace servers by their functions. Raises ValueError for two tools of one name."""
    found: list[Any] = []
    for each in tools:
        found += list(each.functions) if is_server(each) else [each]
    return join_tools([], found)


def join_tools(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Join two lists, each tool once. Raises ValueError for two tools of one name."""
    found = list(first)
    by_name = {name: each for each in found if (name := tool_name(each)) is not None}
    for each in second:
        name = tool_name(each)
        if name is not None and name in by_name:
            if by_name[name] is not each:
                raise ValueError(f"there are two tools named {name!r}; rename one of them")
            continue
        found.append(each)
        if name is not None:
            by_name[name] = each
    return found


def tool_name(given: object) -> str | None:
    """Return the name by which a model calls a tool; None if it has none."""
    if isinstance(given, Mapping):
        function = cast("Mapping[str, Any]", given).get("function")
        name: object = cast("Mapping[str, Any]", function).get("name") if isinstance(function, Mapping) else None
    else:
        name = getattr(given, "name", None)
    return name if isinstance(name, str) else None
