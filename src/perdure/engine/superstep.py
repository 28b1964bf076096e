"""One superstep: run its activations in parallel, retry them, record each as it ends, and emit their events."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from perdure.checkpoint import request_event
from perdure.engine.activation import ActivationRecorder
from perdure.engine.events import FRAMEWORK, output_events, pending_event, warning_event
from perdure.engine.executor_state import has_hooks, load, saved_state
from perdure.engine.running_step import Retries, is_final
from perdure.engine.suspension import Wait
from perdure.engine.tasks import OutOfTimeError, has_failed, stop, within
from perdure.errors import ExecutorTimeoutError
from perdure.events import WorkflowEvent
from perdure.graph import NO_POLICY, FailedMessage, WorkflowContext, handler_of, response_handler_of, wiring
from perdure.kernel import ActivationResult, PendingEvent, Snapshot, activation_id_of
from perdure.tracing import NO_SPAN, current, traced
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.engine.activation import ActivationContext
    from perdure.engine.executor_state import ChangeDetector
    from perdure.graph import Executor, Policy
    from perdure.kernel import Activation


@dataclass(slots=True)
class EventQueue:
    """Events that the reader has not taken yet. A live reader is woken by each, any other when the superstep ends."""

    is_live: bool
    _events: list[WorkflowEvent[Any]] = field(default_factory=list[WorkflowEvent[Any]])
    waiter: asyncio.Future[None] | None = None

    def emit(self, event: WorkflowEvent[Any]) -> None:
        """Add an event."""
        self._events.append(event)
        if self.is_live and self.waiter is not None:
            self.wake()

    def wake(self) -> None:
        """Wake the reader."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take(self) -> list[WorkflowEvent[Any]]:
        """Remove and return all events."""
        events, self._events = self._events, []
        return events


