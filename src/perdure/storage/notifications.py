"""Notify those who wait for a run to change.

Changes by this process notify them at once, through every store object of the place. Changes by other processes are
polled for, as long as anybody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from perdure.clock import SystemClock

POLL_SECONDS = 0.25

EVERY_RUN = ""
"""Stands in place of a run id for those who look for work in any run."""

_POLLS_BETWEEN_WAKES_MAX = 8

Pause: TypeAlias = Callable[[float], Awaitable[object]]
"""Waits for a number of seconds."""

# Other processes follow the clock of the machine, whatever clock the runs of a store have.
real_pause: Pause = SystemClock().sleep


class Listener:
    """A task that waits, in the event loop in which this was made. Any thread may wake it."""

    def __init__(self, *, commands_only: bool = False) -> None:
        self.commands_only = commands_only
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        # A closed loop has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._woken.set)

    def clear(self) -> None:
        """Forget earlier wakes. Look at the store after this call: later changes wake the listener again."""
        self._woken.clear()

    async def wait(self) -> None:
        """Wait until somebody wakes the listener."""
        await self._woken.wait()


_listeners: dict[tuple[str, str], set[Listener]] = {}
"""All listeners of this process, by place and run."""
_lock = threading.Lock()


@contextlib.contextmanager
def subscribe(place: str, run_id: str, *, commands_only: bool = False) -> Generator[Listener]:
    """Make a listener that is woken when this process changes the run, or only its inbox."""
    registry, listener = _listeners, Listener(commands_only=commands_only)
    with _lock:
        registry.setdefault((place, run_id), set()).add(listener)
    try:
        yield listener
    finally:
        with _lock:
            registry[place, run_id].discard(listener)
            if not registry[place, run_id]:
                del registry[place, run_id]


def notify(place: str, *run_ids: str, inbox: bool = True, is_work: bool = False) -> None:
    """Wake those who wait for these runs. `inbox`: an inbox may have changed; `is_work`: a run can go on."""
    with _lock:
        woken = [
            listener
            for run_id in run_ids
            for listener in _listeners.get((place, run_id), ())
            if inbox or not listener.commands_only
        ]
        if is_work:
            woken += _listeners.get((place, EVERY_RUN), ())
    for listener in woken:
        listener.wake()


def notify_all(place: str) -> None:
    """Wake those who wait for any run of a place."""
    with _lock:
        woken = [listener for (where, _), some in _listeners.items() if where == place for listener in some]
    for listener in woken:
        listener.wake()


@dataclass(frozen=True, slots=True)
class _Poll:
    """The polling task of one event loop, and its listeners."""

    task: asyncio.Task[None]
    listeners: set[Listener]


class Poller:
    """Poll for changes by other processes. In each event loop it runs only while somebody waits there.

    `pause` waits between two polls. None turns polling off.
    """

    def __init__(self, changes: Callable[[], Awaitable[object]], pause: Pause | None) -> None:
        self._changes = changes
        self._pause = pause
        self._polls: dict[asyncio.AbstractEventLoop, _Poll] = {}

    def join(self, listener: Listener, *, known: object) -> None:
        """Wake the listener for changes that the value `known` does not include, until it leaves."""
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
        """Stop waking the listener. The last one ends the polling."""
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
            except Exception:  # noqa: BLE001 - those who wait look for themselves, and meet an error that lasts
                found = object()
            # The death of an owner changes nothing in the store, so listeners look now and then without a change.
            if found != known or number % _POLLS_BETWEEN_WAKES_MAX == 0:
                known = found
                for listener in listeners:
                    listener.wake()


def _forget_parent() -> None:
    global _listeners, _lock  # noqa: PLW0603 - the listeners are the parent's, and its lock may be taken
    _listeners = {}
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)
