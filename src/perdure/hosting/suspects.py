"""Runs under way that several processes did not outlive: how many of them may go on at once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from perdure.clock import Clock

_PROBATION = timedelta(seconds=10)
"""A run that has lived for so long is not what ends processes, or takes so long for it that the others can't wait."""
_DOUBLING = timedelta(seconds=5)
_DOUBLINGS_MAX = 20


class Suspects:
    """Those that may still end this process. One goes alone at first, and twice as many after each while.

    Of runs that shared a host with the culprit each can show so that it is innocent, without waiting for all others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, datetime] = {}
        self._since: datetime | None = None

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[str]:
        """Those that have not lived for long enough yet."""
        now = self._clock.now()
        return iter([run_id for run_id, until in self._until.items() if until > now])

    @property
    def has_room(self) -> bool:
        """Whether one more may go."""
        return len(self) < self._allowed

    @property
    def _allowed(self) -> int:
        lasted = timedelta() if self._since is None else self._clock.now() - self._since
        return 2 ** min(lasted // _DOUBLING, _DOUBLINGS_MAX)

    def admit(self, run_id: str) -> None:
        """Let one go."""
        now = self._clock.now()
        self._since = self._since or now
        self._until[run_id] = now + _PROBATION

    def clear(self, run_id: str) -> None:
        """It has got on or ended, and the process still lives."""
        self._until.pop(run_id, None)

    def end(self) -> None:
        """Nobody is suspected any more."""
        if not self._until:
            self._since = None
