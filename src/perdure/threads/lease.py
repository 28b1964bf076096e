"""Exclusive access to a thread while it is changed: a queue inside this process, a lease among processes.

A change is short, so a living owner is waited for, one second at most. After that the thread is taken over, because its
owner is frozen or unreachable. Every write carries the lease's token, so a replaced owner can't write.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.clock import SystemClock
from perdure.errors import (
    CheckpointDamagedError,
    CheckpointWriteError,
    PartDamagedError,
    RunBusyError,
)
from perdure.records import NewRun
from perdure.threads.errors import ThreadDamagedError, ThreadWriteError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from perdure.clock import Clock
    from perdure.records import Lease
    from perdure.storage import TenantStore
    from perdure.threads.thread import ThreadName


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A place in a queue. Its turn comes when `turn` has a result."""

    loop: asyncio.AbstractEventLoop
    turn: Future[None]


class _Queues:
    """Queues by subject. The first of each queue has the turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {}

    def join(self, subject: str) -> _Waiting:
        """Join the end of a queue."""
        mine = _Waiting(asyncio.get_running_loop(), Future())
        # A concurrent future can't be cancelled by a task, so the place is kept until it is left.
        mine.turn.set_running_or_notify_cancel()
        with self._lock:
            queue = self._queues.setdefault(subject, deque())
            queue.append(mine)
            self._advance(subject, queue)
        return mine

    def leave(self, subject: str, mine: _Waiting) -> None:
        """Leave the queue, before or after the turn."""
        with self._lock:
            queue = self._queues.get(subject)
            if queue is not None and mine in queue:
                queue.remove(mine)
                self._advance(subject, queue)

    def _advance(self, subject: str, queue: deque[_Waiting]) -> None:
        """Give the first in the queue its turn. Skip closed event loops, which never leave."""
        while queue and queue[0].loop.is_closed():
            queue.popleft()
        if not queue:
            self._queues.pop(subject, None)
        elif not queue[0].turn.done():
            queue[0].turn.set_result(None)


_queues = _Queues()


@asynccontextmanager
async def turn(subject: str) -> AsyncGenerator[None]:
    """Wait for the turn and keep it until the block ends."""
    queues = _queues
    mine = queues.join(subject)
    try:
        if not mine.turn.done():
            await asyncio.wrap_future(mine.turn)
        yield
    finally:
        queues.leave(subject, mine)


def _start_afresh() -> None:
    global _queues  # noqa: PLW0603 - those who wait are the parent's, and a forked child may not inherit a taken lock
    _queues = _Queues()


os.register_at_fork(after_in_child=_start_afresh)

_LOOK_SECONDS = 0.01
_LOOKS_MAX = 100

# Other processes use the machine's time, whatever clock a store was given.
_pause = SystemClock().sleep


class ThreadLeases:
    """Give one caller at a time the right to change a thread."""

    def __init__(self, store: TenantStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @contextlib.asynccontextmanager
    async def of(self, name: ThreadName, *, creates: bool = True) -> AsyncGenerator[Lease]:
        """Take the lease of a thread, and create the thread if `creates`. Raises RunNotFoundError."""
        async with turn(f"{self._store.place} {name.run_id}"):
            with thread_errors(name):
                lease = await self._lease(name, creates=creates)
            try:
                yield lease
            finally:
                await self._store.release(lease)

    async def _lease(self, name: ThreadName, *, creates: bool) -> Lease:
        create = self._new_run(name) if creates else None
        for looks in itertools.count():
            with contextlib.suppress(RunBusyError):
                return await self._store.acquire(name.run_id, create=create, takeover=looks >= _LOOKS_MAX)
            await _pause(_LOOK_SECONDS)
        raise AssertionError("a claim that takes over is made")

    def _new_run(self, name: ThreadName) -> NewRun:
        now = self._clock.now().isoformat()
        return NewRun(name.run_id, name.workflow_name, created_at=now, nonce=self._clock.new_id())


@contextlib.contextmanager
def thread_errors(name: ThreadName) -> Generator[None]:
    """Make errors of the store name the thread instead of its run."""
    try:
        yield
    except (CheckpointDamagedError, PartDamagedError) as error:
        raise ThreadDamagedError(name.session_id, name.thread_id, reason=error.reason) from error
    except CheckpointWriteError as error:
        raise ThreadWriteError(name.session_id, name.thread_id, reason=error.reason) from error
