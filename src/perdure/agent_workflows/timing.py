"""How long something took, by the clock that was handed in."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure import Clock


def seconds_since(clock: Clock, moment: str) -> float:
    """The seconds since a moment. A clock that was set back in between makes it 0, not less."""
    return max((clock.now() - datetime.fromisoformat(moment)).total_seconds(), 0.0)
