"""The parameters of a workflow's function or of a step: the message, the context, the rest."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from perdure.annotations import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure.annotations import Namespace

_VARIADIC = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
_CONTEXT_NAME = "ctx"


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function. `context` is the name of the one that gets the context, if any."""

    signature: Signature
    context: str | None

    @classmethod
    def of(cls, fn: Callable[..., Any], hints: Mapping[str, Any], context_type: type) -> Parameters:
        """Read the parameters of a function with these annotations."""
        signature = inspect.signature(fn)
        found = (
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.kind not in _VARIADIC
            and (
                _is_context(hints.get(parameter.name, parameter.annotation), context_type)
                or parameter.name == _CONTEXT_NAME
            )
        )
        return cls(signature, next(found, None))

    @property
    def plain(self) -> list[str]:
        """Return the parameters without the context and without `*` and `**`."""
        return [
            name
            for name, parameter in self.signature.parameters.items()
            if name != self.context and parameter.kind not in _VARIADIC
        ]

    @property
    def by_keyword_alone(self) -> list[str]:
        """Return those of them that can't be given by position."""
        return [name for name in self.plain if self.signature.parameters[name].kind is Parameter.KEYWORD_ONLY]

    @property
    def takes_any_keyword(self) -> bool:
        """Return whether there is a `**` parameter."""
        return any(each.kind is Parameter.VAR_KEYWORD for each in self.signature.parameters.values())

    def require_fitting(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: str) -> None:
        """Raise TypeError for arguments, without the context, that don't fit."""
        try:
            (self.signature if self.context in kwargs else self._without_context).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{owner}: {error}") from None

    @cached_property
    def _without_context(self) -> Signature:
        return Signature([each for name, each in self.signature.parameters.items() if name != self.context])

    def with_context(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with the context added. Raises TypeError for arguments that don't fit."""
        if self.context is None or self.context in kwargs:
            return args, dict(kwargs)
        bound = self._without_context.bind(*args, **kwargs).arguments
        whole = inspect.BoundArguments(self.signature, {})
        for name in self.signature.parameters:
            if name == self.context:
                whole.arguments[name] = context
            elif name in bound:
                whole.arguments[name] = bound[name]
        return whole.args, whole.kwargs


def hints_of(func: Callable[..., Any], namespace: Namespace) -> dict[str, object]:
    """Return the annotations of a function and its result, as far as they can be read."""
    found: dict[str, object] = {}
    for name, annotation in inspect.get_annotations(inspect.unwrap(func)).items():
        with suppress(NameError, TypeError, ValueError, SyntaxError):
            found[name] = evaluate(annotation, func, namespace)
    return found


def _is_context(annotation: object, context_type: type) -> bool:
    return annotation is context_type or annotation == context_type.__name__
