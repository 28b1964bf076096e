"""Moments and amounts as users give them, checked."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.clock import Clock


def moment_of(when: timedelta | datetime | float, clock: Clock) -> str:
    """A moment, or a time from now in seconds or as a timedelta, in UTC as ISO 8601. Raises ValueError, TypeError."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"{when!r} has no time zone, so it is no moment; give it one: datetime(..., tzinfo=UTC)")
        return when.astimezone(UTC).isoformat()
    return (clock.now() + timedelta(seconds=seconds_of(when))).astimezone(UTC).isoformat()


def seconds_of(duration: timedelta | float) -> float:
    """A duration in seconds. Raises ValueError, TypeError."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
        raise TypeError(f"a duration is a timedelta or a number of seconds, not {duration!r}")
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a duration is a finite number of seconds that is not negative, not {duration!r}")
    return seconds


def checked_budget(budget: Mapping[str, float]) -> dict[str, float]:
    """The same, if every amount is one. Raises ValueError."""
    for name, amount in budget.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not math.isfinite(amount) or amount < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - see above
            raise ValueError(f"a budget is a finite number that is not negative; of {name!r} it is {amount!r}")
    return dict(budget)
