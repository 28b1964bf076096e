"""One superstep: run its activations in parallel, retry them, record each as it ends, and emit their events."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from perdure.checkpoint import request_event
from perdure.data_classes import new_dict, new_list, new_set
from perdure.engine.activation import ActivationRecorder
from perdure.engine.commit import FRAMEWORK, output_events, pending_event, warning_event
from perdure.engine.state import BudgetTracker, ChangeDetector, has_hooks, load, saved_state
from perdure.engine.suspension import Wait
from perdure.engine.tasks import Retries, finished, is_final, stop, within
from perdure.errors import ExecutorTimeoutError, LeaseLostError, StaleHeadError, WorkflowCheckpointException
from perdure.events import WorkflowEvent
from perdure.failures import forget_place, note_executor
from perdure.graph import (
    NO_POLICY,
    Executor,
    FailedMessage,
    Graph,
    Policy,
    WorkflowContext,
    handler_of,
    response_handler_of,
    wiring,
)
from perdure.kernel import Activation, ActivationResult, PendingEvent, Snapshot, StateKey, Write, activation_id_of
from perdure.tracing import NO_SPAN, Span, current, traced
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.clock import Clock
    from perdure.codec import Encoded, Held, Values
    from perdure.engine.journal import Journal


@dataclass(slots=True)
class ActivationContext:
    """Everything the activations of a superstep share.

    Attributes:
        root_id: Identifies run, fork and sub-workflow, so that ids derived from it are the same for every attempt.
        run_kwargs: The kwargs of the run, including those that are not stored.
        tools: Tools for agents that the caller gave to this call.
        run_id: The id of the run; inside a sub-workflow, followed by the names of the enclosing executors.
        keeps_records: True if a later attempt will find what an activation records.
        has_records: True if an earlier attempt has recorded anything.
        emitted: Events that the reader of the run has not taken yet.
        reader_wakeup: Set while the reader waits: a streaming one for events, any other for the end of the superstep.
        overlays: By executor: the writes of its earlier activations in this superstep.
        children: By executor: its sub-workflow as its earlier activations in this superstep left it.
        opened: The ids of the requests opened in this superstep.
        shown: By activation: the outputs and requests that the reader has got, and that count when the superstep
            commits.
    """

    graph: Graph
    snapshot: Snapshot
    values: Values
    root_id: str
    run_kwargs: dict[str, Any]
    tools: list[Any] | None
    journal: Journal
    clock: Clock
    run_id: str
    span: Span
    streaming: bool
    is_checkpointed: bool
    keeps_records: bool
    has_records: bool
    budget: BudgetTracker
    emitted: list[WorkflowEvent[Any]] = field(default_factory=new_list)
    reader_wakeup: asyncio.Future[None] | None = None
    overlays: dict[str, dict[StateKey, Write]] = field(default_factory=new_dict)
    children: dict[str, Snapshot] = field(default_factory=new_dict)
    opened: set[str] = field(default_factory=new_set)
    shown: dict[str, list[WorkflowEvent[Any]]] = field(default_factory=new_dict)

    def emit(self, event: WorkflowEvent[Any]) -> None:
        """Emit an event to the reader of the run."""
        self.emitted.append(event)
        if self.streaming:
            self.wake_reader()

    def show(self, activation: Activation, event: WorkflowEvent[Any]) -> None:
        """Emit an output or a request. The reader is told if the attempt that made it is discarded."""
        self.shown.setdefault(activation.key, []).append(event.innermost)
        self.emit(event)

    def discard_shown(
        self, activation: Activation, discards: Callable[[WorkflowEvent[Any]], bool] = lambda _: True
    ) -> None:
        """Tell the reader which shown outputs and requests of an attempt are void: those that `discards` selects."""
        shown = self.shown.pop(activation.key, ())
        gone = tuple(event for event in shown if discards(event))
        if len(gone) < len(shown):
            self.shown[activation.key] = [event for event in shown if not discards(event)]
        if gone:
            executor_id = activation.executor_id
            self.emit(WorkflowEvent("attempt_discarded", gone, executor_id=executor_id, origin=FRAMEWORK))

    def wake_reader(self) -> None:
        """Let the reader look again. It clears `reader_wakeup` itself when it runs."""
        if self.reader_wakeup is not None and not self.reader_wakeup.done():
            self.reader_wakeup.set_result(None)

    def derived_id(self, name: str) -> str:
        """Return an id that is the same for every attempt, and differs in a fork."""
        return hashlib.blake2b(f"{self.root_id}/{name}".encode(), digest_size=16).hexdigest()

    def held(self, activation_id: str) -> dict[str, Held]:
        """Return an activation's step results that could not be recorded, by key."""
        return self.values.held.setdefault(f"{self.root_id}/{activation_id}", {})

    def memo(self, activation_id: str) -> dict[str, object]:
        """Return what attempts at an activation leave in memory for later ones in this process."""
        return self.values.memos.setdefault(f"{self.root_id}/{activation_id}", {})

    def forget(self, activation: Activation) -> None:
        """Drop what was held in memory for an activation that has ended."""
        name = f"{self.root_id}/{activation_id_of(self.snapshot, activation)}"
        self.values.held.pop(name, None)
        self.values.memos.pop(name, None)

    async def record_durably(self, key: str, encoded: Encoded, *, is_progress: bool = True) -> bool:
        """Record something durably, even if the waiting task is cancelled. Return whether it is recorded.

        Raises CheckpointWriteError.
        """
        if not self.keeps_records:
            return False
        try:
            await finished(self.journal.record_durably(key, encoded, is_progress=is_progress))
        except (LeaseLostError, StaleHeadError):
            raise
        except WorkflowCheckpointException as error:
            if self.graph.rules.on_checkpoint_error == "stop":
                raise
            self.emit(warning_event(f"finished work is not recorded: {error}"))
            return False
        return True


