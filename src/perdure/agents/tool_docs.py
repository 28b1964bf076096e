"""What a docstring says of a function and of its arguments: sections as Google, numpy and reST write them."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.data import frozen

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


@frozen
class Documented:
    """A docstring that was read: what stands before its sections, and what it says of each argument."""

    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])


def docstring_of(func: Callable[..., Any]) -> str | None:
    """What is written about a function, beneath partials and callable objects."""
    if isinstance(func, functools.partial):
        return docstring_of(cast("functools.partial[Any]", func).func)
    if inspect.isroutine(func) or inspect.isclass(func):
        return func.__doc__
    return type(func).__call__.__doc__ or type(func).__doc__


def read_docstring(docstring: str | None) -> Documented:
    """What a docstring says. One without sections that can be read is all text."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    sections = list(_sections(lines))
    text = "\n".join(lines[: sections[0].start if sections else len(lines)]).strip()
    arguments: dict[str, str] = {}
    for section in sections:
        arguments |= section.arguments(lines)
    return Documented(text, arguments)


@frozen
class _Section:
    """The lines of a section, its heading included."""

    kind: str
    start: int
    end: int
    is_about_arguments: bool

    def arguments(self, lines: Sequence[str]) -> dict[str, str]:
        if not self.is_about_arguments:
            return {}
        match self.kind:
            case "google":
                return _google(lines[self.start + 1 : self.end])
            case "numpy":
                return _numpy(lines[self.start + 2 : self.end])
            case _:
                return _rest(lines[self.start : self.end])


def _sections(lines: Sequence[str]) -> list[_Section]:
    starts = [(number, kind) for number in range(len(lines)) if (kind := _heading(lines, number)) is not None]
    ends = [number for number, _ in starts[1:]]
    return [
        _Section(kind, start, end, kind == "rest" or _title(lines[start]) in _ARGUMENTS)
        for (start, kind), end in zip(starts, [*ends, len(lines)], strict=False)
    ]


def _heading(lines: Sequence[str], number: int) -> str | None:
    """In whose style a section begins at this line, if one does."""
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


def _google(lines: Sequence[str]) -> dict[str, str]:
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
    return _tidy(found)


def _numpy(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in lines:
        entry = _NUMPY_ENTRY.match(line) if line.strip() and not _indent(line) else None
        if entry is not None:
            names = [name.strip().lstrip("*") for name in entry[1].split(",")]
            found |= dict.fromkeys(names, "")
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return _tidy(found)


def _rest(lines: Sequence[str]) -> dict[str, str]:
    """A field of reST is a section of its own, and goes on where lines are indented."""
    entry = _REST_ENTRY.match(lines[0])
    if entry is None:
        return {}
    more = [line.strip() for line in lines[1:] if _indent(line)]
    return _tidy({entry[1]: " ".join([entry[2], *more])})


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _tidy(found: Mapping[str, str]) -> dict[str, str]:
    tidied = {name: " ".join(text.split()) for name, text in found.items()}
    return {name: text for name, text in tidied.items() if text}
