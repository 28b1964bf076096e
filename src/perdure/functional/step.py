"""`@step`: a function whose result is recorded when a functional workflow calls it, with the state that it sets."""

from __future__ import annotations

import asyncio
import functools
import inspect
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, overload

from typing_extensions import Unpack

from perdure.annotations import Namespace, namespace_here
from perdure.engine import ActivationRecorder, is_async
from perdure.events import WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.functional.context import Parameters, RunContext, get_run_context, hints_of
from perdure.functional.state import StepOutcome, Writer, current_writer, place_of_step
from perdure.graph import IfInterrupted, Retry, StepCall, activation_at_work, current_activation, policy_of, use_value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
    from datetime import timedelta


R = TypeVar("R")


class StepOptions(TypedDict, total=False):
    """The options of `@step`."""

    name: str | None
    key: Callable[..., str] | None
    replay_key: Callable[..., str] | None
    retry: Retry | None
    timeout: timedelta | float | None
    if_interrupted: IfInterrupted


class StepWrapper(Generic[R]):
    """A function that is a step when a functional workflow calls it. Outside one it is simply called.

    A step is identified by its name and key; without a key, by its arguments, and the ordinal among equal calls.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        name: str | None = None,
        key: Callable[..., str] | None = None,
        replay_key: Callable[..., str] | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
        if_interrupted: IfInterrupted = "rerun",
        _namespace: Namespace | None = None,
    ) -> None:
        if not callable(func):
            raise TypeError(f"@step is for a function, not for {func!r}")
        hints = hints_of(func, _namespace if _namespace is not None else namespace_here(1))
        self.name: str = name or getattr(func, "__name__", type(func).__name__)
        self._func = func
        self._is_async = is_async(func)
        if key is not None and replay_key is not None:
            raise ValueError("@step takes key= or replay_key=, which is the same under its name in agent-framework")
        self._key = key or replay_key
        self._policy = policy_of(retry=retry, timeout=timeout, on_error=None)
        self._if_interrupted: IfInterrupted = if_interrupted
        # A step that is defined while a workflow runs may capture other values each time.
        self._is_stable = current_activation() is None or getattr(func, "__closure__", None) is None
        self._gives = {"return": hints["return"]} if "return" in hints else {}
        self._parameters = Parameters.of(func, hints, RunContext)
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]:
        """Call it. In a workflow, the call alone decides which step it is, not the order of awaiting."""
        context = get_run_context()
        if context is None:
            activation_at_work()
            return self._call_plain(args, kwargs)
        name = f"step {self.name!r}"
        if self._parameters.context is not None and any(isinstance(each, RunContext) for each in args):
            raise TypeError(f"{name} gets its context by itself: leave out its RunContext where you call it")
        self._parameters.require_fitting(args, kwargs, name)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"{name} is called in a thread, where no step can start: call it in the function of the workflow, or "
                "make the step that calls it async"
            ) from None
        key = None if self._key is None else self._checked(self._key(*args, **kwargs))
        data = {"args": args, "kwargs": kwargs} if args or kwargs else None
        attempts = _Attempts(
            self._func, self._parameters, context, WorkflowEvent.executor_invoked(self.name, data), loop
        )
        call = StepCall(
            self.name,
            attempts.call if self._is_async else attempts.call_in_thread,
            args,
            key,
            self._policy.retry,
            self._policy.timeout,
            self._if_interrupted,
            is_stable=self._is_stable,
        )
        return self._follow(attempts, _begin(context, call, kwargs, self._gives))

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
        """Return the result, and emit how the step ended."""
        try:
            result = await step
        except Exception as error:
            details = WorkflowErrorDetails.from_exception(error, executor_id=self.name)
            attempts.emit(WorkflowEvent.executor_failed(self.name, details))
            raise
        event = WorkflowEvent.executor_completed if attempts.have_started else WorkflowEvent.executor_bypassed
        attempts.emit(event(self.name, result))
        return result


@dataclass(slots=True)
class _Attempts:
    """All attempts at one call of a step. The first one is announced."""

    func: Callable[..., Any]
    parameters: Parameters
    context: RunContext
    announcement: WorkflowEvent[Any]
    loop: asyncio.AbstractEventLoop
    have_started: bool = False

    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call an async function."""
        self._announce()
        positional, keywords = self.parameters.with_context(args, kwargs, self.context)
        return await self.func(*positional, **keywords)

    def call_in_thread(self, *args: Any, **kwargs: Any) -> Any:
        """Call a plain function, which runs in a thread. Events are emitted in the loop."""
        self.loop.call_soon_threadsafe(self._announce)
        positional, keywords = self.parameters.with_context(args, kwargs, self.context)
        return self.func(*positional, **keywords)

    def _announce(self) -> None:
        if not self.have_started:
            self.have_started = True
            self.emit(self.announcement)

    def emit(self, event: WorkflowEvent[Any]) -> None:
        """Emit an event to observers. It is not recorded: each entry of the function emits its own."""
        self.context.activation.emit(event, transient=True)


def begin_foreign_step(activation: ActivationRecorder, call: StepCall) -> Coroutine[Any, Any, Any]:
    """Call a step that is no `@step`, such as a tool call of an agent: its record has the state that it sets."""
    context = get_run_context()
    if context is None or context.activation is not activation:
        return activation.step(call)
    return _begin(context, call)


