"""One superstep: the activations run side by side, and what they tell is handed on as it happens."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from perdure.checkpoint import request_event
from perdure.engine.attempts import Attempts
from perdure.engine.instances import has_hooks, load, saved_state
from perdure.engine.logbook import FRAMEWORK
from perdure.engine.narration import output_events, told_of
from perdure.engine.parking import has_failed, stop
from perdure.events import WorkflowEvent
from perdure.graph import wiring
from perdure.kernel import ActivationResult, Snapshot
from perdure.tracing import NO_SPAN

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from perdure.engine.activation import Surroundings
    from perdure.engine.instances import Drift
    from perdure.engine.telling import Telling
    from perdure.graph import Executor
    from perdure.kernel import Activation


class Superstep:
    """Runs the activations of a plan that the journal does not hold, and notes each as it finishes.

    `async with` begins them. `news` is what they tell; when there is no more, `outcomes` holds what each did, in plan
    order. Who does not want to know before all have ended waits for that with `ended`. Afterwards nothing of them runs
    any more, and unless all `is_kept` the executors are as they were before.
    """

    is_stopped = False
    is_kept = False
    """Whether what the activations did is committed."""
    _has_failed = False
    _failed: asyncio.Task[None] | None = None
    _late: asyncio.Handle | None = None
    _is_late = False
    """Whether the commit does not follow at once, so that all that has ended is noted."""
    _is_noting = False
    """Whether what has ended is about to be noted if the others have not ended by then."""

    def __init__(self, activations: Sequence[Activation], around: Surroundings, telling: Telling, drift: Drift) -> None:
        self._activations = activations
        self._around = around
        self._telling = telling
        self._drift = drift
        self._lanes: list[asyncio.Task[None]] = []
        self._running: list[asyncio.Task[None]] = []
        """The lanes, without those at the end of the list that are known to be over."""
        self._found: dict[str, ActivationResult] = {}
        self._states: dict[str, object] = {}
        """By executor: the state after its last activation in this superstep that has ended."""
        self._unnoted: list[ActivationResult] = []
        limit = around.graph.rules.max_concurrency
        self._slots = asyncio.Semaphore(limit) if limit is not None else None

    @property
    def outcomes(self) -> tuple[ActivationResult, ...]:
        """What the activations did, in plan order."""
        found = self._found
        if len(found) == 1:
            return tuple(found.values())
        return tuple([found[activation.key] for activation in self._activations])

    @property
    def has_ended(self) -> bool:
        """Whether every activation has an outcome."""
        return len(self._found) == len(self._activations)

    def stop(self) -> None:
        """Cancel what runs. What has finished is recorded; there are no outcomes then."""
        self.is_stopped = True
        self._telling.wake()

    def note_all(self) -> None:
        """Note what has ended, and from now on all that ends: the commit is late, or does not come."""
        self._is_late = True
        self._note_ended()

    def _note_ended(self) -> None:
        if self._unnoted:
            home_of = self._around.home_of
            self._around.journal.keep({home_of(done.effects.activation): done for done in self._unnoted})
            self._unnoted = []

    def _note_before_others_end(self) -> None:
        """Note what has ended, unless nothing runs any more: of a last one the commit itself is the record."""
        self._is_noting = False
        if not self.has_ended:
            self._note_ended()

    async def settle(self) -> None:
        """The commit comes at once, or not at all: wait until all that was noted is written."""
        if self._around.is_checkpointed:
            self._go_on()
            await self._around.journal.settle()

    def _let_others_act(self) -> None:
        """Others can make long what comes now: a reader who takes the time, a condition that waits.

        As soon as anything else gets its turn before `_go_on`, the commit is late, and all that has ended is noted.
        """
        self._late = asyncio.get_running_loop().call_soon(self.note_all)

    def _go_on(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    async def __aenter__(self) -> Self:
        if not self.is_stopped:
            create_task = asyncio.get_running_loop().create_task
            self._lanes = [create_task(self._watched(*each)) for each in self._by_executor()]
            self._running += self._lanes
        return self

    async def news(self) -> list[WorkflowEvent[Any]]:
        """What was told since, once there is something; nothing if all have ended, or if it was stopped.

        The first failure cancels the others, which are awaited; it is raised when all that they told is handed on.
        """
        if self._around.is_checkpointed:
            self._go_on()
        told = self._telling.told()
        while not told and not self._is_over():
            await self._telling.wait()
            told = self._telling.told()
        if not told and self._lanes:
            await self._end()
            told = self._telling.told()
        if not told and self._failed is not None:
            self._failed.result()
        if self._around.is_checkpointed:
            self._let_others_act()
        return told

    async def ended(self, told: list[WorkflowEvent[Any]]) -> None:
        """Wait until all have ended, or until it was stopped, and add to `told` what they tell.

        The first failure cancels the others, which are awaited; then it is raised.
        """
        while not self._is_over():
            await self._telling.wait()
        if self._running or self._has_failed:
            await self._end()
        self._lanes = []
        told += self._telling.told()
        if self._failed is not None:
            self._failed.result()
        if self._around.is_checkpointed and self._around.graph.asking:
            self._let_others_act()

    async def _watched(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """A lane. Who waits is woken in its last turn of the loop: a callback of its task would take one more."""
        try:
            if len(activations) > 1 and wiring(executor).max_concurrency > 1:
                await self._parallel_lane(executor, activations)
            else:
                await self._lane(executor, activations)
        except BaseException:
            self._has_failed = True
            raise
        finally:
            if self._has_failed or self.has_ended:
                self._telling.wake()

    def _is_over(self) -> bool:
        """Whether nothing is left to wait for. However often that is asked, each lane is looked at once."""
        running = self._running
        while running and running[-1].done():
            self._has_failed = has_failed(running.pop()) or self._has_failed
        return self.is_stopped or self._has_failed or not running

    async def _end(self) -> None:
        """Let nothing run on."""
        lanes, self._lanes = self._lanes, []
        if self._running or self._has_failed:
            self._failed = next((lane for lane in lanes if has_failed(lane)), None)
            await stop(lanes)

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if self._lanes:
                await self._end()
        finally:
            if self._around.span is not NO_SPAN:
                self._around.span.end(error)
            if not self.is_kept and self._around.is_checkpointed:
                self.note_all()
                await self.settle()
                touched = {activation.executor_id for activation in self._activations}
                await load(self._around.graph, self._around.snapshot, self._around.values, only=touched)

    def _by_executor(self) -> Sequence[tuple[Executor, Sequence[Activation]]]:
        executors = self._around.graph.executors
        if len(self._activations) == 1:
            return ((executors[self._activations[0].executor_id], self._activations),)
        found: dict[str, list[Activation]] = {}
        for activation in self._activations:
            found.setdefault(activation.executor_id, []).append(activation)
        return [(executors[name], activations) for name, activations in found.items()]

    async def _lane(self, executor: Executor, activations: Sequence[Activation]) -> None:
        left, last = activations, None
        if self._around.goes_on:
            left = await self._taken_over(executor, activations)
            last = next(reversed(self._ended(activations)), None)
        for activation in left:
            done = await self._attempted(executor, activation)
            if self._around.is_checkpointed:
                done = await self._kept(executor, done)
            self._finish(done)
            if not self._around.is_checkpointed:
                continue  # nobody would ever find what was noted
            if done.effects.suspension is not None:
                continue  # what it has recorded goes into the checkpoint; another life enters it again
            if last is None or last.effects.activation.ordinal < activation.ordinal:
                last = done
                self._note(done)
            else:
                last = self._up_to_date(last)
                self._note(done, last)

    def _up_to_date(self, done: ActivationResult) -> ActivationResult:
        """An activation that an earlier life has finished, with what its executor is now.

        One that was left to wait then may go on after those that follow it in the plan; and what an executor is, the
        fold and later lives take from the last in the plan.
        """
        key, name = done.effects.activation.key, done.effects.activation.executor_id
        found = self._found[key] = _leaving(done, self._state(name), self._around.children.get(name))
        return found

    def _state(self, executor_id: str) -> object:
        """The state that an executor had when it was last asked; None if there is none."""
        found = self._states.get(executor_id)
        return self._around.snapshot.executors.get(executor_id) if found is None else found

    async def _parallel_lane(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """Several activations of one executor at once; its state is asked for when all are done.

        Until then nobody can say which of them it holds: with hooks, they are noted only together.
        """
        queue = deque(await self._taken_over(executor, activations))
        if not queue:
            return
        notes_each = not (self._around.is_checkpointed and has_hooks(executor))

        async def work() -> None:
            while queue:
                done = await self._attempted(executor, queue.popleft())
                self._finish(done)
                if notes_each:
                    self._note(done)

        workers = [asyncio.ensure_future(work()) for _ in range(wiring(executor).max_concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            await stop(workers)
        ended = self._ended(activations)
        if ended and not notes_each:
            last = self._found[ended[-1].effects.activation.key] = await self._kept(executor, ended[-1])
            self._note(*ended[:-1], last)

    def _ended(self, activations: Sequence[Activation]) -> list[ActivationResult]:
        """What those of these did that have ended and were not left to wait, in plan order."""
        found = (self._found.get(activation.key) for activation in activations)
        return [done for done in found if done is not None and done.effects.suspension is None]

    async def _taken_over(self, executor: Executor, activations: Sequence[Activation]) -> list[Activation]:
        """Take over what an earlier life has finished, and the state that the executor had then; what is left to do."""
        left: list[Activation] = []
        states: dict[str, object] = {}
        children: dict[str, Snapshot] = {}
        for activation in activations:
            done = self._around.journal.done(self._around.home_of(activation), activation)
            if done is None:
                left.append(activation)
                continue
            self._found[activation.key] = done
            self._around.take_in(done)
            self._retell(executor, done)
            if done.effects.executor_state is not None:
                states[executor.id] = done.effects.executor_state
            if done.effects.child is not None:
                children[executor.id] = done.effects.child
        self._states.update(states)
        if states or children:
            reached = Snapshot(executors=states, children=children)
            await load(self._around.graph, reached, self._around.values, only=[executor.id])
        return left

    def _retell(self, executor: Executor, done: ActivationResult) -> None:
        """Tell what a finished activation gave: the life that ran it has told it, but not committed it."""
        tell, values = self._telling.tell, self._around.values
        tell(WorkflowEvent("executor_bypassed", executor_id=executor.id, origin=FRAMEWORK))
        for event in output_events(done.effects.outputs, values, in_pieces=self._around.streaming):
            tell(event)
        for request in done.effects.requests:
            tell(request_event(request, values))

    def _attempted(self, executor: Executor, activation: Activation) -> Coroutine[Any, Any, ActivationResult]:
        attempts = Attempts(activation, executor, self._around, drift=self._drift, put_back=self._put_back)
        return attempts.done() if self._slots is None else _slotted(self._slots, attempts)

    async def _put_back(self, executor: Executor) -> None:
        """Give an executor, or what a sub-workflow is made of, the state that it had before this activation.

        One that handles several messages at once has no state that belongs to one of them.
        """
        around, name = self._around, executor.id
        if not around.is_checkpointed or wiring(executor).max_concurrency > 1:
            return
        child = around.children.get(name) or around.snapshot.children.get(name)
        state = self._state(name)
        before = Snapshot(
            executors={name: state} if state is not None else {},
            children={name: child} if child is not None else {},
        )
        await load(around.graph, before, around.values, only=[name])

    def _finish(self, done: ActivationResult) -> None:
        self._found[done.effects.activation.key] = done
        self._around.take_in(done)

    def _note(self, *finished: ActivationResult) -> None:
        """Note what has ended, together; with it what ends in the same turn of the loop."""
        if not self._around.is_checkpointed:
            return
        self._unnoted += finished
        if self._is_late:
            self._note_ended()
        elif not self._is_noting and not self.has_ended:
            self._is_noting = True
            asyncio.get_running_loop().call_soon(self._note_before_others_end)

    async def _kept(self, executor: Executor, done: ActivationResult) -> ActivationResult:
        """The same, with the state that the executor has now."""
        if done.effects.suspension is not None or not has_hooks(executor):
            return done
        state = self._states[executor.id] = await saved_state(executor, self._around.values)
        heavy = [WorkflowEvent("warning", each, origin=FRAMEWORK) for each in self._around.values.warnings()]
        return _leaving(self._telling_also(done, heavy) if heavy else done, state, done.effects.child)

    def _telling_also(self, done: ActivationResult, events: Sequence[WorkflowEvent[Any]]) -> ActivationResult:
        """The same, with events that a later life must not lose."""
        for event in events:
            self._telling.tell(event)
        told = (*done.effects.events, *(told_of(event, self._around.values) for event in events))
        return ActivationResult(replace(done.effects, events=told), done.unrouted, done.updates)


async def _slotted(slots: asyncio.Semaphore, attempts: Attempts) -> ActivationResult:
    async with slots:
        return await attempts.done()


def _leaving(done: ActivationResult, executor_state: object, child: Snapshot | None) -> ActivationResult:
    return ActivationResult(
        replace(done.effects, executor_state=executor_state, child=child), done.unrouted, done.updates
    )
