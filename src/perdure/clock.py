"""Time and ids, passed in as a `Clock`; and moments as UTC text that sorts like time.

Nothing else in the package reads a clock, waits for one, or draws a random number.
"""

from __future__ import annotations

import asyncio
import math
import os
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The time and new ids."""

    def now(self) -> datetime:
        """Return the time, with a time zone."""
        ...

    def new_id(self) -> str:
        """Return a new unique id."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a duration."""
        ...


class SystemClock:
    """The machine's clock and random ids.

    `grace_seconds` is how long a handler must be idle before it is suspended while its subtasks wait.
    """

    def __init__(self, *, grace_seconds: float = 0.25) -> None:
        self._grace_seconds = grace_seconds

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)

    def new_id(self) -> str:
        """Return a random id of 32 hex digits."""
        return os.urandom(16).hex()

    async def sleep(self, seconds: float) -> None:
        """Wait by the event loop's clock."""
        await asyncio.sleep(seconds)

    async def wait_grace(self) -> None:
        """Wait for one grace period."""
        await asyncio.sleep(self._grace_seconds)


class DefaultClock:
    """The clock of a storage that was given none: the machine's, or the one that the first workflow on it brings."""

    def __init__(self) -> None:
        self.chosen: Clock = SystemClock()

    def now(self) -> datetime:
        """Return the time of the chosen clock."""
        return self.chosen.now()

    def new_id(self) -> str:
        """Return a new id of the chosen clock."""
        return self.chosen.new_id()

    async def sleep(self, seconds: float) -> None:
        """Wait by the chosen clock."""
        await self.chosen.sleep(seconds)


def is_same_time(one: Clock, other: Clock) -> bool:
    """Return True if two clocks always agree: they are one object, or both are the machine's."""
    return one is other or (isinstance(one, SystemClock) and isinstance(other, SystemClock))


def now(clock: Clock) -> str:
    """Return the present moment."""
    return clock.now().astimezone(UTC).isoformat()


def moment_of(clock: Clock, given: datetime | timedelta | float, what: str) -> str:
    """Return the moment that a user gave as a duration or a point in time. Raises TypeError or ValueError."""
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueError(f"{what} needs a time zone: {given!r} is another moment on every machine")
        return given.astimezone(UTC).isoformat()
    try:
        return (clock.now() + timedelta(seconds=seconds_of(what, given))).astimezone(UTC).isoformat()
    except OverflowError:
        raise ValueError(f"{what} is too far in the future: {given!r}") from None


def seconds_until(clock: Clock, moment: str) -> float:
    """Return the seconds until a moment; 0 if it has passed."""
    return max((datetime.fromisoformat(moment) - clock.now()).total_seconds(), 0.0)


def seconds_of(name: str, given: object) -> float:
    """Return a duration that a user gave, in seconds. Raises TypeError or ValueError that mention `name`."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError(f"{name} must be a number or a timedelta, not {given!r}")
    if not math.isfinite(given) or given < 0:
        raise ValueError(f"{name} must be finite and not negative, not {given!r}")
    return float(given)
