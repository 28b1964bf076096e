"""The scheduler that needs nothing but the store: it looks for runs that are due, and is told when to look."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.data import frozen
from perdure.hosting.scheduler import Dispatch
from perdure.moments import now, seconds_until

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator
    from datetime import datetime

    from perdure.clock import Clock
    from perdure.hosting.scheduler import Advance, Rest
    from perdure.records import Due
    from perdure.storage import HostStore, Stir

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


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these, and stop the others. Its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


logger = logging.getLogger(__name__)


class EmbeddedScheduler:
    """Advances at most `max_runs` runs at once, those first that have waited longest.

    It looks when the store stirs, a timer is due, one of its runs has come to rest, or this process wants it. Any
    number of them may work on one store: the store's claims decide who has a run.
    """

    def __init__(self, store: HostStore, clock: Clock, *, max_runs: int = 100) -> None:
        if max_runs < 1:
            raise ValueError(f"max_runs is 1 or more, not {max_runs}")
        self._store = store
        self._clock = clock
        self._max_runs = max_runs
        self._held = HeldRuns(clock)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._suspects = Suspects(clock)
        self._woken = asyncio.Event()
        self._failures = 0
        """How often in a row it could not look."""

    @property
    def holds(self) -> int:
        """How many runs it remembers: those that are advanced, and those that it leaves alone for now."""
        return len(self._running) + len(self._held)

    async def start(self, run_id: str) -> None:
        """Look for work."""
        await self.wake(run_id)

    async def wake(self, run_id: str) -> None:
        """Look for work, and try this run whatever was before."""
        self._held.release(run_id)
        self._woken.set()

    async def wake_at(self, run_id: str, moment: datetime) -> None:
        """The store has the moment already."""
        del moment
        await self.wake(run_id)

    async def cancel(self, run_id: str) -> None:
        """Look for work: the wish to stop is in the run's inbox."""
        await self.wake(run_id)

    async def serve(self, advance: Advance, workflow_names: Collection[str]) -> None:
        """Advance what is due, until this is cancelled. A store that can't be reached is tried again and again."""
        self._held.clear()
        self._woken = asyncio.Event()
        while True:
            try:
                await self._serve(advance, tuple(workflow_names))
            except Exception as error:  # noqa: BLE001 - whatever it is, runs are waiting for somebody
                pause = pause_seconds(self._failures)
                self._failures += 1
                logger.warning("looking for runs failed, the next try is in %g seconds: %s", pause, error)
                await self._clock.sleep(pause)

    async def _serve(self, advance: Advance, names: tuple[str, ...]) -> None:
        async with self._store.stirring() as stir:
            while True:
                # What comes from here on ends the rest below.
                stir.rest()
                self._woken.clear()
                until = await self._look(advance, names)
                self._failures = 0
                await self._rest(stir, until)

    async def _look(self, advance: Advance, names: tuple[str, ...]) -> str | None:
        """Dispatch what is due and has room; when to look again at the latest."""
        free = self._max_runs - len(self._running)
        if free <= 0:
            return None
        at = now(self._clock)
        limit = free + len(self._held) + len(self._running)
        found = await self._store.due(at=at, workflow_names=names, limit=limit)
        if len(found) < limit:
            self._held.keep_only({due.record.run_id for due in found})
        for due in found:
            situation = situation_of(due, at=at)
            if len(self._running) < self._max_runs and await self._may_go(due, situation, at=at):
                self._dispatch(advance, due, situation)
        moments = [moment for moment in self._held.moments() if moment > at]
        if any(self._is_suspected(due) for due in found):
            # Nothing tells when one that is under way has got on, nor when there is room for more.
            moments.append(after(self._clock, SUSPECT_SECONDS))
        else:
            self._suspects.end()
        timer = await self._store.next_wake(after=at, workflow_names=names)
        return min(moments if timer is None else [timer, *moments], default=None)

    def _is_suspected(self, due: Due) -> bool:
        return due.record.attempts >= SUSPECT_ATTEMPTS and due.record.run_id not in self._running

    async def _may_go(self, due: Due, situation: Situation, *, at: str) -> bool:
        run_id = due.record.run_id
        if run_id in self._running or self._held.is_held(run_id, situation, at=at):
            return False
        if due.record.attempts < SUSPECT_ATTEMPTS:
            return True
        if not self._held.is_known(run_id, situation):
            self._held.suspect(run_id, situation)
            return False
        if not await self._has_room_for_a_suspect():
            return False
        self._suspects.admit(run_id)
        return True

    async def _has_room_for_a_suspect(self) -> bool:
        """Whether one more may be tried that may end this process. Those that have got on will not."""
        for run_id in self._suspects:
            record = await self._store.run(run_id)
            if record is None or not record.attempts:
                self._suspects.clear(run_id)
        return self._suspects.has_room

    def _dispatch(self, advance: Advance, due: Due, situation: Situation) -> None:
        run_id = due.record.run_id
        self._running[run_id] = asyncio.create_task(self._advanced(advance, run_id, situation))

    async def _advanced(self, advance: Advance, run_id: str, situation: Situation) -> None:
        try:
            rest = await advance(Dispatch(run_id))
        finally:
            del self._running[run_id]
            self._suspects.clear(run_id)
            self._woken.set()
        self._note(run_id, situation, rest)

    def _note(self, run_id: str, situation: Situation, rest: Rest) -> None:
        """A run that nothing could be done for is left alone for a while, or until something has changed."""
        if rest.tries_again:
            self._held.postpone(run_id, situation)
        elif rest.has_changed or rest.status in {"failed", "parked", "exported"}:
            self._held.release(run_id)
        else:
            self._held.hold(run_id, situation)

    async def _rest(self, stir: Stir, until: str | None) -> None:
        if until is None:
            await first_of(stir.woken(), self._woken.wait())
        else:
            await first_of(stir.woken(), self._woken.wait(), self._clock.sleep(seconds_until(self._clock, until)))
