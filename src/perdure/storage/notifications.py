"""Whoever waits for a run to change, and what wakes them.

What this process does wakes them at once, through whichever store object on the place it was done. What other
processes do is looked for, as long as anybody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from perdure.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Generator

POLL_SECONDS = 0.25
"""How often it is asked whether another process has changed anything."""

_LOOKED_ANYWAY_AFTER_POLLS = 8

Pause: TypeAlias = Callable[[float], Awaitable[object]]
"""Lets so many seconds pass."""

# Other processes go by the time of the machine, whatever clock the runs of a store are given.
real_pause: Pause = SystemClock().sleep


class Listener:
    """One who waits, in the event loop in which it was made. Any thread may wake it."""

    def __init__(self, *, commands_only: bool = False) -> None:
        self.commands_only = commands_only
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    def rest(self) -> None:
        """Forget what has woken it so far: what comes from here on does so anew."""
        self._woken.clear()

    async def woken(self) -> None:
        await self._woken.wait()


class _Listeners:
    """All listeners of this process, by place and run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[str, dict[str, set[Listener]]] = {}

    def add(self, place: str, run_id: str, listener: Listener) -> None:
        with self._lock:
            self._at.setdefault(place, {}).setdefault(run_id, set()).add(listener)

    def remove(self, place: str, run_id: str, listener: Listener) -> None:
        with self._lock:
            of_place = self._at[place]
            of_place[run_id].discard(listener)
            if not of_place[run_id]:
                del of_place[run_id]
            if not of_place:
                del self._at[place]

    def of(self, place: str, run_id: str) -> list[Listener]:
        if place not in self._at:
            return []  # whoever comes now looks at the run after this
        with self._lock:
            return list(self._at.get(place, {}).get(run_id, ()))

    def of_all_runs(self, place: str) -> list[Listener]:
        with self._lock:
            return [listener for of_run in self._at.get(place, {}).values() for listener in of_run]


_listeners = _Listeners()


@contextlib.contextmanager
def listening(place: str, run_id: str, *, commands_only: bool = False) -> Generator[Listener]:
    """A listener that is woken by whatever this process does to the run, or to its inbox only."""
    mine, listener = _listeners, Listener(commands_only=commands_only)
    mine.add(place, run_id, listener)
    try:
        yield listener
    finally:
        mine.remove(place, run_id, listener)


EVERY_RUN = ""
"""In the place of a run id, which is never empty: whoever looks for work."""


def wake(place: str, run_id: str, *, inbox: bool = True, stirs: bool = False) -> None:
    """Wake those who wait for a run: it may have changed, and perhaps its inbox; and if it `stirs`, it may be work."""
    for listener in _listeners.of(place, run_id):
        if inbox or not listener.commands_only:
            listener.wake()
    if stirs:
        for listener in _listeners.of(place, EVERY_RUN):
            listener.wake()


def wake_all(place: str) -> None:
    """Wake those who wait for any run of a place."""
    for listener in _listeners.of_all_runs(place):
        listener.wake()


@dataclass(frozen=True, slots=True)
class _Poll:
    """The looking in one event loop, and for whom."""

    task: asyncio.Task[None]
    listeners: set[Listener]


class Poller:
    """Looks for what other processes change. In each event loop it runs only while somebody waits there.

    `pause` lets time pass between two looks; None if no other process can change anything.
    """

    def __init__(self, changes: Callable[[], Awaitable[object]], pause: Pause | None) -> None:
        self._changes = changes
        self._pause = pause
        self._polls: dict[asyncio.AbstractEventLoop, _Poll] = {}

    def join(self, listener: Listener, *, known: object) -> None:
        """From now on wake the listener for changes that are not among the `known` ones, until it leaves."""
        if self._pause is None:
            return
        loop = asyncio.get_running_loop()
        poll = self._polls.get(loop)
        if poll is None:
            listeners: set[Listener] = set()
            poll = _Poll(loop.create_task(self._poll(self._pause, listeners, known)), listeners)
            self._polls[loop] = poll
        poll.listeners.add(listener)

    async def leave(self, listener: Listener) -> None:
        """Wake the listener no more. The last one stops the looking."""
        loop = asyncio.get_running_loop()
        poll = self._polls.get(loop)
        if poll is None or listener not in poll.listeners:
            return
        poll.listeners.remove(listener)
        if not poll.listeners:
            del self._polls[loop]
            poll.task.cancel()
            await asyncio.wait([poll.task])

    async def _poll(self, pause: Pause, listeners: set[Listener], known: object) -> None:
        for number in itertools.count(1):
            await pause(POLL_SECONDS)
            try:
                found = await self._changes()
            except Exception:  # noqa: BLE001 - those who wait look for themselves, and meet the error if it lasts
                found = object()
            # The death of an owner changes nothing in the store.
            if found != known or number % _LOOKED_ANYWAY_AFTER_POLLS == 0:
                known = found
                for listener in listeners:
                    listener.wake()


def _start_afresh() -> None:
    global _listeners  # noqa: PLW0603 - those who wait are the parent's, and a forked child may not inherit a taken lock
    _listeners = _Listeners()


os.register_at_fork(after_in_child=_start_afresh)
