"""Steps: named work inside an activation. A recorded result is returned, and the work is not repeated.

A step that raised is not finished. But what the handler does next may depend on the error. So the error is recorded
before the next step starts, and when the handler is suspended. If the error ends the attempt after all, its step is
tried again by the next one. An error that another process could not rebuild is forgotten with this process.
"""

from __future__ import annotations

import asyncio
import builtins
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, takewhile
from time import perf_counter  # noqa: TID251 - durations for operators; no run depends on them
from typing import TYPE_CHECKING, Any, Final, Never, cast

from perdure.checkpoint import InterruptedStep, RaisedRecord, StepDecision, StepRecord, plain_data
from perdure.clock import now
from perdure.codec import Held, Kept
from perdure.data_classes import value_class
from perdure.engine.commit import FRAMEWORK, encode_data
from perdure.engine.step_identity import StepIdentities
from perdure.engine.suspension import Wait
from perdure.engine.tasks import (
    CallScope,
    OpenCall,
    Retries,
    RunningStep,
    StepEvent,
    StepSlot,
    StepTask,
    current_task,
    is_final,
    result_types,
    running_step,
    within,
)
from perdure.errors import EncodeError, StepMismatchError, StepTimeoutError, StepUnsettledError, UntrustedTypeError
from perdure.events import StepInfo, WorkflowEvent
from perdure.failures import note_step
from perdure.tracing import current, traced

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    from perdure.engine.activation import ActivationRecorder
    from perdure.engine.superstep import ActivationContext
    from perdure.graph import StepCall

_MEMO = "raised"
_PLAIN = frozenset({str, int, float, bool})
_BUILTIN: dict[str, type[Exception]] = {
    name: found
    for name, found in vars(builtins).items()
    if isinstance(found, type) and issubclass(found, Exception) and found.__name__ == name
}


class NotDone(Enum):
    """The type of `NOT_DONE`."""

    NOT_DONE = "not done"

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE: Final = NotDone.NOT_DONE
"""Returned by a function for `if_interrupted` if the work was not done: then the step runs again."""


@value_class
class _Step:
    """A call of a step: where its record is, its idempotency key, the digest of its arguments.

    Attributes:
        label: Its name in failures and events: for a part of another step, the name of that one.
        is_in_line: True if the task of the calling code does nothing but await it.
        round: The number of times it was started before a crash interrupted it.
    """

    call: StepCall
    scope: CallScope
    state: OpenCall
    place: str
    key: str
    label: str
    task: StepTask
    slot: StepSlot
    digest: str | None = None
    mismatch: StepMismatchError | None = None
    is_in_line: bool = False
    round: int = 0

    @property
    def name(self) -> str:
        return self.call.name


