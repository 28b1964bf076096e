"""A step in flight: the task that does it, what its function can ask for, and the thread that can't be cancelled."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter, defaultdict
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING, Any, get_type_hints

from perdure.data import mutable
from perdure.engine.branches import inner_trunk
from perdure.engine.parking import finished
from perdure.graph import Numbering, no_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from perdure.engine.parking import Parking
    from perdure.engine.reading import Reading


@mutable
class Inside:
    """What the function of a step is inside of, anew for each attempt at it."""

    owner: object
    """Whose step it is: the function may run another workflow, whose steps are not inside of this one."""
    place: str
    key: str
    calls: Counter[str] = field(default_factory=Counter[str])
    """By name: how many steps it has called. It starts anew with each attempt, so that they are known again."""
    numberings: defaultdict[str, Numbering] = field(default_factory=lambda: defaultdict(Numbering))
    """By name: the numbers of what else it begins."""
    spent: dict[str, float] = field(default_factory=dict[str, float])
    """What it spends, so that it is counted with the record."""
    outer: Inside | None = None
    """The step of the same owner around it."""
    may_be_left: bool = True
    """Whether it is simply begun again, if it is left in the middle to wait for an answer."""
    reading: Reading | None = None
    """Of the function of a workflow: how it reads. Such a step can be left to wait for anything."""

    def around(self) -> Iterator[Inside]:
        """This step, and those around it."""
        inside: Inside | None = self
        while inside is not None:
            yield inside
            inside = inside.outer

    @property
    def is_scope(self) -> bool:
        """Whether there is nothing around but functions of workflows, which can be left as a handler can."""
        return all(each.reading is not None for each in self.around())

    def spent_of(self, name: str) -> float:
        """What it and the steps around it have spent of something."""
        around = 0 if self.outer is None else self.outer.spent_of(name)
        return around + self.spent.get(name, 0)


_inside: ContextVar[Inside | None] = ContextVar("perdure_step", default=None)


def step_key() -> str:
    """The idempotency key of the step that is running: the same over retries and resumes, another in a fork.

    Hand it to a service that does a thing once for each key, such as a payment provider. It can be read in threads,
    too. Raises RuntimeError outside of a step.
    """
    inside = _inside.get()
    if inside is None:
        raise RuntimeError("step_key() is for the function of a step; outside of one, use ctx.idempotency_key")
    return inside.key


def is_inside_step() -> bool:
    """Whether a step is running. It is finished or not, and can't be left in the middle to wait."""
    return _inside.get() is not None


def enclosing(owner: object) -> Inside | None:
    """The step of this owner that is running here, if one is."""
    inside = _inside.get()
    return inside if inside is not None and inside.owner is owner else None


class Flight:
    """A step that is being done, in a task of its own.

    Whoever awaits it or cancels it waits for its end: nothing of a step goes on when nobody knows of it any more.
    """

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        self._task: asyncio.Task[Any] | None = None
        self._is_in_thread = False
        self.is_interrupted = False
        """Somebody wants it to end. A function in a thread can't: it is waited for, and what it gave is recorded."""

    def take_off(self, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Begin; what comes back is to be awaited."""
        self._task = asyncio.ensure_future(work)
        return finished(self._task, interrupt=self.interrupt)

    @property
    def has_landed(self) -> bool:
        """Whether it has ended."""
        return self._task is None or self._task.done()

    def interrupt(self) -> None:
        """Let it end, as soon as it can."""
        self.is_interrupted = True
        if self._task is not None and not self._is_in_thread:
            self._task.cancel()

    async def wait(self) -> None:
        """Wait for its end."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def called(self, fn: Callable[..., Any], args: tuple[Any, ...], inside: Inside) -> Any:
        """Call a function that may be async. A plain one runs in a thread, so that it holds up nobody."""
        task = asyncio.current_task()
        assert task is not None, "a step is done in a task"
        token = _inside.set(inside)
        try:
            with no_exit(), inner_trunk():
                outcome = fn(*args) if is_async(fn) else await self._in_thread(fn, args)
                return await outcome if inspect.isawaitable(outcome) else outcome
        except asyncio.CancelledError as error:
            # When the handler is left, the tasks end that wait: who waits for them hears of it from them, too.
            if task.cancelling() or self._parking.parked is not None:
                raise
            raise RuntimeError("something that the function of the step waited for was cancelled") from error
        finally:
            _inside.reset(token)

    async def _in_thread(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._is_in_thread = True
        try:
            outcome = await asyncio.to_thread(_plainly, fn, args)
        finally:
            self._is_in_thread = False
        if self.is_interrupted and inspect.isawaitable(outcome):
            # It was not the work that ran in the thread: that is still to come, and can be cancelled.
            self.interrupt()
        return outcome


def _plainly(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return fn(*args)
    except StopIteration as error:
        # No future can hold a StopIteration: whoever waits for the thread would wait for ever.
        raise RuntimeError("the function of the step raised StopIteration") from error


def result_types(fn: Callable[..., Any]) -> tuple[object, ...]:
    """What the function of a step says that it returns, if it says it in a way that can be read."""
    try:
        hints = get_type_hints(_innermost(fn))
    except (NameError, TypeError):
        return ()
    return (hints["return"],) if "return" in hints else ()


def _innermost(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a function gives a coroutine, as far as it can be seen."""
    fn = _innermost(fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004
