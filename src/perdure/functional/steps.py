"""`@step`: a function whose result is recorded where a workflow calls it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from perdure.annotations import namespace_here
from perdure.checkpoint.trust import register_type
from perdure.events import WorkflowErrorDetails, WorkflowEvent
from perdure.functional.branches import branch_place, trunk
from perdure.functional.context import RunContext, get_run_context, writing
from perdure.functional.parameters import Parameters, hints_of
from perdure.graph.policy import policy_of
from perdure.graph.port import StepCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import timedelta

    from perdure.annotations import Namespace
    from perdure.graph.policy import Retry
    from perdure.graph.port import IfInterrupted

R = TypeVar("R")


@register_type
@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step gave and what it set in the state, as it is recorded. One that set nothing is its result alone."""

    result: Any
    state: dict[str, Any] = field(default_factory=dict[str, Any])


class StepWrapper(Generic[R]):
    """A function that is a step where a functional workflow calls it. Outside of one it is simply called.

    A step is known by its name and how many of that name were called before it in the same task, or by its key.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        name: str | None = None,
        key: Callable[..., str] | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        if_interrupted: IfInterrupted = "rerun",
        _namespace: Namespace | None = None,
    ) -> None:
        if not callable(func):
            raise TypeError(f"@step is for a function, not for {func!r}")
        namespace = _namespace if _namespace is not None else namespace_here(1)
        self.name: str = name or getattr(func, "__name__", type(func).__name__)
        self._func = func
        self._is_async = inspect.iscoroutinefunction(func)
        self._key = key
        self._policy = policy_of(retry=retry, timeout=timeout, on_error=None)
        self._if_interrupted: IfInterrupted = if_interrupted
        hints = hints_of(func, namespace)
        self._gives = {"return": hints["return"]} if "return" in hints else {}
        self._parameters = Parameters.of(func, hints, RunContext)
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]:
        """Call it. In a workflow, which step it is does not depend on the order in which steps are awaited."""
        context = get_run_context()
        if context is None:
            return self._plain(args, kwargs)
        key = branch_place(self.name) if self._key is None else self._key(*args, **kwargs)
        attempt = _Attempt(self._func, self._parameters, context, self.name, (args, kwargs), asyncio.get_running_loop())
        work = _as_work(attempt.call if self._is_async else attempt.call_in_thread, self._gives)
        call = StepCall(
            self.name,
            functools.partial(work, **kwargs) if kwargs else work,
            args,
            key,
            self._policy.retry,
            self._policy.timeout,
            self._if_interrupted,
        )
        return self._followed(attempt, context.activation.step(call))

    async def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if self._is_async:
            return await self._func(*args, **kwargs)
        outcome = await asyncio.to_thread(self._func, *args, **kwargs)
        return await outcome if inspect.isawaitable(outcome) else outcome

    async def _followed(self, attempt: _Attempt, step: Coroutine[Any, Any, Any]) -> R:
        """The result, and what there is to tell of it. What it set in the state is set, whoever has done it."""
        try:
            outcome = await step
        except Exception as error:
            details = WorkflowErrorDetails.from_exception(error, executor_id=self.name)
            attempt.tell(WorkflowEvent.executor_failed(self.name, details))
            raise
        result = outcome
        if isinstance(outcome, StepOutcome):
            result = outcome.result
            for key, value in outcome.state.items():
                attempt.context.set_state(key, value)
        made = WorkflowEvent.executor_completed if attempt.is_made else WorkflowEvent.executor_bypassed
        attempt.tell(made(self.name, result))
        return result


@dataclass(slots=True)
class _Attempt:
    """A call of a step, for as often as it is tried."""

    func: Callable[..., Any]
    parameters: Parameters
    context: RunContext
    name: str
    given: tuple[tuple[Any, ...], dict[str, Any]]
    loop: asyncio.AbstractEventLoop
    is_made: bool = False

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call an async function."""
        self._announce()
        positional, keywords = self.parameters.with_context(args, kwargs, self.context)
        with trunk(), writing() as written:
            return _outcome(await self.func(*positional, **keywords), written)

    def call_in_thread(self, *args: Any, **kwargs: Any) -> Any:
        """Call a plain function, which runs in a thread; what there is to tell is told in the loop."""
        self.loop.call_soon_threadsafe(self._announce)
        positional, keywords = self.parameters.with_context(args, kwargs, self.context)
        with writing() as written:
            return _outcome(self.func(*positional, **keywords), written)

    def _announce(self) -> None:
        if not self.is_made:
            self.is_made = True
            args, kwargs = self.given
            data = {"args": args, "kwargs": kwargs} if args or kwargs else None
            self.tell(WorkflowEvent.executor_invoked(self.name, data))

    def tell(self, event: WorkflowEvent[Any]) -> None:
        """Tell of this step to whoever listens. How often it was come to is not part of what the run did."""
        self.context.activation.tell(event, transient=True)


def _outcome(result: Any, written: dict[str, Any]) -> Any:
    return StepOutcome(result, written) if written or isinstance(result, StepOutcome) else result


def _as_work(attempt: Callable[..., Any], annotations: dict[str, Any]) -> Callable[..., Any]:
    """What the step runs, with the annotation of the user's function: its result is of the type that it says."""

    async def work(*args: Any, **kwargs: Any) -> Any:
        return await attempt(*args, **kwargs)

    def plain_work(*args: Any, **kwargs: Any) -> Any:
        return attempt(*args, **kwargs)

    found = work if inspect.iscoroutinefunction(attempt) else plain_work
    found.__annotations__ = annotations
    return found


@overload
def step(func: Callable[..., Awaitable[R]]) -> StepWrapper[R]: ...
@overload
def step(func: Callable[..., R]) -> StepWrapper[R]: ...
@overload
def step(
    *,
    name: str | None = None,
    key: Callable[..., str] | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
    if_interrupted: IfInterrupted = "rerun",
) -> Callable[[Callable[..., Any]], StepWrapper[Any]]: ...
def step(
    func: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    key: Callable[..., str] | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
    if_interrupted: IfInterrupted = "rerun",
) -> StepWrapper[Any] | Callable[[Callable[..., Any]], StepWrapper[Any]]:
    """Make a step of a function: where a functional workflow calls it, its result is on disk before it is returned.

    Whoever comes to the same call again, in any process, gets that result. The function may be async, or a plain one,
    which runs in a thread. `key` makes of the arguments what a call is known by, where the order of calls may differ;
    `retry`, `timeout` and `if_interrupted` are those of `WorkflowContext.step`.
    """
    namespace = namespace_here(1)

    def make(function: Callable[..., Any]) -> StepWrapper[Any]:
        return StepWrapper(
            function,
            name=name,
            key=key,
            retry=retry,
            timeout=timeout,
            if_interrupted=if_interrupted,
            _namespace=namespace,
        )

    return make if func is None else make(func)
