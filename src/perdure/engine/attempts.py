"""An activation as the policy of its executor has it: attempts, the time for each, and who is told of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.engine.activation import ActivationRecorder
from perdure.engine.parking import OutOfTimeError, Parked, within
from perdure.engine.tries import Tries, is_final
from perdure.errors import ExecutorTimeoutError
from perdure.graph import NO_POLICY, FailedMessage, WorkflowContext, handler_of, response_handler_of, wiring
from perdure.tracing import NO_SPAN, current, traced
from perdure.typenames import type_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from perdure.engine.activation import Surroundings
    from perdure.engine.instances import Drift
    from perdure.events import WorkflowErrorDetails
    from perdure.graph import Executor
    from perdure.kernel import Activation, ActivationResult, PendingEvent


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
        put_back: Callable[[Executor], Awaitable[None]],
    ) -> None:
        self._activation = activation
        self._executor = executor
        self._around = around
        self._drift = drift
        self._put_back = put_back
        self._policy = wiring(executor).policy
        self._told: list[PendingEvent] = []

    def done(self) -> Coroutine[Any, Any, ActivationResult]:
        """What the activation did. Raises what the last attempt raised, unless another executor is told of it."""
        return self._attempt(self._recorder(), is_last=True) if self._policy is NO_POLICY else self._until_over()

    async def _until_over(self) -> ActivationResult:
        is_left = False
        try:
            done = await self._tried()
            is_left = done.effects.suspension is not None
        finally:
            if not is_left:
                self._around.let_go(self._activation)
        return done

    def _recorder(self) -> ActivationRecorder:
        return ActivationRecorder(self._activation, self._executor, self._around)

    async def _tried(self) -> ActivationResult:
        tries = self._tries()
        while True:
            recorder = self._recorder()
            # A sub-workflow is one run: who comes next must not go on from before a turn that has begun.
            if tries.due is not None and not await tries.is_ready(may_leave=self._executor.child_graph() is None):
                return recorder.suspended(Parked(wake_at=tries.due), self._told)
            try:
                return await self._attempt(recorder)
            except Exception as error:
                outlook = await tries.failed(error)
                if outlook is None and (self._policy.on_error is None or is_final(error)):
                    raise
            await self._put_back(self._executor)
            if outlook is not None:
                recorder.warn(f"executor {self._executor.id!r}: {outlook}")
            self._told += recorder.book.rest()
            if outlook is None:
                assert recorder.failure is not None, "the attempt has failed"
                return self._handed_on(recorder.failure, attempts=tries.count)

    def _tries(self) -> Tries:
        retry = self._policy.retry
        # Without a retry nothing is recorded.
        key = "" if retry is None else f"{self._around.home_of(self._activation)}/attempts"
        return Tries(self._around, key, retry)

    async def _attempt(self, recorder: ActivationRecorder, *, is_last: bool = False) -> ActivationResult:
        """What the handler did. If it raised, that is told. The last attempt may only be left, or have its end."""
        try:
            before = self._drift.look(self._executor) if self._around.is_checkpointed else None
            recorder.book.invoked(recorder.message)
            await (self._call(recorder) if self._around.span is NO_SPAN else self._traced(recorder))
            if recorder.parking.parked is not None:
                await self._put_back(self._executor)
                return recorder.suspended(recorder.parking.parked, self._told)
            warning = None if before is None else self._drift.noticed(self._executor, before)
            return recorder.finish(earlier=self._told, warning=warning)
        except Exception as error:
            recorder.failed(error)
            raise
        finally:
            recorder.let_go()
            if is_last and recorder.parking.parked is None:
                self._around.let_go(self._activation)

    async def _traced(self, recorder: ActivationRecorder) -> None:
        recorder.span = self._around.span.child("perdure.activation", executor_id=self._executor.id, home=recorder.home)
        with traced(recorder.span), current(recorder.span):
            await self._call(recorder)

    def _call(self, recorder: ActivationRecorder) -> Coroutine[Any, Any, None]:
        call, seconds = recorder.called(*_handler(recorder)), self._policy.timeout
        return call if seconds is None else self._timed(call, seconds)

    async def _timed(self, call: Coroutine[Any, Any, None], seconds: float) -> None:
        try:
            await within(self._around.clock, seconds, call)
        except OutOfTimeError as error:
            raise ExecutorTimeoutError(self._executor.id, seconds=seconds) from error.__cause__

    def _handed_on(self, details: WorkflowErrorDetails, *, attempts: int) -> ActivationResult:
        """The message goes to the executor that is told of failures; nothing else is left of the activation."""
        recorder = self._recorder()
        failed = FailedMessage(recorder.message, self._executor.id, details, attempts)
        recorder.send(failed, self._policy.on_error)
        return recorder.finish(earlier=self._told, is_told=False, has_acted=False)


def _handler(recorder: ActivationRecorder) -> tuple[Any, ...]:
    """The handler, and what it is called with."""
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
