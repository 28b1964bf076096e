"""Executors: the nodes of a graph. They handle messages and may hold state. `@executor` makes one of a function."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

from perdure.annotations import Namespace, annotations_of, evaluate, namespace_here
from perdure.graph.activation import ABSENT, no_exit
from perdure.graph.handlers import context_types, declaration_of, handler_types, label_of, parameter_names, split_types
from perdure.graph.policy import Policy, Retry, policy_of
from perdure.typenames import describe, require_unicode
from perdure.types import Ranking, is_instance_of, is_type_compatible, most_specific, ranking_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
    from datetime import timedelta

    from perdure.graph.context import WorkflowContext
    from perdure.graph.definition import Graph
    from perdure.graph.edges import WorkflowMessage
    from perdure.graph.handlers import HandlerTypes


@dataclass(frozen=True, slots=True)
class Route:
    """A handler: the name of the method, and its types."""

    method: str
    types: HandlerTypes


@dataclass(frozen=True)
class Dispatch:
    """The handlers of an executor, in order of definition."""

    messages: tuple[Route, ...]
    answers: tuple[Route, ...]

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """The handlers of both kinds."""
        return (*self.messages, *self.answers)

    @cached_property
    def sends(self) -> tuple[object, ...]:
        """The types that the handlers declare to send, each once."""
        return _distinct(route.types.sends for route in self.routes)

    @cached_property
    def yields(self) -> tuple[object, ...]:
        """The types that the handlers declare to yield, each once."""
        return _distinct(route.types.yields for route in self.routes)

    @cached_property
    def _ranking(self) -> Ranking:
        return ranking_of(tuple(route.types.takes[0] for route in self.messages))

    def route_of(self, value: object) -> Route | None:
        """Return the handler with the most specific type for a value."""
        index = self._ranking.exact.get(type(value))
        if index is None:
            index = self._ranking.best(value)
        return None if index is None else self.messages[index]

    def answer_route(self, request: object, response: object) -> Route | None:
        """Return the most specific response handler: by the request first, then by the response."""
        fitting = [route for route in self.answers if is_instance_of(response, route.types.takes[1])]
        index = most_specific(request, [route.types.takes[0] for route in fitting])
        if index is None:
            return None
        asked = fitting[index].types.takes[0]
        equals = [route for route in fitting if route.types.takes[0] == asked]
        return equals[most_specific(response, [route.types.takes[1] for route in equals]) or 0]


def _distinct(declared: Iterable[tuple[object, ...]]) -> tuple[object, ...]:
    # Not every type can be hashed, so this is no set.
    found: list[object] = []
    for type_ in chain.from_iterable(declared):
        if type_ not in found:
            found.append(type_)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Wiring:
    """The engine's data of an executor, under one name so that it never clashes with attributes of programs.

    `fallback` is the executor given as `on_error`, which the builder adds to the graph. `is_function` is True for the
    function of a functional workflow: live streams have events of its steps, not of its own calls.
    """

    dispatch: Dispatch
    max_concurrency: int
    policy: Policy
    fallback: Executor | None
    is_function: bool = False

    def __deepcopy__(self, _: object) -> Wiring:
        """Return itself: it is immutable, and a copied executor has the same fallback."""
        return self


@dataclass(frozen=True, slots=True)
class Shared:
    """An object that an executor may share with others, and the key of its value in the state.

    Executors with the same object share one value. Their writes are updates, which `merge` combines in plan order at
    the end of the superstep. The first update is the initial value.
    """

    what: object
    key: str
    merge: Callable[[Any, Any], Any]


class _NoState(dict[str, Any]):
    """An empty state. An async hook awaits it with `await super()...`, a sync one uses it as it is."""

    def __await__(self) -> Generator[None, None, dict[str, Any]]:
        return self
        yield


class _Nothing:
    """Nothing to wait for. An async hook may await it, a sync one may ignore it."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Executor:
    """A node of the graph. Subclass it, and mark the methods that take messages with `@handler`.

    An executor handles one message at a time, in a fixed order; `max_concurrency` allows more for one without state.
    Instance state survives if `on_checkpoint_save` and `on_checkpoint_restore` are overridden. With both, messages that
    are handled in parallel are recorded when all of them are done, and a crash before that repeats all.

    `retry` sets how often a message is attempted, `timeout` the seconds per attempt, and `on_error` the executor (or
    its id) that gets a `FailedMessage` when all attempts have failed. Without `on_error` a failure stops the run.
    """

    _perdure: Wiring

    def __init__(
        self,
        id: str,
        *,
        type: str | None = None,
        type_: str | None = None,
        defer_discovery: bool = False,
        max_concurrency: int = 1,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        on_error: str | Executor | None = None,
        **_: Any,
    ) -> None:
        if not id:
            raise ValueError("an executor needs an id that is not empty")
        require_unicode("executor id", id)
        if max_concurrency < 1:
            raise ValueError(f"executor {id!r}: max_concurrency must be 1 or more, not {max_concurrency}")
        self.id = id
        self.type = self.type_ = type or type_ or self.__class__.__name__
        dispatch = Dispatch((), ()) if defer_discovery else discover(self.__class__)
        if not defer_discovery and not dispatch.messages:
            raise ValueError(
                f"executor {id!r}: {self.__class__.__name__} has no handler; mark a method "
                "(self, message: T, ctx: WorkflowContext[...]) with @handler"
            )
        policy = policy_of(retry=retry, timeout=timeout, on_error=_id_of(on_error))
        fallback = on_error if isinstance(on_error, Executor) else None
        self._perdure = Wiring(dispatch, max_concurrency, policy, fallback)

    @property
    def input_types(self) -> list[Any]:
        """The types that the handlers take."""
        return [route.types.takes[0] for route in wiring(self).dispatch.messages]

    @property
    def output_types(self) -> list[Any]:
        """The types that the handlers declare to send."""
        return list(wiring(self).dispatch.sends)

    @property
    def workflow_output_types(self) -> list[Any]:
        """The types that the handlers declare to yield."""
        return list(wiring(self).dispatch.yields)

    @property
    def is_request_response_capable(self) -> bool:
        """True if there are response handlers."""
        return bool(wiring(self).dispatch.answers)

    def can_handle(self, message: WorkflowMessage) -> bool:
        """Return True if a handler takes this message, or a response handler this answer."""
        dispatch = wiring(self).dispatch
        if message.original_request_info_event is not None:
            return dispatch.answer_route(message.original_request_info_event.data, message.data) is not None
        return dispatch.route_of(message.data) is not None

    def is_request_supported(self, request_type: Any, response_type: Any) -> bool:
        """Return True if a response handler takes answers of `response_type` to requests of `request_type`."""
        return any(
            is_type_compatible(request_type, route.types.takes[0])
            and is_type_compatible(response_type, route.types.takes[1])
            for route in wiring(self).dispatch.answers
        )

    # The results are declared as Any: an override may be sync or async, and an async one may await super()'s.

    def on_checkpoint_save(self) -> Any:
        """Return the instance's state as a dict, sync or async. Override it together with `on_checkpoint_restore`."""
        return _NoState()

    def on_checkpoint_restore(self, state: dict[str, Any]) -> Any:
        """Restore a state from `on_checkpoint_save`, sync or async."""
        del state
        return _Nothing()

    def child_graph(self) -> Graph | None:
        """Return the graph of a sub-workflow; None for other executors."""
        return None

    def cancelled_answer(self, request_data: Any) -> Any:
        """Return the answer to a request of this executor that is cancelled; ABSENT if the request is just dropped."""
        del request_data
        return ABSENT

    def shares(self) -> Shared | None:
        """Return the object that this executor may share with others."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the executor's definition."""
        return {"id": self.id, "type": self.type}

    def to_json(self) -> str:
        """Return the executor's definition as JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Executor:
        """Create an executor of this class from a definition."""
        return cls(**{key: value for key, value in data.items() if key in {"id", "type"}})

    @classmethod
    def from_json(cls, text: str) -> Executor:
        """Create an executor of this class from a definition in JSON."""
        return cls.from_dict(json.loads(text))

    def clone(self, *, deep: bool = True) -> Executor:
        """Copy this executor."""
        return copy.deepcopy(self) if deep else copy.copy(self)

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}(id={getattr(self, 'id', '?')!r})"


def wiring(executor: Executor) -> Wiring:
    """Return the engine's data of an executor. Raises TypeError if its constructor was not called."""
    try:
        return executor._perdure  # pyright: ignore[reportPrivateUsage] - this module owns it
    except AttributeError:
        name = executor.__class__.__name__
        raise TypeError(f"{name} is not initialized: call super().__init__(id=...) in {name}.__init__") from None


