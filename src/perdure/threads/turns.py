"""Who of this process has a thread: one at a time, in whichever event loop, in the order in which they came.

A claim tells processes apart, and one of this process replaces another.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


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
