"""A few threads that share a resource and do the jobs given to them side by side.

The threads are daemons, so they never hold up the end of the program. They start when there are jobs. The resource,
which must bear several threads, is opened by the first job and closed with the crew. A forked child has a crew without
threads and without a resource, and makes its own.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from perdure.storage.jobs import Awaited, Posted
from perdure.storage.postgres.forks import keep_unused
from perdure.storage.worker import Closable

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.storage.jobs import Job

R = TypeVar("R", bound=Closable)
T = TypeVar("T")


_Jobs: TypeAlias = "queue.SimpleQueue[Job[R] | None]"


class _Shift(Generic[R]):
    """The threads that are at work, from the first job to the closing. None in a queue ends one of them."""

    def __init__(self, name: str, open_resource: Callable[[], R], hands: int) -> None:
        self.orderly: _Jobs[R] = queue.SimpleQueue()
        self.others: _Jobs[R] = queue.SimpleQueue()
        self.ended: Future[None] = Future()
        # It comes to its end although nobody may wait for that any more.
        self.ended.set_running_or_notify_cancel()
        self._open_resource = open_resource
        self._lock = threading.Lock()
        self._resource: R | None = None
        self._at_work = hands
        for number in range(hands):
            jobs = self.orderly if number == 0 else self.others
            threading.Thread(target=self._work, args=(jobs,), name=f"{name} {number}", daemon=True).start()
        self._hands = hands

    def end(self) -> None:
        """Let each thread end when it has done what was handed in so far; the last one closes the resource."""
        self.orderly.put(None)
        for _ in range(self._hands - 1):
            self.others.put(None)

    def _work(self, jobs: _Jobs[R]) -> None:
        while (job := jobs.get()) is not None:
            if job.begin():
                self._do(job)
            # What the job holds must not live on until the next one comes.
            del job
        self._leave()

    def _do(self, job: Job[R]) -> None:
        try:
            resource = self._opened()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the job
            job.fail(error)
        else:
            job.do(resource)

    def _opened(self) -> R:
        with self._lock:
            if self._resource is None:
                self._resource = self._open_resource()
            return self._resource

    def _leave(self) -> None:
        with self._lock:
            self._at_work -= 1
            if self._at_work:
                return
        resource, self._resource = self._resource, None
        try:
            if resource is not None:
                resource.close()
        finally:
            self.ended.set_result(None)


class Crew(Generic[R]):
    """Runs jobs on a resource that `open_resource` opens. `orderly` runs its own one after the other."""

    is_here = False

    def __init__(self, name: str, open_resource: Callable[[], R], *, hands: int) -> None:
        self._name = name
        self._open_resource = open_resource
        self._hands = max(2, hands)
        self._shift: _Shift[R] | None = None
        self.orderly = _Orderly(self)
        _crews.add(self)

    async def do(self, work: Callable[[R], T]) -> T:
        """The result of the job, awaited."""
        return await self.handed_in(work, is_orderly=False)

    def do_blocking(self, work: Callable[[R], T]) -> T:
        """The result of the job, waited for by the calling thread."""
        return self.post(work).result()

    def post(self, work: Callable[[R], T]) -> Future[T]:
        """Hand in a job without waiting for it."""
        return self.hand_in(work, is_orderly=False)

    def hand_in(self, work: Callable[[R], T], *, is_orderly: bool) -> Future[T]:
        """Hand in a job for any of the threads, or for the one that keeps the order."""
        job = Posted(work)
        self._put(job, is_orderly=is_orderly)
        return job.future

    async def handed_in(self, work: Callable[[R], T], *, is_orderly: bool) -> T:
        """The same, awaited."""
        job = Awaited(work)
        self._put(job, is_orderly=is_orderly)
        return await job.future

    def _put(self, job: Job[R], *, is_orderly: bool) -> None:
        with _lock:
            if self._shift is None:
                self._shift = _Shift(self._name, self._open_resource, self._hands)
                # A crew that nobody refers to any more gets no further jobs.
                weakref.finalize(self, self._shift.end).atexit = False
            (self._shift.orderly if is_orderly else self._shift.others).put(job)

    async def close(self) -> None:
        """Finish the jobs handed in so far and close the resource. A further job opens it again."""
        with _lock:
            shift, self._shift = self._shift, None
        if shift:
            shift.end()
            await asyncio.wrap_future(shift.ended)

    def forget_threads(self) -> None:
        """Take note, in a forked child, that only the thread that forked is left."""
        keep_unused(self._shift)
        self._shift = None


class _Orderly(Generic[R]):
    """The jobs of a crew that are done in the order in which they were handed in."""

    is_here = False

    def __init__(self, crew: Crew[R]) -> None:
        self._reference = weakref.ref(crew)

    async def do(self, work: Callable[[R], T]) -> T:
        return await self._crew.handed_in(work, is_orderly=True)

    def do_blocking(self, work: Callable[[R], T]) -> T:
        return self.post(work).result()

    def post(self, work: Callable[[R], T]) -> Future[T]:
        return self._crew.hand_in(work, is_orderly=True)

    @property
    def _crew(self) -> Crew[R]:
        crew = self._reference()
        assert crew is not None, "the crew of a store that is gone"
        return crew

    async def close(self) -> None:
        crew = self._reference()
        if crew is not None:
            await crew.close()


_crews: weakref.WeakSet[Crew[Any]] = weakref.WeakSet()
_lock = threading.Lock()


def _before_fork() -> None:
    _lock.acquire()


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - the child's own, which nobody holds
    _lock = threading.Lock()
    for crew in list(_crews):
        crew.forget_threads()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
