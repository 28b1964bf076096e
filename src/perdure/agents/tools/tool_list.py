"""Lists of tools: what can be given as one, and that no two have one name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast


def listed_tools(tools: object, make: Callable[[Callable[..., Any]], Any]) -> list[Any]:
    """Tools as a list: `make` makes tools of functions, collections are opened, everything else stays as it is."""
    if tools is None:
        return []
    if _is_one(tools):
        return [tools]
    if callable(tools):
        return [make(tools)]
    inner: object = getattr(tools, "tools", tools)
    if not hasattr(inner, "model_dump") and isinstance(inner, Iterable):
        return [found for each in cast("Iterable[object]", inner) for found in listed_tools(each, make)]
    return [tools]


def _is_one(given: object) -> bool:
    """Whether this is one tool that stays as it is."""
    return isinstance(given, Mapping | str) or is_function_tool(given) or is_server(given)


def is_function_tool(given: object) -> bool:
    """Whether a model can be told of it as a function."""
    return hasattr(given, "to_json_schema_spec")


def is_server(given: object) -> bool:
    """Whether something offers tools that it has to be asked for first: an MCP server."""
    return hasattr(given, "functions") and hasattr(given, "connect")


def expanded_tools(tools: Iterable[Any]) -> list[Any]:
    """Tools, with the functions of servers in their place. Raises ValueError if two have one name."""
    found: list[Any] = []
    for each in tools:
        found += list(each.functions) if is_server(each) else [each]
    return joined_tools([], found)


def joined_tools(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Both, each tool once. Raises ValueError if two have one name."""
    found = list(first)
    by_name = {name: each for each in found if (name := tool_name(each)) is not None}
    for each in second:
        name = tool_name(each)
        if name is not None and name in by_name:
            if by_name[name] is not each:
                raise ValueError(f"there are two tools named {name!r}; give one of them another name")
            continue
        found.append(each)
        if name is not None:
            by_name[name] = each
    return found


def tool_name(given: object) -> str | None:
    """What a model calls a tool; None if it does not call it by name."""
    if isinstance(given, Mapping):
        function = cast("Mapping[str, Any]", given).get("function")
        name: object = cast("Mapping[str, Any]", function).get("name") if isinstance(function, Mapping) else None
    else:
        name = getattr(given, "name", None)
    return name if isinstance(name, str) else None