def rewire(executor: Executor, dispatch: Dispatch, *, is_function: bool = False) -> None:
    """Set the handlers of an executor that was created with `defer_discovery`."""
    rewired = replace(wiring(executor), dispatch=dispatch, is_function=is_function)
    executor._perdure = rewired  # pyright: ignore[reportPrivateUsage]


def _id_of(on_error: object) -> str | None:
    if isinstance(on_error, Executor):
        return on_error.id
    if on_error is None or (isinstance(on_error, str) and on_error):
        return on_error
    raise TypeError(f"on_error must be an executor or the id of one, not {on_error!r}")


def on_error_ways(executors: Mapping[str, Executor]) -> Iterator[tuple[str, str]]:
    """Yield each executor with `on_error`, and the executor that it names."""
    for executor_id, executor in executors.items():
        target_id = wiring(executor).policy.on_error
        if target_id is not None:
            yield executor_id, target_id


def discover(cls: type[Executor]) -> Dispatch:
    """Find the handlers of a class, those of its bases first, in order of definition."""
    messages: list[Route] = []
    answers: list[Route] = []
    # The attributes of `Executor` are no handlers.
    bases = [base for base in reversed(cls.__mro__) if base not in {object, Executor}]
    for name in dict.fromkeys(name for base in bases for name in vars(base)):
        declaration = declaration_of(getattr(cls, name, None))
        if declaration is None:
            continue
        route = Route(name, declaration.types())
        others = answers if declaration.is_response else messages
        for other in others:
            if other.types.takes == route.types.takes:
                taken = " and ".join(map(describe, route.types.takes))
                raise ValueError(f"{cls.__name__}: both {other.method!r} and {name!r} handle {taken}")
        others.append(route)
    return Dispatch(tuple(messages), tuple(answers))


