"""One superstep: the activations run side by side, and what they tell is handed on as it happens."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.record import request_event
from perdure.events import WorkflowEvent
from perdure.graph.executor import wiring
from perdure.kernel.snapshot import Snapshot
from perdure.runtime.attempts import Attempts
from perdure.runtime.instances import has_hooks, load, saved_state
from perdure.runtime.logbook import FRAMEWORK
from perdure.runtime.parking import has_failed, stop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterator, Sequence

    from perdure.graph.executor import Executor
    from perdure.kernel.effects import Activation, Done
    from perdure.runtime.activation import Surroundings
    from perdure.runtime.instances import Drift


class Telling:
    """Events on their way from the activations to the reader. Whoever waits is woken; nobody polls."""

    def __init__(self) -> None:
        self._events: deque[WorkflowEvent[Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, event: WorkflowEvent[Any]) -> None:
        """Hand on an event."""
        self._events.append(event)
        self.wake()

    def wake(self, *_: object) -> None:
        """Let the reader look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def told(self) -> Iterator[WorkflowEvent[Any]]:
        """The events so far, each once."""
        while self._events:
            yield self._events.popleft()

    async def wait(self) -> None:
        """Wait to be woken."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Superstep:
    """Runs the activations of a plan that the journal does not hold, and notes each as it finishes.

    After `events()` has ended, `outcomes` holds what each did, in plan order.
    """

    def __init__(self, activations: Sequence[Activation], around: Surroundings, telling: Telling, drift: Drift) -> None:
        self._activations = activations
        self._around = around
        self._telling = telling
        self._drift = drift
        self._found: dict[str, Done] = {}
        self._states: dict[str, object] = dict(around.snapshot.executors)
        """By executor: the state after its last activation that has ended."""
        self.is_stopped = False
        # Of a single activation the commit itself is the record, if it follows at once.
        self._notes_each = len(activations) > 1
        self._unnoted: dict[str, Done] = {}
        limit = around.graph.rules.max_concurrency
        self._slots = asyncio.Semaphore(limit) if limit is not None else None

    @property
    def outcomes(self) -> tuple[Done, ...]:
        """What the activations did, in plan order."""
        return tuple(self._found[activation.key] for activation in self._activations)

    @property
    def has_ended(self) -> bool:
        """Whether every activation has an outcome."""
        return len(self._found) == len(self._activations)

    def stop(self) -> None:
        """Cancel what runs. What has finished is recorded; there are no outcomes then."""
        self.is_stopped = True
        self._telling.wake()

    @contextmanager
    def noting_if_late(self) -> Generator[None]:
        """For a stretch that others can make long: a reader who takes the time, a condition that waits.

        As soon as anything else gets its turn in between, the commit is late, and all that has ended is noted.
        """
        late = asyncio.get_running_loop().call_soon(self.note_all)
        try:
            yield
        finally:
            late.cancel()

    def note_all(self) -> None:
        """Note what has ended, and from now on all that ends: the commit is late, or does not come."""
        self._notes_each = True
        if self._unnoted:
            self._around.journal.keep(self._unnoted)
            self._unnoted = {}

    async def settle(self) -> None:
        """Wait until all that was noted is written."""
        await self._around.journal.settle()

    async def events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Run everything. The first failure cancels the others, which are awaited, and is raised."""
        if self.is_stopped:
            return
        tasks = [asyncio.ensure_future(lane) for lane in self._lanes()]
        for task in tasks:
            task.add_done_callback(self._telling.wake)
        try:
            while True:
                for event in self._telling.told():
                    with self.noting_if_late():
                        yield event
                if self.is_stopped or all(task.done() for task in tasks) or any(map(has_failed, tasks)):
                    break
                await self._telling.wait()
        finally:
            failed = [task for task in tasks if has_failed(task)]
            await stop(tasks)
            await self.settle()
        for event in self._telling.told():
            with self.noting_if_late():
                yield event
        if failed:
            failed[0].result()

    def _lanes(self) -> Iterator[Any]:
        by_executor: dict[str, list[Activation]] = {}
        for activation in self._activations:
            by_executor.setdefault(activation.executor_id, []).append(activation)
        for executor_id, activations in by_executor.items():
            executor = self._around.graph.executors[executor_id]
            if wiring(executor).max_concurrency > 1 and len(activations) > 1:
                yield self._parallel_lane(executor, activations)
            else:
                yield self._lane(executor, activations)

    async def _lane(self, executor: Executor, activations: Sequence[Activation]) -> None:
        left = await self._taken_over(executor, activations)
        last = next(reversed(self._ended(activations)), None)
        for activation in left:
            done = await self._kept(executor, await self._slotted(executor, activation))
            self._finish(done)
            if done.effects.suspension is not None:
                continue  # what it has recorded goes into the checkpoint; another life enters it again
            if last is None or last.effects.activation.ordinal < activation.ordinal:
                last = done
                self._note(done)
            else:
                last = self._up_to_date(last)
                self._note(done, last)

    def _up_to_date(self, done: Done) -> Done:
        """An activation that an earlier life has finished, with what its executor is now.

        One that was left to wait then may go on after those that follow it in the plan; and what an executor is, the
        fold and later lives take from the last in the plan.
        """
        key, name = done.effects.activation.key, done.effects.activation.executor_id
        state, child = self._states.get(name), self._around.children.get(name)
        found = self._found[key] = replace(done, effects=replace(done.effects, executor_state=state, child=child))
        return found

    async def _parallel_lane(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """Several activations of one executor at once; its state is asked for when all are done.

        Until then nobody can say which of them it holds: with hooks, they are noted only together.
        """
        queue = deque(await self._taken_over(executor, activations))
        if not queue:
            return
        notes_each = not has_hooks(executor)

        async def work() -> None:
            while queue:
                done = await self._slotted(executor, queue.popleft())
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

    def _ended(self, activations: Sequence[Activation]) -> list[Done]:
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

    def _retell(self, executor: Executor, done: Done) -> None:
        """Tell what a finished activation gave: the life that ran it has told it, but not committed it."""
        tell, values = self._telling.tell, self._around.values
        tell(WorkflowEvent("executor_bypassed", executor_id=executor.id, origin=FRAMEWORK))
        for output in done.effects.outputs:
            data = values.give(output.data)
            tell(WorkflowEvent(output.kind, data, executor_id=executor.id, origin=FRAMEWORK))
        for request in done.effects.requests:
            tell(request_event(request, values))

    async def _slotted(self, executor: Executor, activation: Activation) -> Done:
        attempts = Attempts(
            activation, executor, self._around, drift=self._drift, put_back=lambda: self._put_back(executor)
        )
        if self._slots is None:
            return await attempts.done()
        async with self._slots:
            return await attempts.done()

    async def _put_back(self, executor: Executor) -> None:
        """Give an executor, or what a sub-workflow is made of, the state that it had before this activation.

        One that handles several messages at once has no state that belongs to one of them.
        """
        around, name = self._around, executor.id
        if not around.is_checkpointed or wiring(executor).max_concurrency > 1:
            return
        child = around.children.get(name) or around.snapshot.children.get(name)
        before = Snapshot(
            executors={name: self._states[name]} if name in self._states else {},
            children={name: child} if child is not None else {},
        )
        await load(around.graph, before, around.values, only=[name])

    def _finish(self, done: Done) -> None:
        self._found[done.effects.activation.key] = done
        self._around.take_in(done)

    def _note(self, *finished: Done) -> None:
        """Note what has ended, together."""
        if not self._around.is_checkpointed:
            return
        self._unnoted |= {self._around.home_of(done.effects.activation): done for done in finished}
        if self._notes_each:
            self.note_all()

    async def _kept(self, executor: Executor, done: Done) -> Done:
        """The same, with the state that the executor has now."""
        if not self._around.is_checkpointed or not has_hooks(executor) or done.effects.suspension is not None:
            return done
        state = self._states[executor.id] = await saved_state(executor, self._around.values)
        return replace(done, effects=replace(done.effects, executor_state=state))