def _begin(
    context: RunContext, call: StepCall, kwargs: Mapping[str, Any] | None = None, gives: dict[str, Any] | None = None
) -> Coroutine[Any, Any, Any]:
    """Begin a step that may set state. The type of the result is trusted: `gives` is its annotation."""
    recorded = _RecordedCall(context, call)
    work = recorded.in_attempt(call.fn, recorded.outcome)
    if gives is not None:
        work.__annotations__ = gives
    policy = call.if_interrupted
    if callable(policy):
        # A function for interruptions may set state in place of the step.
        policy = recorded.in_attempt(policy, lambda found, _: found)
    fn = functools.partial(work, **kwargs) if kwargs else work
    call = replace(call, fn=fn, if_interrupted=policy, found=recorded.reconciled)
    return recorded.follow(context.activation.step(call))


class _RecordedCall:
    """A call of a step, over all its attempts: what one sets is recorded with its result, or taken back if it fails."""

    def __init__(self, context: RunContext, call: StepCall) -> None:
        self._context = context
        self._has_failed = call.has_failed
        # Each attempt has a new one: an attempt that is late may still run in its thread.
        self._writer = context.state.begin_call(call.name)

    def in_attempt(self, fn: Callable[..., Any], finish: Callable[[Any, Writer], Any]) -> Callable[..., Any]:
        """Return a function, plain or async as `fn` is, each call of which is an attempt that may set state."""

        @functools.wraps(fn)
        async def work(*args: Any, **kwargs: Any) -> Any:
            with self._attempt() as writer:
                return finish(await fn(*args, **kwargs), writer)

        @functools.wraps(fn)
        def plain_work(*args: Any, **kwargs: Any) -> Any:
            with self._attempt() as writer:
                result = fn(*args, **kwargs)
                return rest(result, writer) if inspect.isawaitable(result) else finish(result, writer)

        async def rest(result: Awaitable[Any], writer: Writer) -> Any:
            with self._may_set(writer):
                return finish(await result, writer)

        return work if is_async(fn) else plain_work

    @contextmanager
    def _attempt(self) -> Generator[Writer]:
        """Start an attempt. An earlier one that still runs in a thread sets nothing any more."""
        before = self._writer
        self._roll_back(before)
        place = place_of_step(self._context.activation)
        self._writer = writer = Writer(before.state, before.name, before.order, before.began, before.outer, place)
        with self._may_set(writer):
            yield writer

    @contextmanager
    def _may_set(self, writer: Writer) -> Generator[None]:
        """Let an attempt set state; take it back if it fails."""
        try:
            with use_value(current_writer, writer):
                yield
        except BaseException:
            self._roll_back(writer)
            raise

    def _roll_back(self, writer: Writer) -> None:
        writer.has_ended = True
        if self._context.activation.is_running:  # else the function was suspended or has returned: no state is left
            self._context.state.roll_back(writer)

    def outcome(self, result: Any, writer: Writer) -> Any:
        """Return what is recorded of an attempt that has succeeded."""
        if self._has_failed is not None and self._has_failed(result):
            self._withdraw(has_failed=True)
        return self._context.state.finish(writer, result).shortest()

    def reconciled(self, result: Any, place: str) -> Any:
        """Return what is recorded of an interrupted call that does not run again."""
        self._writer.place = place
        return self._context.state.finish(self._writer, result, with_ahead=True).shortest()

    def _withdraw(self, *, has_failed: bool) -> None:
        """Take back what the call has set: it has failed, or was cut off."""
        self._writer.has_ended = True
        if self._context.activation.is_running:
            warnings = self._context.state.withdraw(self._writer)
            self._warn(warnings if has_failed else ())

    async def follow(self, step: Coroutine[Any, Any, Any]) -> Any:
        """Await the step, apply the state that it has set, and return its result."""
        try:
            recorded = await step
        except BaseException as error:
            self._withdraw(has_failed=isinstance(error, Exception))
            raise
        outcome = recorded if isinstance(recorded, StepOutcome) else StepOutcome(recorded)
        self._context.state.restore(self._writer, outcome)
        self._warn(self._writer.conflicts)
        return outcome.result

    def _warn(self, texts: Iterable[str]) -> None:
        for text in dict.fromkeys(texts):
            self._context.activation.emit(WorkflowEvent("warning", text, origin=WorkflowEventSource.FRAMEWORK))


@overload
def step(func: Callable[..., Awaitable[R]]) -> StepWrapper[R]: ...
@overload
def step(func: Callable[..., R]) -> StepWrapper[R]: ...
@overload
def step(**options: Unpack[StepOptions]) -> Callable[[Callable[..., Any]], StepWrapper[Any]]: ...
def step(
    func: Callable[..., Any] | None = None, **options: Unpack[StepOptions]
) -> StepWrapper[Any] | Callable[[Callable[..., Any]], StepWrapper[Any]]:
    """Make a step of a function: when a functional workflow calls it, its result is durable before it is returned.

    A later entry that makes the same call gets that result, in any process. The function may be async; a plain one
    runs in a thread. `key` returns a key for given arguments, for calls that name and arguments do not identify, or
    whose order may differ; `replay_key` is another name for it. `retry`, `timeout` and `if_interrupted` are those of
    `WorkflowContext.step`.
    """
    make = functools.partial(StepWrapper[Any], _namespace=namespace_here(1), **options)
    return make if func is None else make(func)
