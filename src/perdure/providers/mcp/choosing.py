"""Which tools of a server are used, what models call them, and which need an approval."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from typing_extensions import TypedDict

from perdure.agent_errors import ToolException
from perdure.agents import ApprovalMode

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_.-]")
_JOINTS: Final = "_.-"


class MCPSpecificApproval(TypedDict, total=False):
    """Which tools of a server need an approval, by name. One that is in both lists needs it."""

    always_require_approval: Collection[str] | None
    never_require_approval: Collection[str] | None


Approval: TypeAlias = "Literal['always_require', 'never_require'] | MCPSpecificApproval | None"
_LISTS: Final = tuple(MCPSpecificApproval.__annotations__)


def require_approval(server: str, mode: object) -> Approval:
    """The mode, if it is one: what is misspelt would ask nobody. Raises TypeError, ValueError."""
    if mode is None or (isinstance(mode, str) and mode in get_args(ApprovalMode)):
        return cast("Approval", mode)
    if not isinstance(mode, Mapping):
        raise ValueError(
            f"MCP server {server!r}: approval_mode is 'always_require', 'never_require' or a dict with "
            f"{' and '.join(map(repr, _LISTS))}, not {mode!r}"
        )
    lists = cast("Mapping[Any, Any]", mode)
    if unknown := [name for name in lists if name not in _LISTS]:
        raise ValueError(
            f"MCP server {server!r}: approval_mode has no {unknown[0]!r}; it may have {' and '.join(map(repr, _LISTS))}"
        )
    for name, listed in lists.items():
        require_names(server, f"approval_mode[{name!r}]", listed)
    return cast("Approval", mode)


def require_names(server: str, what: str, names: object) -> frozenset[str] | None:
    """Names of tools, if it is a list of them. Raises TypeError."""
    if names is None:
        return None
    is_several = isinstance(names, Collection) and not isinstance(names, str | bytes | Mapping)
    found: list[Any] = list(cast("Collection[Any]", names)) if is_several else [None]
    if not all(isinstance(name, str) for name in found):
        raise TypeError(f"MCP server {server!r}: {what} is a list of names of tools, not {names!r}")
    return frozenset(found)


def require_there(server: str, what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ToolException if the server has no tool of a name that somebody has listed."""
    missing = sorted(set(names).difference(known))
    if missing:
        raise ToolException(
            f"MCP server {server!r} has no {', '.join(map(repr, missing))}, which {what} names; "
            f"it has {', '.join(map(repr, sorted(known)))}"
        )


def exposed_name(name: str, prefix: str | None) -> str:
    """What models call a tool: servers may use more signs in a name than they do."""
    own, before = _FOREIGN.sub("-", name), _FOREIGN.sub("-", prefix or "").rstrip(_JOINTS)
    if not before:
        return own
    own = own.lstrip(_JOINTS)
    return f"{before}_{own}" if own else before
