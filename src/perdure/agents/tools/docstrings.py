"""Docstrings of tools: the description and the arguments, in Google, numpy or reST style."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ARGUMENTS: Final = frozenset({"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"})
_OTHERS: Final = frozenset(
    {"returns", "return", "yields", "raises", "example", "examples", "note", "notes", "see also"}
)
_GOOGLE_ENTRY: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ENTRY: Final = re.compile(r"^\*{0,2}(\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_REST_ENTRY: Final = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$"
)
_REST_FIELD: Final = re.compile(r"^:\w+(?:\s[^:]*)?:")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A parsed docstring: the text before its sections, and the description of each argument."""

    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])


def docstring_of(func: Callable[..., Any]) -> str | None:
    """Return the docstring of a function, also inside partials and callable objects."""
    if isinstance(func, functools.partial):
        return docstring_of(cast("functools.partial[Any]", func).func)
    if inspect.isroutine(func) or inspect.isclass(func):
        return func.__doc__
    return type(func).__call__.__doc__ or type(func).__doc__


def parse_docstring(docstring: str | None) -> Docstring:
    """Parse a docstring. Without known sections it is all text."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    starts = [(number, style) for number in range(len(lines)) if (style := _section_style(lines, number)) is not None]
    text = "\n".join(lines[: starts[0][0] if starts else len(lines)]).strip()
    arguments: dict[str, str] = {}
    for (start, style), end in zip(starts, [*(number for number, _ in starts[1:]), len(lines)], strict=False):
        if style == "rest":
            arguments |= _parse_rest(lines[start:end])
        elif _title(lines[start]) in _ARGUMENTS:
            arguments |= _parse_google(lines[start + 1 : end]) if style == "google" else _parse_numpy(lines[start:end])
    tidied = {name: " ".join(description.split()) for name, description in arguments.items()}
    return Docstring(text, {name: description for name, description in tidied.items() if description})


def _section_style(lines: Sequence[str], number: int) -> str | None:
    """Return the style of the section that starts at this line, if one does."""
    line = lines[number]
    if _REST_FIELD.match(line):
        return "rest"
    if _title(line) not in _ARGUMENTS | _OTHERS or line != line.lstrip():
        return None
    if line.rstrip().endswith(":"):
        return "google"
    following = lines[number + 1].strip() if number + 1 < len(lines) else ""
    return "numpy" if following and set(following) == {"-"} else None


def _title(line: str) -> str:
    return line.strip().rstrip(":").lower()


def _parse_google(lines: Sequence[str]) -> dict[str, str]:
    depth = min((_indent(line) for line in lines if line.strip()), default=0)
    found: dict[str, str] = {}
    name: str | None = None
    for line in lines:
        entry = _GOOGLE_ENTRY.match(line.strip()) if _indent(line) == depth else None
        if entry is not None:
            name = str(entry[1])
            found[name] = entry[2]
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}"
    return found


def _parse_numpy(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines[2:]:
        entry = _NUMPY_ENTRY.match(line) if line.strip() and not _indent(line) else None
        if entry is not None:
            names = [name.strip().lstrip("*") for name in entry[1].split(",")]
            found |= dict.fromkeys(names, "")
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _parse_rest(lines: Sequence[str]) -> dict[str, str]:
    """Parse one reST field. Indented lines continue it."""
    entry = _REST_ENTRY.match(lines[0])
    if entry is None:
        return {}
    more = [line.strip() for line in lines[1:] if _indent(line)]
    return {entry[1]: " ".join([entry[2], *more])}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
