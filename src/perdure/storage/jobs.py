"""Jobs for a thread, and how whoever has handed one in hears of its end: in a future, or awaiting it."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

R_contra = TypeVar("R_contra", contravariant=True)
T = TypeVar("T")


class Job(Protocol[R_contra]):
    """Something to be done with a resource, in a thread."""

    def begin(self) -> bool:
        """Whether anybody still wants it."""
        ...

    def do(self, resource: R_contra) -> None:
        """Do it. Whatever becomes of it is for whoever waits."""
        ...

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that it could not be done."""
        ...


class Posted(Generic[R_contra, T]):
    """A job whose end is told by a future that any thread may look at."""

    __slots__ = ("_work", "future")

    def __init__(self, work: Callable[[R_contra], T]) -> None:
        self._work = work
        self.future: Future[T] = Future()

    def begin(self) -> bool:
        return self.future.set_running_or_notify_cancel()

    def do(self, resource: R_contra) -> None:
        try:
            result = self._work(resource)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the job
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class Awaited(Generic[R_contra, T]):
    """A job that a coroutine awaits. It costs a third of a posted one that is wrapped for the event loop."""

    __slots__ = ("_loop", "_work", "future")

    def __init__(self, work: Callable[[R_contra], T]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def begin(self) -> bool:
        return not self.future.cancelled()

    def do(self, resource: R_contra) -> None:
        try:
            result = self._work(resource)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the job
            self.fail(error)
        else:
            # A loop that is closed has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_succeed, self.future, result)

    def fail(self, error: BaseException) -> None:
        fail_all(self._loop, [self.future], error)


def end_all(loop: asyncio.AbstractEventLoop, futures: Iterable[asyncio.Future[None]]) -> None:
    """Wake all who wait in one event loop, at once. Any thread may do so."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_end, futures)


def fail_all(loop: asyncio.AbstractEventLoop, futures: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    """Tell all who wait in one event loop what has happened."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_fail, futures, error)


def _end(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        _succeed(future, None)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(futures: Iterable[asyncio.Future[Any]], error: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