class Superstep:
    """Run the activations of a plan that the journal does not hold.

    `async with` starts them. A streaming reader calls `next_events` until there are none, any other reader `run`. Then
    `results` holds the result of each activation in plan order. On exit nothing runs any more, and unless the
    superstep `is_committed` the executors are restored to their state before it.
    """

    is_stopped = False
    is_committed = False
    _has_failed = False
    _is_handed_over = False
    _failed: asyncio.Task[None] | None = None
    _recording: asyncio.Handle | None = None
    """Records the ended activations as soon as the event loop runs anything before the commit."""

    def __init__(
        self,
        activations: Sequence[Activation],
        context: ActivationContext,
        queue: EventQueue,
        changes: ChangeDetector,
    ) -> None:
        self._activations = activations
        self._context = context
        self._queue = queue
        self._changes = changes
        self._lanes: list[asyncio.Task[None]] = []
        self._lanes_running = 0
        self._results: dict[str, ActivationResult] = {}
        self._last: dict[str, ActivationResult] = {}
        """By executor: its ended activation that is the last in plan order."""
        self._states: dict[str, object] = {}
        """By executor: the state after its last ended activation in this superstep."""
        self._unrecorded: list[ActivationResult] = []
        limit = context.graph.rules.max_concurrency
        self._slots = asyncio.Semaphore(limit) if limit is not None else None

    @property
    def results(self) -> tuple[ActivationResult, ...]:
        """Return the results of the activations, in plan order."""
        return tuple([self._results[activation.key] for activation in self._activations])

    @property
    def has_ended(self) -> bool:
        """Return whether every activation has a result."""
        return len(self._results) == len(self._activations)

    def stop(self) -> None:
        """Cancel the running activations. Finished ones are recorded; there are no results then."""
        self.is_stopped = True
        self._queue.wake()

    async def __aenter__(self) -> Self:
        if not self.is_stopped:
            by_executor: dict[str, list[Activation]] = {}
            for activation in self._activations:
                by_executor.setdefault(activation.executor_id, []).append(activation)
            self._lanes_running = len(by_executor)
            loop, executors = asyncio.get_running_loop(), self._context.graph.executors
            self._lanes = [
                loop.create_task(self._run_lane(executors[executor_id], activations))
                for executor_id, activations in by_executor.items()
            ]
        return self

    async def next_events(self) -> list[WorkflowEvent[Any]]:
        """Wait for events and return them; none if all activations have ended, or the superstep was stopped.

        The first failure cancels the other activations. It is raised after all events are taken.
        """
        self._take_back()
        while not (events := self._queue.take()) and not self._is_over():
            await self._wait()
        if not events and self._lanes:
            await self._end()
            events = self._queue.take()
        if not events and self._failed is not None:
            self._failed.result()
        self._hand_over()
        return events

    async def run(self, events: list[WorkflowEvent[Any]]) -> None:
        """Wait until all activations have ended or the superstep was stopped, and add their events to `events`.

        The first failure cancels the other activations, and is raised.
        """
        while not self._is_over():
            await self._wait()
        await self._end()
        events += self._queue.take()
        if self._failed is not None:
            self._failed.result()
        if self._context.graph.asking:
            self._hand_over()

    async def _wait(self) -> None:
        self._queue.waiter = asyncio.get_running_loop().create_future()
        await self._queue.waiter

    def _is_over(self) -> bool:
        return self.is_stopped or self._has_failed or not self._lanes_running

    async def _end(self) -> None:
        """Cancel what still runs, and wait for it."""
        lanes, self._lanes = self._lanes, []
        if self._lanes_running or self._has_failed:
            self._failed = next((lane for lane in lanes if has_failed(lane)), None)
            await stop(lanes)

    async def prepare_commit(self) -> None:
        """Wait until the queued records are written. The commit replaces those that are not queued yet."""
        self._take_back()
        await self._context.journal.settle()

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        context = self._context
        try:
            if self._lanes:
                await self._end()
        finally:
            if context.span is not NO_SPAN:
                context.span.end(error)
            if not self.is_committed and context.is_checkpointed:
                self._is_handed_over = True
                self._record()
                await self.prepare_commit()
                touched = {activation.executor_id for activation in self._activations}
                await load(context.graph, context.snapshot, context.values, only=touched)

    async def _run_lane(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """Run the activations of one executor. The reader is woken here: a task's callback would take a loop turn."""
        try:
            if self._context.has_records:
                activations = await self._reuse_recorded(executor, activations)
            if len(activations) > 1 and wiring(executor).max_concurrency > 1:
                await self._run_in_parallel(executor, activations)
            else:
                for activation in activations:
                    await self._run_next(executor, activation)
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._lanes_running -= 1
            if self._has_failed or not self._lanes_running:
                self._queue.wake()

    async def _run_next(self, executor: Executor, activation: Activation) -> None:
        """Run one activation of an executor that handles one message at a time."""
        result = await self._run_activation(executor, activation)
        if not self._context.is_checkpointed:
            self._add(result)
            return
        if has_hooks(executor):
            result = await self._with_state(executor, result)
        self._add(result)
        if result.effects.suspension is None:
            # A suspended activation can be resumed after later ones have ended. The state of the executor is taken
            # from the last in plan order, so that one gets it.
            last = self._last[executor.id]
            if last is not result:
                name, key = executor.id, last.effects.activation.key
                child = self._context.children.get(name)
                effects = replace(last.effects, executor_state=self._state_of(name), child=child)
                last = self._last[name] = self._results[key] = replace(last, effects=effects)
                self._record_soon(result, last)
            else:
                self._record_soon(result)

    async def _run_in_parallel(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """Run several activations of one executor at once. It is asked for its state when all have ended.

        Before that the state may hold effects of any of them, so with hooks they are recorded only together.
        """
        queue = deque(activations)
        records_each = not (self._context.is_checkpointed and has_hooks(executor))

        async def work() -> None:
            while queue:
                result = await self._run_activation(executor, queue.popleft())
                self._add(result)
                if records_each and self._context.is_checkpointed:
                    self._record_soon(result)

        workers = [asyncio.ensure_future(work()) for _ in range(wiring(executor).max_concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            await stop(workers)
        if records_each:
            return
        found = [self._results.get(activation.key) for activation in self._activations]
        ended = [
            result
            for result in found
            if result is not None
            and result.effects.suspension is None
            and result.effects.activation.executor_id == executor.id
        ]
        if ended:
            last = self._results[ended[-1].effects.activation.key] = await self._with_state(executor, ended[-1])
            self._record_soon(*ended[:-1], last)

    async def _reuse_recorded(self, executor: Executor, activations: Sequence[Activation]) -> list[Activation]:
        """Take recorded results and the executor's state then. Return the activations that must run."""
        context = self._context
        left: list[Activation] = []
        states: dict[str, object] = {}
        children: dict[str, Snapshot] = {}
        for activation in activations:
            activation_id = activation_id_of(context.snapshot, activation)
            result = context.journal.find_activation(activation_id, activation)
            if result is None:
                left.append(activation)
                continue
            self._add(result)
            self._emit_again(executor, result)
            if result.effects.executor_state is not None:
                states[executor.id] = result.effects.executor_state
            if result.effects.child is not None:
                children[executor.id] = result.effects.child
        self._states.update(states)
        if states or children:
            reached = Snapshot(executors=states, children=children)
            await load(context.graph, reached, context.values, only=[executor.id])
        return left

    def _emit_again(self, executor: Executor, result: ActivationResult) -> None:
        """Emit the outputs and requests of a recorded activation: they were emitted before, but not committed."""
        emit, values = self._queue.emit, self._context.values
        emit(WorkflowEvent("executor_bypassed", executor_id=executor.id, origin=FRAMEWORK))
        for event in output_events(result.effects.outputs, values, in_pieces=self._context.streaming):
            emit(event)
        for request in result.effects.requests:
            emit(request_event(request, values))

    def _state_of(self, executor_id: str) -> object:
        """Return the executor's last saved state; None if there is none."""
        found = self._states.get(executor_id)
        return self._context.snapshot.executors.get(executor_id) if found is None else found

    async def _restore(self, executor: Executor) -> None:
        """Restore an executor or sub-workflow to its state before this activation.

        An executor that handles several messages at once has no such state.
        """
        context, name = self._context, executor.id
        if not context.is_checkpointed or wiring(executor).max_concurrency > 1:
            return
        child = context.children.get(name) or context.snapshot.children.get(name)
        state = self._state_of(name)
        before = Snapshot(
            executors={name: state} if state is not None else {},
            children={name: child} if child is not None else {},
        )
        await load(context.graph, before, context.values, only=[name])

    def _add(self, result: ActivationResult) -> None:
        activation = result.effects.activation
        self._results[activation.key] = result
        if result.effects.suspension is None:
            last = self._last.get(activation.executor_id)
            if last is None or last.effects.activation.ordinal < activation.ordinal:
                self._last[activation.executor_id] = result
        self._context.add(result)

    def _record_soon(self, *results: ActivationResult) -> None:
        """Record results, together with others that end in the same loop turn, unless the commit comes at once."""
        self._unrecorded += results
        if self._recording is None and (self._is_handed_over or not self.has_ended):
            self._recording = asyncio.get_running_loop().call_soon(self._record)

    def _record(self) -> None:
        self._recording = None
        if self._unrecorded and (self._is_handed_over or not self.has_ended):
            snapshot = self._context.snapshot
            self._context.journal.note_activations(
                {activation_id_of(snapshot, each.effects.activation): each for each in self._unrecorded}
            )
            self._unrecorded = []

    def _hand_over(self) -> None:
        """Prepare for users' code, which may hold up the commit: a reader of the stream, or a condition."""
        self._is_handed_over = True
        if self._unrecorded and self._recording is None:
            self._recording = asyncio.get_running_loop().call_soon(self._record)

    def _take_back(self) -> None:
        self._is_handed_over = False
        # While others still run, a fast reader must not keep finished activations from being recorded.
        if self._recording is not None and self.has_ended:
            self._recording.cancel()
            self._recording = None

    async def _with_state(self, executor: Executor, result: ActivationResult) -> ActivationResult:
        """Return the result with the executor's present state."""
        if result.effects.suspension is not None:
            return result
        values = self._context.values
        state = self._states[executor.id] = await saved_state(executor, values)
        warnings = [warning_event(text) for text in values.warnings()]
        for event in warnings:
            self._queue.emit(event)
        events = (*result.effects.events, *(pending_event(event, values) for event in warnings))
        return replace(result, effects=replace(result.effects, executor_state=state, events=events))

    async def _run_activation(self, executor: Executor, activation: Activation) -> ActivationResult:
        """Call the handler until it returns, is suspended, or has failed for good.

        Raises the error of the last attempt, unless the executor has an `on_error` executor.
        """
        policy, is_suspended = wiring(executor).policy, False
        if self._slots is not None:
            await self._slots.acquire()
        try:
            if policy is NO_POLICY:
                result = await self._attempt(ActivationRecorder(activation, executor, self._context), policy, [])
            else:
                result = await self._retry(executor, activation, policy)
            is_suspended = result.effects.suspension is not None
        finally:
            if self._slots is not None:
                self._slots.release()
            values = self._context.values
            if not is_suspended and (values.held or values.memos):
                self._context.forget(activation)
        return result

    async def _retry(self, executor: Executor, activation: Activation, policy: Policy) -> ActivationResult:
        """Make attempts until one succeeds or none is left. Then the message goes to the `on_error` executor."""
        context = self._context
        earlier: list[PendingEvent] = []
        # Without a retry policy nothing is recorded under the key.
        key = "" if policy.retry is None else f"{activation_id_of(context.snapshot, activation)}/attempts"
        retries = Retries(context, key, policy.retry)
        while True:
            recorder = ActivationRecorder(activation, executor, context)
            # A sub-workflow must not be suspended here: its next message would find the turn half done.
            may_suspend = executor.child_graph() is None
            if retries.due is not None and not await retries.wait_until_due(may_suspend=may_suspend):
                return recorder.suspend(Wait(wake_at=retries.due), earlier)
            try:
                return await self._attempt(recorder, policy, earlier)
            except Exception as error:
                retry_message = await retries.fail(error)
                if retry_message is None and (policy.on_error is None or is_final(error)):
                    raise
            await self._restore(executor)
            if retry_message is not None:
                recorder.warn(f"executor {executor.id!r}: {retry_message}")
            earlier += recorder.events.collect_discarded()
            if retry_message is None:
                assert recorder.failure is not None, "the attempt has failed"
                handover = ActivationRecorder(activation, executor, context)
                failed = FailedMessage(handover.message, executor.id, recorder.failure, retries.count)
                handover.send(failed, policy.on_error)
                return handover.finish(earlier=earlier, is_called=False)

    async def _attempt(
        self, recorder: ActivationRecorder, policy: Policy, earlier: Sequence[PendingEvent]
    ) -> ActivationResult:
        """Call the handler once. If it raises, emit that and raise."""
        context, executor = self._context, recorder.executor
        try:
            before = self._changes.observe(executor) if context.is_checkpointed else None
            recorder.events.emit_call("executor_invoked", recorder.message)
            call = recorder.call(*_find_handler(recorder))
            if policy.timeout is not None:
                call = _call_within(call, executor.id, policy.timeout, context)
            if context.span is NO_SPAN:
                await call
            else:
                span = context.span.child(
                    "perdure.activation", executor_id=executor.id, activation_id=recorder.activation_id
                )
                recorder.span = span
                with traced(recorder.span), current(recorder.span):
                    await call
            if recorder.suspender.waits_for is not None:
                await self._restore(executor)
                return recorder.suspend(recorder.suspender.waits_for, earlier)
            warning = None if before is None else self._changes.find_change(executor, before)
            return recorder.finish(earlier=earlier, warning=warning)
        except Exception as error:
            recorder.fail(error)
            raise
        finally:
            recorder.release()


async def _call_within(call: Any, executor_id: str, seconds: float, context: ActivationContext) -> None:
    try:
        await within(context.clock, seconds, call)
    except OutOfTimeError as error:
        raise ExecutorTimeoutError(executor_id, seconds=seconds) from error.__cause__


def _find_handler(recorder: ActivationRecorder) -> tuple[Any, ...]:
    """Return the handler for the message, and its arguments."""
    executor, message = recorder.executor, recorder.message
    context: WorkflowContext[Any, Any] = WorkflowContext(recorder)
    if recorder.activation.delivery.answers is None:
        found = handler_of(executor, message)
        if found is not None:
            return found, message, context
    else:
        request = recorder.request_data
        found = response_handler_of(executor, request, message)
        if found is not None:
            return found, request, message, context
    raise TypeError(f"executor {executor.id!r} has no handler for a {type_of(message)}")
