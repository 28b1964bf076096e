"""The loop that drives one run: plan, run, route, fold, commit, tell, until nothing is left to deliver."""

from __future__ import annotations

import sys
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.clock import SystemClock
from perdure.data import mutable
from perdure.engine.activation import FRAMEWORK, Surroundings
from perdure.engine.closing import Closing
from perdure.engine.folding import Folding
from perdure.engine.instances import Drift
from perdure.engine.journal import NoJournal
from perdure.engine.narration import live, told_of
from perdure.engine.outside import NoOutside
from perdure.engine.purse import Purse
from perdure.engine.superstep import Superstep
from perdure.engine.telling import Telling
from perdure.engine.watch import Watch
from perdure.errors import (
    BudgetExceededError,
    ClaimLostError,
    CommandWaitsError,
    StaleHeadError,
    WorkflowCheckpointException,
    WorkflowConvergenceException,
)
from perdure.events import WorkflowEvent
from perdure.kernel import PendingEvent, plan
from perdure.tracing import NO_SPAN

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from perdure.clock import Clock
    from perdure.codec import Kept, Values
    from perdure.engine.journal import Journal
    from perdure.engine.ledger import Ledger
    from perdure.engine.outside import Outside
    from perdure.graph import Graph
    from perdure.kernel import Snapshot
    from perdure.tracing import Span

Events: TypeAlias = list[WorkflowEvent[Any]]

_TOLD_LIVE = frozenset({"woken", "cancelled", "warning", "undelivered"})


