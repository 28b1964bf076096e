"""The loop that drives one run: plan, run, route, fold, commit, tell, until nothing is left to deliver."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.clock import SystemClock
from perdure.errors import (
    BudgetExceededError,
    ClaimLostError,
    CommandWaitsError,
    StaleHeadError,
    StateConflictError,
    UndeliveredError,
    WorkflowCheckpointException,
    WorkflowConvergenceException,
    WorkflowException,
)
from perdure.events import UndeliveredMessage, WorkflowEvent
from perdure.graph.context import SHARED_SCOPE
from perdure.graph.edges import FanOutEdgeGroup
from perdure.kernel.effects import Sent, Told
from perdure.kernel.superstep import conflicts, fold, plan
from perdure.moments import seconds_until
from perdure.runtime.activation import FRAMEWORK, Surroundings
from perdure.runtime.closing import Closing
from perdure.runtime.instances import Drift, load
from perdure.runtime.journal import NoJournal
from perdure.runtime.narration import live, told_of
from perdure.runtime.outside import NoOutside, fan_ins_of
from perdure.runtime.purse import Purse
from perdure.runtime.routing import route
from perdure.runtime.superstep import Superstep, Telling
from perdure.tracing import NO_SPAN

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence

    from perdure.checkpoint.values import Values
    from perdure.clock import Clock
    from perdure.graph.definition import Graph
    from perdure.kernel.effects import Done, Effects, Unrouted
    from perdure.kernel.snapshot import Moment, Snapshot, StateKey
    from perdure.runtime.journal import Journal
    from perdure.runtime.ledger import Ledger
    from perdure.runtime.outside import Outside
    from perdure.tracing import Span


logger = logging.getLogger(__name__)

_WATCHED_AFTER_SECONDS = 0.2
_TOLD_LIVE = frozenset({"woken", "cancelled", "warning", "undelivered"})
_LOOKS_MAX = 5
"""How often the inbox is looked at again for the wish to stop, after it could not be read."""


@dataclass
class Driver:
    """Drives one run of a graph. `snapshot` is always the newest that was committed."""

    graph: Graph
    snapshot: Snapshot
    values: Values
    ledger: Ledger
    scope_id: str
    is_checkpointed: bool
    streaming: bool = False
    run_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    drift: Drift = field(default_factory=Drift)
    clock: Clock = field(default_factory=SystemClock)
    outside: Outside = field(default_factory=NoOutside)
    run_id: str = ""
    span: Span = NO_SPAN
    only_takes_in: bool = False
    """Whether only what has come from outside is committed, and nothing is run."""
    is_watched: bool = False
    """Whether others can want the run to stop while a superstep is under way."""
    carried: Mapping[str, object] = field(default_factory=dict[str, object])
    """Of a sub-workflow: what its parent's checkpoint holds of its records."""
    purse: Purse = field(default_factory=Purse)
    """What was spent side by side, before a commit counts it."""
    _routed: list[Told] = field(default_factory=list["Told"], init=False)
    _untold: list[Told] = field(default_factory=list["Told"], init=False)
    _superstep_under_way: Superstep | None = field(default=None, init=False)
    _is_to_stop: bool = field(default=False, init=False)
    """Whether it is time to stop, or somebody wants it, and that was not looked at yet."""

    async def supersteps(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Run supersteps until the run is idle. Between two of them nothing happens unless the reader asks on."""
        journal: Journal = NoJournal()
        async with self._watched():
            while True:
                if isinstance(journal, NoJournal):
                    # A run whose first checkpoint could not be written may have got one since.
                    journal = await self.ledger.open()
                async with Closing(self._taken_in(journal)) as events:
                    async for event in events:
                        yield event
                if self.snapshot.cancelled is not None or self.only_takes_in:
                    return
                if not self.snapshot.is_idle:
                    self._require_leave()
                    async with Closing(self._superstep(journal)) as events:
                        async for event in events:
                            yield event
                elif not await self.outside.wait(self.snapshot):
                    return

    def _require_leave(self) -> None:
        """Whether the run may go on."""
        if self.snapshot.since_input >= self.graph.rules.max_iterations:
            raise WorkflowConvergenceException(
                f"workflow {self.graph.name!r} did not end within {self.graph.rules.max_iterations} supersteps "
                "since its last input, and messages are left; raise max_iterations if it is meant to run on"
            )
        limits, left = self.snapshot.limits, self.snapshot.left
        for name in limits.budget:
            beside = self.purse.beside(name)
            if left[name] < beside:
                raise self._over_budget(name, limits.spent.get(name, 0) + beside)
        self.purse.spend({name: limit - left[name] for name, limit in limits.budget.items()})

    def _over_budget(self, name: str, spent: float) -> BudgetExceededError:
        return BudgetExceededError(self.run_id, name=name, spent=spent, limit=self.snapshot.limits.budget[name])

    async def _taken_in(self, journal: Journal) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Commit what has come from outside or become due."""
        while True:
            if self._is_to_stop:
                # It is there to be found now, whatever was read while it came.
                self._is_to_stop = False
                self.outside.heard(sys.maxsize)
            recorded = self._records(journal).records
            taken = await self.outside.look(self.snapshot, recorded=recorded)
            if taken is None:
                return
            # The commit makes the journal void. What an earlier life has finished of the superstep goes with it.
            after = replace(taken.snapshot, carried={**taken.snapshot.carried, **recorded()})
            try:
                narrated = (*taken.told, Told("checkpoint"))
                told = await self._commit(after, "inbox", told=narrated, consumed=taken.consumed, done=taken.done)
            except CommandWaitsError:
                # Somebody has sent just what we thought had not come.
                self.outside.heard(sys.maxsize)
                continue
            for event in taken.told:
                if event.type in _TOLD_LIVE:
                    yield live(event, self.values)
            if told is not None:
                yield told
            if taken.failure is not None:
                raise taken.failure
            return

    async def _superstep(self, journal: Journal) -> AsyncGenerator[WorkflowEvent[Any]]:
        before = self.snapshot
        iteration = before.iteration + 1
        yield WorkflowEvent("superstep_started", iteration=iteration, origin=FRAMEWORK)
        activations = plan(before)
        telling = Telling()
        span = self.span.child("perdure.superstep", run_id=self.run_id, superstep=iteration)
        superstep = Superstep(activations, self._surroundings(telling, journal, span), telling, self.drift)
        is_kept = False
        try:
            self._superstep_under_way = superstep
            if self._is_to_stop:
                superstep.stop()
            async with Closing(superstep.events()) as events:
                async for event in events:
                    yield event
            if superstep.is_stopped and not superstep.has_ended:
                return
            self._routed.clear()
            with superstep.noting_if_late():
                after = await self._folded(superstep.outcomes, telling)
                for event in telling.told():
                    yield event
            await superstep.settle()
            told = await self._commit(after, "superstep", told=self._narrated(iteration, superstep.outcomes))
            is_kept = True
        except BudgetExceededError as error:
            # A sub-workflow has only what is left to this one: say it in numbers of the whole.
            outside = before.limits.budget[error.name] - before.left[error.name]
            raise self._over_budget(error.name, outside + error.spent) from error
        finally:
            self._superstep_under_way = None
            span.end(sys.exc_info()[1])
            if not is_kept and self.is_checkpointed:
                superstep.note_all()
                await superstep.settle()
                await load(self.graph, before, self.values, only={a.executor_id for a in activations})
        if told is not None:
            yield told
        yield WorkflowEvent("superstep_completed", iteration=iteration, origin=FRAMEWORK)

    @asynccontextmanager
    async def _watched(self) -> AsyncGenerator[None]:
        """Stop the superstep under way when it is time or somebody wants it: what has finished is recorded.

        Most runs are over before it is worth to look.
        """
        if not self.is_watched and self.snapshot.limits.deadline is None:
            yield
            return
        watching: list[asyncio.Task[None]] = []

        def begin() -> None:
            watching.extend(asyncio.ensure_future(self._stop_after(reason)) for reason in self._reasons_to_stop())

        timer = asyncio.get_running_loop().call_later(_WATCHED_AFTER_SECONDS, begin)
        try:
            yield
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    def _reasons_to_stop(self) -> Iterator[Callable[[], Awaitable[None]]]:
        deadline = self.snapshot.limits.deadline
        if self.is_watched:
            yield self.outside.cancelling
        if deadline is not None:
            yield lambda: self._until(deadline)

    async def _stop_after(self, reason: Callable[[], Awaitable[None]]) -> None:
        for looks_left in reversed(range(_LOOKS_MAX)):
            try:
                await reason()
                break
            except WorkflowException as error:
                logger.warning("run %r: whether it is to stop could not be read: %s", self.run_id, error)
                if not looks_left:
                    return
                await self.clock.sleep(_WATCHED_AFTER_SECONDS)
        self._is_to_stop = True
        if self._superstep_under_way is not None:
            self._superstep_under_way.stop()

    async def _until(self, moment: Moment) -> None:
        while seconds := seconds_until(self.clock, moment):
            await self.clock.sleep(seconds)

    def _narrated(self, iteration: int, outcomes: Sequence[Done]) -> list[Told]:
        """What a superstep tells, in plan order."""
        return [
            Told("superstep_started", iteration=iteration),
            *(told for outcome in outcomes for told in outcome.effects.told),
            *self._routed,
            Told("checkpoint"),
            Told("superstep_completed", iteration=iteration),
        ]

    def _records(self, journal: Journal) -> Journal:
        return journal.under("", {**self.snapshot.carried, **self.carried})

    def _surroundings(self, telling: Telling, journal: Journal, span: Span) -> Surroundings:
        return Surroundings(
            graph=self.graph,
            snapshot=self.snapshot,
            values=self.values,
            tell=telling.tell,
            root_id=self.scope_id,
            clock=self.clock,
            span=span,
            run_kwargs=self.run_kwargs,
            journal=self._records(journal),
            streaming=self.streaming,
            is_checkpointed=self.is_checkpointed,
            purse=self.purse,
        )

    async def _commit(
        self,
        after: Snapshot,
        kind: str,
        *,
        told: Sequence[Told],
        consumed: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
    ) -> WorkflowEvent[Any] | None:
        """Commit and tell; what could not be written stops the run, or is a warning if the workflow says so."""
        try:
            every = (*self._untold, *told)
            info = await self.ledger.commit(after, kind, told=every, consumed=consumed, done=done)
        except (StaleHeadError, ClaimLostError, CommandWaitsError):
            raise
        except WorkflowCheckpointException as error:
            if self.graph.rules.on_checkpoint_error == "stop":
                raise
            self.snapshot = after
            warning = WorkflowEvent(
                "warning", f"no checkpoint of superstep {after.iteration}: {error}", origin=FRAMEWORK
            )
            # What could not be kept now is told by the next commit.
            self._untold += [each for each in told if each.type != "checkpoint"] + [told_of(warning, self.values)]
            return warning
        self.snapshot = after
        self._untold.clear()
        self.outside.heard(self.ledger.waiting)
        return None if info is None else WorkflowEvent("checkpoint", info, origin=FRAMEWORK)

    async def _folded(self, outcomes: Sequence[Done], telling: Telling) -> Snapshot:
        effects: list[Effects] = []
        for outcome in outcomes:
            sends = [await self._sent(outcome, unrouted, telling) for unrouted in outcome.unrouted]
            effects.append(replace(outcome.effects, sends=tuple(sends)))
        self._tell_conflicts(effects, telling)
        return fold(self.snapshot, effects, fan_ins=fan_ins_of(self.graph), merged=self._merged(outcomes))

    async def _sent(self, outcome: Done, unrouted: Unrouted, telling: Telling) -> Sent:
        source_id = outcome.effects.activation.executor_id
        message = unrouted.message if not self._asks_users(source_id) else self.values.give(unrouted.data)
        routing = await route(self.graph, source_id=source_id, target_id=unrouted.asked_for, message=message)
        if routing.undelivered is not None:
            if self.graph.rules.undelivered == "error":
                raise UndeliveredError(source_id=source_id, target_id=unrouted.asked_for, reason=routing.undelivered)
            data = UndeliveredMessage(unrouted.message, source_id, unrouted.asked_for, routing.undelivered)
            self._tell(WorkflowEvent("undelivered", data, executor_id=source_id, origin=FRAMEWORK), telling)
        return Sent(unrouted.data, unrouted.asked_for, routing.targets, routing.fan_ins, unrouted.due)

    def _tell(self, event: WorkflowEvent[Any], telling: Telling) -> None:
        """Tell what the end of a superstep has to tell, live and with the commit."""
        telling.tell(event)
        if self.is_checkpointed:
            self._routed.append(told_of(event, self.values))

    def _asks_users(self, source_id: str) -> bool:
        """Whether routing calls users' code, which must see the value as it was fixed and not as it is now."""
        return any(
            isinstance(group, FanOutEdgeGroup) or any(edge.has_condition for edge in group.edges)
            for group in self.graph.groups_from[source_id]
        )

    def _tell_conflicts(self, effects: Sequence[Effects], telling: Telling) -> None:
        for conflict in conflicts(effects):
            scope, key = conflict.key
            if scope == SHARED_SCOPE and key in self.graph.rules.reducers:
                continue
            error = StateConflictError(key=key, executor_ids=conflict.executor_ids)
            if self.graph.rules.state_conflicts == "strict":
                raise error
            text = f"{error}; the write of the last one stands"
            self._tell(WorkflowEvent("warning", text, origin=FRAMEWORK), telling)

    def _merged(self, outcomes: Sequence[Done]) -> Mapping[StateKey, object]:
        updates: dict[StateKey, list[object | None]] = {}
        for outcome in outcomes:
            for place, values in outcome.updates.items():
                updates.setdefault(place, []).extend(values)
        merged = {place: self._reduced(place, values) for place, values in updates.items()}
        return {place: value for place, value in merged.items() if value is not None}

    def _reduced(self, place: StateKey, updates: Sequence[object | None]) -> object | None:
        """The value that the updates make of the committed one, fixed; None if they end with its removal."""
        reducer = self.graph.rules.reducers[place[1]]
        merged = [self.values.give_state(self.snapshot.state[place])] if place in self.snapshot.state else []
        for update in updates:
            if update is None:
                merged.clear()
            else:
                given = self.values.give_state(update)
                merged = [reducer(merged[0], given) if merged else given]
        return self.values.fix(merged[0], f"state[{place[1]!r}]") if merged else None
