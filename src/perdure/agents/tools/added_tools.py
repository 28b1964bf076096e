"""Tools that come and go in the middle of a turn, as a record keeps them: another life has to find them again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

from perdure.agents.tools.tool import FunctionTool
from perdure.agents.tools.tool_list import expanded_tools, joined_tools, tool_name
from perdure.errors import ToolException

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

_met: WeakValueDictionary[tuple[str, str], FunctionTool] = WeakValueDictionary()
"""Tools that were added in this process, by the tool that did it and their name."""

_TOLD: Final = "told"


class LostTool(FunctionTool):
    """A tool that a tool had added in an earlier life: what the model was told of it is known, its function is not."""

    def __init__(self, spec: Mapping[str, Any], *, adder: str) -> None:
        super().__init__(
            name=spec["name"],
            description=spec["description"],
            input_model=spec["parameters"],
            approval_mode=spec["approval_mode"],
            func=None if spec["is_declared"] else _nothing,
        )
        self._adder = adder

    def require_found(self) -> None:
        """Raise ToolException: it can't be called."""
        raise ToolException(
            f"tool {self.name!r} was added by tool {self._adder!r} in an earlier life of this run, and is not known in "
            "this one; give it to the client as one of the additional_tools of its function_invocation_configuration"
        )


async def _nothing(**_: Any) -> None:
    """Never called: whoever would call it raises first."""


def recorded_changes(adder: str, added: Sequence[Any], removed: Sequence[str]) -> list[Any]:
    """What a tool did to the list of tools, for its record; nothing, if it did nothing."""
    if not added and not removed:
        return []
    specs: list[Any] = []
    for each in expanded_tools(added):
        if isinstance(each, FunctionTool):
            _met[adder, each.name] = each
        specs.append(_spec(each))
    return [specs, list(removed)]


def _spec(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {_TOLD: dict(cast("Mapping[str, Any]", given))}
    if not isinstance(given, FunctionTool):
        return {"type": type(given).__name__}
    return {
        "name": given.name,
        "description": given.description,
        "parameters": given.parameters(),
        "approval_mode": given.approval_mode,
        "is_declared": given.declaration_only,
    }


def changed_again(tools: list[Any], hidden: Sequence[FunctionTool], adder: str, changed: Sequence[Any]) -> None:
    """Change the list of tools as an earlier life did."""
    specs, removed = changed
    tools[:] = [each for each in tools if tool_name(each) not in removed]
    known = {tool_name(each) for each in expanded_tools(tools)}
    found = [_found(spec, hidden, adder) for spec in specs if spec.get("name") is None or spec["name"] not in known]
    tools[:] = joined_tools(tools, [each for each in found if each is not None])


def _found(spec: Mapping[str, Any], hidden: Sequence[FunctionTool], adder: str) -> Any:
    if _TOLD in spec:
        return spec[_TOLD]
    if "name" not in spec:
        logger.warning("tool %r had added a %s, which can't be found again; go on without it", adder, spec["type"])
        return None
    given = next((each for each in hidden if each.name == spec["name"]), None)
    return given or _met.get((adder, spec["name"])) or LostTool(spec, adder=adder)
