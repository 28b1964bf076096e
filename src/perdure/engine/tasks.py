"""Tasks: run steps in tasks of their own, to their end, with time limits and retries."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter, defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_type_hints

from perdure.checkpoint import AttemptsRecord, plain_data
from perdure.clock import Clock, moment_of, now, seconds_until
from perdure.data_classes import new_dict, new_list, new_set
from perdure.errors import BudgetExceededError, RunError, WorkflowCheckpointException
from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.failures import Failure
from perdure.graph import Numbering, Retry, no_exit
from perdure.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

    from perdure.codec import Kept
    from perdure.engine.activation import ActivationRecorder
    from perdure.engine.superstep import ActivationContext
    from perdure.graph import StepCall
    from perdure.kernel import Moment

ATTEMPTS = "/attempts"
"""Ends the key of a record of failed attempts."""

ResultT = TypeVar("ResultT")


class OutOfTimeError(Exception):
    """Work did not end in time."""


async def within(
    clock: Clock, seconds: float, work: Coroutine[Any, Any, ResultT], late: Exception | None = None
) -> ResultT:
    """Return the result of `work`. If it takes longer, cancel it, wait for its end and raise `late`.

    The cause of `late`, by default an OutOfTimeError, is the error that the work ended with, if any.
    """
    task, alarm = asyncio.ensure_future(work), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        is_late = not task.done()
    finally:
        await stop((task, alarm))
    if is_late and has_failed(task):
        raise late or OutOfTimeError() from None if task.cancelled() else task.exception()
    return task.result()


async def finished(work: Awaitable[ResultT], *, interrupt: Callable[[], None] | None = None) -> ResultT:
    """Wait for `work` to its end, even if the waiting task is cancelled. Call `interrupt` at each cancellation."""
    task = asyncio.ensure_future(work)
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            interruption = error
            if interrupt is not None:
                interrupt()
    if interruption is not None:
        has_failed(task)
        raise interruption
    return task.result()


async def stop(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until all of them have ended, even if the waiting task is cancelled."""
    interruption: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            interruption = error
    for task in tasks:
        has_failed(task)  # asyncio logs an exception that nobody has retrieved
    if interruption is not None:
        raise interruption


def has_failed(task: asyncio.Future[Any]) -> bool:
    """Return whether a task was cancelled or raised."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def current_task() -> asyncio.Task[Any] | None:
    """Return the task that runs here; None in a thread without an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


@dataclass(slots=True, eq=False)
class CallScope:
    """The code that calls steps: the handler, or the function of a step. Each attempt has a new one.

    Calls are counted in it, so that each entry of the code gives them the same identities.

    Attributes:
        place: The beginning of the keys of all records that belong to it.
        task: The task that the code itself runs in. In any other task the order of calls is a matter of timing.
        calls: The calls of steps and questions that have not ended.
    """

    place: str
    task: asyncio.Task[Any] | None
    ordinals: Counter[str] = field(default_factory=Counter[str])
    positions: Counter[str] = field(default_factory=Counter[str])
    numberings: defaultdict[str, Numbering] = field(default_factory=lambda: defaultdict(Numbering))
    calls: set[OpenCall] = field(default_factory=new_set)

    def new_call(self, *, is_own: bool) -> OpenCall:
        """Return a new call, made in the code's own task or not."""
        call = OpenCall(is_sequential=is_own and not self.calls)
        for other in self.calls:
            other.is_sequential = False
        return call

    def count(self, name: str, digest: str) -> str:
        """Return the identity of an unkeyed call: its digest, and its ordinal among calls of equal name and digest."""
        identity = f"{name}#{digest}"
        ordinal = self.ordinals[identity]
        self.ordinals[identity] += 1
        return f"{digest}.{ordinal}"


@dataclass(slots=True, eq=False)
class OpenCall:
    """One call of a step or question, until its coroutine has ended."""

    is_sequential: bool
    """True if the code's own task makes and awaits it, and no other step was called meanwhile."""


StepEvent: TypeAlias = "tuple[str, Kept]"
"""The type and the data of an event of a step."""


