"""Group commit: write everything that waits in one job, one transaction and one fsync.

A writer is told when the job is done. All writers that wait in one event loop are woken in one callback.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from perdure.storage.worker import forget_parent_in_child, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from perdure.storage.backend import Pending

B = TypeVar("B")

_Entry: TypeAlias = "tuple[Pending, asyncio.Future[None]]"


class GroupWriter(Generic[B]):
    """Collect writes from any number of event loops and hand them to `write` together.

    Args:
        submit: Queues a job behind the jobs that it was given before.
        write: Writes a group, and notes in each pending write whether it failed.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[B], None]], Future[None]],
        write: Callable[[B, Sequence[Pending]], None],
    ) -> None:
        self._submit = submit
        self._write = write
        self._queue: deque[_Entry] = deque()
        self._flushing: asyncio.AbstractEventLoop | None = None
        """The loop that is about to flush. If two are, the later one finds an empty queue."""
        forget_parent_in_child(self)

    async def write(self, pending: Pending) -> None:
        """Write with everybody else who waits. A caller who is cancelled before its turn has written nothing."""
        loop = asyncio.get_running_loop()
        entry = (pending, loop.create_future())
        self._queue.append(entry)
        if self._flushing is not loop:
            self._flushing = loop
            # One turn of the loop later, so that every task that is ready joins the group.
            loop.call_soon(self.flush)
        try:
            await entry[1]
        except BaseException:
            with contextlib.suppress(ValueError):
                self._queue.remove(entry)
            raise

    def flush(self) -> None:
        """Submit a job that writes the queue."""
        self._flushing = None
        if not self._queue:
            return
        try:
            job = self._submit(self._write_queue)
        except Exception as error:  # noqa: BLE001 - without a job nobody else would tell those who wait
            _end(self._take(), error)
        else:
            job.add_done_callback(self._on_job_done)

    def forget_parent(self) -> None:
        """Leave the queue to the parent process, which writes it."""
        self._queue.clear()
        self._flushing = None

    def _write_queue(self, backend: B) -> None:
        taken = self._take()
        if not taken:
            return
        error: BaseException | None = None
        try:
            self._write(backend, [pending for pending, _ in taken])
        except BaseException as raised:  # noqa: BLE001 - everybody who waits has to be told
            error = raised
        _end(taken, error)

    def _on_job_done(self, job: Future[None]) -> None:
        """Tell those who wait if the job could not begin, because the store could not be opened."""
        error = job.exception()
        if error is not None:
            _end(self._take(), error)

    def _take(self) -> list[_Entry]:
        taken: list[_Entry] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._queue.popleft())
        return taken


def _end(taken: Iterable[_Entry], error: BaseException | None) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for _, future in taken:
        by_loop.setdefault(future.get_loop(), []).append(future)
    for loop, futures in by_loop.items():
        resolve(loop, futures, error)
