"""One superstep: the activations run side by side, and what they tell is handed on as it happens."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.record import request_event
from perdure.events import WorkflowEvent
from perdure.graph.context import WorkflowContext
from perdure.graph.executor import handler_of, response_handler_of, wiring
from perdure.kernel.snapshot import Snapshot
from perdure.runtime.activation import FRAMEWORK, ActivationRecorder
from perdure.runtime.instances import has_hooks, load, saved_state
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

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
        limit = around.graph.rules.max_concurrency
        # Of a single activation the commit itself is the record.
        self._notes = len(activations) > 1
        self._slots = asyncio.Semaphore(limit) if limit is not None else None

    @property
    def outcomes(self) -> tuple[Done, ...]:
        """What the activations did, in plan order."""
        return tuple(self._found[activation.key] for activation in self._activations)

    async def events(self) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Run everything. The first failure cancels the others, which are awaited, and is raised."""
        tasks = [asyncio.ensure_future(lane) for lane in self._lanes()]
        for task in tasks:
            task.add_done_callback(self._telling.wake)
        try:
            while True:
                for event in self._telling.told():
                    yield event
                if all(task.done() for task in tasks) or any(map(_has_failed, tasks)):
                    break
                await self._telling.wait()
        finally:
            failed = [task for task in tasks if _has_failed(task)]
            await _stop(tasks)
            await self._around.journal.settle()
        for event in self._telling.told():
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
        for activation in left:
            done = await self._kept(executor, await self._slotted(executor, activation))
            self._finish(done)

    async def _parallel_lane(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """Several activations of one executor at once; its state is asked for when all are done.

        Until then nobody can say which of them it holds: with hooks, they are noted only together.
        """
        queue = deque(await self._taken_over(executor, activations))
        notes_each = not has_hooks(executor)

        async def work() -> None:
            while queue:
                self._finish(await self._slotted(executor, queue.popleft()), is_noted=notes_each)

        workers = [asyncio.ensure_future(work()) for _ in range(wiring(executor).max_concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            await _stop(workers)
        last = activations[-1].key
        self._found[last] = await self._kept(executor, self._found[last])
        if not notes_each:
            for activation in activations:
                self._finish(self._found[activation.key])

    async def _taken_over(self, executor: Executor, activations: Sequence[Activation]) -> list[Activation]:
        """Take over what an earlier life has finished, and the state that the executor had then; what is left to do."""
        left: list[Activation] = []
        states: dict[str, object] = {}
        children: dict[str, Snapshot] = {}
        for activation in activations:
            done = self._around.journal.done(activation)
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
        if self._slots is None:
            return await self._called(executor, activation)
        async with self._slots:
            return await self._called(executor, activation)

    def _finish(self, done: Done, *, is_noted: bool = True) -> None:
        self._found[done.effects.activation.key] = done
        self._around.take_in(done)
        if is_noted and self._notes and self._around.is_checkpointed:
            self._around.journal.keep(done)

    async def _called(self, executor: Executor, activation: Activation) -> Done:
        recorder = ActivationRecorder(activation, executor, self._around)
        before = self._drift.look(executor) if self._around.is_checkpointed else None
        self._telling.tell(recorder.invoked())
        try:
            outcome = _handler(recorder)()
            if inspect.isawaitable(outcome):
                await outcome
            done = recorder.finish()
        except Exception as error:
            self._telling.tell(recorder.failed(error))
            raise
        self._telling.tell(recorder.completed())
        warning = None if before is None else self._drift.noticed(executor, before)
        if warning is not None:
            self._telling.tell(WorkflowEvent.warning(warning))
        return done

    async def _kept(self, executor: Executor, done: Done) -> Done:
        """The same, with the state that the executor has now."""
        if not self._around.is_checkpointed or not has_hooks(executor):
            return done
        state = await saved_state(executor, self._around.values)
        return replace(done, effects=replace(done.effects, executor_state=state))


def _handler(recorder: ActivationRecorder) -> Callable[[], Any]:
    executor, message = recorder.executor, recorder.message
    context: WorkflowContext[Any, Any] = WorkflowContext(recorder)
    if recorder.activation.delivery.answers is None:
        found = handler_of(executor, message)
        if found is not None:
            return lambda: found(message, context)
    else:
        request = recorder.request_data
        found = response_handler_of(executor, request, message)
        if found is not None:
            return lambda: found(request, message, context)
    raise TypeError(f"executor {executor.id!r} has no handler for a {type_of(message)}")


def _has_failed(task: asyncio.Future[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _stop(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what runs and wait for it, however often that is interrupted: nothing of a superstep goes on after it."""
    interruption: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            interruption = error
    for task in tasks:
        _has_failed(task)  # an exception that nobody has looked at would be told by asyncio
    if interruption is not None:
        raise interruption