@dataclass(slots=True, eq=False)
class StepSlot:
    """Keeps the events of one call of a step among those of its activation, at the place of the call.

    Calls have the same order in each attempt, whatever the order in which they end.

    Attributes:
        failed: The events of attempts that failed. The record of the attempts has them, too.
        parts: Events of the step, and the calls of steps inside it.
    """

    place: str
    failed: list[StepEvent] = field(default_factory=new_list)
    parts: list[StepEvent | StepSlot] = field(default_factory=new_list)

    def recorded(self) -> Iterator[StepEvent]:
        """Iterate over the events for the record of the step."""
        for part in self.parts:
            if isinstance(part, StepSlot):
                yield from part.failed
                yield from part.recorded()
            else:
                yield part

    def places(self) -> Iterator[str]:
        """Iterate over the keys of the records that these events are in."""
        yield from (self.place, f"{self.place}{ATTEMPTS}")
        for part in self.parts:
            if isinstance(part, StepSlot):
                yield from part.places()


@dataclass(slots=True, eq=False)
class RunningStep(CallScope):
    """A step whose function is running.

    Attributes:
        call: None for a function that finds out about an interrupted step.
        slot: Gets the events of the steps inside it.
        about: Further fields of its StepInfo, which its function has reported.
        owner: The steps of its activation: its function may run another workflow, whose steps are not inside of this
            one.
        is_awaited_in_line: True if the task of the code around it does nothing but await it.
        may_restart: True if it may be suspended in the middle, and started again.
        is_function: True if its function is a functional workflow, which is suspended and re-entered as a handler is.
    """

    owner: object = None
    call: StepCall | None = None
    slot: StepSlot = field(default_factory=lambda: StepSlot(""))
    about: dict[str, Any] = field(default_factory=new_dict)
    key: str = ""
    spent: dict[str, float] = field(default_factory=new_dict)
    outer: RunningStep | None = None
    is_awaited_in_line: bool = True
    may_restart: bool = True
    is_function: bool = False

    def enclosing(self) -> Iterator[RunningStep]:
        """Iterate over this step and those around it."""
        step: RunningStep | None = self
        while step is not None:
            yield step
            step = step.outer

    @property
    def may_suspend(self) -> bool:
        """Return whether nothing but functional workflows is around the code that runs here."""
        return all(each.is_function for each in self.enclosing())


_running: ContextVar[RunningStep | None] = ContextVar("perdure_step", default=None)


def step_key() -> str:
    """Return the idempotency key of the running step: it stays over retries and resumes, and differs in a fork.

    Hand it to a service that does a thing once for each key, such as a payment provider. Threads may call this, too.
    Raises RuntimeError outside of a step.
    """
    running = _running.get()
    if running is None:
        raise RuntimeError("step_key() is for the function of a step; outside of one, use ctx.idempotency_key")
    return running.key


def is_inside_step() -> bool:
    """Return whether the calling code runs in a step."""
    return _running.get() is not None


def running_step(owner: object) -> RunningStep | None:
    """Return the step of `owner` that the calling code runs in, if any."""
    running = _running.get()
    return running if running is not None and running.owner is owner else None


