"""Which kind of middleware something is: by its class, by a decorator, or by the annotation of its first parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, cast, get_args

from perdure.agent_errors import MiddlewareException
from perdure.agents.contexts import AgentMiddleware, ChatMiddleware, FunctionMiddleware

Kind: TypeAlias = Literal["agent", "function", "chat"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MiddlewareTypes: TypeAlias = "AgentMiddleware | FunctionMiddleware | ChatMiddleware | Callable[..., Any]"
"""Middleware of any kind: an object, or an async function of a context and `call_next`."""

FnT = TypeVar("FnT", bound=Callable[..., Any])

_BASES: dict[Kind, type] = {"agent": AgentMiddleware, "function": FunctionMiddleware, "chat": ChatMiddleware}
_CONTEXTS: dict[str, Kind] = {"AgentContext": "agent", "FunctionInvocationContext": "function", "ChatContext": "chat"}
_MARK = "__perdure_middleware__"
_PARAMETERS_MIN = 2


class MiddlewareDict(TypedDict):
    """Middleware, by kind."""

    agent: list[Any]
    function: list[Any]
    chat: list[Any]


def agent_middleware(func: FnT) -> FnT:
    """Let a function be middleware around runs of an agent."""
    return _marked(func, "agent")


def function_middleware(func: FnT) -> FnT:
    """Let a function be middleware around calls of tools."""
    return _marked(func, "function")


def chat_middleware(func: FnT) -> FnT:
    """Let a function be middleware around calls of a model."""
    return _marked(func, "chat")


def _marked(func: FnT, kind: Kind) -> FnT:
    setattr(func, _MARK, kind)
    return func


def categorize_middleware(*sources: MiddlewareTypes | Sequence[MiddlewareTypes] | None) -> MiddlewareDict:
    """Middleware by kind, each kind in its order. Raises MiddlewareException."""
    found = MiddlewareDict(agent=[], function=[], chat=[])
    for source in sources:
        for each in listed_middleware(source):
            found[_kind(each)].append(each)
    return found


def listed_middleware(given: MiddlewareTypes | Sequence[MiddlewareTypes] | None) -> list[MiddlewareTypes]:
    """One middleware or several, as a list."""
    if given is None:
        return []
    return list(cast("Sequence[MiddlewareTypes]", given)) if isinstance(given, Sequence) else [given]


def _kind(middleware: object) -> Kind:
    for kind, base in _BASES.items():
        if isinstance(middleware, base):
            return kind
    if not callable(middleware):
        raise MiddlewareException(
            f"{middleware!r} is no middleware; "
            "give an AgentMiddleware, a FunctionMiddleware, a ChatMiddleware or a function"
        )
    return _kind_of_function(middleware)


def _kind_of_function(func: Callable[..., Any]) -> Kind:
    name = getattr(func, "__name__", type(func).__name__)
    marked: Kind | None = getattr(func, _MARK, None)
    annotated = _annotated(func, name)
    if marked and annotated and marked != annotated:
        raise MiddlewareException(
            f"{name!r} is decorated as {marked} middleware, and its first parameter is that of {annotated} middleware; "
            "change one of the two"
        )
    kind = marked or annotated
    if kind is None:
        raise MiddlewareException(
            f"it can't be seen what {name!r} stands around; annotate its first parameter with AgentContext, "
            "FunctionInvocationContext or ChatContext, or decorate it with @agent_middleware, @function_middleware or "
            "@chat_middleware"
        )
    return kind


def _annotated(func: Callable[..., Any], name: str) -> Kind | None:
    parameters = list(inspect.signature(func).parameters.values())
    if len(parameters) < _PARAMETERS_MIN:
        raise MiddlewareException(f"{name!r} has {len(parameters)} parameters; middleware takes (context, call_next)")
    annotation = parameters[0].annotation
    # Where annotations are texts, the class need not be visible: its name is enough.
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return _CONTEXTS.get(text.strip("'\"").rpartition(".")[2])
