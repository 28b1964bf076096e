"""How a function reads, together with all that it calls by name, as far as that can be seen."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import weakref
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from perdure.functional.steps import StepWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Helper: TypeAlias = "FunctionType | type | StepWrapper[Any]"
Definition: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda"

_OURS = __name__.partition(".")[0]
_HELPERS_MAX = 200
"""In a large program nearly everything is named by something: what is further away is not looked at."""

_digests: weakref.WeakKeyDictionary[Callable[..., Any], str | None] = weakref.WeakKeyDictionary()
_texts: weakref.WeakKeyDictionary[CodeType | type, str | None] = weakref.WeakKeyDictionary()
"""A function that is made anew for each run has the same code each time."""


def text_digest(func: Callable[..., Any]) -> str | None:
    """What tells the text of a function from others, but for comments and layout; None where there is no source.

    Of what it names, the nearest functions and classes of the same package count. Of a step only whether it has a key
    does: what it gave is on record. Functions of ours have no text: a new release is no edit of a workflow.
    """
    if func not in _digests:
        _digests[func] = _digest(func)
    return _digests[func]


def _digest(func: Callable[..., Any]) -> str | None:
    function, sources = inspect.unwrap(func), _Sources()
    first = None if _package(function) == _OURS else sources.text(function)
    if first is None:
        return None
    others = {text for each in _helpers(function) if (text := sources.text(each)) is not None}
    return hashlib.sha256("\n".join([first, *sorted(others)]).encode()).hexdigest()


class _Sources:
    """Files with source code, each read once.

    `inspect.getsource` reads the whole file again for each class: for a few thousand definitions that takes seconds.
    """

    def __init__(self) -> None:
        self._files: dict[str, Mapping[object, list[Definition]]] = {}

    def text(self, helper: object) -> str | None:
        """How a function, a class or a step reads; None where there is no source."""
        match helper:
            case StepWrapper():
                return f"step {helper.name!r} {helper.has_key}"
            case FunctionType(__code__=code):
                return self._known(code, lambda: (code.co_filename, (code.co_name, code.co_firstlineno)))
            case type():
                return self._known(helper, lambda: (inspect.getfile(helper), helper.__qualname__))
            case _:
                return None

    def _known(self, key: CodeType | type, where: Callable[[], tuple[str, object]]) -> str | None:
        if key not in _texts:
            try:
                filename, place = where()
                found = self._definitions(filename).get(place, ())
            except (OSError, SyntaxError, TypeError, ValueError):
                found = ()
            _texts[key] = "\n".join(map(ast.unparse, found)) or None
        return _texts[key]

    def _definitions(self, filename: str) -> Mapping[object, list[Definition]]:
        if filename not in self._files:
            linecache.checkcache(filename)
            self._files[filename] = _definitions("".join(linecache.getlines(filename)))
        return self._files[filename]


def _definitions(source: str) -> Mapping[object, list[Definition]]:
    """What is defined: functions by name and first line, as their code has it; classes by qualified name."""
    found: dict[object, list[Definition]] = {}
    for place, node in _defined_in(ast.parse(source), ""):
        match node:
            case ast.ClassDef():
                key: object = place
            case ast.Lambda():
                key = "<lambda>", node.lineno
            case _:
                key = node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)])
        found.setdefault(key, []).append(node)
    return found


def _defined_in(node: ast.AST, place: str) -> Iterator[tuple[str, Definition]]:
    """All definitions below a node, with their qualified names."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef():
                yield f"{place}{child.name}", child
                yield from _defined_in(child, f"{place}{child.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield f"{place}{child.name}", child
                yield from _defined_in(child, f"{place}{child.name}.<locals>.")
            case ast.Lambda():
                yield f"{place}<lambda>", child
                yield from _defined_in(child, f"{place}<lambda>.<locals>.")
            case _:
                yield from _defined_in(child, place)


def _helpers(func: Callable[..., Any]) -> Iterable[Helper]:
    """What a function names, and what that names in turn, the nearest first."""
    package = _package(func)
    found: dict[Helper, None] = {}
    left: list[object] = [func]
    for helper in left:
        for each in _named_by(helper):
            if each not in found and _package(each) == package:
                if len(found) == _HELPERS_MAX:
                    return found
                found[each] = None
                left.append(each)
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
    names = dict.fromkeys(_names(func.__code__))
    spaces: list[Mapping[str, object]] = [func.__globals__]
    spaces += [vars(each) for name in names if isinstance(each := func.__globals__.get(name), ModuleType)]
    for space in spaces:
        for name in names:
            if name in space:
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
