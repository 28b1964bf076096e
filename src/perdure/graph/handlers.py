"""`@handler` and `@response_handler`: the types of a method, from its annotations or given explicitly."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeVar, get_args, get_origin, overload

from perdure.annotations import Namespace, annotations_of, evaluate, namespace_here
from perdure.graph.context import WorkflowContext
from perdure.typenames import describe
from perdure.types import contains_typevar, split_union

if TYPE_CHECKING:
    from collections.abc import Callable


FuncT = TypeVar("FuncT", bound="Callable[..., Any]")

_DECLARATION = "__perdure_handler__"


@dataclass(frozen=True, slots=True)
class HandlerTypes:
    """The types that a handler takes, sends and yields. A response handler takes two: the request and the response."""

    takes: tuple[object, ...]
    sends: tuple[object, ...]
    yields: tuple[object, ...]


@dataclass(slots=True)
class Declaration:
    """A decorated function. Its types are resolved on first use, so that they may be defined later."""

    func: Callable[..., Any]
    is_response: bool
    explicit: dict[str, Any]
    namespace: Namespace
    _types: HandlerTypes | None = field(default=None, init=False)

    def types(self) -> HandlerTypes:
        """Return the resolved types. Raises ValueError or NameError."""
        if self._types is not None:
            return self._types
        func = self.func
        *message_names, context_name = parameter_names(func)[1:]
        if self.explicit:
            given = {name: evaluate(value, func, self.namespace) for name, value in self.explicit.items()}
            takes = (given["request"], given["response"]) if self.is_response else (given["input"],)
            context = func.__annotations__.get(context_name)
            context_types(evaluate(context, func, self.namespace) if context is not None else None, func)
            declared = split_types(given.get("output")), split_types(given.get("workflow_output"))
        else:
            try:
                hints = annotations_of(func, self.namespace)
            except TypeError as error:
                raise ValueError(f"{label_of(func)} has an annotation that is not a type: {error}") from error
            takes = tuple(hints[name] for name in message_names)
            declared = context_types(hints.get(context_name), func)
        self._types = handler_types(func, takes, *declared)
        return self._types


def declaration_of(func: object) -> Declaration | None:
    """Return the declaration of a decorated function."""
    return getattr(func, _DECLARATION, None)


@overload
def handler(func: FuncT) -> FuncT: ...
@overload
def handler(*, input: Any = None, output: Any = None, workflow_output: Any = None) -> Callable[[FuncT], FuncT]: ...
def handler(
    func: FuncT | None = None, *, input: Any = None, output: Any = None, workflow_output: Any = None
) -> FuncT | Callable[[FuncT], FuncT]:
    """Mark an async method `(self, message, ctx)` as the handler of a message type.

    The annotation of `message` is the type, and `WorkflowContext[...]` declares what is sent and yielded. If any
    keyword is given, only keywords count: `input` is required, and the others declare what is sent and yielded.
    """
    explicit = _given(input=input, output=output, workflow_output=workflow_output)
    if explicit and "input" not in explicit:
        raise ValueError("@handler with explicit types needs input=: the type of the message")
    return _decorate(func, explicit, is_response=False)


@overload
def response_handler(func: FuncT) -> FuncT: ...
@overload
def response_handler(
    *, request: Any = None, response: Any = None, output: Any = None, workflow_output: Any = None
) -> Callable[[FuncT], FuncT]: ...
def response_handler(
    func: FuncT | None = None,
    *,
    request: Any = None,
    response: Any = None,
    output: Any = None,
    workflow_output: Any = None,
) -> FuncT | Callable[[FuncT], FuncT]:
    """Mark an async method `(self, original_request, response, ctx)` as a handler of answers to its requests."""
    explicit = _given(request=request, response=response, output=output, workflow_output=workflow_output)
    if explicit and not {"request", "response"} <= explicit.keys():
        raise ValueError("@response_handler with explicit types needs both request= and response=")
    return _decorate(func, explicit, is_response=True)


def _given(**types: Any) -> dict[str, Any]:
    return {name: value for name, value in types.items() if value is not None}


def _decorate(func: FuncT | None, explicit: dict[str, Any], *, is_response: bool) -> FuncT | Callable[[FuncT], FuncT]:
    namespace = namespace_here(2)

    def mark(function: FuncT) -> FuncT:
        declaration = Declaration(function, is_response, explicit, namespace.needed_by(function, *explicit.values()))
        _require_signature(declaration)
        setattr(function, _DECLARATION, declaration)
        return function

    return mark if func is None else mark(func)


def _require_signature(declaration: Declaration) -> None:
    func, names = declaration.func, parameter_names(declaration.func)
    messages = ("original_request", "response") if declaration.is_response else ("message",)
    expected = ("self", *messages, "ctx")
    if len(names) != len(expected):
        raise ValueError(f"{label_of(func)} must take exactly ({', '.join(expected)}), it takes ({', '.join(names)})")
    if not declaration.explicit:
        missing = [name for name in names[1:-1] if name not in func.__annotations__]
        if missing:
            raise ValueError(f"{label_of(func)} needs a type annotation for {', '.join(map(repr, missing))}")
        if not declaration.is_response and names[-1] not in func.__annotations__:
            raise ValueError(
                f"{label_of(func)} needs {names[-1]!r} annotated as WorkflowContext, WorkflowContext[T] or "
                "WorkflowContext[T, U]"
            )
    try:
        declaration.types()
    except NameError:
        # The name may be defined later in the module; creating the executor resolves it again.
        if declaration.explicit:
            raise


def parameter_names(func: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters."""
    return tuple(inspect.signature(func).parameters)


def label_of(func: Callable[..., Any]) -> str:
    """Return the name of a handler for error messages."""
    return f"handler {getattr(func, '__qualname__', func.__class__.__name__)!r}"


def handler_types(
    func: Callable[..., Any], takes: tuple[object, ...], sends: tuple[object, ...], yields: tuple[object, ...]
) -> HandlerTypes:
    """Create the types of a handler. Raises ValueError for type variables."""
    for type_ in (*takes, *sends, *yields):
        if contains_typevar(type_):
            raise ValueError(
                f"{label_of(func)} uses the type variable of {describe(type_)}, which has no value at run time; "
                "state the types explicitly: input=..., output=..."
            )
    return HandlerTypes(takes, sends, yields)


def split_types(annotation: object) -> tuple[object, ...]:
    """Return the declared types: the members of a union, nothing for Never or None."""
    members = () if annotation is None else split_union(annotation)
    return tuple(member for member in members if member is not Never and member is not NoReturn)


def context_types(annotation: object, func: Callable[..., Any]) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return what the annotation of a context declares to send and to yield. Raises ValueError."""
    if annotation is None or annotation is WorkflowContext:
        return (), ()
    if get_origin(annotation) is not WorkflowContext:
        raise ValueError(
            f"{label_of(func)}: the context must be annotated WorkflowContext, WorkflowContext[T] or "
            f"WorkflowContext[T, U], not {describe(annotation)}"
        )
    sends, yields, *_ = (*map(split_types, get_args(annotation)), ())
    for type_ in (*sends, *yields):
        if isinstance(type_, (int, float, str, bytes, list, dict)):
            raise ValueError(f"{label_of(func)}: {type_!r} in WorkflowContext[...] is a value, not a type")
    return sends, yields
