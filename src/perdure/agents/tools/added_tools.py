"""Tools that a tool adds or removes during a turn, as its record keeps them for a resumed run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

from perdure.agents.tools.context import expand_tools, join_tools, tool_name
from perdure.agents.tools.tool import FunctionTool
from perdure.errors import ToolException

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

_added: WeakValueDictionary[tuple[str, str], FunctionTool] = WeakValueDictionary()
"""Tools that were added in this process, by the tool that added them and their name."""

_HOSTED: Final = "told"


class LostTool(FunctionTool):
    """A tool that was added before a restart and is not found now: its description is known, its function is not."""

    def __init__(self, spec: Mapping[str, Any], *, adder: str) -> None:
        super().__init__(
            name=spec["name"],
            description=spec["description"],
            input_model=spec["parameters"],
            approval_mode=spec["approval_mode"],
            func=None if spec["is_declared"] else _never_called,
        )
        self._adder = adder

    def require_found(self) -> None:
        """Raise ToolException: the tool can't be called."""
        raise ToolException(
            f"tool {self.name!r} was added by tool {self._adder!r} before this run was resumed, and is unknown now; "
            "list it in additional_tools of the client's function_invocation_configuration"
        )


async def _never_called(**_: Any) -> None:
    """Stand in for the unknown function. `require_found` raises before it is called."""


def describe_tool_changes(adder: str, added: Sequence[Any], removed: Sequence[str]) -> list[Any]:
    """Return what a tool changed in the list of tools, for its record; an empty list if nothing."""
    if not added and not removed:
        return []
    specs: list[Any] = []
    for each in expand_tools(added):
        if isinstance(each, FunctionTool):
            _added[adder, each.name] = each
        specs.append(_describe_tool(each))
    return [specs, list(removed)]


def _describe_tool(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {_HOSTED: dict(cast("Mapping[str, Any]", given))}
    if not isinstance(given, FunctionTool):
        return {"type": type(given).__name__}
    return {
        "name": given.name,
        "description": given.description,
        "parameters": given.parameters(),
        "approval_mode": given.approval_mode,
        "is_declared": given.declaration_only,
    }


def apply_tool_changes(tools: list[Any], hidden: Sequence[FunctionTool], adder: str, changed: Sequence[Any]) -> None:
    """Apply recorded changes to the list of tools."""
    specs, removed = changed
    tools[:] = [each for each in tools if tool_name(each) not in removed]
    known = {tool_name(each) for each in expand_tools(tools)}
    found = [
        _restore_tool(spec, hidden, adder) for spec in specs if spec.get("name") is None or spec["name"] not in known
    ]
    tools[:] = join_tools(tools, [each for each in found if each is not None])


def _restore_tool(spec: Mapping[str, Any], hidden: Sequence[FunctionTool], adder: str) -> Any:
    if _HOSTED in spec:
        return spec[_HOSTED]
    if "name" not in spec:
        logger.warning(
            "tool %r had added a %s, which can't be restored; the turn continues without it", adder, spec["type"]
        )
        return None
    given = next((each for each in hidden if each.name == spec["name"]), None)
    return given or _added.get((adder, spec["name"])) or LostTool(spec, adder=adder)
