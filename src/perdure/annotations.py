"""Resolve annotations with the names that are visible where a function was defined."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_IDENTIFIER: Final = re.compile(r"\w+")


class UnresolvedAnnotationError(NameError, ValueError):
    """A name in an annotation is not defined. Wrong annotations are ValueErrors in agent-framework."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """The local names that were visible where a function was defined."""

    names: Mapping[str, object] = field(default_factory=dict[str, object])

    def needed_by(self, func: Callable[..., Any], *texts: object) -> Namespace:
        """Return only the names that occur in the annotations of `func` or in `texts`.

        A namespace that lives long should not keep every local object alive.
        """
        annotations = [*inspect.get_annotations(_function_of(func)).values(), *texts]
        used = {name for annotation in annotations for name in _IDENTIFIER.findall(_text(annotation))}
        return Namespace({name: value for name, value in self.names.items() if name in used})


def namespace_here(depth: int) -> Namespace:
    """Return the local names at a line of code: `depth` 0 is the caller's line, 1 the line that called the caller.

    They are copied from the enclosing class bodies and functions; inner names win.
    """
    scopes = [dict(frame.f_locals) for frame in _enclosing(sys._getframe(depth + 1))]  # pyright: ignore[reportPrivateUsage]
    names: dict[str, object] = {}
    for scope in reversed(scopes):
        names.update(scope)
    return Namespace(names)


def _enclosing(frame: FrameType) -> Iterator[FrameType]:
    """Yield this frame and those of the enclosing scopes that are still running, up to the module."""
    inner = frame
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_globals is inner.f_globals:
            if outer.f_locals is outer.f_globals:
                return
            if outer is inner or _is_defined_in(inner.f_code, outer.f_code):
                inner = outer
                yield outer
        outer = outer.f_back


def _is_defined_in(code: CodeType, outer: CodeType) -> bool:
    nested = [constant for constant in outer.co_consts if isinstance(constant, CodeType)]
    return any(constant is code or _is_defined_in(code, constant) for constant in nested)


def annotations_of(func: Callable[..., Any], namespace: Namespace) -> dict[str, object]:
    """Return the types of the annotated parameters, by name.

    Names are looked up around the function first, then in its module.

    Raises:
        UnresolvedAnnotationError: a name in an annotation is not defined.
    """
    annotations = inspect.get_annotations(_function_of(func))
    return {
        name: evaluate(annotation, func, namespace, place=f"parameter {name!r} of ")
        for name, annotation in annotations.items()
        if name != "return"
    }


def evaluate(annotation: object, func: Callable[..., Any], namespace: Namespace, *, place: str = "") -> object:
    """Return a type, which may be a string, as it reads where `func` was defined. Errors name the `place` in `func`.

    Raises:
        UnresolvedAnnotationError: a name in it is not defined.
    """
    function = _function_of(func)
    try:
        return resolved(annotation, getattr(function, "__globals__", {}), {**_closure_of(function), **namespace.names})
    except (NameError, AttributeError) as error:
        qualified = f"{function.__module__}.{function.__qualname__}"
        raise UnresolvedAnnotationError(
            f"{error.name!r} in the annotation {_text(annotation)!r} of {place}{qualified!r} is not defined; "
            "import it at run time (not only under TYPE_CHECKING), or define it before the function",
            name=error.name,
        ) from error


def resolved(annotation: object, module_names: dict[str, object], local_names: Mapping[str, object]) -> object:
    """Replace the strings in a type by what they name."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, module_names, local_names, include_extras=True)["it"]


def _function_of(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the annotations, beneath partials, methods, decorators and callable objects."""
    if isinstance(func, functools.partial):
        return _function_of(cast("functools.partial[Any]", func).func)
    if isinstance(func, types.MethodType):
        return _function_of(func.__func__)
    if isinstance(func, types.FunctionType):
        return inspect.unwrap(func)
    call = getattr(type(func), "__call__", None)  # noqa: B004
    return call if isinstance(call, types.FunctionType) else func


def _closure_of(function: Callable[..., Any]) -> dict[str, object]:
    """Return the variables of enclosing functions that the function uses, and its type parameters."""
    code: CodeType | None = getattr(function, "__code__", None)
    names: dict[str, object] = {parameter.__name__: parameter for parameter in getattr(function, "__type_params__", ())}
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _text(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else repr(annotation)
