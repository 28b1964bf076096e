"""Time and ids, handed in. Nothing else in the package reads a clock, waits for one, or draws a random number."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the engine needs of the world: the time and fresh ids."""

    def now(self) -> datetime:
        """The time, with a time zone."""
        ...

    def new_id(self) -> str:
        """An id that nobody has used."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""
        ...


class SystemClock:
    """The machine's clock and random ids."""

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.now(UTC)

    def new_id(self) -> str:
        """A random id of 32 hex digits."""
        return os.urandom(16).hex()

    async def sleep(self, seconds: float) -> None:
        """Wait so long by the event loop's clock."""
        await asyncio.sleep(seconds)
