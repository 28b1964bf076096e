"""The loop of one run: apply the inbox, plan, run, fold, commit, emit, until nothing is left to deliver."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from time import perf_counter  # noqa: TID251 - durations for operators; no run depends on them
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from perdure.clock import Clock, SystemClock, seconds_until
from perdure.data_classes import new_dict, new_list
from perdure.engine.commit import FRAMEWORK, Committer, completed_event, live_event, pending_event, warning_event
from perdure.engine.journal import Journal
from perdure.engine.routing import fan_ins_of, fold_superstep
from perdure.engine.state import BudgetTracker, ChangeDetector
from perdure.engine.superstep import ActivationContext, Superstep
from perdure.engine.tasks import stop
from perdure.errors import (
    BudgetExceededError,
    CommandWaitsError,
    LeaseLostError,
    StaleHeadError,
    WorkflowCheckpointException,
    WorkflowConvergenceException,
    WorkflowException,
)
from perdure.events import SuperstepInfo, WorkflowEvent
from perdure.kernel import FanIn, Moment, PendingEvent, Snapshot, plan
from perdure.tracing import NO_SPAN, Span

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from perdure.codec import Values
    from perdure.engine.inbox import Inbox
    from perdure.graph import Graph

logger = logging.getLogger(__name__)

Events: TypeAlias = list[WorkflowEvent[Any]]
ItemT = TypeVar("ItemT")

_EMITTED_LIVE = frozenset({"woken", "cancelled", "warning", "undelivered"})
_WATCH_DELAY_SECONDS = 0.2
"""Most runs are over before it is worth watching for a cancellation."""
_WATCH_ATTEMPTS_MAX = 5
"""How often the inbox is read again after it could not be read."""


@dataclass(slots=True)
class Closing(Generic[ItemT]):
    """Close an async generator at the end of a block, before anything around it is closed.

    An event loop that shuts down closes all generators at once. The inner one of two may be closing already when the
    outer one comes to it. Then the outer one waits.
    """

    generator: AsyncGenerator[ItemT]

    async def __aenter__(self) -> AsyncGenerator[ItemT]:
        return self.generator

    async def __aexit__(self, *_: object) -> None:
        generator: Any = self.generator
        while generator.ag_running:  # noqa: ASYNC110 - a generator gives no signal when it has ended
            await asyncio.sleep(0)
        await generator.aclose()


@dataclass(slots=True)
class RunLoop:
    """Advance one run, or one sub-workflow. `snapshot` is always the newest committed one.

    Attributes:
        committer: None if the run is not checkpointed.
        tools: Tools for agents that the caller gave to this call.
        inbox: None for a sub-workflow: its parent gets the commands and timers.
        inside_of: For a sub-workflow: the id of its run, followed by the names of the enclosing executors.
        only_applies_inbox: True if commands are committed and nothing is run.
        carried: For a sub-workflow: its records in the parent's checkpoint.
        describe: Return what to emit about the run once the waiting commands are applied.
        is_in_superstep: True from the beginning of a superstep until its commit.
        _uncommitted: Events of a commit that failed.
        _must_stop: True if a cancel command or the deadline came, and was not applied yet.
        _failure: The error of a command that ends the run.
    """

    graph: Graph
    snapshot: Snapshot
    values: Values
    committer: Committer | None
    root_id: str
    streaming: bool = False
    run_kwargs: dict[str, Any] = field(default_factory=new_dict)
    tools: list[Any] | None = None
    changes: ChangeDetector = field(default_factory=ChangeDetector)
    clock: Clock = field(default_factory=SystemClock)
    inbox: Inbox | None = None
    run_id: str = ""
    inside_of: str = ""
    span: Span = NO_SPAN
    only_applies_inbox: bool = False
    carried: Mapping[str, object] = field(default_factory=new_dict)
    budget: BudgetTracker = field(default_factory=BudgetTracker)
    describe: Callable[[Snapshot], Events] | None = None
    is_in_superstep: bool = field(default=False, init=False)
    _journal: Journal = field(default_factory=Journal, init=False)
    _fan_ins: Mapping[str, FanIn] = field(default_factory=new_dict, init=False)
    _uncommitted: list[PendingEvent] = field(default_factory=new_list, init=False)
    _superstep: Superstep | None = field(default=None, init=False)
    _must_stop: bool = field(default=False, init=False)
    _failure: Exception | None = field(default=None, init=False)
    _watchers: list[asyncio.Task[None]] = field(default_factory=new_list, init=False)

    async def run(self) -> AsyncGenerator[Events]:
        """Run supersteps until the run is idle. Between two of them nothing happens until the reader continues.

        Events come in batches. Without a stream, those of a superstep come when its activations have ended.
        """
        timer = self._watch_later()
        try:
            while True:
                self.is_in_superstep = False
                if events := await self._apply_inbox():
                    yield events
                if await self._is_finished():
                    return
                if self.snapshot.is_idle:
                    continue  # a command came, or a timer is due
                self._require_limits()
                iteration = self.snapshot.iteration + 1
                started = [WorkflowEvent("superstep_started", iteration=iteration, origin=FRAMEWORK)]
                if self.streaming:
                    yield started
                begun = perf_counter()
                superstep = self._begin_superstep([] if self.streaming else started)
                self.is_in_superstep = True
                try:
                    async with superstep:
                        while events := await superstep.next_events():
                            yield events
                        if not superstep.has_all_results:
                            continue  # the run must stop
                        after, warnings = await fold_superstep(
                            self.graph, self.values, self._fan_ins, self.snapshot, superstep.results
                        )
                        self.is_in_superstep = False
                        duration = round(perf_counter() - begun, 6)
                        events = [*warnings, *await self._commit_superstep(superstep, after, warnings, duration)]
                except BudgetExceededError as error:
                    raise self._in_full(error) from error
                yield events
        finally:
            if timer is not None:
                await self._stop_watching(timer)

    async def _is_finished(self) -> bool:
        """Return whether nothing is left to do. An idle run waits for its timers here."""
        if self._failure is not None:
            raise self._failure
        if self.snapshot.cancelled is not None or self.only_applies_inbox:
            return True
        if not self.snapshot.is_idle:
            return False
        return self.inbox is None or not await self.inbox.wait(self.snapshot)

    def _begin_superstep(self, emitted: Events) -> Superstep:
        graph, snapshot, span, log = self.graph, self.snapshot, self.span, self._journal.log
        if graph.fan_ins and not self._fan_ins:
            self._fan_ins = fan_ins_of(graph)
        if span is not NO_SPAN:
            span = span.child("perdure.superstep", run_id=self.run_id, superstep=snapshot.iteration + 1)
        carried = {**snapshot.carried, **self.carried}
        keeps_records = self.committer is not None and log is not None
        context = ActivationContext(
            graph=graph,
            snapshot=snapshot,
            values=self.values,
            root_id=self.root_id,
            run_kwargs=self.run_kwargs,
            tools=self.tools,
            journal=Journal(log, self._journal.prefix, carried),
            clock=self.clock,
            run_id=self.inside_of or self.run_id,
            span=span,
            streaming=self.streaming,
            is_checkpointed=self.committer is not None,
            keeps_records=keeps_records,
            has_records=keeps_records and bool(carried or (log is not None and log.records)),
            budget=self.budget,
            emitted=emitted,
        )
        limit = graph.rules.max_concurrency
        slots = None if limit is None else asyncio.Semaphore(limit)
        self._superstep = Superstep(plan(snapshot), context, self.changes, slots, must_end=self._must_stop)
        return self._superstep

    def _require_limits(self) -> None:
        """Raise if the run has used up its supersteps or its budget."""
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
            parallel = self.budget.spent_by_siblings(name)
            if left[name] < parallel:
                raise self._over_budget(name, limits.spent.get(name, 0) + parallel)
        self.budget.report({name: limit - left[name] for name, limit in limits.budget.items()})

    def _over_budget(self, name: str, spent: float) -> BudgetExceededError:
        return BudgetExceededError(self.run_id, name=name, spent=spent, limit=self.snapshot.limits.budget[name])

    def _in_full(self, error: BudgetExceededError) -> BudgetExceededError:
        """Return the error with the totals of this run: a sub-workflow knows only what was left to it."""
        outside = self.snapshot.limits.budget[error.name] - self.snapshot.left[error.name]
        return self._over_budget(error.name, outside + error.spent)

    async def _apply_inbox(self) -> Events:
        """Commit commands and due timers. Return their events."""
        events: Events = []
        if self.committer is not None and self._journal.log is None:
            # A run whose first checkpoint could not be written may have one by now.
            self._journal = await self.committer.open()
            if self.inbox is not None and self.committer.commands is not None:
                self.inbox.offer(self.committer.commands)
        if self._must_stop:
            self._must_stop = False
            if self.inbox is not None:
                self.inbox.refresh()
        while self.inbox is not None:
            applied = await self.inbox.apply(self.snapshot)
            if applied is None:
                break
            # The commit makes the journal void, so the checkpoint carries its records.
            recorded = replace(self._journal, carried=self.snapshot.carried).records()
            after = replace(applied.snapshot, carried={**applied.snapshot.carried, **recorded})
            pending = (*applied.events, PendingEvent("checkpoint"))
            try:
                committed = await self._commit(after, "inbox", pending, consumed=applied.consumed, done=applied.done)
            except CommandWaitsError:
                self.inbox.refresh()  # it is not known yet
                continue
            live = [live_event(event, self.values) for event in applied.events if event.type in _EMITTED_LIVE]
            events, self._failure = [*live, *committed], applied.failure
            break
        describe, self.describe = self.describe, None
        return events if describe is None else [*events, *describe(self.snapshot)]

    async def _commit_superstep(
        self, superstep: Superstep, after: Snapshot, warnings: Events, duration: float
    ) -> Events:
        """Commit a superstep. Return the events about that."""
        before, iteration = self.snapshot.limits, after.iteration
        # Spending is reported in total, if this superstep has spent anything.
        has_spent = after.limits is not before and after.limits.spent != before.spent
        info, committed = SuperstepInfo(dict(after.limits.spent) if has_spent else {}, duration), []
        if self.committer is None:
            self.snapshot = after
        else:
            pending = [
                PendingEvent("superstep_started", iteration=iteration),
                *(event for result in superstep.results for event in result.effects.events),
                *(pending_event(event, self.values) for event in warnings),
                PendingEvent("checkpoint"),
            ]
            if superstep.recording is not None:
                # The commit replaces the records that are not queued yet.
                superstep.recording.cancel()
                superstep.recording = None
            committed = await self._commit(after, "superstep", pending, superstep=info)
            superstep.is_committed = True
            info = self.committer.describe(info)
        return [*committed, WorkflowEvent("superstep_completed", info, iteration=iteration, origin=FRAMEWORK)]

    async def _commit(
        self,
        after: Snapshot,
        kind: str,
        events: Sequence[PendingEvent],
        *,
        consumed: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
        superstep: SuperstepInfo | None = None,
    ) -> Events:
        """Commit a snapshot. A write that fails stops the run, or is a warning if the workflow says so."""
        committer = self.committer
        try:
            info = None
            if committer is not None:
                every = (*self._uncommitted, *events) if self._uncommitted else events
                info = await committer.commit(
                    after, kind, events=every, consumed=consumed, done=done, superstep=superstep
                )
        except (StaleHeadError, LeaseLostError, CommandWaitsError):
            raise
        except WorkflowCheckpointException as error:
            if self.graph.rules.on_checkpoint_error == "stop":
                raise
            self.snapshot = after
            warning = warning_event(f"no checkpoint of superstep {after.iteration}: {error}")
            # The next commit keeps these events.
            self._uncommitted += [event for event in events if event.type != "checkpoint"]
            if superstep is not None:
                self._uncommitted.append(completed_event(after, superstep))
            self._uncommitted.append(pending_event(warning, self.values))
            return [warning]
        self.snapshot = after
        self._uncommitted.clear()
        if self.inbox is not None and committer is not None:
            self.inbox.on_commit(committer.newest_command, after)
        return [] if info is None else [WorkflowEvent("checkpoint", info, origin=FRAMEWORK)]

    def _watch_later(self) -> asyncio.TimerHandle | None:
        """Start to watch for a cancel command and the deadline, after a short delay."""
        inbox, deadline = self.inbox, self.snapshot.limits.deadline
        if inbox is not None and inbox.store is None:
            inbox = None
        if inbox is None and deadline is None:
            return None
        return asyncio.get_running_loop().call_later(_WATCH_DELAY_SECONDS, self._watch, inbox, deadline)

    def _watch(self, inbox: Inbox | None, deadline: Moment | None) -> None:
        if inbox is not None:
            self._watchers.append(asyncio.ensure_future(self._stop_after(inbox.wait_for_cancel)))
        if deadline is not None:
            self._watchers.append(asyncio.ensure_future(self._stop_after(lambda: self._sleep_until(deadline))))

    async def _stop_watching(self, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        # Forget the tasks: a cancelled task's traceback refers to this object, and the cycle would keep the whole run.
        watchers, self._watchers = self._watchers, []
        if watchers:
            await stop(watchers)

    async def _stop_after(self, condition: Callable[[], Awaitable[None]]) -> None:
        """Stop the superstep in progress when the condition is met. Finished activations are recorded."""
        for attempts_left in reversed(range(_WATCH_ATTEMPTS_MAX)):
            try:
                await condition()
                break
            except WorkflowException as error:
                logger.warning("run %r: can't read whether it is cancelled: %s", self.run_id, error)
                if not attempts_left:
                    return
                await self.clock.sleep(_WATCH_DELAY_SECONDS)
        self._must_stop = True
        if self._superstep is not None:
            self._superstep.stop()

    async def _sleep_until(self, moment: Moment) -> None:
        while seconds := seconds_until(self.clock, moment):
            await self.clock.sleep(seconds)