def handler_of(executor: Executor, value: object) -> Callable[..., Awaitable[Any]] | None:
    """Return the bound method that takes a message."""
    route = wiring(executor).dispatch.route_of(value)
    return None if route is None else getattr(executor, route.method)


def response_handler_of(executor: Executor, request: object, response: object) -> Callable[..., Awaitable[Any]] | None:
    """Return the bound method that takes an answer."""
    route = wiring(executor).dispatch.answer_route(request, response)
    return None if route is None else getattr(executor, route.method)


_WITH_CONTEXT = 2


class FunctionExecutor(Executor):
    """An executor made of one function `(message)` or `(message, ctx)`, async or sync.

    A sync function runs in a thread, so that it does not block others.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        id: str | None = None,
        *,
        input: Any = None,
        output: Any = None,
        workflow_output: Any = None,
        max_concurrency: int = 1,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        on_error: str | Executor | None = None,
        _namespace: Namespace | None = None,
    ) -> None:
        if isinstance(func, (staticmethod, classmethod)):
            raise ValueError(
                "@executor takes a plain function: for a method, subclass Executor and use @handler; "
                "for a static method, put @staticmethod above @executor"
            )
        super().__init__(
            id or getattr(func, "__name__", None) or func.__class__.__name__,
            type="FunctionExecutor",
            defer_discovery=True,
            max_concurrency=max_concurrency,
            retry=retry,
            timeout=timeout,
            on_error=on_error,
        )
        namespace = _namespace if _namespace is not None else namespace_here(1)
        types = _function_types(func, namespace, {"input": input, "output": output, "workflow_output": workflow_output})
        self.func = func
        called = getattr(func, "__call__", None)  # noqa: B004 - an object may have an async `__call__`
        self._is_async = inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(called)
        self._takes_context = len(parameter_names(func)) == _WITH_CONTEXT
        rewire(self, Dispatch((Route("process", types),), ()))

    async def process(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        """Call the function."""
        arguments = (message, ctx) if self._takes_context else (message,)
        result = await (self.func(*arguments) if self._is_async else _in_thread(self.func, *arguments))
        if not self._is_async or not self._takes_context:
            require_no_result(self.id, result)


def require_no_result(executor_id: str, result: object) -> None:
    """Raise TypeError if a handler that can't send has returned a value, which would be lost."""
    if result is not None:
        raise TypeError(
            f"the function of executor {executor_id!r} returned a value of type {describe(type(result))}, which nobody "
            "would get: write an `async def` that takes ctx: WorkflowContext[...], and pass the value on with "
            "`await ctx.send_message(value)` or `await ctx.yield_output(value)`"
        )


