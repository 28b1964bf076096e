"""Small helpers for asyncio tasks: time limits, and waiting for work to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from perdure.clock import Clock

ResultT = TypeVar("ResultT")


class OutOfTimeError(Exception):
    """Work did not end in time. The cause is the error that it ended with, if any."""


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of `work`. If it takes longer, cancel it, wait for its end and raise OutOfTimeError."""
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
