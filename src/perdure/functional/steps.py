"""`@step`: a function whose result is recorded where a workflow calls it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from perdure.annotations import namespace_here
from perdure.engine import is_async
from perdure.events import WorkflowErrorDetails, WorkflowEvent
from perdure.functional.branches import branch_place
from perdure.functional.context import RunContext, get_run_context
from perdure.functional.parameters import Parameters, hints_of
from perdure.functional.setting import Setting
from perdure.graph import StepCall, activation_at_work, policy_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from datetime import timedelta

    from perdure.annotations import Namespace
    from perdure.graph import IfInterrupted, Retry

R = TypeVar("R")


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
        self._is_async = is_async(func)
        self._key = key
        self._policy = policy_of(retry=retry, timeout=timeout, on_error=None)
        self._if_interrupted: IfInterrupted = if_interrupted
        hints = hints_of(func, namespace)
        self._gives = {"return": hints["return"]} if "return" in hints else {}
        self._parameters = Parameters.of(func, hints, RunContext)
        functools.update_wrapper(self, func)

    @property
    def has_key(self) -> bool:
        """Whether its calls are known by a key."""
        return self._key is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]:
        """Call it. In a workflow, which step it is does not depend on the order in which steps are awaited."""
        context = get_run_context()
        if context is None:
            activation_at_work()
            return self._plain(args, kwargs)
        self._require_fitting(args, kwargs)
        loop = self._loop()
        key = branch_place(self.name) if self._key is None else self._known_by(self._key(*args, **kwargs))
        setting = Setting(context, context.board.called(self.name, context.activation.branch))
        attempt = _Attempt(self._func, self._parameters, setting, (args, kwargs), loop)
        work = _as_work(attempt.call if self._is_async else attempt.call_in_thread, self._gives)
        call = StepCall(
            self.name,
            functools.partial(work, **kwargs) if kwargs else work,
            args,
            key,
            self._policy.retry,
            self._policy.timeout,
            setting.finding(self._if_interrupted),
            moves=True,
            found=setting.found,
        )
        return self._followed(attempt, context.activation.step(call))

    def _require_fitting(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = f"step {self.name!r}"
        if self._parameters.context is not None and any(isinstance(each, RunContext) for each in args):
            raise TypeError(f"{name} is given its context by itself: leave out its RunContext where you call it")
        self._parameters.require_fitting(args, kwargs, name)

    def _loop(self) -> asyncio.AbstractEventLoop:
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"step {self.name!r} is called in a thread, where no step can be begun: call it in the function of the "
                "workflow, or make the step that calls it async"
            ) from None

    def _known_by(self, key: object) -> str:
        if not isinstance(key, str) or not key or key.startswith(" "):
            raise ValueError(
                f"step {self.name!r}: a key is a str that is not empty and begins with no space, not {key!r}; let the "
                "function that is given as key=... return one"
            )
        return key

    async def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if self._is_async:
            return await self._func(*args, **kwargs)
        outcome = await asyncio.to_thread(self._func, *args, **kwargs)
        return await outcome if inspect.isawaitable(outcome) else outcome

    async def _followed(self, attempt: _Attempt, step: Coroutine[Any, Any, Any]) -> R:
        """The result, and what there is to tell of it. What it set in the state is set, whoever has done it."""
        try:
            recorded = await step
        except BaseException as error:
            has_failed = isinstance(error, Exception)
            attempt.setting.withdraw(has_failed=has_failed)
            if has_failed:
                details = WorkflowErrorDetails.from_exception(error, executor_id=self.name)
                attempt.tell(WorkflowEvent.executor_failed(self.name, details))
            raise
        result = attempt.setting.restore(recorded)
        made = WorkflowEvent.executor_completed if attempt.is_made else WorkflowEvent.executor_bypassed
        attempt.tell(made(self.name, result))
        return result


@dataclass(slots=True)
class _Attempt:
    """A call of a step, for as often as it is tried."""

    func: Callable[..., Any]
    parameters: Parameters
    setting: Setting
    given: tuple[tuple[Any, ...], dict[str, Any]]
    loop: asyncio.AbstractEventLoop
    is_made: bool = False

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call an async function."""
        self._announce()
        positional, keywords = self.parameters.with_context(args, kwargs, self.setting.context)
        with self.setting.trying() as writer:
            return self.setting.outcome(await self.func(*positional, **keywords), writer)

    def call_in_thread(self, *args: Any, **kwargs: Any) -> Any:
        """Call a plain function, which runs in a thread; what there is to tell is told in the loop."""
        self.loop.call_soon_threadsafe(self._announce)
        positional, keywords = self.parameters.with_context(args, kwargs, self.setting.context)
        setting = self.setting
        with setting.trying() as writer:
            result = self.func(*positional, **keywords)
            return setting.awaited(result, writer) if inspect.isawaitable(result) else setting.outcome(result, writer)

    def _announce(self) -> None:
        if not self.is_made:
            self.is_made = True
            args, kwargs = self.given
            data = {"args": args, "kwargs": kwargs} if args or kwargs else None
            self.tell(WorkflowEvent.executor_invoked(self.setting.writer.name, data))

    def tell(self, event: WorkflowEvent[Any]) -> None:
        """Tell of this step to whoever listens. How often it was come to is not part of what the run did."""
        self.setting.context.activation.tell(event, transient=True)


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
