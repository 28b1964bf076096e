"""The embedded scheduler: find due runs in the store and advance them. It needs nothing but the store."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.clock import Clock, now, seconds_until
from perdure.hosting.scheduler import Advance, Dispatch
from perdure.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator

    from perdure.records import Due
    from perdure.storage import HostStore, Subscription

logger = logging.getLogger(__name__)

_PAUSE_SECONDS_MIN = 0.25
_PAUSE_SECONDS_MAX = 60.0
# A store that takes longer to list due runs counts as out of reach.
_LOOK_DURATION_MAX = timedelta(seconds=10)
# A run is suspected of killing processes after this many attempts without progress.
SUSPECT_ATTEMPTS = 2
# First delay before a suspected run is tried again.
SUSPECT_SECONDS = 1.0


class Situation(NamedTuple):
    """The state of a due run. Once it changes, a deferred run is tried again."""

    head: str | None
    newest_command: int
    attempts: int
    is_timer_due: bool


def situation_of(due: Due, *, at: str) -> Situation:
    """Return the situation of a due run."""
    record = due.record
    return Situation(record.head, due.commands, record.attempts, record.wake_at is not None and record.wake_at <= at)


def pause_seconds(tries: int, *, first: float = _PAUSE_SECONDS_MIN) -> float:
    """Return the delay after a number of failed attempts. It doubles each time."""
    return min(first * 2.0 ** min(tries, 30), _PAUSE_SECONDS_MAX)


def after(clock: Clock, seconds: float) -> str:
    """Return the moment `seconds` from now."""
    return (clock.now() + timedelta(seconds=seconds)).astimezone(UTC).isoformat()


@dataclass(frozen=True, slots=True)
class _Deferral:
    situation: Situation
    until: str | None
    tries: int


class DeferredRuns:
    """Runs that are not retried for now: until a moment, or until their situation changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deferred: dict[str, _Deferral] = {}

    def __len__(self) -> int:
        return len(self._deferred)

    def is_deferred(self, run_id: str, situation: Situation, *, at: str) -> bool:
        """Return True if the run must not be tried yet."""
        found = self._deferred.get(run_id)
        return found is not None and found.situation == situation and (found.until is None or found.until > at)

    def was_deferred(self, run_id: str, situation: Situation) -> bool:
        """Return True if the run was deferred in this situation, even if its delay is over."""
        found = self._deferred.get(run_id)
        return found is not None and found.situation == situation

    def defer(self, run_id: str, situation: Situation) -> None:
        """Defer the run until its situation changes."""
        self._deferred[run_id] = _Deferral(situation, None, 0)

    def defer_for_a_while(self, run_id: str, situation: Situation) -> None:
        """Defer the run for a delay that doubles each time in a row."""
        before = self._deferred.get(run_id)
        tries = 0 if before is None else before.tries + 1
        self._deferred[run_id] = _Deferral(situation, after(self._clock, pause_seconds(tries)), tries)

    def suspect(self, run_id: str, situation: Situation) -> None:
        """Defer a run that several processes did not survive. The delay grows with its attempts."""
        pause = pause_seconds(situation.attempts - SUSPECT_ATTEMPTS, first=SUSPECT_SECONDS)
        self._deferred[run_id] = _Deferral(situation, after(self._clock, pause), 0)

    def release(self, run_id: str) -> None:
        """Let the run be tried again."""
        self._deferred.pop(run_id, None)

    def keep_only(self, run_ids: Collection[str]) -> None:
        """Forget runs that are no longer due."""
        for run_id in self._deferred.keys() - set(run_ids):
            del self._deferred[run_id]

    def clear(self) -> None:
        """Forget all runs."""
        self._deferred.clear()

    def moments(self) -> Iterator[str]:
        """Yield the moments at which deferred runs become due."""
        return (each.until for each in self._deferred.values() if each.until is not None)


# A suspected run that survives this long no longer blocks the others.
_PROBATION = timedelta(seconds=10)
_DOUBLING = timedelta(seconds=5)
_DOUBLINGS_MAX = 20


