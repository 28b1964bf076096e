"""One thread that owns a resource and does the jobs given to it, one after the other.

The thread is a daemon, so it never holds up the end of the program. It starts when there is a job. The resource
is opened in it, used in it only, and closed in it; also before the process forks, since a database connection
must not be inherited. Parent and child both open it again when they need it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from perdure.storage.jobs import Awaited, Posted

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.storage.jobs import Job


class Closable(Protocol):
    """What a worker can own."""

    def close(self) -> None:
        """Let go of everything."""
        ...


R = TypeVar("R", bound=Closable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Closing:
    """Close the resource, and end the thread unless it is only for a while."""

    is_last: bool
    future: Future[None]


_Jobs: TypeAlias = "queue.SimpleQueue[Job[R] | _Closing]"


class Worker(Generic[R]):
    """Runs jobs on a resource that `open_resource` opens."""

    is_here = False

    def __init__(self, name: str, open_resource: Callable[[], R]) -> None:
        self._name = name
        self._open_resource = open_resource
        self._jobs: _Jobs[R] | None = None
        _workers.add(self)

    async def do(self, work: Callable[[R], T]) -> T:
        """The result of the job, awaited."""
        job = Awaited(work)
        self._put(job)
        return await job.future

    def do_blocking(self, work: Callable[[R], T]) -> T:
        """The result of the job, waited for by the calling thread."""
        return self.post(work).result()

    def post(self, work: Callable[[R], T]) -> Future[T]:
        """Hand in a job without waiting for it."""
        job = Posted(work)
        self._put(job)
        return job.future

    def _put(self, job: Job[R]) -> None:
        with _lock:
            if self._jobs is None:
                self._jobs = self._start()
            self._jobs.put(job)

    async def close(self) -> None:
        """Finish the jobs handed in so far and close the resource. A further job opens it again."""
        with _lock:
            jobs, self._jobs = self._jobs, None
        if jobs:
            await asyncio.wrap_future(_close(jobs, is_last=True))

    def pause(self) -> None:
        """Close the resource until the next job, and wait for that."""
        if self._jobs:
            _close(self._jobs, is_last=False).result()

    def forget_thread(self) -> None:
        """Take note, in a forked child, that only the thread that forked is left."""
        self._jobs = None

    def _start(self) -> _Jobs[R]:
        jobs: _Jobs[R] = queue.SimpleQueue()
        threading.Thread(target=_run, args=(jobs, self._open_resource), name=self._name, daemon=True).start()
        # A worker that nobody refers to any more gets no further jobs.
        weakref.finalize(self, _close, jobs, is_last=True).atexit = False
        return jobs


def _close(jobs: _Jobs[Any], *, is_last: bool) -> Future[None]:
    future: Future[None] = Future()
    jobs.put(_Closing(is_last, future))
    return future


def _run(jobs: _Jobs[R], open_resource: Callable[[], R]) -> None:
    resource: R | None = None
    while True:
        job = jobs.get()
        if isinstance(job, _Closing):
            _do_close(job, resource)
            resource = None
            if job.is_last:
                return
        elif job.begin():
            resource = _do(job, resource, open_resource)
        # What the job holds must not live on until the next one comes.
        del job


def _do(job: Job[R], resource: R | None, open_resource: Callable[[], R]) -> R | None:
    """Do the job; the resource that is open afterwards."""
    try:
        resource = resource or open_resource()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the job
        job.fail(error)
    else:
        job.do(resource)
    return resource


def _do_close(job: _Closing, resource: Closable | None) -> None:
    # It is closed although nobody may wait for that any more.
    is_awaited = job.future.set_running_or_notify_cancel()
    try:
        if resource is not None:
            resource.close()
    finally:
        if is_awaited:
            job.future.set_result(None)


_workers: weakref.WeakSet[Worker[Any]] = weakref.WeakSet()
_lock = threading.Lock()


def _before_fork() -> None:
    # Until the fork is done nobody can hand in a job, which would open a resource again.
    _lock.acquire()
    for worker in list(_workers):
        worker.pause()


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - the child's own, which nobody holds
    _lock = threading.Lock()
    for worker in list(_workers):
        worker.forget_thread()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
