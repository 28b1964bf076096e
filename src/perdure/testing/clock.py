"""A clock for tests: time stands still, is moved by hand, or passes at once where somebody would wait."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

_GRACE_TURNS = 100
_GRACE_SECONDS = 0.01
"""Real time, for work in threads."""


class ManualClock:
    """A clock that stands still until it is told to go on. Its ids are numbers.

    With `skips` nobody waits: whoever would sleep moves the clock on instead.
    """

    def __init__(self, *, skips: bool = False) -> None:
        self._now = datetime(2024, 1, 1, tzinfo=UTC)
        self._ids = 0
        self._skips = skips
        self._sleepers: list[tuple[datetime, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """The time that it was set to."""
        return self._now

    def new_id(self) -> str:
        """The next number."""
        self._ids += 1
        return f"id-{self._ids}"

    def advance(self, by: timedelta) -> None:
        """Let time pass, and wake those whose time has come."""
        self._now += by
        for due, sleeper in self._sleepers:
            if due <= self._now and not sleeper.done():
                sleeper.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved so far."""
        due = self._now + timedelta(seconds=seconds)
        if self._skips:
            self.advance(max(due - self._now, timedelta()))
        if due <= self._now:
            await asyncio.sleep(0)
            return
        sleeper = asyncio.get_running_loop().create_future()
        self._sleepers.append((due, sleeper))
        try:
            await sleeper
        finally:
            self._sleepers.remove((due, sleeper))

    async def wait_grace(self) -> None:
        """Let other tasks make progress before a handler is suspended. The clock does not move."""
        for _ in range(_GRACE_TURNS):
            await asyncio.sleep(0)
        await asyncio.sleep(_GRACE_SECONDS)
        for _ in range(_GRACE_TURNS):
            await asyncio.sleep(0)

    @property
    def sleepers(self) -> int:
        """How many wait for the clock to be moved."""
        return len(self._sleepers)
