"""The scheduler that needs nothing but the store: it looks for runs that are due, and is told when to look."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from perdure.hosting.held import SUSPECT_ATTEMPTS, SUSPECT_SECONDS, HeldRuns, after, pause_seconds, situation_of
from perdure.hosting.scheduler import Dispatch
from perdure.hosting.suspects import Suspects
from perdure.hosting.waiting import first_of
from perdure.moments import now, seconds_until

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from perdure.clock import Clock
    from perdure.hosting.held import Situation
    from perdure.hosting.scheduler import Advance, Rest
    from perdure.records import Due
    from perdure.storage import HostStore, Stir

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
