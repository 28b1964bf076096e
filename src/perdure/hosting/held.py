"""The runs that an embedded scheduler leaves alone for now: tried in vain, or suspected of ending processes."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING, TypeAlias

from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from perdure.clock import Clock
    from perdure.records import Due

Situation: TypeAlias = tuple[str | None, int, int, bool]
"""What has to change before a run is tried again: its head, newest command and attempts, whether a timer is due."""

_PAUSE_SECONDS_MIN = 0.25
_PAUSE_SECONDS_MAX = 60.0
SUSPECT_ATTEMPTS = 2
"""After so many processes that ended without getting on, a run is suspected of ending them."""
SUSPECT_SECONDS = 1.0
"""How long such a run is left alone at first."""


def situation_of(due: Due, *, at: str) -> Situation:
    """Where a run stands when it is due."""
    record = due.record
    return record.head, due.commands, record.attempts, record.wake_at is not None and record.wake_at <= at


def pause_seconds(tries: int, *, first: float = _PAUSE_SECONDS_MIN) -> float:
    """How long to wait after so many tries in vain: longer each time."""
    return min(first * 2.0 ** min(tries, 30), _PAUSE_SECONDS_MAX)


def after(clock: Clock, seconds: float) -> str:
    """The moment in so many seconds."""
    return (clock.now() + timedelta(seconds=seconds)).astimezone(UTC).isoformat()


@frozen
class _Held:
    situation: Situation
    until: str | None
    tries: int


class HeldRuns:
    """By run in which situation it is left alone, and until when; without a time until the situation is another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def is_held(self, run_id: str, situation: Situation, *, at: str) -> bool:
        """Whether the run is to be left alone."""
        held = self._held.get(run_id)
        return held is not None and held.situation == situation and (held.until is None or held.until > at)

    def is_known(self, run_id: str, situation: Situation) -> bool:
        """Whether the run was held in this situation, though its time has come."""
        held = self._held.get(run_id)
        return held is not None and held.situation == situation

    def hold(self, run_id: str, situation: Situation) -> None:
        """Leave the run alone until its situation is another."""
        self._held[run_id] = _Held(situation, None, 0)

    def postpone(self, run_id: str, situation: Situation) -> None:
        """Leave the run alone for a while, longer each time in a row."""
        before = self._held.get(run_id)
        tries = 0 if before is None else before.tries + 1
        self._held[run_id] = _Held(situation, after(self._clock, pause_seconds(tries)), tries)

    def suspect(self, run_id: str, situation: Situation) -> None:
        """Leave a run alone that several processes did not outlive, longer after each of them."""
        _, _, attempts, _ = situation
        pause = pause_seconds(attempts - SUSPECT_ATTEMPTS, first=SUSPECT_SECONDS)
        self._held[run_id] = _Held(situation, after(self._clock, pause), 0)

    def release(self, run_id: str) -> None:
        """Leave the run alone no more."""
        self._held.pop(run_id, None)

    def keep_only(self, run_ids: Collection[str]) -> None:
        """Forget all others: they are not due any more."""
        for run_id in self._held.keys() - set(run_ids):
            del self._held[run_id]

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()

    def moments(self) -> Iterator[str]:
        """When runs are not to be left alone any more."""
        return (held.until for held in self._held.values() if held.until is not None)
