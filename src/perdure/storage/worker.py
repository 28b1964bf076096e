"""Threads that do a store's blocking work.

Worker threads are daemons, so they never delay the end of the program. They start with the first job and end when the
worker is closed. Before the process forks, a worker closes its resource, because a database connection must not be
shared with a child; parent and child open it again when they need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable


class Closable(Protocol):
    """A resource of a worker."""

    def close(self) -> None:
        """Release everything."""
        ...


R = TypeVar("R", bound=Closable)
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_Jobs: TypeAlias = "queue.SimpleQueue[tuple[Future[Any], Callable[[R], Any]] | None]"


async def wait_for(job: Future[T]) -> T:
    """Wait for a job and return its result. Cancelling the caller does not cancel the job."""
    if not job.done():
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def notify(_: Future[T]) -> None:
            resolve(loop, [done])

        job.add_done_callback(notify)
        await done
    return job.result()


def resolve(
    loop: asyncio.AbstractEventLoop, futures: list[asyncio.Future[None]], error: BaseException | None = None
) -> None:
    """End futures of one event loop, all in one callback, from any thread."""

    def end() -> None:
        for future in futures:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    # A closed loop has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(end)


class JobRunner(Generic[R_co]):
    """Run jobs on a resource."""

    is_inline = False
    """A job is done when `submit` returns."""

    def submit(self, work: Callable[[R_co], T], *, ordered: bool = False) -> Future[T]:
        """Queue a job. Ordered jobs run one after the other, in the order of submission."""
        raise NotImplementedError

    async def do(self, work: Callable[[R_co], T]) -> T:
        """Queue a job and wait for its result. A job whose caller is cancelled before it begins is not done."""
        job = self.submit(work)
        try:
            return await wait_for(job)
        except asyncio.CancelledError:
            job.cancel()
            raise

    async def close(self) -> None:
        """Finish the jobs submitted so far and close the resource. A further job opens it again."""


class InlineWorker(JobRunner[R]):
    """Run jobs on the calling thread, one at a time."""

    is_inline = True

    def __init__(self, resource: R) -> None:
        self._resource = resource
        self._lock = threading.RLock()

    @override
    def submit(self, work: Callable[[R], T], *, ordered: bool = False) -> Future[T]:
        job: Future[T] = Future()
        with self._lock:
            _run(job, work, self._resource)
        return job


class Worker(JobRunner[R]):
    """Run jobs on threads that share a resource.

    Args:
        name: The name of the threads.
        open_resource: Opens the resource, on a worker thread. A single thread also uses and closes it.
        threads: The number of threads. The first one runs the ordered jobs.
        at_fork: "close" the resource before the process forks, or "abandon" it in the child.
    """

    def __init__(
        self,
        name: str,
        open_resource: Callable[[], R],
        *,
        threads: int = 1,
        at_fork: Literal["close", "abandon"] = "close",
    ) -> None:
        self._name = name
        self._open_resource = open_resource
        self._threads = threads
        self._at_fork = at_fork
        self._crew: _Crew[R] | None = None
        _workers.add(self)

    @override
    def submit(self, work: Callable[[R], T], *, ordered: bool = False) -> Future[T]:
        job: Future[T] = Future()
        with _lock:
            crew = self._crew
            if crew is None:
                crew = self._crew = _Crew(self._name, self._open_resource, self._threads)
                # The threads end when nobody refers to the worker any more.
                weakref.finalize(self, crew.end).atexit = False
            (crew.ordered if ordered else crew.unordered).put((job, work))
        return job

    @override
    async def close(self) -> None:
        with _lock:
            crew, self._crew = self._crew, None
        if crew:
            crew.end()
            await asyncio.wrap_future(crew.ended)

    def prepare_fork(self) -> None:
        """Close the resource, unless the child is to abandon it. The caller holds the lock of all workers."""
        if self._crew and self._at_fork == "close":
            self._crew.end()
            self._crew.ended.result()
            self._crew = None

    def forget_parent(self) -> None:
        """Drop the parent's threads in a forked child, and never finalize their resource."""
        if self._crew:
            abandoned.append(self._crew)
            self._crew = None


class _Crew(Generic[R]):
    """The threads of a worker, from the first job until it is closed. None in a queue ends one thread."""

    def __init__(self, name: str, open_resource: Callable[[], R], threads: int) -> None:
        self.ordered: _Jobs[R] = queue.SimpleQueue()
        self.unordered: _Jobs[R] = self.ordered if threads == 1 else queue.SimpleQueue()
        self.ended: Future[None] = Future()
        # The end can't be cancelled, even if nobody waits for it.
        self.ended.set_running_or_notify_cancel()
        self._open_resource = open_resource
        self._lock = threading.Lock()
        self._resource: R | None = None
        self._threads = self._threads_left = threads
        for number in range(threads):
            jobs = self.unordered if number else self.ordered
            label = f"{name} {number}" if threads > 1 else name
            threading.Thread(target=self._work, args=(jobs,), name=label, daemon=True).start()

    def end(self) -> None:
        """End each thread after the jobs submitted so far. The last one closes the resource."""
        self.ordered.put(None)
        for _ in range(self._threads - 1):
            self.unordered.put(None)

    def _work(self, jobs: _Jobs[R]) -> None:
        while (entry := jobs.get()) is not None:
            job, work = entry
            if job.set_running_or_notify_cancel():
                try:
                    resource = self._open()
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the job
                    job.set_exception(error)
                else:
                    _run(job, work, resource)
            # Whatever the job refers to must not live until the next one comes.
            del entry, job, work
        self._leave()

    def _open(self) -> R:
        with self._lock:
            if self._resource is None:
                self._resource = self._open_resource()
            return self._resource

    def _leave(self) -> None:
        with self._lock:
            self._threads_left -= 1
            if self._threads_left:
                return
        resource, self._resource = self._resource, None
        try:
            if resource is not None:
                resource.close()
        finally:
            self.ended.set_result(None)


def _run(job: Future[T], work: Callable[[R], T], resource: R) -> None:
    try:
        result = work(resource)
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the job
        job.set_exception(error)
    else:
        job.set_result(result)


class Forkable(Protocol):
    """An object that a forked child inherits."""

    def forget_parent(self) -> None:
        """Drop, in a forked child, whatever belongs to the parent."""
        ...


abandoned: list[object] = []
"""Objects of the parent that a forked child keeps for good, so that their finalizers never run."""

_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_workers: weakref.WeakSet[Worker[Any]] = weakref.WeakSet()
_lock = threading.Lock()


def forget_parent_in_child(each: Forkable) -> None:
    """Call `forget_parent` of an object in every forked child."""
    _forkables.add(each)


def _before_fork() -> None:
    # Until the fork is done nobody can submit a job, which would open a resource again.
    _lock.acquire()
    for worker in list(_workers):
        worker.prepare_fork()


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - the parent's lock is taken
    _lock = threading.Lock()
    for each in [*_workers, *_forkables]:
        each.forget_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
