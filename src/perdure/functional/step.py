"""`@step`: a function whose result is recorded when a functional workflow calls it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from perdure.annotations import namespace_here
from perdure.engine import is_async
from perdure.events import WorkflowErrorDetails, WorkflowEvent
from perdure.functional.context import RunContext, get_run_context
from perdure.functional.parameters import Parameters, hints_of
from perdure.functional.recording import RecordedCall
from perdure.graph import StepCall, activation_at_work, current_activation, policy_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import timedelta

    from perdure.annotations import Namespace
    from perdure.graph import IfInterrupted, Retry

R = TypeVar("R")


class StepWrapper(Generic[R]):
    """A function that is a step when a functional workflow calls it. Outside of one it is simply called.

    A step is identified by its name and key; without a key, by its arguments, and the ordinal among equal calls.
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
        self._is_async = is_async(func)
        self._key = key
        self._policy = policy_of(retry=retry, timeout=timeout, on_error=None)
        self._if_interrupted: IfInterrupted = if_interrupted
        # A step that is defined while a workflow runs may capture other values each time.
        self._is_stable = current_activation() is None or getattr(func, "__closure__", None) is None
        hints = hints_of(func, namespace)
        self._gives = {"return": hints["return"]} if "return" in hints else {}
        self._parameters = Parameters.of(func, hints, RunContext)
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]:
        """Call it. In a workflow, the call alone decides which step it is, not the order of awaiting."""
        context = get_run_context()
        if context is None:
            activation_at_work()
            return self._call_plain(args, kwargs)
        self._require_fitting(args, kwargs)
        loop = self._loop()
        key = None if self._key is None else self._checked(self._key(*args, **kwargs))
        recorded = RecordedCall.of(context, self.name)
        attempt = _Attempts(self._func, self._parameters, recorded, (args, kwargs), loop)
        work = _as_work(attempt.call if self._is_async else attempt.call_in_thread, self._gives)
        call = StepCall(
            self.name,
            functools.partial(work, **kwargs) if kwargs else work,
            args,
            key,
            self._policy.retry,
            self._policy.timeout,
            recorded.reconciling(self._if_interrupted),
            is_stable=self._is_stable,
            found=recorded.reconciled,
        )
        return self._follow(attempt, context.activation.step(call))

    def _require_fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = f"step {self.name!r}"
        if self._parameters.context is not None and any(isinstance(each, RunContext) for each in args):
            raise TypeError(f"{name} gets its context by itself: leave out its RunContext where you call it")
        self._parameters.require_fitting(args, kwargs, name)

    def _loop(self) -> asyncio.AbstractEventLoop:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"step {self.name!r} is called in a thread, where no step can start: call it in the function of the "
                "workflow, or make the step that calls it async"
            ) from None

    def _checked(self, key: object) -> str:
        if not isinstance(key, str) or not key or key.startswith(" "):
            raise ValueError(
                f"step {self.name!r}: a key is a str that is not empty and begins with no space, not {key!r}; let the "
                "function that is given as key=... return one"
            )
        return key

    async def _call_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if self._is_async:
            return await self._func(*args, **kwargs)
        outcome = await asyncio.to_thread(self._func, *args, **kwargs)
        return await outcome if inspect.isawaitable(outcome) else outcome

    async def _follow(self, attempts: _Attempts, step: Coroutine[Any, Any, Any]) -> R:
        """Return the result, apply the state that the step has set, and emit events."""
        try:
            recorded = await step
        except BaseException as error:
            has_failed = isinstance(error, Exception)
            attempts.recorded.withdraw(has_failed=has_failed)
            if has_failed:
                details = WorkflowErrorDetails.from_exception(error, executor_id=self.name)
                attempts.emit(WorkflowEvent.executor_failed(self.name, details))
            raise
        result = attempts.recorded.restore(recorded)
        event = WorkflowEvent.executor_completed if attempts.have_started else WorkflowEvent.executor_bypassed
        attempts.emit(event(self.name, result))
        return result


@dataclass(slots=True)
class _Attempts:
    """All attempts at one call of a step."""

    func: Callable[..., Any]
    parameters: Parameters
    recorded: RecordedCall
    given: tuple[tuple[Any, ...], dict[str, Any]]
    loop: asyncio.AbstractEventLoop
    have_started: bool = False

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call an async function."""
        self._emit_invoked()
        positional, keywords = self.parameters.with_context(args, kwargs, self.recorded.context)
        with self.recorded.attempt() as writer:
            return self.recorded.outcome(await self.func(*positional, **keywords), writer)

    def call_in_thread(self, *args: Any, **kwargs: Any) -> Any:
        """Call a plain function, which runs in a thread. Events are emitted in the loop."""
        self.loop.call_soon_threadsafe(self._emit_invoked)
        positional, keywords = self.parameters.with_context(args, kwargs, self.recorded.context)
        recorded = self.recorded
        with recorded.attempt() as writer:
            result = self.func(*positional, **keywords)
            if inspect.isawaitable(result):
                return recorded.finish_awaitable(result, writer)
            return recorded.outcome(result, writer)

    def _emit_invoked(self) -> None:
        if not self.have_started:
            self.have_started = True
            args, kwargs = self.given
            data = {"args": args, "kwargs": kwargs} if args or kwargs else None
            self.emit(WorkflowEvent.executor_invoked(self.recorded.writer.name, data))

    def emit(self, event: WorkflowEvent[Any]) -> None:
        """Emit an event to observers. It is not recorded: each entry of the function emits its own."""
        self.recorded.context.activation.emit(event, transient=True)


def _as_work(attempt: Callable[..., Any], annotations: dict[str, Any]) -> Callable[..., Any]:
    """Return the function of the step, with the user's annotation of the result: its type is trusted."""

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
    """Make a step of a function: when a functional workflow calls it, its result is durable before it is returned.

    A later entry that makes the same call gets that result, in any process. The function may be async; a plain one
    runs in a thread. `key` returns a key for given arguments, for calls that name and arguments do not identify, or
    whose order may differ. `retry`, `timeout` and `if_interrupted` are those of `WorkflowContext.step`.
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
