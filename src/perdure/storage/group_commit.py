"""Group commit: write everything that waits in one job. The SQL stores do it in one transaction with one fsync."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from perdure.records import Commit, JournalRecord, Lease

B = TypeVar("B")


@dataclass(slots=True, eq=False)
class PendingCommit:
    """A commit in the queue, and how it ended."""

    lease: Lease
    commit: Commit
    error: Exception | None = None
    newest_command: int = 0
    """The number of the newest command that waits after it."""
    removed: tuple[str, ...] = ()
    """The finished runs that retention removed with it."""
    is_durable: ClassVar[bool] = True


@dataclass(slots=True, eq=False)
class PendingRecords:
    """Journal records in the queue, and how they ended."""

    lease: Lease
    head: str | None
    """The head that they follow."""
    records: Sequence[JournalRecord]
    is_durable: bool
    error: Exception | None = None
    newest_command: ClassVar[int] = 0


Pending: TypeAlias = PendingCommit | PendingRecords

_Ended: TypeAlias = "tuple[asyncio.Future[int], int, BaseException | None]"
"""A write that has ended: its future, and the result or the error."""


class GroupWriter(Generic[B]):
    """Collect writes from any number of event loops and hand them to `write` together.

    Args:
        submit: Queues a job behind the jobs that it was given before.
        write: Writes a group, and notes in each pending write whether it failed.
        is_inline: Jobs run at once, on submit, so nothing can be grouped.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[B], None]], Future[None]],
        write: Callable[[B, Sequence[Pending]], None],
        *,
        is_inline: bool = False,
    ) -> None:
        self._submit = submit
        self._write = write
        self._is_inline = is_inline
        self._queue: deque[tuple[Pending, asyncio.Future[int]]] = deque()
        self._flushing: asyncio.AbstractEventLoop | None = None
        """The loop that is about to flush. If two are, the later one finds an empty queue."""

    async def write(self, pending: Pending) -> int:
        """Write with everybody else who waits. Return the number of the newest command of a committed run.

        A caller who is cancelled before its turn has written nothing; later, it may or may not be written.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        self._queue.append((pending, done))
        if self._is_inline:
            self.flush()
        elif self._flushing is not loop:
            self._flushing = loop
            # One turn of the loop later, so that every task that is ready joins the group.
            loop.call_soon(self.flush)
        return await done

    def flush(self) -> None:
        """Submit a job that writes the queue."""
        self._flushing = None
        if not self._queue:
            return
        try:
            self._submit(self._write_queue).add_done_callback(self._on_job_done)
        except Exception as error:  # noqa: BLE001 - without a job nobody else would tell those who wait
            self._fail(error)

    def forget_parent(self) -> None:
        """Leave the queue to the parent process, which writes it."""
        self._queue.clear()
        self._flushing = None

    def _write_queue(self, backend: B) -> None:
        # Leave out writes whose callers were cancelled.
        taken = [(pending, done) for pending, done in self._take() if not done.cancelled()]
        failure: BaseException | None = None
        try:
            if taken:
                self._write(backend, [pending for pending, _ in taken])
        except BaseException as error:  # noqa: BLE001 - everybody who waits has to be told
            failure = error
        self._tell([(done, pending.newest_command, failure or pending.error) for pending, done in taken])

    def _on_job_done(self, job: Future[None]) -> None:
        """Tell those who wait if the job could not begin, because the store could not be opened."""
        error = job.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._tell([(done, 0, error) for _, done in self._take()])

    def _tell(self, ended: Sequence[_Ended]) -> None:
        if self._is_inline:
            _end(ended)
            return
        # One callback for each loop: a callback for each writer would wake the loop before the last one is told, and
        # the next group would be smaller. With 100 runs that costs a third of the throughput.
        by_loop: dict[asyncio.AbstractEventLoop, list[_Ended]] = {}
        for each in ended:
            by_loop.setdefault(each[0].get_loop(), []).append(each)
        for loop, of_loop in by_loop.items():
            # A closed loop has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_end, of_loop)

    def _take(self) -> Iterator[tuple[Pending, asyncio.Future[int]]]:
        """Empty the queue."""
        with contextlib.suppress(IndexError):
            while True:
                yield self._queue.popleft()


def _end(ended: Sequence[_Ended]) -> None:
    for done, newest, error in ended:
        if done.done():
            continue
        if error is None:
            done.set_result(newest)
        else:
            done.set_exception(error)