@dataclass(slots=True, eq=False)
class Superstep:
    """Run the activations of a plan that the journal does not hold.

    `async with` starts them, and `next_events` is called until there are none. Then `results` holds the result of each
    activation in plan order. On exit nothing runs any more, and unless the superstep `is_committed` the executors are
    restored to their state before it.

    Attributes:
        slots: Limits how many activations run at once.
        must_end: True if all activations have ended, one has failed, or the superstep was stopped.
        recording: Records the ended activations in the next turn of the event loop. The commit cancels it.
        _lanes: The tasks, one for each executor.
        _error: The first error of an activation.
        _last: By executor: its ended activation that is the last in plan order.
        _states: By executor: the state after its last ended activation in this superstep.
    """

    activations: Sequence[Activation]
    context: ActivationContext
    changes: ChangeDetector
    slots: asyncio.Semaphore | None
    must_end: bool = False
    is_committed: bool = False
    recording: asyncio.Handle | None = None
    _lanes: list[asyncio.Task[None]] = field(default_factory=new_list)
    _lanes_running: int = 0
    _error: BaseException | None = None
    _results: dict[str, ActivationResult] = field(default_factory=new_dict)
    _last: dict[str, ActivationResult] = field(default_factory=new_dict)
    _states: dict[str, object] = field(default_factory=new_dict)
    _unrecorded: list[ActivationResult] = field(default_factory=new_list)

    @property
    def results(self) -> tuple[ActivationResult, ...]:
        """Return the results of the activations, in plan order."""
        return tuple([self._results[activation.key] for activation in self.activations])

    @property
    def has_all_results(self) -> bool:
        """Return whether every activation has a result."""
        return len(self._results) == len(self.activations)

    def stop(self) -> None:
        """Cancel the running activations. Finished ones are recorded. After this, `results` must not be read."""
        self.must_end = True
        self.context.wake_reader()

    async def __aenter__(self) -> Self:
        if not self.must_end:
            by_executor: dict[str, list[Activation]] = {}
            for activation in self.activations:
                by_executor.setdefault(activation.executor_id, []).append(activation)
            self._lanes_running = len(by_executor)
            loop, executors = asyncio.get_running_loop(), self.context.graph.executors
            self._lanes = [
                loop.create_task(self._run_lane(executors[executor_id], activations))
                for executor_id, activations in by_executor.items()
            ]
        return self

    async def next_events(self) -> list[WorkflowEvent[Any]]:
        """Wait for events and return them; none if all activations have ended, or the superstep was stopped.

        A reader without a stream gets all at the end. The first failure cancels the other activations. It is raised
        after all events are taken.
        """
        context = self.context
        while not self.must_end and not (context.streaming and context.emitted):
            context.reader_wakeup = asyncio.get_running_loop().create_future()
            try:
                await context.reader_wakeup
            finally:
                context.reader_wakeup = None
        if self.must_end and self._lanes_running:
            await stop(self._lanes)
        if self.must_end and self._error is None and not self.has_all_results:
            # It was stopped, so nothing of it is committed.
            for activation in self.activations:
                context.discard_shown(activation)
        events, context.emitted = context.emitted, []
        if not events and self._error is not None:
            raise self._error
        if self._unrecorded and (context.streaming or context.graph.sources_with_conditions):
            # Code of users comes next, and may hold up the commit: the reader of a stream, or a condition.
            self._record_soon()
        return events

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        context = self.context
        try:
            if self._lanes_running:
                self.must_end = True
                await stop(self._lanes)
        finally:
            if context.span is not NO_SPAN:
                context.span.end(error)
            if not self.is_committed and context.is_checkpointed:
                try:
                    await self._undo()
                except asyncio.CancelledError:
                    # No executor may be left with half of a state.
                    await finished(self._undo())
                    raise

    async def _undo(self) -> None:
        """Record what has ended, and restore the executors."""
        context = self.context
        self._record()
        await context.journal.settle()
        touched = {activation.executor_id for activation in self.activations}
        await load(context.graph, context.snapshot, context.values, only=touched)

    async def _run_lane(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """Run the activations of one executor. The reader is woken here: a task's callback would take a loop turn."""
        context = self.context
        try:
            if context.has_records:
                activations = await self._reuse_recorded(executor, activations)
            if len(activations) > 1 and wiring(executor).max_concurrency > 1:
                await self._run_in_parallel(executor, activations)
            else:
                for activation in activations:
                    result = await self._run_activation(executor, activation)
                    if context.is_checkpointed and has_hooks(executor):
                        result = await self._with_state(executor, result)
                    self._add(result)
                    if context.is_checkpointed and result.effects.suspension is None:
                        is_last = self._last[executor.id] is result
                        self._record_soon(result, *(() if is_last else (self._give_state_to_last(executor.id),)))
        except BaseException as error:
            if not self.must_end:
                self._error, self.must_end = error, True
            if not isinstance(error, Exception):
                raise
        finally:
            self._lanes_running -= 1
            if self.must_end or not self._lanes_running:
                self.must_end = True
                context.wake_reader()

    def _give_state_to_last(self, executor_id: str) -> ActivationResult:
        """Put the executor's present state into its last result in plan order, and return that result.

        The state is read from there, and an activation that was suspended can end after later ones.
        """
        last, child = self._last[executor_id], self.context.children.get(executor_id)
        effects = replace(last.effects, executor_state=self._state_of(executor_id), child=child)
        last = self._last[executor_id] = self._results[effects.activation.key] = replace(last, effects=effects)
        return last

    async def _run_in_parallel(self, executor: Executor, activations: Sequence[Activation]) -> None:
        """Run several activations of one executor at once. It is asked for its state when all have ended.

        Before that the state may hold effects of any of them, so with hooks they are added and recorded only together.
        """
        queue, together = deque(activations), list[ActivationResult]()
        has_state = self.context.is_checkpointed and has_hooks(executor)

        async def work() -> None:
            while queue:
                result = await self._run_activation(executor, queue.popleft())
                if has_state:
                    together.append(result)
                    continue
                self._add(result)
                if self.context.is_checkpointed:
                    self._record_soon(result)

        workers = [asyncio.ensure_future(work()) for _ in range(wiring(executor).max_concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            await stop(workers)
        if not has_state:
            return
        known = [each for each in self._results.values() if each.effects.activation.executor_id == executor.id]
        ended = [each for each in (*known, *together) if each.effects.suspension is None]
        if ended:
            ended.sort(key=lambda each: each.effects.activation.ordinal)
            ended[-1] = await self._with_state(executor, ended[-1])
        # The last one again, now with the state.
        for result in (*together, *ended[-1:]):
            self._add(result)
        self._record_soon(*ended)

    async def _reuse_recorded(self, executor: Executor, activations: Sequence[Activation]) -> list[Activation]:
        """Take recorded results and the executor's state then. Return the activations that must run."""
        context = self.context
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
        context, values, activation = self.context, self.context.values, result.effects.activation
        context.emit(WorkflowEvent("executor_bypassed", executor_id=executor.id, origin=FRAMEWORK))
        for event in output_events(result.effects.outputs, values, in_pieces=context.streaming):
            context.show(activation, event)
        for request in result.effects.requests:
            context.show(activation, request_event(request, values))

    def _state_of(self, executor_id: str) -> object:
        """Return the executor's last saved state; None if there is none."""
        found = self._states.get(executor_id)
        return self.context.snapshot.executors.get(executor_id) if found is None else found

    async def _restore(self, executor: Executor) -> None:
        """Restore an executor or sub-workflow to its state before this activation.

        An executor that handles several messages at once has no such state.
        """
        context, name = self.context, executor.id
        if not context.is_checkpointed or wiring(executor).max_concurrency > 1:
            return
        child = context.children.get(name) or context.snapshot.children.get(name)
        state = self._state_of(name)
        before = Snapshot(
            executors={name: state} if state is not None else {}, children={name: child} if child is not None else {}
        )
        await load(context.graph, before, context.values, only=[name])

    def _add(self, result: ActivationResult) -> None:
        """Keep a result, and make its effects visible to later activations of its executor."""
        effects, context = result.effects, self.context
        activation = effects.activation
        executor_id = activation.executor_id
        self._results[activation.key] = result
        if effects.suspension is None:
            last = self._last.get(executor_id)
            if last is None or last.effects.activation.ordinal <= activation.ordinal:
                self._last[executor_id] = result
        if effects.writes:
            context.overlays.setdefault(executor_id, {}).update((write.key, write) for write in effects.writes)
        if effects.requests:
            context.opened.update(request.id for request in effects.requests)
        if effects.child is not None:
            context.children[executor_id] = effects.child
        if context.snapshot.limits.budget:
            context.budget.child(activation_id_of(context.snapshot, activation)).report(effects.spent)

    def _record_soon(self, *results: ActivationResult) -> None:
        """Record results, together with others that end in the same loop turn, unless the commit comes first."""
        self._unrecorded += results
        # If all have ended and the reader waits for just that, the commit is their record.
        if self.recording is None and not (self.has_all_results and self.context.reader_wakeup is not None):
            self.recording = asyncio.get_running_loop().call_soon(self._record)

    def _record(self) -> None:
        self.recording = None
        if self._unrecorded and not (self.has_all_results and self.context.reader_wakeup is not None):
            snapshot = self.context.snapshot
            self.context.journal.record_activations_soon(
                {activation_id_of(snapshot, each.effects.activation): each for each in self._unrecorded}
            )
            self._unrecorded = []

    async def _with_state(self, executor: Executor, result: ActivationResult) -> ActivationResult:
        """Return the result with the executor's present state."""
        if result.effects.suspension is not None:
            return result
        values = self.context.values
        state = self._states[executor.id] = await saved_state(executor, values)
        warnings = [warning_event(text) for text in values.warnings()]
        for event in warnings:
            self.context.emit(event)
        events = (*result.effects.events, *(pending_event(event, values) for event in warnings))
        return replace(result, effects=replace(result.effects, executor_state=state, events=events))

    async def _run_activation(self, executor: Executor, activation: Activation) -> ActivationResult:
        """Call the handler until it returns, is suspended, or has failed for good.

        Raises the error of the last attempt, unless the executor has an `on_error` executor.
        """
        policy, is_suspended = wiring(executor).policy, False
        if self.slots is not None:
            await self.slots.acquire()
        try:
            if policy is NO_POLICY:
                result = await self._attempt(ActivationRecorder(activation, executor, self.context), policy, [])
            else:
                result = await self._retry(executor, activation, policy)
            is_suspended = result.effects.suspension is not None
        finally:
            if self.slots is not None:
                self.slots.release()
            values = self.context.values
            if not is_suspended and (values.held or values.memos):
                self.context.forget(activation)
        return result

    async def _retry(self, executor: Executor, activation: Activation, policy: Policy) -> ActivationResult:
        """Make attempts until one succeeds or none is left. Then the message goes to the `on_error` executor."""
        context = self.context
        earlier: list[PendingEvent] = []
        retries = Retries(context, activation_id_of(context.snapshot, activation), policy.retry, executor.id)
        earlier += [PendingEvent(kind, data, executor.id) for kind, data in retries.events()]
        while True:
            recorder = ActivationRecorder(activation, executor, context)
            # A sub-workflow must not be suspended here: its next message would find the turn half done.
            may_suspend = executor.child_graph() is None
            if retries.due is not None and not await retries.wait_until_due(may_suspend=may_suspend):
                return recorder.suspend(Wait(wake_at=retries.due), earlier)
            try:
                return await self._attempt(recorder, policy, earlier, retries.count + 1)
            except Exception as error:
                retry_message = await retries.fail(error)
                if retry_message is None and (policy.on_error is None or is_final(error)):
                    raise
                forget_place(error)
            await self._restore(executor)
            context.discard_shown(activation)
            if retry_message is not None:
                recorder.warn(f"executor {executor.id!r}: {retry_message}")
            earlier += recorder.events_without_effects(with_steps=retry_message is None)
            if retry_message is not None:
                earlier += [PendingEvent(kind, data, executor.id) for kind, data in retries.events()[-1:]]
            else:
                assert recorder.failure is not None, "the attempt has failed"
                handover = ActivationRecorder(activation, executor, context)
                failed = FailedMessage(handover.message, executor.id, recorder.failure, retries.count)
                handover.send(failed, policy.on_error)
                return handover.finish(earlier=earlier, is_called=False)

    async def _attempt(
        self, recorder: ActivationRecorder, policy: Policy, earlier: Sequence[PendingEvent], attempt: int = 1
    ) -> ActivationResult:
        """Call the handler once. If it raises, emit that and raise."""
        context, executor = self.context, recorder.executor
        try:
            before = self.changes.observe(executor) if context.is_checkpointed else None
            recorder.emit_call("executor_invoked", recorder.message)
            call = recorder.call(*_find_handler(recorder))
            if policy.timeout is not None:
                late = ExecutorTimeoutError(executor.id, seconds=policy.timeout)
                call = within(context.clock, policy.timeout, call, late)
            if context.span is NO_SPAN:
                await call
            else:
                span = context.span.child(
                    "perdure.activation", executor_id=executor.id, activation_id=recorder.activation_id
                )
                recorder.span = span
                with traced(recorder.span), current(recorder.span):
                    await call
            wait = recorder.waits_for
            if wait is not None:
                await self._restore(executor)
                return recorder.suspend(wait, earlier)
            warning = None if before is None else self.changes.find_change(executor, before)
            return recorder.finish(earlier=earlier, warning=warning)
        except Exception as error:
            note_executor(error, executor.id, attempt=attempt)
            recorder.fail(error)
            raise
        finally:
            # These refer back to the attempt: break the cycles, so that its memory is freed at once.
            recorder.task = recorder.steps = recorder.questions = recorder.requests = None


def _find_handler(recorder: ActivationRecorder) -> tuple[Any, ...]:
    """Return the handler for the message, and its arguments."""
    executor, message = recorder.executor, recorder.message
    context: WorkflowContext[Any, Any] = WorkflowContext(recorder)
    if recorder.activation.delivery.answers is None:
        found = handler_of(executor, message)
        if found is not None:
            return found, message, context
        kind = type_of(message)
        raise TypeError(
            f"executor {executor.id!r} has no handler for a {kind}; add a @handler for {kind}, or change the edge"
        )
    request = recorder.request_data
    found = response_handler_of(executor, request, message)
    if found is not None:
        return found, request, message, context
    raise TypeError(
        f"executor {executor.id!r} has no handler for a {type_of(message)} that answers a {type_of(request)}; "
        "add a @response_handler for these two types"
    )
