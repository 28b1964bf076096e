"""How a function reads, together with all that it calls by name, as far as that can be seen."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
import weakref
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from perdure.functional.steps import StepWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Helper: TypeAlias = "FunctionType | type | StepWrapper[Any]"

_digests: weakref.WeakKeyDictionary[Callable[..., Any], str | None] = weakref.WeakKeyDictionary()


def text_digest(func: Callable[..., Any]) -> str | None:
    """What tells the text of a function from others, but for comments and layout; None where there is no source.

    Of what it names, functions and classes of the same package count. Of a step only whether it has a key does: what
    it gave is on record.
    """
    if func not in _digests:
        _digests[func] = _digest(func)
    return _digests[func]


def _digest(func: Callable[..., Any]) -> str | None:
    function = inspect.unwrap(func)
    first = _text(function)
    if first is None:
        return None
    others = {_text(each) for each in _helpers(function)} - {None}
    return hashlib.sha256("\n".join([first, *sorted(cast("set[str]", others))]).encode()).hexdigest()


def _text(helper: object) -> str | None:
    if isinstance(helper, StepWrapper):
        return f"step {helper.name!r} {helper.has_key}"
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(cast("Any", helper)))))
    except (OSError, TypeError, SyntaxError):
        return None


def _helpers(func: Callable[..., Any]) -> set[Helper]:
    """All that a function names, and what that names in turn."""
    package = _package(func)
    found: set[Helper] = set()
    left: list[object] = [func]
    while left:
        named = {each for each in _named_by(left.pop()) if _package(each) == package}
        left += named - found
        found |= named
    return found


def _package(helper: object) -> str:
    return str(getattr(helper, "__module__", "")).partition(".")[0]


def _named_by(helper: object) -> Iterator[Helper]:
    match helper:
        case FunctionType():
            yield from _seen_in(helper)
        case type():
            for each in vars(helper).values():
                yield from _behind(each)
        case _:
            return


def _seen_in(func: FunctionType) -> Iterator[Helper]:
    """What the names in a function mean: those of its module, of modules that it names, and of functions around it."""
    names = set(_names(func.__code__))
    spaces: list[Mapping[str, object]] = [func.__globals__]
    spaces += [vars(each) for name in names if isinstance(each := func.__globals__.get(name), ModuleType)]
    for space in spaces:
        for name in names & space.keys():
            yield from _behind(space[name])
    for cell in func.__closure__ or ():
        yield from _behind(_content(cell))


def _names(code: CodeType) -> Iterator[str]:
    """The names that are used in a function, and in those that are written inside of it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _behind(value: object) -> Iterator[Helper]:
    """The functions, classes and steps that something stands for, or holds in plain sight."""
    match value:
        case FunctionType() | type() | StepWrapper():
            yield value
        case MethodType() | staticmethod() | classmethod():
            yield from _behind(cast("Any", value).__func__)
        case functools.partial():
            yield from _behind(cast("functools.partial[Any]", value).func)
        case property():
            yield from _behind(value.fget)
        case dict():
            yield from _held(cast("dict[object, object]", value).values())
        case list() | tuple() | set() | frozenset():
            yield from _held(cast("Iterable[object]", value))
        case _:
            yield type(value)


def _held(values: Iterable[object]) -> Iterator[Helper]:
    for each in list(values)[:_HELD_MAX]:
        # What holds others that hold others is data.
        if not isinstance(each, dict | list | tuple | set | frozenset):
            yield from _behind(each)


_HELD_MAX = 100