class StepTask:
    """Run a step in a task of its own.

    Whoever awaits or cancels it waits for its end, so that no part of a step goes on unnoticed.
    """

    def __init__(self, owner: ActivationRecorder) -> None:
        self._owner = owner
        self._task: asyncio.Task[Any] | None = None
        self._is_in_thread = False
        self.is_interrupted = False
        """True if it was cancelled. A function in a thread can't be: its result is awaited and recorded."""

    def start(self, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Start the task. Return a coroutine that waits for its end."""
        self._task = asyncio.ensure_future(work)
        return finished(self._task, interrupt=self.interrupt)

    @property
    def has_ended(self) -> bool:
        """Return whether the task has ended."""
        return self._task is None or self._task.done()

    def interrupt(self) -> None:
        """Cancel the task, unless its function runs in a thread."""
        self.is_interrupted = True
        if self._task is not None and not self._is_in_thread:
            self._task.cancel()

    async def wait(self) -> None:
        """Wait for the end of the task."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def call(self, fn: Callable[..., Any], args: tuple[Any, ...], running: RunningStep) -> Any:
        """Call the function of the step. One that is not async runs in a thread."""
        task = running.task = asyncio.current_task()
        assert task is not None, "a step runs in a task"
        token = _running.set(running)
        try:
            with no_exit():
                result = fn(*args) if is_async(fn) else await self._call_in_thread(fn, args)
                return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError as error:
            # When the handler is suspended, the tasks that wait are cancelled: code that awaits them sees it, too.
            if task.cancelling() or self._owner.waits_for is not None:
                raise
            raise RuntimeError("something that the function of the step awaited was cancelled") from error
        finally:
            _running.reset(token)

    async def _call_in_thread(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._is_in_thread = True
        try:
            result = await in_thread(fn, *args)
        finally:
            self._is_in_thread = False
        if self.is_interrupted and inspect.isawaitable(result):
            # The function was async after all: its work is still to come, and can be cancelled.
            self.interrupt()
        return result


def in_thread(fn: Callable[..., ResultT], *args: Any) -> Coroutine[Any, Any, ResultT]:
    """Call a function in a thread. If it raises StopIteration, which no future can hold, raise RuntimeError."""

    def call() -> ResultT:
        try:
            with no_exit():
                return fn(*args)
        except StopIteration as error:
            raise RuntimeError("a function raised StopIteration") from error

    return asyncio.to_thread(call)


def result_types(fn: Callable[..., Any]) -> tuple[object, ...]:
    """Return the annotated result type of a step's function, if it can be read."""
    try:
        hints = get_type_hints(without_partial(fn))
    except (NameError, TypeError):
        return ()
    return (hints["return"],) if "return" in hints else ()


def without_partial(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside of partials."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether a function can be seen to return a coroutine."""
    fn = without_partial(fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


_BACKOFF_IN_PLACE_SECONDS_MAX = 5.0
_NONE = AttemptsRecord(0)


def is_final(error: BaseException) -> bool:
    """Return whether an error belongs to the run itself, so that another attempt can't help."""
    return isinstance(error, (RunError, WorkflowCheckpointException, BudgetExceededError))


class Retries:
    """Count the failed attempts at an activation or step. In a checkpointed run the count goes on after a restart."""

    def __init__(
        self, context: ActivationContext, place: str, retry: Retry | None, executor_id: str, step: str | None = None
    ) -> None:
        self._context = context
        # Without a retry policy nothing is recorded under the key.
        self._key = key = f"{place}{ATTEMPTS}"
        self._retry = retry
        self._executor_id = executor_id
        self._step = step
        found = context.journal.find(key) if retry is not None else None
        self._record = _NONE if found is None else AttemptsRecord.of(found)

    @property
    def count(self) -> int:
        """Return how many attempts have failed."""
        return self._record.count

    @property
    def due(self) -> Moment | None:
        """Return when the next attempt may start."""
        return self._record.due

    async def fail(self, error: Exception) -> str | None:
        """Count a failed attempt. Return a text about the next one; None if there is none, and reset the count."""
        count, retry = self.count + 1, self._retry
        if retry is None or count >= retry.attempts or is_final(error) or not retry.covers(error):
            if self.count:
                await self._save(AttemptsRecord(0, failures=self._record.failures))
            self._record = AttemptsRecord(count, failures=self._record.failures)
            return None
        measure("perdure.retry", workflow=self._context.graph.name)
        wait = retry.wait_after(count)
        due, at = moment_of(self._context.clock, wait, "a backoff"), now(self._context.clock)
        failure = Failure.of_attempt(error, self._executor_id, self._step, attempt=count, at=at)
        self._context.emit(
            WorkflowEvent(
                "attempt_failed", failure, executor_id=self._executor_id, origin=WorkflowEventSource.FRAMEWORK
            )
        )
        failures = [*self._record.failures, (count, failure.error_type, failure.message, failure.step, at)]
        await self._save(AttemptsRecord(count, due, f"{type(error).__name__}: {error}", failures))
        return f"attempt {count} of {retry.attempts} failed: {self._record.error}; the next starts in {wait:g} seconds"

    def events(self) -> list[StepEvent]:
        """Return the events of the failed attempts."""
        return [
            ("attempt_failed", plain_data(Failure(kind, message, None, self._executor_id, (), step, attempt, at)))
            for attempt, kind, message, step, at in self._record.failures
        ]

    async def _save(self, record: AttemptsRecord) -> None:
        self._record = record
        await self._context.record_durably(self._key, record.encoded())

    async def wait_until_due(self, *, may_suspend: bool) -> bool:
        """Wait until the next attempt may start. Return False at once if that is long and the handler may suspend."""
        seconds = 0.0 if self.due is None else seconds_until(self._context.clock, self.due)
        if seconds > _BACKOFF_IN_PLACE_SECONDS_MAX and may_suspend and self._context.keeps_records:
            return False
        if seconds:
            await self._context.clock.sleep(seconds)
        return True
