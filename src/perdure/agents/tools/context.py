"""What a call of a tool is given, beside its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from perdure.agents.tools.tool_list import joined_tools, listed_tools, tool_name
from perdure.clock import SystemClock
from perdure.engine import is_inside_step, step_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

    from perdure.agents.messages.content import Content
    from perdure.agents.tools.tool import FunctionTool


class FunctionInvocationContext:
    """One call of a tool, as function middleware sees it, and the tool itself if it has a parameter of this type.

    In a workflow, tools of one answer that are given this are called one after the other: each sees the session as the
    one before has left it.
    """

    def __init__(  # noqa: PLR0917 - the reference's signature
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
        """What the tool gave; a middleware may set another."""
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        """The `function_invocation_kwargs` of the run."""
        self.tools = tools
        """The tools that the model has, in this turn; None outside of one."""
        self.answers: tuple[Content, ...] = tuple(answers)
        """What was answered, if the tool had asked something with UserInputRequiredException."""
        self.added_tools: list[Any] = []
        """What this call has given the model."""
        self.removed_tools: list[str] = []
        """The names of what this call has taken from it."""
        self._idempotency_key = idempotency_key

    @property
    def idempotency_key(self) -> str:
        """What names this call to others, such as a payment provider that does a thing once for each key.

        In a workflow it is the same however often the call is tried, in any process.
        """
        if self._idempotency_key is None:
            self._idempotency_key = step_key() if is_inside_step() else SystemClock().new_id()
        return self._idempotency_key

    def add_tools(self, tools: Any) -> None:
        """Give the model more tools, from its next answer on, for this turn.

        After a crash they are found again among the client's `additional_tools`; without that, a call of one that is
        made only then raises ToolException.

        Raises:
            RuntimeError: the call is not part of a turn.
            ValueError: there is another tool of that name.
        """
        live, more = self._live_tools(), listed_tools(tools, type(self.function).of)
        live[:] = joined_tools(live, more)
        self.added_tools += more

    def remove_tools(self, tools: Any) -> None:
        """Take tools away from the model, from its next answer on: by name, or the tools themselves.

        Raises:
            RuntimeError: the call is not part of a turn.
        """
        live = self._live_tools()
        given = list(cast("Sequence[Any]", tools)) if isinstance(tools, list | tuple) else [tools]
        named = {each for each in given if isinstance(each, str)}
        others = [each for each in given if not isinstance(each, str)]
        named |= {tool_name(each) for each in listed_tools(others, type(self.function).of)}
        live[:] = [each for each in live if tool_name(each) not in named]
        self.removed_tools += sorted(each for each in named if each is not None)

    def _live_tools(self) -> list[Any]:
        if self.tools is None:
            raise RuntimeError(
                f"tool {self.function.name!r} was not called by an agent, so there are no tools to change; "
                "change them inside of a turn"
            )
        return self.tools
