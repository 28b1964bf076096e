"""Suspension: stop a handler that waits, and re-enter it from the top when the wait is over.

A coroutine can't be stored. So the handler's task is cancelled, the superstep commits without it, and its next entry
gets the recorded results of its steps. A wait in the handler's own task suspends it at once, unless a subtask that has
done recorded work still runs. In that case, and while waits happen in subtasks, other code may still make progress: the
handler is suspended after a grace period in which no recorded work was in flight. Unrecorded work that this cuts off is
repeated by the next entry.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Never
from weakref import WeakSet

from perdure.checkpoint import plain_record
from perdure.clock import Clock, moment_of, now, seconds_until
from perdure.codec import document
from perdure.data_classes import new_dict, value_class
from perdure.graph import require_no_exit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
    from datetime import datetime, timedelta

    from perdure.engine.steps import Steps
    from perdure.kernel import Moment

_GRACE_SECONDS = 0.25
"""A shorter period would cut off more unrecorded work; a longer one would delay the commit of the superstep."""


@value_class
class Wait:
    """The moment or the request that a suspended handler waits for."""

    wake_at: Moment | None = None
    request_id: str | None = None


@dataclass(eq=False)
class Suspender:
    """Suspend one attempt at an activation when it waits.

    After `end` the handler has returned, or `waits_for` says why it was suspended. Steps in flight are finished first,
    so that they are not repeated. The cancellation passes through everything that the handler awaits.

    Attributes:
        task: The handler's own task; None when it has ended.
        cancelled_before: How often the task was cancelled before the handler began.
    """

    executor_id: str
    clock: Clock
    task: asyncio.Task[Any] | None
    cancelled_before: int
    waits_for: Wait | None = None
    _in_flight: int = 0
    _waits: dict[asyncio.Future[None], tuple[Wait, asyncio.Task[Any]]] = field(default_factory=new_dict)
    _waiting_steps: Counter[int] = field(default_factory=Counter[int])
    _grace: asyncio.Task[None] | None = None
    _subtasks: WeakSet[asyncio.Task[Any]] = field(default_factory=WeakSet["asyncio.Task[Any]"])
    _dependent: WeakSet[asyncio.Task[Any]] = field(default_factory=WeakSet["asyncio.Task[Any]"])

    def end(self, error: BaseException | None) -> bool:
        """Note that the handler has ended, with this error. Return whether it was suspended."""
        task, self.task = self.task, None
        assert task is not None, "a handler ends once"
        self._stop_grace()
        for waiter in self._waits:
            waiter.cancel()
        if isinstance(error, asyncio.CancelledError):
            return self._settle_cancellation(error, task)
        went_on = self.waits_for is not None
        if went_on:
            self.waits_for = None
            task.uncancel()
        if error is not None:
            require_no_exit(error)
        elif went_on:
            raise RuntimeError(
                f"the handler of executor {self.executor_id!r} went on after it was cancelled to be suspended; "
                "do not catch asyncio.CancelledError, or raise it again"
            )
        return False

    def _settle_cancellation(self, error: asyncio.CancelledError, task: asyncio.Task[Any]) -> bool:
        """Take back our own cancellation. Return whether it was the only one."""
        if self.waits_for is not None:
            task.uncancel()
        # Somebody else may have cancelled the task at the same time. That cancellation must not be swallowed.
        if task.cancelling() > self.cancelled_before:
            return False
        if self.waits_for is None:
            raise RuntimeError(
                f"something that the handler of executor {self.executor_id!r} awaited was cancelled; catch "
                "asyncio.CancelledError where you await a task that you have cancelled"
            ) from error
        return True

    def note_subtask(self, task: asyncio.Task[Any], *, is_of_function: bool) -> None:
        """Remember a task of the handler that does recorded work. Those of a function can be cancelled with it."""
        self._subtasks.add(task)
        if is_of_function:
            self._dependent.add(task)

    def cancel_subtasks(self) -> None:
        """Cancel the tasks that a suspended or failed function left behind. Its next entry starts them again."""
        for task in list(self._dependent):
            task.cancel()

    @contextmanager
    def working(self) -> Generator[None]:
        """Keep the handler from being suspended while recorded work is in flight."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self.restart_grace()

    @contextmanager
    def waiting_in(self, steps: Sequence[object]) -> Generator[None]:
        """Do not count these steps as work: they only wait, and the next entry restarts them."""
        # Several things may wait in one step.
        self._waiting_steps = self._waiting_steps + Counter(map(id, steps))
        try:
            yield
        finally:
            self._waiting_steps = self._waiting_steps - Counter(map(id, steps))

    async def wait(self, wait: Wait, *, is_in_own_task: bool) -> Never:
        """Wait until the handler is suspended. Of several waits the earliest moment counts."""
        if self.task is None:
            # A step has outlived its handler: there is nothing left to re-enter.
            raise asyncio.CancelledError
        self.require_active()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.current_task()
        assert task is not None, "a coroutine is awaited in a task"
        self._waits[waiter] = (wait, task)
        try:
            if is_in_own_task and self._may_suspend and all(each.done() for each in self._subtasks):
                self._suspend()
            else:
                self.restart_grace()
            await waiter
        finally:
            del self._waits[waiter]
        raise AssertionError("a wait ends with a cancellation")

    def require_active(self) -> None:
        """Raise CancelledError if the handler is being suspended: its next entry does what comes now."""
        if self.waits_for is not None:
            raise asyncio.CancelledError

    def restart_grace(self) -> None:
        """Start the grace period anew, if all that the handler does is to wait."""
        self._stop_grace()
        if self._may_suspend:
            self._grace = asyncio.ensure_future(self._suspend_after_grace())

    def _stop_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    @property
    def _may_suspend(self) -> bool:
        # Every step in flight only waits.
        is_quiet = self._in_flight == len(self._waiting_steps)
        return bool(self._waits) and is_quiet and self.task is not None and self.waits_for is None

    async def _suspend_after_grace(self) -> None:
        while self._may_suspend:
            assert self.task is not None, "the handler is running"
            cancelled_before = self.task.cancelling()
            # A clock may decide itself how a grace period passes.
            wait: Callable[[], Awaitable[None]] | None = getattr(self.clock, "wait_grace", None)
            await (self.clock.sleep(_GRACE_SECONDS) if wait is None else wait())
            # A cancellation from outside may be on its way to the handler: then it ends without us.
            if self._may_suspend and self.task.cancelling() == cancelled_before:
                self._suspend()

    def _suspend(self) -> None:
        """Cancel the handler, and the tasks that wait: code that swallows the first cancellation gets another one."""
        assert self.task is not None, "the handler is running"
        waits = [wait for wait, _ in self._waits.values()]
        self.waits_for = Wait(
            min((each.wake_at for each in waits if each.wake_at is not None), default=None),
            next((each.request_id for each in waits if each.request_id is not None), None),
        )
        # Cancellations that the handler has outlived don't count: a failed task group may leave one behind.
        self.cancelled_before = self.task.cancelling()
        for task in {self.task, *(task for _, task in self._waits.values())}:
            task.cancel()


def begin_sleep(steps: Steps, until: datetime | timedelta | float) -> Coroutine[Any, Any, None]:
    """Return a coroutine that waits until a moment. The first entry to come here decides the moment."""
    owner, scope = steps.owner, steps.scope
    context, is_own = owner.context, steps.is_in_own_task
    due = moment_of(context.clock, until, "a sleep")
    key = steps.identities.key_of_sleep(until, scope, is_own=is_own)
    found = context.journal.find(key)
    if found is None:
        context.journal.record_soon(key, lambda: document(due))
    return _sleep(steps, due if found is None else plain_record(found, str))


async def _sleep(steps: Steps, due: Moment) -> None:
    suspender, clock = steps.owner.suspender, steps.owner.context.clock
    suspender.require_active()
    if not steps.owner.context.keeps_records:
        await clock.sleep(seconds_until(clock, due))
    elif due > now(clock):
        if not steps.may_suspend:
            raise RuntimeError("a step can't be suspended: call ctx.sleep outside of steps")
        await steps.wait(Wait(wake_at=due))
    else:
        suspender.restart_grace()
