"""One thread that owns a resource and does the jobs given to it, one after the other.

The thread is a daemon, so it never holds up the end of the program; it starts when there is a job, and again
in a forked child. The resource is opened in it, used in it only, and closed in it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Closable(Protocol):
    """What a worker can own."""

    def close(self) -> None:
        """Let go of everything."""
        ...


R = TypeVar("R", bound=Closable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job(Generic[R, T]):
    work: Callable[[R], T]
    future: Future[T]


class Worker(Generic[R]):
    """Runs jobs on a resource that `open_resource` opens."""

    def __init__(self, name: str, open_resource: Callable[[], R]) -> None:
        self._name = name
        self._open_resource = open_resource
        self._life: _Life[R] | None = None

    async def do(self, work: Callable[[R], T]) -> T:
        """The result of the job, awaited."""
        return await asyncio.wrap_future(self.post(work))

    def do_blocking(self, work: Callable[[R], T]) -> T:
        """The result of the job, waited for by the calling thread."""
        return self.post(work).result()

    def post(self, work: Callable[[R], T]) -> Future[T]:
        """Hand in a job without waiting for it."""
        future: Future[T] = Future()
        with _lock:
            self._living().jobs.put(_Job(work, future))
        return future

    async def close(self) -> None:
        """Finish the jobs handed in so far and close the resource. A further job opens it again."""
        with _lock:
            life, self._life = self._life, None
        if life and life.pid == os.getpid():
            life.jobs.put(None)
            await asyncio.wrap_future(life.ended)

    def _living(self) -> _Life[R]:
        life = self._life
        if life and life.pid != os.getpid():
            # The thread did not survive the fork. Its resource belongs to the parent; even closing it here
            # could disturb the parent's, so it is kept for ever.
            _inherited.append(life)
            life = None
        if life is None:
            life = self._life = _Life[R]()
            threading.Thread(target=_run, args=(life, self._open_resource), name=self._name, daemon=True).start()
            # A worker that nobody refers to any more gets no further jobs: its thread ends.
            weakref.finalize(self, life.jobs.put, None).atexit = False
        return life


class _Life(Generic[R]):
    """One thread's life, from the first job to the closing."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.jobs: queue.SimpleQueue[_Job[R, Any] | None] = queue.SimpleQueue()
        self.ended: Future[None] = Future()
        self.resource: R | None = None


_inherited: list[_Life[Any]] = []
_lock = threading.Lock()


def _start_afresh() -> None:
    global _lock  # noqa: PLW0603 - in a forked child nobody would release it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_afresh)


def _run(life: _Life[R], open_resource: Callable[[], R]) -> None:
    while (job := life.jobs.get()) is not None:
        if job.future.set_running_or_notify_cancel():
            _do(life, job, open_resource)
        # What the job holds must not live on until the next one comes.
        del job
    try:
        if life.resource is not None:
            life.resource.close()
    finally:
        life.ended.set_result(None)


def _do(life: _Life[R], job: _Job[R, Any], open_resource: Callable[[], R]) -> None:
    try:
        if life.resource is None:
            life.resource = open_resource()
        result = job.work(life.resource)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits for the job
        job.future.set_exception(error)
    else:
        job.future.set_result(result)
