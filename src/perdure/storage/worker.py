"""Threads that do a store's blocking work.

Worker threads are daemons, so they never delay the end of the program. They start with the first job and end when the
worker is closed. Before the process forks, a worker closes its resource, because a database connection must not be
shared with a child; parent and child open it again when they need it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Closable(Protocol):
    """A resource of a worker."""

    def close(self) -> None: ...


R = TypeVar("R", bound=Closable)
T = TypeVar("T")

_Jobs: TypeAlias = "queue.SimpleQueue[tuple[Future[Any], Callable[[R], Any]] | None]"


class InlineWorker(Generic[R]):
    """Run jobs on the calling thread, one at a time."""

    is_inline = True

    def __init__(self, resource: R) -> None:
        self._resource = resource
        self._lock = threading.RLock()

    def submit(self, work: Callable[[R], T], *, ordered: bool = False) -> Future[T]:
        """Run a job."""
        del ordered
        job: Future[T] = Future()
        with self._lock:
            try:
                job.set_result(work(self._resource))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the job
                job.set_exception(error)
        return job

    async def close(self) -> None:
        """Do nothing: the resource lives as long as this object."""


class Worker(Generic[R]):
    """Run jobs on threads that share a resource.

    Args:
        name: The name of the threads.
        open_resource: Opens the resource, on a worker thread. A single thread also uses and closes it.
        threads: The number of threads. The first one runs the ordered jobs.
        at_fork: "close" the resource before the process forks, or "abandon" it in the child.
    """

    is_inline = False

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

    def submit(self, work: Callable[[R], T], *, ordered: bool = False) -> Future[T]:
        """Queue a job. Ordered jobs run one after the other, in the order of submission."""
        job: Future[T] = Future()
        with _lock:
            crew = self._crew
            if crew is None:
                crew = self._crew = _Crew(self._name, self._open_resource, self._threads)
                # The threads end when nobody refers to the worker any more.
                weakref.finalize(self, crew.end).atexit = False
            (crew.ordered if ordered else crew.unordered).put((job, work))
        return job

    async def close(self) -> None:
        """Finish the jobs submitted so far and close the resource. A further job opens it again."""
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


JobRunner: TypeAlias = Worker[R] | InlineWorker[R]
"""Runs jobs on a resource. If it is inline, a job is done when `submit` returns."""


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
                    with self._lock:
                        self._resource = self._resource or self._open_resource()
                    job.set_result(work(self._resource))
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the job
                    job.set_exception(error)
            # Whatever the job refers to must not live until the next one comes.
            del entry, job, work
        with self._lock:
            self._threads_left -= 1
            is_last = not self._threads_left
        if is_last:
            resource, self._resource = self._resource, None
            try:
                if resource:
                    resource.close()
            finally:
                self.ended.set_result(None)


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
