"""Processes: work done in a child that is forked from this one, and may be killed in the middle.

The parent has imported everything and starts no thread, so a life costs milliseconds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

LIFE_SECONDS_MAX = 60.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: killed, with a value, or with an error."""

    was_killed: bool = False
    value: Any = None
    error: str | None = None

    def result(self) -> Any:
        """The value. Raises RuntimeError if there is none."""
        if self.was_killed or self.error is not None:
            raise RuntimeError(self.error or "a child that nobody was to kill was killed")
        return self.value


@dataclass(slots=True)
class Child:
    """A child at work, and the pipe on which it tells its result."""

    pid: int
    pipe: int

    def ended(self, *, kill_after_seconds: float | None = None) -> Ended:
        """Wait for its end; kill it if it has not come by then."""
        limit = LIFE_SECONDS_MAX if kill_after_seconds is None else kill_after_seconds
        told, is_late = self._told(limit)
        if is_late:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        if is_late:
            # It may have ended by itself just before.
            told += self._told(0)[0]
        os.close(self.pipe)
        if is_late and kill_after_seconds is None:
            return Ended(error=f"it did not end within {LIFE_SECONDS_MAX:.0f} seconds")
        if os.WIFSIGNALED(status):
            return Ended(was_killed=True)
        return Ended(**json.loads(told))

    def _told(self, seconds: float) -> tuple[bytes, bool]:
        """What it has told, and whether it lives on after this time. The pipe is closed when it dies."""
        told = b""
        while select.select([self.pipe], [], [], seconds)[0]:
            chunk = os.read(self.pipe, _CHUNK)
            if not chunk:
                return told, False
            told += chunk
        return told, True


def begun(work: Callable[[], Awaitable[object]]) -> Child:
    """A child that does the work, in an event loop of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    # What the parent has made is not looked through for garbage: that would copy it.
    gc.freeze()
    try:
        os.close(reading)
        _tell(writing, _done(work))
    finally:
        # Not the end of the parent's program: no handlers at exit, no buffers written twice.
        os._exit(0)


def lived(work: Callable[[], Awaitable[object]], *, kill_after_seconds: float | None = None) -> Ended:
    """Let a child do the work and wait for it."""
    return begun(work).ended(kill_after_seconds=kill_after_seconds)


def alone(work: Callable[[], T]) -> T:
    """What work gives that may start threads, which this process must not have."""

    async def do() -> object:
        return work()

    return lived(do).result()


def _done(work: Callable[[], Awaitable[object]]) -> dict[str, object]:
    async def done() -> object:
        return await work()

    try:
        return {"value": asyncio.run(done())}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells it
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"}


def _tell(pipe: int, outcome: dict[str, object]) -> None:
    with open(pipe, "wb") as file:
        file.write(json.dumps(outcome).encode())


class Gate:
    """Lets children that wait before it go on at the same moment."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self._heard, self._saying = os.pipe()

    def wait(self) -> None:
        """In a child: say that it is there, and wait until the gate opens."""
        os.close(self._writing)
        os.write(self._saying, b".")
        os.close(self._saying)
        os.read(self._reading, 1)

    def gather(self, children: int) -> int:
        """In the parent: wait until so many are there, or have ended; how many are there."""
        os.close(self._saying)
        missing = children
        while missing and (there := os.read(self._heard, missing)):
            missing -= len(there)
        return children - missing

    def open(self) -> None:
        """In the parent, after `gather`: let them go on."""
        for end in (self._writing, self._reading, self._heard):
            os.close(end)