async def _in_thread(func: Callable[..., Any], *arguments: Any) -> Any:
    """Call a sync function. A thread can't be cancelled, so a cancelled caller waits until the function has returned.

    If it succeeds, its work counts: it must not be repeated because of a late cancellation.
    """

    def called() -> Any:
        with no_exit():
            return func(*arguments)

    call = asyncio.ensure_future(asyncio.to_thread(called))
    interruption: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait((call,))
        except asyncio.CancelledError as error:
            interruption = error
    error = None if call.cancelled() else call.exception()
    if error is not None or call.cancelled():
        raise interruption or error or asyncio.CancelledError
    return call.result()


def _function_types(func: Callable[..., Any], namespace: Namespace, given: dict[str, Any]) -> HandlerTypes:
    names = parameter_names(func)
    if len(names) not in {1, _WITH_CONTEXT}:
        raise ValueError(f"{label_of(func)} must take (message) or (message, ctx), it takes ({', '.join(names)})")
    hints = annotations_of(func, namespace)
    if given["input"] is None and names[0] not in hints:
        raise ValueError(f"{label_of(func)} needs a type annotation for {names[0]!r}, or @executor(input=...)")
    if len(names) == _WITH_CONTEXT and names[1] not in hints:
        raise ValueError(f"{label_of(func)} needs {names[1]!r} annotated as WorkflowContext")
    sends, yields = context_types(hints[names[1]], func) if len(names) == _WITH_CONTEXT else ((), ())
    explicit = {name: evaluate(value, func, namespace) for name, value in given.items() if value is not None}
    takes = explicit.get("input", hints.get(names[0]))
    if "output" in explicit:
        sends = split_types(explicit["output"])
    if "workflow_output" in explicit:
        yields = split_types(explicit["workflow_output"])
    return handler_types(func, (takes,), sends, yields)


@overload
def executor(func: Callable[..., Any]) -> FunctionExecutor: ...
@overload
def executor(
    *,
    id: str | None = None,
    input: Any = None,
    output: Any = None,
    workflow_output: Any = None,
    max_concurrency: int = 1,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    on_error: str | Executor | None = None,
) -> Callable[[Callable[..., Any]], FunctionExecutor]: ...
def executor(
    func: Callable[..., Any] | None = None, **options: Any
) -> FunctionExecutor | Callable[[Callable[..., Any]], FunctionExecutor]:
    """Make an executor of a function. Its id is the function's name unless `id` is given.

    The options are those of `FunctionExecutor`. `retry`, `timeout` and `on_error` are as in `Executor`.
    """
    make = partial(FunctionExecutor, _namespace=namespace_here(1), **options)
    return make if func is None else make(func)
