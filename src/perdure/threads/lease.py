"""Having a thread for a moment, to change it: in this process by turns, among processes by a claim.

Nobody holds a thread longer than a change takes. So one who lives is waited for, a second at most: whoever is replaced
has to begin again, and many who replace each other begin again and again. From one that is frozen or out of reach the
thread is taken over then. Every write carries the claim's token, so whoever was replaced writes nothing.
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
    from perdure.records import Claim
    from perdure.storage import HostStore
    from perdure.threads.thread import ThreadName


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A place in a queue. It has its turn when `turn` has a result."""

    loop: asyncio.AbstractEventLoop
    turn: Future[None]


class _Queues:
    """Those who have a turn, each with those behind them, by what it is about."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {}

    def join(self, subject: str) -> _Waiting:
        """A place at the end."""
        mine = _Waiting(asyncio.get_running_loop(), Future())
        # One that can't be cancelled: it keeps its place until it is left.
        mine.turn.set_running_or_notify_cancel()
        with self._lock:
            queue = self._queues.setdefault(subject, deque())
            queue.append(mine)
            self._go_on(subject, queue)
        return mine

    def leave(self, subject: str, mine: _Waiting) -> None:
        """Give up the place, whether it was its turn or not."""
        with self._lock:
            queue = self._queues.get(subject)
            if queue is not None and mine in queue:
                queue.remove(mine)
                self._go_on(subject, queue)

    def _go_on(self, subject: str, queue: deque[_Waiting]) -> None:
        """Let the first have its turn. Those whose event loop has ended will never leave by themselves."""
        while queue and queue[0].loop.is_closed():
            queue.popleft()
        if not queue:
            self._queues.pop(subject, None)
        elif not queue[0].turn.done():
            queue[0].turn.set_result(None)


_queues = _Queues()


@asynccontextmanager
async def turn(subject: str) -> AsyncGenerator[None]:
    """Wait for the turn, and have it until the block ends."""
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

# Other processes go by the time of the machine, whatever clock a store is given.
_pause = SystemClock().sleep


class Holding:
    """Lets one at a time change a thread."""

    def __init__(self, store: HostStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @contextlib.asynccontextmanager
    async def of(self, name: ThreadName, *, creates: bool = True) -> AsyncGenerator[Claim]:
        """Have a thread, which need not be there yet if it `creates`. Raises RunNotFoundError."""
        async with turn(f"{self._store.place} {name.run_id}"):
            with naming(name):
                claim = await self._claim(name, creates=creates)
            try:
                yield claim
            finally:
                await self._store.release(claim)

    async def _claim(self, name: ThreadName, *, creates: bool) -> Claim:
        create = self._new_run(name) if creates else None
        for looks in itertools.count():
            with contextlib.suppress(RunBusyError):
                return await self._store.claim(name.run_id, create=create, takeover=looks >= _LOOKS_MAX)
            await _pause(_LOOK_SECONDS)
        raise AssertionError("a claim that takes over is made")

    def _new_run(self, name: ThreadName) -> NewRun:
        now = self._clock.now().isoformat()
        return NewRun(name.run_id, name.workflow_name, created_at=now, nonce=self._clock.new_id())


@contextlib.contextmanager
def naming(name: ThreadName) -> Generator[None]:
    """Let errors of the store name the thread, which the store knows as a run."""
    try:
        yield
    except (CheckpointDamagedError, PartDamagedError) as error:
        raise ThreadDamagedError(name.session_id, name.thread_id, reason=error.reason) from error
    except CheckpointWriteError as error:
        raise ThreadWriteError(name.session_id, name.thread_id, reason=error.reason) from error
