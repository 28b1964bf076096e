"""How a function reads, together with the functions that it calls by their names."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
import weakref
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_digests: weakref.WeakKeyDictionary[Callable[..., Any], str | None] = weakref.WeakKeyDictionary()


def text_digest(func: Callable[..., Any]) -> str | None:
    """What tells the text of a function from others, but for comments and layout; None where there is no source.

    Of its helpers those count that are functions of the same package. Steps do not: what they gave is on record.
    """
    if func not in _digests:
        _digests[func] = _digest(func)
    return _digests[func]


def _digest(func: Callable[..., Any]) -> str | None:
    first, *others = [_text(each) for each in _with_helpers(inspect.unwrap(func))]
    if first is None:
        return None
    texts = [first, *sorted(each for each in others if each is not None)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _text(func: Callable[..., Any]) -> str | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(func)))
    except (OSError, TypeError, SyntaxError):
        return None
    return ast.unparse(tree)


def _with_helpers(func: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A function, and all that can be seen of what it calls."""
    package = _package(func)
    found, left = {func}, [func]
    while left:
        each = left.pop()
        yield each
        helpers = {helper for helper in _named_in(each) if _package(helper) == package} - found
        found |= helpers
        left += helpers


def _package(func: Callable[..., Any]) -> str:
    return func.__module__.partition(".")[0]


def _named_in(func: Callable[..., Any]) -> Iterator[FunctionType]:
    if not isinstance(func, FunctionType):
        return
    names = set(_names(func.__code__))
    seen = [func.__globals__[name] for name in names if name in func.__globals__]
    seen += [cell.cell_contents for cell in func.__closure__ or () if _is_filled(cell)]
    for each in seen:
        if isinstance(each, FunctionType):
            yield each
        elif isinstance(each, ModuleType):
            inner = (vars(each).get(name) for name in names)
            yield from (found for found in inner if isinstance(found, FunctionType))


def _names(code: CodeType) -> Iterator[str]:
    """The names that are used in a function, and in those that are written inside of it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True
