"""`@executor`: a function as a node of the graph."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, overload

from perdure.annotations import annotations_of, evaluate, namespace_here
from perdure.graph.executor import Dispatch, Executor, Route, rewire
from perdure.graph.exits import no_exit
from perdure.graph.handlers import HandlerTypes, context_types, split_types
from perdure.types import contains_typevar

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from perdure.annotations import Namespace
    from perdure.graph.context import WorkflowContext
    from perdure.graph.policy import Retry

_WITH_CONTEXT = 2


class FunctionExecutor(Executor):
    """An executor made of one function `(message)` or `(message, ctx)`, async or sync.

    A sync function runs in a thread, so that it does not hold up the others.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        id: str | None = None,  # noqa: A002 - the documented name
        *,
        input: Any = None,  # noqa: A002 - the documented name
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
                "for a static method, put @staticmethod outside of @executor"
            )
        super().__init__(
            id or _name(func),
            type="FunctionExecutor",
            defer_discovery=True,
            retry=retry,
            timeout=timeout,
            on_error=on_error,
        )
        namespace = _namespace if _namespace is not None else namespace_here(1)
        types = _function_types(func, namespace, {"input": input, "output": output, "workflow_output": workflow_output})
        self.func = func
        self._is_async = _is_async(func)
        self._takes_context = len(inspect.signature(func).parameters) == _WITH_CONTEXT
        rewire(self, Dispatch((Route("process", types),), ()), max_concurrency=max_concurrency)

    async def process(self, message: Any, ctx: WorkflowContext[Any, Any]) -> None:
        """Call the function."""
        arguments = (message, ctx) if self._takes_context else (message,)
        if self._is_async:
            await self.func(*arguments)
        else:
            await _in_thread(self.func, *arguments)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", None) or func.__class__.__name__


def _is_async(func: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004


async def _in_thread(func: Callable[..., Any], *arguments: Any) -> None:
    """Call a sync function. A thread can't be cancelled: whoever cancels waits until the function has returned.

    If it has done its work by then, the work is done: it must not be done again because somebody wanted to stop.
    """
    call = asyncio.ensure_future(asyncio.to_thread(_called, func, *arguments))
    interruption: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait((call,))
        except asyncio.CancelledError as error:
            interruption = error
    error = None if call.cancelled() else call.exception()
    if error is not None or call.cancelled():
        raise interruption or error or asyncio.CancelledError


def _called(func: Callable[..., Any], *arguments: Any) -> None:
    with no_exit():
        func(*arguments)


def _function_types(func: Callable[..., Any], namespace: Namespace, given: dict[str, Any]) -> HandlerTypes:
    names = tuple(inspect.signature(func).parameters)
    label = f"executor function {_name(func)!r}"
    if len(names) not in {1, _WITH_CONTEXT}:
        raise ValueError(f"{label} must take (message) or (message, ctx), it takes ({', '.join(names)})")
    hints = annotations_of(func, namespace)
    if given["input"] is None and names[0] not in hints:
        raise ValueError(f"{label} needs a type annotation for {names[0]!r}, or @executor(input=...)")
    if len(names) == _WITH_CONTEXT and names[1] not in hints:
        raise ValueError(f"{label} needs {names[1]!r} annotated as WorkflowContext")
    sends, yields = context_types(hints[names[1]], func) if len(names) == _WITH_CONTEXT else ((), ())
    explicit = {name: evaluate(value, func, namespace) for name, value in given.items() if value is not None}
    takes = explicit.get("input", hints.get(names[0]))
    if "output" in explicit:
        sends = split_types(explicit["output"])
    if "workflow_output" in explicit:
        yields = split_types(explicit["workflow_output"])
    for type_ in (takes, *sends, *yields):
        if contains_typevar(type_):
            raise ValueError(
                f"{label} uses a type variable, which has no value at run time; state the types explicitly"
            )
    return HandlerTypes((takes,), sends, yields)


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
    func: Callable[..., Any] | None = None,
    *,
    id: str | None = None,  # noqa: A002 - the documented name
    input: Any = None,  # noqa: A002 - the documented name
    output: Any = None,
    workflow_output: Any = None,
    max_concurrency: int = 1,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    on_error: str | Executor | None = None,
) -> FunctionExecutor | Callable[[Callable[..., Any]], FunctionExecutor]:
    """Make an executor of a function. Its id is the function's name unless `id` is given.

    `retry`, `timeout` and `on_error` are those of `Executor`.
    """
    namespace = namespace_here(1)

    def make(function: Callable[..., Any]) -> FunctionExecutor:
        return FunctionExecutor(
            function,
            id,
            input=input,
            output=output,
            workflow_output=workflow_output,
            max_concurrency=max_concurrency,
            retry=retry,
            timeout=timeout,
            on_error=on_error,
            _namespace=namespace,
        )

    return make if func is None else make(func)
