"""`@handler` and `@response_handler`: the types of a method, from its annotations or given explicitly."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Never, TypeVar, get_args, get_origin, overload

from perdure.annotations import annotations_of, evaluate, namespace_here
from perdure.graph.context import WorkflowContext
from perdure.typenames import describe
from perdure.types import contains_typevar, split_union

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.annotations import Namespace

FuncT = TypeVar("FuncT", bound="Callable[..., Any]")

_DECLARATION = "__perdure_handler__"
_CONTEXT_ARGUMENTS_MAX = 2


@dataclass(frozen=True, slots=True)
class HandlerTypes:
    """The types that a handler takes, sends and yields."""

    takes: tuple[object, ...]
    """The type of the message; for a response handler, the types of the request and of the response."""
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
        if self._types is None:
            self._types = self._explicit() if self.explicit else self._annotated()
        return self._types

    def _explicit(self) -> HandlerTypes:
        given = {name: evaluate(value, self.func, self.namespace) for name, value in self.explicit.items()}
        names = ("request", "response") if self.is_response else ("input",)
        takes = tuple(given[name] for name in names)
        sends = split_types(given.get("output"))
        yields = split_types(given.get("workflow_output"))
        for type_ in (*takes, *sends, *yields):
            _refuse_typevars(type_, self.func)
        self._check_context(required=False)
        return HandlerTypes(takes, sends, yields)

    def _annotated(self) -> HandlerTypes:
        try:
            hints = annotations_of(self.func, self.namespace)
        except TypeError as error:
            raise ValueError(f"{_label(self.func)} has an annotation that is not a type: {error}") from error
        *message_names, context_name = _parameters(self.func)[1:]
        takes = tuple(hints[name] for name in message_names)
        sends, yields = _context_types(hints.get(context_name), self.func, required=not self.is_response)
        for type_ in (*takes, *sends, *yields):
            _refuse_typevars(type_, self.func)
        return HandlerTypes(takes, sends, yields)

    def _check_context(self, *, required: bool) -> None:
        context_name = _parameters(self.func)[-1]
        annotation = self.func.__annotations__.get(context_name)
        if annotation is None:
            return
        _context_types(evaluate(annotation, self.func, self.namespace), self.func, required=required)


def declaration_of(func: object) -> Declaration | None:
    """Return the declaration of a decorated function."""
    return getattr(func, _DECLARATION, None)


@overload
def handler(func: FuncT) -> FuncT: ...
@overload
def handler(*, input: Any = None, output: Any = None, workflow_output: Any = None) -> Callable[[FuncT], FuncT]: ...
def handler(
    func: FuncT | None = None,
    *,
    input: Any = None,  # noqa: A002 - the documented name
    output: Any = None,
    workflow_output: Any = None,
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
    func = declaration.func
    expected = (
        ("self", "original_request", "response", "ctx") if declaration.is_response else ("self", "message", "ctx")
    )
    names = _parameters(func)
    if len(names) != len(expected):
        raise ValueError(f"{_label(func)} must take exactly ({', '.join(expected)}), it takes ({', '.join(names)})")
    if not declaration.explicit:
        missing = [name for name in names[1:-1] if name not in func.__annotations__]
        if missing:
            raise ValueError(f"{_label(func)} needs a type annotation for {', '.join(map(repr, missing))}")
        if not declaration.is_response and names[-1] not in func.__annotations__:
            raise ValueError(
                f"{_label(func)} needs {names[-1]!r} annotated as WorkflowContext, WorkflowContext[T] or "
                "WorkflowContext[T, U]"
            )
    try:
        declaration.types()
    except NameError:
        # The name may be defined later in the module; creating the executor resolves it again.
        if declaration.explicit:
            raise


def _parameters(func: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(func).parameters)


def _label(func: Callable[..., Any]) -> str:
    return f"handler {func.__qualname__!r}"


def _refuse_typevars(type_: object, func: Callable[..., Any]) -> None:
    if contains_typevar(type_):
        raise ValueError(
            f"{_label(func)} uses the type variable of {describe(type_)}, which has no value at run time; "
            "state the types explicitly: @handler(input=..., output=...)"
        )


def split_types(annotation: object) -> tuple[object, ...]:
    """Return the declared types: the members of a union, nothing for Never or None."""
    if annotation is None or annotation is Never or _is_never(annotation):
        return ()
    return tuple(member for member in split_union(annotation) if not _is_never(member))


def _is_never(annotation: object) -> bool:
    return getattr(annotation, "__name__", None) in {"Never", "NoReturn"} or str(annotation) in {
        "typing.Never",
        "typing.NoReturn",
        "typing_extensions.Never",
    }


def context_types(annotation: object, func: Callable[..., Any]) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return what a context annotation declares to send and yield. Raises ValueError."""
    return _context_types(annotation, func, required=True)


def _context_types(
    annotation: object, func: Callable[..., Any], *, required: bool
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    if annotation is None and not required:
        return (), ()
    if annotation is WorkflowContext:
        return (), ()
    if get_origin(annotation) is not WorkflowContext:
        raise ValueError(
            f"{_label(func)}: the context must be annotated WorkflowContext, WorkflowContext[T] or "
            f"WorkflowContext[T, U], not {describe(annotation)}"
        )
    arguments = get_args(annotation)
    if len(arguments) > _CONTEXT_ARGUMENTS_MAX:
        raise ValueError(f"{_label(func)}: WorkflowContext takes at most two types, not {len(arguments)}")
    sends = split_types(arguments[0]) if arguments else ()
    yields = split_types(arguments[1]) if len(arguments) == _CONTEXT_ARGUMENTS_MAX else ()
    for type_ in (*sends, *yields):
        _require_type(type_, func)
    return sends, yields


def _require_type(type_: object, func: Callable[..., Any]) -> None:
    if isinstance(type_, (int, float, str, bytes, list, dict)):
        raise ValueError(f"{_label(func)}: {type_!r} in WorkflowContext[...] is a value, not a type")
