"""An activation as the policy of its executor has it: attempts, the time for each, and who is told of a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.errors import ExecutorTimeoutError
from perdure.graph.context import WorkflowContext
from perdure.graph.executor import handler_of, response_handler_of, wiring
from perdure.graph.policy import FailedMessage
from perdure.runtime.activation import ActivationRecorder
from perdure.runtime.parking import OutOfTimeError, Parked, within
from perdure.runtime.tries import Tries, is_final
from perdure.tracing import current, traced
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from perdure.events import WorkflowErrorDetails
    from perdure.graph.executor import Executor
    from perdure.kernel.effects import Activation, Done, Told
    from perdure.runtime.activation import Surroundings
    from perdure.runtime.instances import Drift


class Attempts:
    """Calls the handler of an activation until it returns, is left to wait, or has failed for good.

    `put_back` gives the executor the state that it had before.
    """

    def __init__(
        self,
        activation: Activation,
        executor: Executor,
        around: Surroundings,
        *,
        drift: Drift,
        put_back: Callable[[], Awaitable[None]],
    ) -> None:
        self._activation = activation
        self._executor = executor
        self._around = around
        self._drift = drift
        self._put_back = put_back
        self._policy = wiring(executor).policy
        self._told: list[Told] = []

    async def done(self) -> Done:
        """What the activation did. Raises what the last attempt raised, unless another executor is told of it."""
        home, is_left = self._around.home_of(self._activation), False
        try:
            done = await self._tried(Tries(self._around, f"{home}/attempts", self._policy.retry))
            is_left = done.effects.suspension is not None
        finally:
            if not is_left:
                self._around.let_go(home)
        return done

    async def _tried(self, tries: Tries) -> Done:
        while True:
            recorder = ActivationRecorder(self._activation, self._executor, self._around)
            # A sub-workflow is one run: who comes next must not go on from before a turn that has begun.
            if not await tries.is_ready(may_leave=self._executor.child_graph() is None):
                return recorder.suspended(Parked(wake_at=tries.due), self._told)
            try:
                return await self._attempt(recorder)
            except Exception as error:
                details = recorder.failed(error)
                outlook = await tries.failed(error)
                if outlook is None and (self._policy.on_error is None or is_final(error)):
                    raise
            await self._put_back()
            if outlook is not None:
                recorder.warn(f"executor {self._executor.id!r}: {outlook}")
            self._told += recorder.book.rest()
            if outlook is None:
                return self._handed_on(details, attempts=tries.count)

    async def _attempt(self, recorder: ActivationRecorder) -> Done:
        before = self._drift.look(self._executor) if self._around.is_checkpointed else None
        recorder.book.invoked(recorder.message)
        recorder.span = self._around.span.child("perdure.activation", executor_id=self._executor.id, home=recorder.home)
        with traced(recorder.span), current(recorder.span):
            await self._called(recorder)
        if recorder.parking.parked is not None:
            await self._put_back()
            return recorder.suspended(recorder.parking.parked, self._told)
        done = recorder.finish()
        recorder.completed()
        self._tell_drift(recorder, before)
        effects = done.effects
        told = (*self._told, *recorder.book.told(effects.outputs, effects.requests))
        return replace(done, effects=replace(effects, told=told))

    async def _called(self, recorder: ActivationRecorder) -> None:
        seconds = self._policy.timeout
        call = recorder.called(_handler(recorder))
        if seconds is None:
            await call
            return
        try:
            await within(self._around.clock, seconds, call)
        except OutOfTimeError as error:
            raise ExecutorTimeoutError(self._executor.id, seconds=seconds) from error.__cause__

    def _tell_drift(self, recorder: ActivationRecorder, before: Mapping[str, tuple[int, int | None]] | None) -> None:
        warning = None if before is None else self._drift.noticed(self._executor, before)
        if warning is not None:
            recorder.warn(warning)

    def _handed_on(self, details: WorkflowErrorDetails, *, attempts: int) -> Done:
        """The message goes to the executor that is told of failures; nothing else is left of the activation."""
        recorder = ActivationRecorder(self._activation, self._executor, self._around)
        failed = FailedMessage(recorder.message, self._executor.id, details, attempts)
        recorder.send(failed, self._policy.on_error)
        done = recorder.finish()
        return replace(done, effects=replace(done.effects, told=tuple(self._told)))


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
