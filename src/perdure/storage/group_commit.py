"""Writes that wait are written together: one job, one transaction and one sync for all of them.

Whoever writes is told only when that job is done. All who wait in one event loop are woken at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from perdure.storage.backend import Backend
from perdure.storage.forking import watch_forks
from perdure.storage.jobs import end_all, fail_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from perdure.storage.backend import Doer, Pending

B = TypeVar("B", bound=Backend)


class _Waiting:
    """A write, and who waits for it."""

    __slots__ = ("ended", "loop", "pending")

    def __init__(self, pending: Pending, loop: asyncio.AbstractEventLoop) -> None:
        self.pending = pending
        self.loop = loop
        self.ended: asyncio.Future[None] = loop.create_future()


class GroupWriter(Generic[B]):
    """Gathers writes, of any number of event loops, and hands them to `write` together."""

    def __init__(self, doer: Doer[B], write: Callable[[B, Sequence[Pending]], None]) -> None:
        self._doer = doer
        self._write = write
        self._waiting: deque[_Waiting] = deque()
        self._gathering: asyncio.AbstractEventLoop | None = None
        """The loop that is about to hand in what waits. If another one is as well, the later of them finds nothing."""
        watch_forks(self)

    async def write(self, mine: Pending) -> None:
        """Write it with all others that wait by then; how it ended, it knows itself.

        Who is cancelled before it was taken has written nothing.
        """
        if self._doer.is_here:
            await self._doer.do(lambda backend: self._write(backend, [mine]))
            return
        waiting = self._enter(mine)
        try:
            await waiting.ended
        except BaseException:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiting)
            raise

    def _enter(self, mine: Pending) -> _Waiting:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(mine, loop)
        self._waiting.append(waiting)
        if self._gathering is not loop:
            self._gathering = loop
            # A turn of the loop later, when all who are ready have handed in theirs.
            loop.call_soon(self.hand_in)
        return waiting

    def hand_in(self) -> None:
        """Begin with what waits, as soon as what was begun before is done."""
        self._gathering = None
        if not self._waiting:
            return
        try:
            job = self._doer.post(self._write_waiting)
        except Exception as error:  # noqa: BLE001 - without a job nobody else would tell those who wait
            _fail(self._take(), error)
        else:
            job.add_done_callback(self._note_end)

    def forget_parent(self) -> None:
        """Leave what waits to the parent of this process, which writes it."""
        self._waiting.clear()
        self._gathering = None

    def _write_waiting(self, backend: B) -> None:
        taken = self._take()
        if not taken:
            return
        try:
            self._write(backend, [each.pending for each in taken])
        except BaseException as error:  # noqa: BLE001 - whatever it is, each of those who wait has to hear of it
            _fail(taken, error)
        else:
            _end(taken)

    def _note_end(self, job: Future[None]) -> None:
        """Tell those who wait if the job could not even begin."""
        error = job.exception()
        if error is not None:
            _fail(self._take(), error)

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._waiting.popleft())
        return taken


def _end(taken: Iterable[_Waiting]) -> None:
    for loop, futures in _by_loop(taken):
        end_all(loop, futures)


def _fail(taken: Iterable[_Waiting], error: BaseException) -> None:
    for loop, futures in _by_loop(taken):
        fail_all(loop, futures, error)


def _by_loop(taken: Iterable[_Waiting]) -> Iterable[tuple[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]]:
    found: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for each in taken:
        found.setdefault(each.loop, []).append(each.ended)
    return found.items()