class Steps:
    """The steps of one attempt at an activation."""

    def __init__(self, owner: ActivationRecorder) -> None:
        self.owner = owner
        self._context = owner.context
        self._handler = CallScope(owner.activation_id, owner.task)
        self._tasks: dict[str, StepTask] = {}
        self._counted: set[str] = set()
        self._taken: set[str] = set()
        self.in_flight: list[RunningStep] = []
        self.errors = CaughtErrors(owner.context, owner.activation_id)
        self.identities = StepIdentities(owner)

    def begin(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that gives the result of a step. The call alone decides which step it is."""
        scope, is_own = self.scope, self.is_in_own_task
        state = scope.new_call(is_own=is_own)
        place, digest, mismatch = self.identities.identify(
            call, scope, is_own=is_own, is_sequential=state.is_sequential, is_in_function=self._is_in_function
        )
        scope.calls.add(state)
        key, task, slot, running = self._context.derived_id(place), StepTask(self.owner), StepSlot(place), self.running
        outer = None if running is None else running.call
        label = call.name if call.event is not None or outer is None else outer.name
        if running is None:
            self.owner.add_slot(slot)
        else:
            running.slot.parts.append(slot)
        return self._run(_Step(call, scope, state, place, key, label, task, slot, digest, mismatch))

    @property
    def scope(self) -> CallScope:
        """Return the code that runs here: the function of a step, or the handler."""
        return running_step(self) or self._handler

    @property
    def running(self) -> RunningStep | None:
        """Return the step of this activation whose function runs here, if any."""
        return running_step(self)

    @property
    def is_in_own_task(self) -> bool:
        """Return whether the current task is the code's own. Otherwise it is remembered as a subtask."""
        task = current_task()
        if task is None or task is self.scope.task:
            return True
        self.owner.suspender.note_subtask(task, is_of_function=self._is_in_function)
        return False

    @property
    def _is_in_function(self) -> bool:
        running = self.running
        return self.owner.is_function or (running is not None and any(each.is_function for each in running.enclosing()))

    # Suspension

    @property
    def may_suspend(self) -> bool:
        """Return whether the handler can be suspended here: in the handler, or in functions that are workflows."""
        running = self.running
        return running is None or running.may_suspend

    async def wait(self, wait: Wait, *, is_in_line: bool | None = None) -> Never:
        """Wait until the handler is suspended, with the functions that are around this."""
        running = self.running
        context = [] if running is None else list(running.enclosing())
        own = self.is_in_own_task if is_in_line is None else is_in_line
        with self.owner.suspender.waiting_in(context):
            is_own = own and all(each.is_awaited_in_line for each in context)
            await self.owner.suspender.wait(wait, is_in_own_task=is_own)

    def interrupt(self) -> None:
        """Cancel the steps in flight, since the handler was cancelled."""
        for task in self._tasks.values():
            task.interrupt()

    async def settle(self) -> None:
        """Wait until no step is in flight. If that is cancelled, cancel the steps, too."""
        interruption: asyncio.CancelledError | None = None
        while task := next((each for each in self._tasks.values() if not each.has_ended), None):
            try:
                await task.wait()
            except asyncio.CancelledError as error:
                interruption = error
                self.interrupt()
        if interruption is not None:
            raise interruption

    # One call

    async def _run(self, step: _Step) -> Any:
        try:
            return await self._run_alone(step)
        except Exception as error:
            self.errors.deliver(error)
            raise
        finally:
            step.scope.calls.discard(step.state)
            self.owner.suspender.restart_grace()

    async def _run_alone(self, step: _Step) -> Any:
        """Run no step twice at the same time: a later call of the same key gets the first one's result."""
        self._require_may_start()
        if step.mismatch is not None:
            raise step.mismatch
        is_own = self.is_in_own_task and current_task() is step.scope.task
        step.state.is_sequential = step.state.is_sequential and is_own
        step = replace(step, is_in_line=is_own)
        with self.owner.suspender.working():
            await self.errors.record(is_in_own_task=is_own, except_place=step.place)
        while (other := self._tasks.get(step.place)) is not None and not other.has_ended:
            await other.wait()
        self._require_may_start()
        self._tasks[step.place] = step.task
        try:
            return await step.task.start(self._result(step))
        finally:
            if self._tasks[step.place] is step.task:
                del self._tasks[step.place]

    def _require_may_start(self) -> None:
        self.owner.require_running()
        self.owner.suspender.require_active()

    async def _result(self, step: _Step) -> Any:
        """Return the recorded result of a step, or raise its recorded error, or run it."""
        held = self._context.held(self.owner.activation_id).get(step.place)
        record = self.identities.record(step.place) if held is None and self._context.keeps_records else None
        if record is not None and self.identities.fits(step.place, step.digest) is False:
            raise self.identities.mismatch(step.call)
        found = held or record
        self._take_events(step, () if found is None else found.events)
        error = self.errors.next_error(step.place, step.name, record)
        if error is not None:
            raise error
        if found is not None and found.result is not None:
            self._count_spending(step, found.spent)
            return self._decode(step, found.result)
        if record is not None:
            if record.is_open:
                result = await self._reconcile(step, record)
                if result is not NOT_DONE:
                    convert = step.call.found
                    result = result if convert is None else convert(result, step.place)
                    about: dict[str, Any] = {"name": step.label, **step.call.about, "outcome": "interrupted"}
                    return await self._save(step, result, StepInfo(**about))
            step = replace(step, round=record.round + 1)
        return await self._attempt(step)

    def _take_events(self, step: _Step, events: Sequence[StepEvent]) -> None:
        """Take the recorded events of a step, once for all calls of one key."""
        if step.place not in self._taken:
            self._taken.add(step.place)
            step.slot.parts += events
            if step.call.retry is not None:
                step.slot.failed += self._retries(step).events()

    def _retries(self, step: _Step) -> Retries:
        return Retries(self._context, step.place, step.call.retry, self.owner.executor_id, step.label)

    def _count_spending(self, step: _Step, spent: Mapping[str, float]) -> None:
        """Count what a step has spent, once for all calls of one key."""
        if step.place not in self._counted:
            self._counted.add(step.place)
            self.owner.count(spent)

    # Interrupted steps

    async def _reconcile(self, step: _Step, record: StepRecord) -> Any:
        """Return the result of an interrupted step, or NOT_DONE."""
        match step.call.if_interrupted:
            case "rerun":
                return NOT_DONE
            case "ask":
                return await self._ask_about(step, record)
            case reconcile:
                key = record.key or step.key
                running = RunningStep(f"{step.place}/settled", None, owner=self, key=key)
                try:
                    with self.owner.suspender.working():
                        return await step.task.call(reconcile, (key,), running)
                except Exception as error:
                    reason = f"the function for if_interrupted raised {type(error).__name__}: {error}"
                    raise StepUnsettledError(step.name, reason=reason) from error

    async def _ask_about(self, step: _Step, record: StepRecord) -> Any:
        """Return what was answered about an interrupted step. Suspend the handler until it is."""
        # In a fork, the request that was opened before the fork may be the one that is answered.
        derived = self._request_id(step, record.round)
        answers = (self._answer(each) for each in (record.request_id, derived) if each is not None)
        found = next((answer for answer in answers if answer is not None), None)
        if found is None:
            if not self.may_suspend:
                reason = "it runs inside of another step, which can't be suspended; call it outside of other steps"
                raise StepUnsettledError(step.name, reason=reason)
            is_open = record.request_id in self._context.snapshot.requests
            request_id = record.request_id if is_open and record.request_id is not None else derived
            question = InterruptedStep(step.name, record.key or step.key, self.owner.executor_id, record.at)
            self.owner.wait_for(request_id, question, StepDecision)
            await self.wait(Wait(request_id=request_id), is_in_line=step.is_in_line)
        decision: StepDecision = self._context.values.give(found)
        match decision.action:
            case "rerun":
                return NOT_DONE
            case "done":
                return decision.result
            case "fail":
                raise StepUnsettledError(step.name, reason="the answer to its request was to let it fail")

    def _request_id(self, step: _Step, number: int) -> str:
        return self._context.derived_id(f"{step.place}/ask/{number}")

    def _answer(self, request_id: str) -> Kept | None:
        return self._context.journal.find(f"{self.owner.activation_id}/answer/{request_id}")

    # Attempts

    async def _attempt(self, step: _Step) -> Any:
        retries = self._retries(step)
        while True:
            await self._wait_for_attempt(step, retries)
            with self.owner.suspender.working():
                # From here on the handler is not suspended before this attempt has ended.
                self.owner.suspender.require_active()
                await self._record_intent(step, is_open=True)
                running = RunningStep(
                    step.place,
                    None,
                    owner=self,
                    call=step.call,
                    slot=step.slot,
                    key=step.key,
                    outer=self.running,
                    is_awaited_in_line=step.is_in_line,
                    may_restart=step.call.if_interrupted == "rerun",
                    is_function=step.call.is_function,
                )
                begun = perf_counter()
                try:
                    result = await self._call(step, running)
                except Exception as error:  # noqa: BLE001 - it is raised again unless there is another attempt
                    retry_message = await self._fail_attempt(step, retries, error)
                else:
                    about: dict[str, Any] = {
                        "name": step.label,
                        "spent": running.spent,
                        **step.call.about,
                        **running.about,
                    }
                    duration = round(perf_counter() - begun, 6)
                    return await self._save(
                        step, result, StepInfo(**about, duration=duration, attempt=retries.count + 1)
                    )
            self.owner.warn(f"step {step.name!r} of executor {self.owner.executor_id!r}: {retry_message}")

    async def _fail_attempt(self, step: _Step, retries: Retries, error: Exception) -> str:
        """Return a text about the next attempt. Raise the error if there is none."""
        self.errors.forget_inside(step.place)
        retry_message = await retries.fail(error)
        if retry_message is not None:
            step.slot.failed += retries.events()[-1:]
        # Work that was cut off in the middle may have been done: without another attempt that stays open.
        if retry_message is not None or not (isinstance(error, StepTimeoutError) or is_final(error)):
            await self._record_intent(step, is_open=False)
        if retry_message is None or step.task.is_interrupted:
            self._note_error(step, error)
            note_step(error, step.label, attempt=retries.count)
            raise error
        return retry_message

    def _note_error(self, step: _Step, error: Exception) -> None:
        """Remember an error that the handler may catch, unless it is unclear whether the work was done."""
        is_unclear = isinstance(error, StepTimeoutError) and step.call.if_interrupted != "rerun"
        if not (is_final(error) or is_unclear or step.task.is_interrupted):
            at, is_sequential = now(self._context.clock), step.state.is_sequential
            events = (*self.errors.events_before(step.place), *step.slot.recorded())
            record = StepRecord(at, step.digest, step.round, is_open=False, is_sequential=is_sequential, events=events)
            self.errors.add(step.place, record, error)

    async def _record_intent(self, step: _Step, *, is_open: bool) -> None:
        """Record that a step starts, or that it raised, if a crash in between must be noticed."""
        if step.call.if_interrupted != "rerun":
            record = StepRecord(
                now(self._context.clock),
                step.digest,
                step.round,
                is_open,
                key=step.key,
                request_id=self._request_id(step, step.round),
            )
            # If the process dies in this step each time, nothing else is ever written: that is no progress.
            await self._context.record_durably(step.place, record.encoded(), is_progress=not is_open)

    async def _wait_for_attempt(self, step: _Step, retries: Retries) -> None:
        # A short backoff is work: the handler is not suspended meanwhile, whatever else it waits for.
        with self.owner.suspender.working():
            is_due = await retries.wait_until_due(may_suspend=self.may_suspend)
        if not is_due:
            await self.wait(Wait(wake_at=retries.due), is_in_line=step.is_in_line)

    async def _call(self, step: _Step, running: RunningStep) -> Any:
        call, owner = step.call, self.owner
        span = owner.span.child("perdure.step", step=call.name, executor_id=owner.executor_id)
        # The activation sees what a step spends before the step has ended.
        self.in_flight.append(running)
        try:
            with traced(span), current(span):
                work = step.task.call(call.fn, call.args, running)
                if call.timeout is None:
                    return await work
                late = StepTimeoutError(call.name, seconds=call.timeout)
                return await within(self._context.clock, call.timeout, work, late)
        finally:
            self.in_flight.remove(running)

    # Results

    async def _save(self, step: _Step, result: Any, info: StepInfo) -> Any:
        """Record the result, or hold it in memory. Return it as every later entry gets it."""
        self._count_spending(step, info.spent)
        kept, record = self._encode(step, result), None
        self._emit(step, info, result)
        events = (*self.errors.events_before(step.place), *step.slot.recorded())
        if kept.refusal is not None:
            self.owner.warn(f"{kept.refusal}; if the process dies the step is interrupted")
        elif self._context.keeps_records:
            raised, is_sequential = self.errors.raised_before(step.place), step.state.is_sequential
            record = StepRecord(
                now(self._context.clock),
                step.digest,
                result=kept,
                spent=info.spent,
                raised=raised,
                is_sequential=is_sequential,
                events=events,
            )
        self.errors.mark_done(step.place, record)
        if record is None or not await self._context.record_durably(step.place, record.encoded()):
            self._context.held(self.owner.activation_id)[step.place] = Held(kept, info.spent, events)
        elif (written := self._context.journal.find(step.place)) is not None:
            # Every later entry in this process comes to this record again, and need not read it.
            written.parse_once(lambda: record)
        return self._decode(step, kept)

    def _emit(self, step: _Step, info: StepInfo, result: Any) -> None:
        """Emit that a step has ended, and keep that for the commit."""
        if step.call.event is None:
            return
        plain = replace(info, arguments=None, result=None)
        if not self._context.graph.rules.record_payloads:
            info = plain
        else:
            arguments = step.call.args or None if info.arguments is None else info.arguments
            info = replace(info, arguments=arguments, result=result if info.result is None else info.result)
        event = WorkflowEvent(step.call.event, info, executor_id=self.owner.executor_id, origin=FRAMEWORK)
        self._context.emit(event)
        if self._context.is_checkpointed:
            kept = None
            if info is not plain:
                kept, _ = encode_data(info, f"data of a {event.type!r} event", self._context.values)
            step.slot.parts.append((event.type, kept if isinstance(kept, Kept) else plain_data(plain)))

    def _encode(self, step: _Step, result: Any) -> Kept:
        """Encode the result. Its type may be named by nothing but the annotation of the step's function."""
        path = f"result of step {step.name!r}"
        if not self._context.keeps_records:
            return Kept(path=path, live=result, has_live=True)
        try:
            return self._context.values.fix(result, path)
        except EncodeError:
            return self._context.values.trusting(*result_types(step.call.fn)).fix(result, path)

    def _decode(self, step: _Step, kept: Kept) -> Any:
        try:
            return self._context.values.give(kept)
        except UntrustedTypeError:
            return self._context.values.trusting(*result_types(step.call.fn)).give(kept)


@dataclass(slots=True, eq=False)
class _Raised:
    """An error that a step has raised.

    Attributes:
        record: The record of the step, without the error.
        task: The task that the error was raised to.
        is_past: True if the handler has surely gone on past the error.
    """

    error: Exception
    record: StepRecord | None
    task: asyncio.Task[Any] | None = None
    is_recorded: bool = False
    is_past: bool = False


class CaughtErrors:
    """Keep the errors of one attempt's steps, by place. A step that is called again may raise again."""

    def __init__(self, context: ActivationContext, activation_id: str) -> None:
        self._context = context
        self._activation_id = activation_id
        self._raised: dict[str, list[_Raised]] = {}

    def add(self, place: str, record: StepRecord, error: Exception) -> None:
        """Note that a step has raised. Nothing is recorded yet: the error may end the attempt."""
        self._raised.setdefault(place, []).append(_Raised(error, record))

    def deliver(self, error: Exception) -> None:
        """Note that the error reaches the task that awaits the step."""
        for raised in chain.from_iterable(self._raised.values()):
            if raised.error is error and raised.task is None:
                raised.task = asyncio.current_task()

    def raised_before(self, place: str) -> tuple[RaisedRecord, ...]:
        """Return the errors of earlier calls of a step that has now returned: later entries raise them first."""
        return _as_records(self._raised.get(place, ()))

    def events_before(self, place: str) -> tuple[StepEvent, ...]:
        """Return the events of steps inside of earlier calls that raised."""
        record = self._raised[place][-1].record if place in self._raised else None
        return () if record is None else record.events

    def mark_done(self, place: str, record: StepRecord | None) -> None:
        """Note that a step has returned."""
        for each in self._raised.get(place, ()):
            each.record, each.is_recorded, each.is_past = record, True, True

    def next_error(self, place: str, name: str, record: StepRecord | None) -> Exception | None:
        """Return the error that an earlier entry caught at this call; None if the step is to run."""
        before = self._memo().get(place) if _MEMO in self._context.memo(self._activation_id) else None
        errors: Sequence[Exception | None] | None = before
        if errors is None and record is not None:
            errors = [rebuild(each, name) for each in record.raised]
        number = len(self._raised.get(place, ()))
        error = errors[number] if errors is not None and number < len(errors) else None
        if error is not None:
            self._raised.setdefault(place, []).append(_Raised(error, record, is_recorded=True))
            error.__traceback__ = None
        return error

    def _memo(self) -> dict[str, list[Exception]]:
        """Return the errors that earlier attempts in this process have left."""
        return cast("dict[str, list[Exception]]", self._context.memo(self._activation_id).setdefault(_MEMO, {}))

    async def record(self, *, is_in_own_task: bool, except_place: str) -> None:
        """Record the errors raised so far, since the step at `except_place` starts.

        An error that no code has looked at yet is recorded as well. If it ends the attempt, it is forgotten again.
        """
        task = asyncio.current_task()
        for place, several in list(self._raised.items()):
            for each in several:
                # The handler has the result of a subtask that has ended, as far as can be known.
                has_ended = each.task is not None and each.task.done()
                each.is_past = each.is_past or each.task is task or (is_in_own_task and has_ended)
            if place != except_place and any(each.task is not None and not each.is_recorded for each in several):
                record = self._with_errors(several)
                if record is not None:
                    await self._context.record_durably(place, record.encoded())
                for each in several:
                    each.is_recorded = True

    def records(self) -> Mapping[str, Kept]:
        """Return the records of all errors, for a handler that is suspended."""
        records: dict[str, Kept] = {}
        for place, several in self._raised.items():
            self._memo()[place] = [each.error for each in several]
            record = None if all(each.is_recorded for each in several) else self._with_errors(several)
            if record is not None:
                records[place] = Kept(path=f"record {place!r}", encoded=record.encoded())
        return records

    def _with_errors(self, several: Sequence[_Raised]) -> StepRecord | None:
        record = several[-1].record
        if record is None or not self._context.keeps_records:
            return None
        raised = _as_records(several)
        return replace(record, raised=raised) if raised else None

    def forget_causes(self, error: BaseException) -> None:
        """Forget the errors that led to the one that ends the attempt: their steps are tried again.

        An error that was merely being handled at that time is no cause if the handler had gone on past it.
        """
        causes = {id(each) for each in _chain(error, with_contexts=False)}
        contexts = {id(each) for each in _chain(error, with_contexts=True)}
        for place, several in list(self._raised.items()):
            if any(id(each.error) in (causes if each.is_past else contexts) for each in several):
                self._forget(place)

    def forget_inside(self, place: str) -> None:
        """Forget the errors inside of a step that has failed: its next attempt tries those steps again."""
        for each in [each for each in self._raised if each.startswith(f"{place}/")]:
            self._forget(each)

    def _forget(self, place: str) -> None:
        several = self._raised.pop(place)
        self._memo().pop(place, None)
        record = several[-1].record
        if record is not None and any(each.is_recorded for each in several):
            self._context.journal.record_soon(place, replace(record, raised=(), events=()).encoded)


def _as_records(several: Sequence[_Raised]) -> tuple[RaisedRecord, ...]:
    """Return the records of errors, up to the first one that another process could not rebuild."""
    recorded = takewhile(lambda each: each is not None, (_as_record(each.error) for each in several))
    return tuple(each for each in recorded if each is not None)


def _chain(error: BaseException, *, with_contexts: bool) -> Iterator[BaseException]:
    """Iterate over an error and its causes; with contexts, also over errors that were being handled."""
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            contexts = (each.__context__,) if with_contexts else ()
            left += [found for found in (each.__cause__, *contexts) if found is not None]
            if isinstance(each, BaseExceptionGroup):
                left += cast("BaseExceptionGroup[BaseException]", each).exceptions


def _as_record(error: Exception) -> RaisedRecord | None:
    """Return an error as a record; None if another process could not rebuild it."""
    if type(error) is StepTimeoutError:
        return RaisedRecord(StepTimeoutError.__name__, (error.seconds,))
    name, args = type(error).__name__, _arguments(error)
    if _BUILTIN.get(name) is not type(error) or not all(each is None or type(each) in _PLAIN for each in args):
        return None
    record = RaisedRecord(name, args)
    again = rebuild(record, name)
    return record if type(again) is type(error) and str(again) == str(error) else None


def _arguments(error: Exception) -> tuple[object, ...]:
    if isinstance(error, OSError) and error.filename is not None:
        # It keeps these apart from its arguments. The one between them is for Windows.
        second = () if error.filename2 is None else (None, error.filename2)
        return (error.errno, error.strerror, error.filename, *second)
    return cast("tuple[object, ...]", error.args)


def rebuild(record: RaisedRecord, step_name: str) -> Exception | None:
    """Return the recorded error of a step; None if its type is not known here."""
    try:
        if record.type == StepTimeoutError.__name__:
            return StepTimeoutError(step_name, seconds=float(cast("float", record.args[0])))
        found = _BUILTIN.get(record.type)
        error = None if found is None else found(*record.args)
    except (TypeError, ValueError, IndexError):
        return None
    if error is not None:
        error.add_note(f"step {step_name!r} raised this in an earlier entry, and was not called again")
    return error
