"""One superstep: the activations run side by side, and what they tell is handed on as it happens."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perdure.events import WorkflowEvent
from perdure.graph.context import WorkflowContext
from perdure.graph.executor import handler_of, response_handler_of, wiring
from perdure.runtime.activation import ActivationRecorder
from perdure.runtime.instances import has_hooks, saved_state
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    from perdure.graph.executor import Executor
    from perdure.kernel.effects import Activation, Effects
    from perdure.runtime.activation import Pending, Surroundings
    from perdure.runtime.instances import Drift


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an activation did, before its messages are routed."""

    effects: Effects
    pending: tuple[Pending, ...]
    recorder: ActivationRecorder


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
    """Runs the activations of a plan. After `events()` has ended, `outcomes` holds what each did, in plan order."""

    def __init__(self, activations: Sequence[Activation], around: Surroundings, telling: Telling, drift: Drift) -> None:
        self._activations = activations
        self._around = around
        self._telling = telling
        self._drift = drift
        self._found: dict[str, Outcome] = {}
        limit = around.graph.rules.max_concurrency
        self._slots = asyncio.Semaphore(limit) if limit is not None else None

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
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
        for activation in activations:
            await self._activate(executor, activation, asks_state=True)

    async def _parallel_lane(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """Several activations of one executor at once; its state is asked for when all are done."""
        queue = deque(activations)

        async def work() -> None:
            while queue:
                await self._activate(executor, queue.popleft(), asks_state=False)

        workers = [asyncio.ensure_future(work()) for _ in range(wiring(executor).max_concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            await _stop(workers)
        await self._keep(executor, self._found[activations[-1].key])

    async def _activate(self, executor: Executor, activation: Activation, *, asks_state: bool) -> None:
        if self._slots is not None:
            async with self._slots:
                outcome = await self._called(executor, activation)
        else:
            outcome = await self._called(executor, activation)
        self._found[activation.key] = outcome
        if asks_state:
            await self._keep(executor, outcome)

    async def _called(self, executor: Executor, activation: Activation) -> Outcome:
        recorder = ActivationRecorder(activation, executor, self._around)
        before = self._drift.look(executor) if self._around.is_checkpointed else None
        self._telling.tell(recorder.invoked())
        try:
            outcome = _handler(recorder)()
            if inspect.isawaitable(outcome):
                await outcome
            effects, pending = recorder.finish()
        except Exception as error:
            self._telling.tell(recorder.failed(error))
            raise
        self._telling.tell(recorder.completed())
        warning = None if before is None else self._drift.noticed(executor, before)
        if warning is not None:
            self._telling.tell(WorkflowEvent.warning(warning))
        return Outcome(effects, pending, recorder)

    async def _keep(self, executor: Executor, outcome: Outcome) -> None:
        if self._around.is_checkpointed and has_hooks(executor):
            state = await saved_state(executor, self._around.values)
            effects = replace(outcome.effects, executor_state=state)
            self._found[outcome.effects.activation.key] = replace(outcome, effects=effects)


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
