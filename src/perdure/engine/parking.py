"""Waiting inside an activation: when a moment is, how long something may take, and leaving a handler until later."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Never, TypeVar

from perdure.data import frozen
from perdure.graph import require_no_exit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence

    from perdure.clock import Clock
    from perdure.kernel import Moment

ResultT = TypeVar("ResultT")

# A step that ends may be followed by another: until the handler has heard of its result, some turns of the loop pass.
_QUIET_TURNS = 8
_NONE: Counter[int] = Counter()


@frozen
class Parked:
    """What a handler that was left waits for."""

    wake_at: Moment | None = None
    awaits: str | None = None


class Parking:
    """Lets a handler wait for longer than the process may live: it is cancelled, and entered again when it is time.

    Steps in flight are finished first, so that they are not done again. The cancellation goes through all that the
    handler runs, as any would, so that nothing of it is left behind.

    The handler is called inside of `with parking`. It has returned afterwards, or was left, and `parked` says for what.
    """

    task: asyncio.Task[Any] | None = None
    """The task that calls the handler, set by who enters."""
    _cancelled_before = 0
    _in_flight = 0
    _is_over = False
    _resting = _NONE
    parked: Parked | None = None
    """What the handler waits for, once it was left."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._waiting: dict[asyncio.Future[None], tuple[Parked, asyncio.Task[Any]]] = {}
        """What is waited for, and by which task."""

    def __enter__(self) -> None:
        assert self.task is not None, "a handler runs in a task"
        self._cancelled_before = self.task.cancelling()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        task, self.task, self._is_over = self.task, None, True
        assert task is not None, "it is left by who has entered"
        for waiter in self._waiting:
            waiter.cancel()
        if isinstance(error, asyncio.CancelledError):
            return self._is_ours(error, task)
        went_on = self.parked is not None
        if went_on:
            # Our cancellation is taken back.
            self.parked = None
            task.uncancel()
        if error is not None:
            require_no_exit(error)
        elif went_on:
            raise RuntimeError(
                f"the handler of executor {self._owner!r} went on after it was cancelled to let it wait; "
                "let asyncio.CancelledError pass where you catch it"
            )
        return False

    def _is_ours(self, error: asyncio.CancelledError, task: asyncio.Task[Any]) -> bool:
        """Whether a cancellation is only that with which the handler is left, and ends here."""
        if self.parked is not None:
            task.uncancel()
        # Somebody else may have cancelled at the same time: then there is more than ours to it.
        if task.cancelling() > self._cancelled_before:
            return False
        if self.parked is None:
            raise RuntimeError(
                f"something that the handler of executor {self._owner!r} waited for was cancelled; "
                "catch asyncio.CancelledError where you await what you have cancelled"
            ) from error
        return True

    @contextmanager
    def working(self) -> Generator[None]:
        """Something is under way that has to be finished before the handler is left."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._look_soon()

    @contextmanager
    def resting(self, steps: Sequence[object]) -> Generator[None]:
        """Some steps under way wait for the handler to be left, and need not be finished before.

        One in which several things wait is still one step.
        """
        self._resting = self._resting + Counter(map(id, steps))
        try:
            yield
        finally:
            self._resting = self._resting - Counter(map(id, steps))

    async def park(self, *, wake_at: Moment | None = None, awaits: str | None = None) -> Never:
        """Leave the handler until a moment, or until a request is answered. Of several waits the first one counts."""
        if self._is_over:
            # A step that outlived the handler: nobody is left who could be entered again.
            raise asyncio.CancelledError
        self.require_not_left()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.current_task()
        assert task is not None, "what waits is awaited in a task"
        self._waiting[waiter] = (Parked(wake_at, awaits), task)
        self._look_soon()
        try:
            await waiter
        finally:
            del self._waiting[waiter]
        raise AssertionError("nobody ends a wait but by cancelling it")

    def require_not_left(self) -> None:
        """Raise CancelledError if the handler is being left: what it would begin now, its next entry begins."""
        if self.parked is not None:
            raise asyncio.CancelledError

    def _look_soon(self) -> None:
        if self._may_leave:
            assert self.task is not None, "the handler is running"
            asyncio.get_running_loop().call_soon(self._look, _QUIET_TURNS, self.task.cancelling())

    @property
    def _may_leave(self) -> bool:
        is_quiet = self._in_flight == len(self._resting)
        return bool(self._waiting) and is_quiet and self.task is not None and self.parked is None

    def _look(self, turns: int, cancelled_before: int) -> None:
        """Leave the handler if it has waited for some turns and nothing else was under way.

        This is called by the loop and never inside the handler, so that the cancellation reaches it where it waits. The
        tasks that wait end with it: a handler in which something swallows the cancellation gets it from them.

        Cancellations that it has outlived don't count: a task group that has failed may leave one behind.
        """
        if not self._may_leave:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._look, turns - 1, cancelled_before)
            return
        assert self.task is not None, "the handler is running"
        reasons = [parked for parked, _ in self._waiting.values()]
        self.parked = Parked(
            min((each.wake_at for each in reasons if each.wake_at is not None), default=None),
            next((each.awaits for each in reasons if each.awaits is not None), None),
        )
        self._cancelled_before = cancelled_before
        for task in {self.task, *(task for _, task in self._waiting.values())}:
            task.cancel()


class OutOfTimeError(Exception):
    """Something did not end in time. Its cause is how it ended, if that was with an error."""


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of the work; if it takes longer it is cancelled and awaited. Raises OutOfTimeError."""
    task, alarm = asyncio.ensure_future(work), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        is_late = not task.done()
    finally:
        await stop((task, alarm))
    if is_late and task.cancelled():
        raise OutOfTimeError
    if is_late and (error := task.exception()) is not None:
        raise OutOfTimeError from error
    return task.result()


async def finished(work: Awaitable[ResultT], *, interrupt: Callable[[], None] | None = None) -> ResultT:
    """The result of work that goes on to its end, however often whoever waits for it is interrupted.

    `interrupt` is told each time.
    """
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
    """Cancel what runs and wait for it, however often that is interrupted: nothing of it goes on afterwards."""
    interruption: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            interruption = error
    for task in tasks:
        has_failed(task)  # an exception that nobody has looked at would be told by asyncio
    if interruption is not None:
        raise interruption


def has_failed(task: asyncio.Future[Any]) -> bool:
    """Whether a task has ended otherwise than well."""
    return task.done() and (task.cancelled() or task.exception() is not None)