@mutable
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
    inside_of: str = ""
    """Of a sub-workflow: the id of the run around it, with the names of the executors that it is inside of."""
    span: Span = NO_SPAN
    only_takes_in: bool = False
    """Whether only what has come from outside is committed, and nothing is run."""
    is_watched: bool = False
    """Whether others can want the run to stop while a superstep is under way."""
    carried: Mapping[str, object] = field(default_factory=dict[str, object])
    """Of a sub-workflow: what its parent's checkpoint holds of its records."""
    purse: Purse = field(default_factory=Purse)
    """What was spent side by side, before a commit counts it."""
    standing: Callable[[Snapshot], Events] | None = None
    """What there is to tell of the run as it stands, once all that waited outside is taken in."""
    _folding: Folding = field(init=False)
    _journal: Journal = field(default_factory=NoJournal, init=False)
    _untold: list[PendingEvent] = field(default_factory=list["PendingEvent"], init=False)
    _superstep_under_way: Superstep | None = field(default=None, init=False)
    _is_to_stop: bool = field(default=False, init=False)
    """Whether it is time to stop, or somebody wants it, and that was not looked at yet."""

    def __post_init__(self) -> None:
        self._folding = Folding(self.graph, self.values)

    async def supersteps(self) -> AsyncGenerator[Events]:
        """Run supersteps until the run is idle. Between two of them nothing happens unless the reader asks on.

        What is told comes in batches: all that has happened by the time that the reader looks. If the reader wants no
        stream, each superstep is one.
        """
        async with self._watch():
            while True:
                if self._may_take_in():
                    told, failure = await self._taken_in()
                    if told:
                        yield told
                    if failure is not None:
                        raise failure
                if self._rests:
                    if await self._has_ended():
                        return
                    continue
                self._require_leave()
                if self.streaming:
                    async with Closing(self._live_superstep()) as batches:
                        async for told in batches:
                            yield told
                    continue
                events: Events = [_superstep_event("superstep_started", self.snapshot.iteration + 1)]
                try:
                    await self._whole_superstep(events)
                except Exception:
                    # What it told before it failed is told first, as to somebody who streams.
                    yield events
                    raise
                yield events

    async def _live_superstep(self) -> AsyncGenerator[Events]:
        """One superstep: what it tells as it happens."""
        yield [_superstep_event("superstep_started", self.snapshot.iteration + 1)]
        superstep = self._begun()
        try:
            async with superstep:
                while news := await superstep.news():
                    yield news
                if not superstep.has_ended:
                    return  # somebody wants the run to stop
                after, told = await self._folding.folded(self.snapshot, superstep.outcomes)
                if told:
                    yield told
                told = await self._superstep_committed(superstep, after, told)
        except BudgetExceededError as error:
            raise self._in_full(error) from error
        yield told

    async def _whole_superstep(self, told: Events) -> None:
        """One superstep, to its end. What it tells is added to `told`, also if it fails."""
        superstep = self._begun()
        try:
            async with superstep:
                await superstep.ended(told)
                if not superstep.has_ended:
                    return  # somebody wants the run to stop
                after, warnings = await self._folding.folded(self.snapshot, superstep.outcomes)
                told += warnings
                told += await self._superstep_committed(superstep, after, warnings)
        except BudgetExceededError as error:
            raise self._in_full(error) from error

    @property
    def _rests(self) -> bool:
        """Whether there is no superstep to run now."""
        return self.snapshot.is_idle or self.snapshot.cancelled is not None or self.only_takes_in

    async def _has_ended(self) -> bool:
        """Whether nothing is left to do. If only time can move the run on, it is waited for."""
        if self.snapshot.cancelled is not None or self.only_takes_in:
            return True
        return not await self.outside.wait(self.snapshot)

    def _may_take_in(self) -> bool:
        """Whether it is worth to look outside."""
        lacks_journal = self.is_checkpointed and isinstance(self._journal, NoJournal)
        is_new = lacks_journal or self.standing is not None
        return is_new or self._is_to_stop or self.outside.may_bring(self.snapshot)

    def _require_leave(self) -> None:
        """Whether the run may go on."""
        if self.snapshot.since_input >= self.graph.rules.max_iterations:
            raise WorkflowConvergenceException(
                f"workflow {self.graph.name!r} did not end within {self.graph.rules.max_iterations} supersteps "
                "since its last input, and messages are left; raise max_iterations if it is meant to run on"
            )
        limits = self.snapshot.limits
        if not limits.budget:
            return
        left = self.snapshot.left
        for name in limits.budget:
            beside = self.purse.beside(name)
            if left[name] < beside:
                raise self._over_budget(name, limits.spent.get(name, 0) + beside)
        self.purse.spend({name: limit - left[name] for name, limit in limits.budget.items()})

    def _over_budget(self, name: str, spent: float) -> BudgetExceededError:
        return BudgetExceededError(self.run_id, name=name, spent=spent, limit=self.snapshot.limits.budget[name])

    def _in_full(self, error: BudgetExceededError) -> BudgetExceededError:
        """A sub-workflow has only what is left to this one: say it in numbers of the whole."""
        outside = self.snapshot.limits.budget[error.name] - self.snapshot.left[error.name]
        return self._over_budget(error.name, outside + error.spent)

    async def _taken_in(self) -> tuple[Events, Exception | None]:
        """Commit what has come from outside or become due; what that tells, and what the run fails of then."""
        told, failure = await self._committed_news()
        standing, self.standing = self.standing, None
        return (told if standing is None else [*told, *standing(self.snapshot)]), failure

    async def _committed_news(self) -> tuple[Events, Exception | None]:
        if self.is_checkpointed and isinstance(self._journal, NoJournal):
            # A run whose first checkpoint could not be written may have got one since.
            self._journal = await self.ledger.open()
            if self.ledger.commands is not None:
                self.outside.bring(self.ledger.commands)
        while True:
            if self._is_to_stop:
                # It is there to be found now, whatever was read while it came.
                self._is_to_stop = False
                self.outside.heard(sys.maxsize)
            taken = await self.outside.look(self.snapshot, recorded=self._recorded)
            if taken is None:
                return [], None
            # The commit makes the journal void. What an earlier life has finished of the superstep goes with it.
            after = replace(taken.snapshot, carried={**taken.snapshot.carried, **self._recorded()})
            try:
                narrated = (*taken.told, PendingEvent("checkpoint"))
                told = await self._commit(after, "inbox", told=narrated, consumed=taken.consumed, done=taken.done)
            except CommandWaitsError:
                # Somebody has sent just what we thought had not come.
                self.outside.heard(sys.maxsize)
                continue
            return [*(live(each, self.values) for each in taken.told if each.type in _TOLD_LIVE), *told], taken.failure

    def _begun(self) -> Superstep:
        telling = Telling(live=self.streaming)
        superstep = Superstep(plan(self.snapshot), self._surroundings(telling), telling, self.drift)
        self._superstep_under_way = superstep
        if self._is_to_stop:
            superstep.stop()
        return superstep

    async def _superstep_committed(self, superstep: Superstep, after: Snapshot, told: Events) -> Events:
        """Commit a superstep; what is to be told of that."""
        iteration = after.iteration
        completed = _superstep_event("superstep_completed", iteration, self._newly_spent(after))
        if not self.is_checkpointed:
            self.snapshot = after
            return [completed]
        narrated = [
            PendingEvent("superstep_started", iteration=iteration),
            *(each for outcome in superstep.outcomes for each in outcome.effects.events),
            *(told_of(event, self.values) for event in told),
            PendingEvent("checkpoint"),
            told_of(completed, self.values)
            if completed.data
            else PendingEvent("superstep_completed", iteration=iteration),
        ]
        await superstep.settle()
        committed = await self._commit(after, "superstep", told=narrated)
        superstep.is_kept = True
        return [*committed, completed]

    def _newly_spent(self, after: Snapshot) -> dict[str, float] | None:
        """What the run has spent in all, if this superstep has spent something."""
        limits = after.limits
        if limits is self.snapshot.limits or limits.spent == self.snapshot.limits.spent:
            return None
        return dict(limits.spent)

    def _watch(self) -> Watch:
        """Stop the superstep under way when it is time or somebody wants it: what has finished is recorded."""
        return Watch(
            self._stop,
            asked=self.outside.cancelling if self.is_watched else None,
            deadline=self.snapshot.limits.deadline,
            clock=self.clock,
            run_id=self.run_id,
        )

    def _stop(self) -> None:
        self._is_to_stop = True
        if self._superstep_under_way is not None:
            self._superstep_under_way.stop()

    def _records(self) -> Journal:
        """What this superstep and what it goes on with have recorded."""
        return self._journal.under("", {**self.snapshot.carried, **self.carried})

    def _recorded(self) -> Mapping[str, Kept]:
        return self._records().records()

    def _surroundings(self, telling: Telling) -> Surroundings:
        span = self.span
        if span is not NO_SPAN:
            span = span.child("perdure.superstep", run_id=self.run_id, superstep=self.snapshot.iteration + 1)
        return Surroundings(
            graph=self.graph,
            snapshot=self.snapshot,
            values=self.values,
            tell=telling.tell,
            root_id=self.scope_id,
            clock=self.clock,
            run_id=self.inside_of or self.run_id,
            span=span,
            run_kwargs=self.run_kwargs,
            journal=self._records() if self.is_checkpointed else self._journal,
            streaming=self.streaming,
            is_checkpointed=self.is_checkpointed,
            purse=self.purse,
        )

    async def _commit(
        self,
        after: Snapshot,
        kind: str,
        *,
        told: Sequence[PendingEvent],
        consumed: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
    ) -> Events:
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
            return [warning]
        self.snapshot = after
        self._untold.clear()
        self.outside.heard(self.ledger.waiting, at=after)
        return [] if info is None else [WorkflowEvent("checkpoint", info, origin=FRAMEWORK)]


def _superstep_event(kind: str, iteration: int, data: object = None) -> WorkflowEvent[Any]:
    return WorkflowEvent(kind, data, iteration=iteration, origin=FRAMEWORK)
