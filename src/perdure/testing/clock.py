"""A clock for tests. Time stands still until the test moves it, or skips all waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

_GRACE_TURNS = 100
# Real time, for work in threads.
_GRACE_SECONDS = 0.01


class ManualClock:
    """A clock that stands still until `advance` is called. Its ids are numbers.

    With `skips`, which may be set later, a sleep moves the clock instead of waiting.
    """

    def __init__(self, *, skips: bool = False) -> None:
        self._now = datetime(2024, 1, 1, tzinfo=UTC)
        self._ids = 0
        self.skips = skips
        self._sleepers: list[tuple[datetime, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """Return the clock's time."""
        return self._now

    def new_id(self) -> str:
        """Return the next number."""
        self._ids += 1
        return f"id-{self._ids}"

    def advance(self, by: timedelta) -> None:
        """Move the clock, and wake the sleepers that are due."""
        self._now += by
        for due, sleeper in self._sleepers:
            if due <= self._now and not sleeper.done():
                sleeper.set_result(None)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved this far."""
        due = self._now + timedelta(seconds=seconds)
        if self.skips:
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
        """Number of waiting sleepers."""
        return len(self._sleepers)