class Suspects:
    """Runs that may kill this process. One runs alone at first; the limit doubles every few seconds.

    So each run that shared a process with the culprit is cleared quickly, without waiting for all the others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, datetime] = {}
        self._since: datetime | None = None

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[str]:
        """Yield the runs still on probation."""
        now = self._clock.now()
        return iter([run_id for run_id, until in self._until.items() if until > now])

    @property
    def has_room(self) -> bool:
        """True if one more suspected run may start."""
        return len(self) < self._allowed

    @property
    def _allowed(self) -> int:
        lasted = timedelta() if self._since is None else self._clock.now() - self._since
        return 2 ** min(lasted // _DOUBLING, _DOUBLINGS_MAX)

    def admit(self, run_id: str) -> None:
        """Start the probation of a run."""
        now = self._clock.now()
        self._since = self._since or now
        self._until[run_id] = now + _PROBATION

    def clear(self, run_id: str) -> None:
        """Clear a run that made progress or ended while the process survived."""
        self._until.pop(run_id, None)

    def end(self) -> None:
        """Reset the limit once no run is suspected."""
        if not self._until:
            self._since = None


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these and cancel the others. Raises its error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class EmbeddedScheduler:
    """Advance at most `max_runs` runs at once, longest waiting first.

    It looks for due runs when the store notifies it, a timer fires, one of its runs stops, or `wake` is called. Any
    number of schedulers may share one store: leases decide which one gets a run.
    """

    def __init__(self, store: HostStore, clock: Clock, *, max_runs: int = 100) -> None:
        if max_runs < 1:
            raise ValueError(f"max_runs must be at least 1, not {max_runs}")
        self._store = store
        self._clock = clock
        self._max_runs = max_runs
        self._deferred = DeferredRuns(clock)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._suspects = Suspects(clock)
        self._woken = asyncio.Event()
        self._failures = 0  # failed looks in a row
        self._looking_since: datetime | None = None
        self.looked_at: datetime | None = None
        """The time of the newest successful look at the store."""
        self.queue_depth = 0
        """The number of due runs that waited at the newest look. It sees about as many as may run at once."""

    @property
    def is_store_reachable(self) -> bool:
        """False if the newest look at the store failed, or takes long."""
        since = self._looking_since
        return not self._failures and (since is None or self._clock.now() - since < _LOOK_DURATION_MAX)

    @property
    def holds(self) -> int:
        """The number of runs in memory: active and deferred."""
        return len(self._running) + len(self._deferred)

    async def wake(self, run_id: str) -> None:
        """Look for work, and try this run even if it was deferred."""
        self._deferred.release(run_id)
        self._woken.set()

    # The store has the new run or the cancel command already, so all three only look for work.
    start = cancel = wake

    async def wake_at(self, run_id: str, moment: datetime) -> None:
        """Look for work. The store knows the moment already."""
        del moment
        await self.wake(run_id)

    async def serve(self, advance: Advance, workflow_names: Collection[str]) -> None:
        """Advance due runs until cancelled. Retry if the store can't be reached."""
        self._deferred.clear()
        self._woken = asyncio.Event()
        while True:
            try:
                await self._serve(advance, tuple(workflow_names))
            except Exception as error:  # noqa: BLE001 - whatever it is, runs are waiting for somebody
                pause = pause_seconds(self._failures)
                self._failures += 1
                logger.warning("could not look for due runs, retrying in %g seconds: %s", pause, error)
                await self._clock.sleep(pause)

    async def _serve(self, advance: Advance, names: tuple[str, ...]) -> None:
        async with self._store.subscribe() as subscription:
            while True:
                # Notifications from here on end the wait below.
                subscription.clear()
                self._woken.clear()
                self._looking_since = self._clock.now()
                until = await self._look(advance, names)
                self._failures, self._looking_since, self.looked_at = 0, None, self._clock.now()
                await self._wait(subscription, until)

    async def _look(self, advance: Advance, names: tuple[str, ...]) -> str | None:
        """Dispatch due runs while there is room. Return the moment of the next look, if there is one."""
        free = self._max_runs - len(self._running)
        at = now(self._clock)
        # Those that are deferred or running may come first.
        limit = free + len(self._deferred) + len(self._running)
        found = await self._store.due(at=at, workflow_names=names, limit=limit)
        if len(found) < limit:
            # These are all due runs.
            self._deferred.keep_only({due.record.run_id for due in found})
        for due in found:
            situation = situation_of(due, at=at)
            if len(self._running) < self._max_runs and await self._may_start(due, situation, at=at):
                run_id = due.record.run_id
                self._running[run_id] = asyncio.create_task(self._advance(advance, run_id, situation))
        self.queue_depth = sum(due.record.run_id not in self._running for due in found)
        measure("perdure.host.queue.depth", self.queue_depth)
        moments = [moment for moment in self._deferred.moments() if moment > at]
        if any(self._is_suspected(due) for due in found):
            # No event signals progress of a suspected run, or room for the next one.
            moments.append(after(self._clock, SUSPECT_SECONDS))
        else:
            self._suspects.end()
        timer = await self._store.next_wake(after=at, workflow_names=names)
        while timer is not None and not _is_moment(timer):
            # The run of this timer is damaged. It must not stop the others.
            timer = await self._store.next_wake(after=timer, workflow_names=names)
        return min(moments if timer is None else [timer, *moments], default=None)

    def _is_suspected(self, due: Due) -> bool:
        return due.record.attempts >= SUSPECT_ATTEMPTS and due.record.run_id not in self._running

    async def _may_start(self, due: Due, situation: Situation, *, at: str) -> bool:
        run_id = due.record.run_id
        if run_id in self._running or self._deferred.is_deferred(run_id, situation, at=at):
            return False
        if due.record.attempts < SUSPECT_ATTEMPTS:
            return True
        if not self._deferred.was_deferred(run_id, situation):
            self._deferred.suspect(run_id, situation)
            return False
        if not await self._has_room_for_a_suspect():
            return False
        self._suspects.admit(run_id)
        return True

    async def _has_room_for_a_suspect(self) -> bool:
        """Return True if one more suspected run may start. Runs that made progress are cleared first."""
        for run_id in self._suspects:
            record = await self._store.run(run_id)
            if record is None or not record.attempts:
                self._suspects.clear(run_id)
        return self._suspects.has_room

    async def _advance(self, advance: Advance, run_id: str, situation: Situation) -> None:
        try:
            result = await advance(Dispatch(run_id))
        finally:
            del self._running[run_id]
            self._suspects.clear(run_id)
            self._woken.set()
        # A run that nothing has changed would be due at once again.
        if result.tries_again:
            self._deferred.defer_for_a_while(run_id, situation)
        elif result.has_changed or result.status in {"failed", "quarantined", "exported"}:
            self._deferred.release(run_id)
        else:
            self._deferred.defer(run_id, situation)

    async def _wait(self, subscription: Subscription, until: str | None) -> None:
        timers = [] if until is None else [self._clock.sleep(seconds_until(self._clock, until))]
        await first_of(subscription.wait(), self._woken.wait(), *timers)
