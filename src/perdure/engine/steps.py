"""Steps: named work inside an activation. A recorded result is returned, and the work is not repeated.

A step is identified by its activation, the step around it, its name and its key. Without a key, the digest of its
arguments and the ordinal among calls of equal name and digest take its place. The identity is fixed when `ctx.step` is
called, so in the code's own task it does not depend on timing. In a subtask the order of calls is a matter of timing:
there an unkeyed call must be identified by its name and arguments alone.
"""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Never
from urllib.parse import quote, unquote

from perdure.checkpoint import InterruptedStep, StepDecision, StepRecord, arguments_digest, call_digest
from perdure.clock import now, seconds_of
from perdure.codec import Held, Kept
from perdure.engine.caught_errors import CaughtErrors
from perdure.engine.journal import STEP
from perdure.engine.old_steps import OldSteps
from perdure.engine.suspension import Wait
from perdure.engine.tasks import (
    CallScope,
    OutOfTimeError,
    Retries,
    RunningStep,
    StepTask,
    current_task,
    is_final,
    result_types,
    running_step,
    within,
    without_partial,
)
from perdure.errors import EncodeError, StepMismatchError, StepTimeoutError, StepUnsettledError, UntrustedTypeError
from perdure.records import digest as hash_of
from perdure.tracing import current, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import timedelta

    from perdure.engine.activation import ActivationRecorder
    from perdure.engine.tasks import OpenCall
    from perdure.graph import StepCall


_DIGEST_LENGTH = 16
_NO_DIGEST = "-"
_ENTERED = "entered"


class NotDone(Enum):
    """The type of `NOT_DONE`."""

    NOT_DONE = "not done"

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE: Final = NotDone.NOT_DONE
"""Returned by a function for `if_interrupted` if the work was not done: then the step runs again."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A call of a step: where its record is, its idempotency key, the digest of its arguments."""

    call: StepCall
    scope: CallScope
    state: OpenCall
    place: str
    key: str
    task: StepTask
    digest: str | None = None
    mismatch: StepMismatchError | None = None
    is_in_line: bool = False
    """True if the task of the calling code does nothing but await it."""
    round: int = 0
    """The number of times it was started before a crash interrupted it."""

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
        self._errors = CaughtErrors(owner.context, owner.activation_id)
        self.called: set[str] = set()
        """The places of the steps that were called."""
        self._is_retry = _ENTERED in owner.memo
        owner.memo[_ENTERED] = True

    def begin(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that gives the result of a step. The call alone decides which step it is."""
        scope, is_own = self.scope, self.is_in_own_task
        state = scope.new_call(is_own=is_own)
        step = self._identify(call, scope, state, is_own=is_own)
        self.called.add(step.place)
        scope.calls.add(state)
        return self._run(step)

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

    def key_of_sleep(self, until: datetime | timedelta | float) -> str:
        """Return the key of a sleep in a subtask: sleeps of one length are interchangeable."""
        text = until.isoformat() if isinstance(until, datetime) else f"{seconds_of('a sleep', until):g}"
        stem = f"{self.scope.place}/sleep/"
        key = f"{stem}{self.scope.count('sleep', hash_of(text.encode())[:_DIGEST_LENGTH])}"
        if self._context.journal.find(key) is not None:
            return key
        return self.old_steps.sleep_in_subtask(stem, current_task()) or key

    # Identity

    def _identify(self, call: StepCall, scope: CallScope, state: OpenCall, *, is_own: bool) -> _Step:
        stem = f"{scope.place}{STEP}{quote(call.name, safe='')}"
        keeps = self._context.keeps_records
        digest = arguments_digest(call.fn, call.args, self._context.values) if keeps else None
        mismatch = None
        if call.key is not None:
            place = f"{stem}@{quote(call.key, safe='')}"
            place = self._place_before_key(stem, place, call, digest) or place
        else:
            identity = _NO_DIGEST if digest is None else digest[:_DIGEST_LENGTH]
            if not is_own:
                try:
                    identity = self._identity_in_subtask(call)
                except StepMismatchError as error:
                    mismatch = error
            position = scope.positions[stem]
            if is_own or not self._is_in_function:
                scope.positions[stem] += 1
            place = f"{stem}#{scope.count(stem, identity)}"
            old = self._old_place(stem, place, digest, position, is_own=is_own)
            if old is not None:
                place, mismatch = old, None
            elif mismatch is None and state.is_sequential and self._has_moved(stem, place, position, digest):
                mismatch = self._mismatch(call)
        key, task = self._context.derived_id(place), StepTask(self.owner)
        return _Step(call, scope, state, place, key, task, digest, mismatch)

    @property
    def _is_in_function(self) -> bool:
        running = self.running
        return self.owner.is_function or (running is not None and any(each.is_function for each in running.enclosing()))

    def _identity_in_subtask(self, call: StepCall) -> str:
        """Return the digest of a call that nothing but its name and arguments identify. Raises StepMismatchError."""
        blobs = () if call.is_stable else identifying_blobs(call.fn, self.owner.executor)
        if blobs is None:
            raise self._mismatch(
                call,
                "is a lambda or closure that is called in a subtask, where the order of calls is a matter of timing: "
                "give it its own key=..., or use a plain function and hand it what it needs as arguments",
            )
        digest = call_digest(call.fn, call.args, blobs, self._context.values)
        if digest is None and self._context.keeps_records:
            raise self._mismatch(
                call,
                "is called in a subtask with arguments, or is a method of an object, that can't be encoded, so nothing "
                "tells the call from others: give it its own key=...",
            )
        return _NO_DIGEST if digest is None else digest[:_DIGEST_LENGTH]

    def _mismatch(self, call: StepCall, reason: str | None = None) -> StepMismatchError:
        return StepMismatchError(call.name, executor_id=self.owner.executor_id, reason=reason)

    def _has_moved(self, stem: str, place: str, position: int, digest: str | None) -> bool:
        """Return whether sequential code that had called this step calls it with other arguments now."""
        if self._is_known(place):
            return False
        # Of records without a digest, an earlier version knew the position.
        old = f"{stem}#{position}"
        if not self.old_steps.is_empty and not self.old_steps.is_taken(old) and self._fits(old, digest) is False:
            return True
        return any(record.is_sequential for _, record in self._untaken(stem))

    def _place_before_key(self, stem: str, place: str, call: StepCall, digest: str | None) -> str | None:
        """Return the place of a record that this call had before it was given a key, if any."""
        if not call.args or digest is None or self._is_known(place):
            return None
        for found, record in self._untaken(stem):
            is_old = not self.old_steps.is_empty and re.search(r"#\d+$|@%20", found) is not None
            if (record.is_sequential or is_old) and record.digest == digest:
                self.old_steps.take(found)
                return found
        return None

    def _untaken(self, stem: str) -> Iterator[tuple[str, StepRecord]]:
        """Iterate over the records of unkeyed calls of one name that this entry has not made so far."""
        for place in self._keys_before:
            rest = place.removeprefix(stem)
            is_unkeyed = place.startswith(stem) and rest.startswith(("#", "@%20")) and "/" not in rest
            if is_unkeyed and place not in self.called and (record := self._record(place)) is not None:
                yield place, record

    def _old_place(self, stem: str, place: str, digest: str | None, position: int, *, is_own: bool) -> str | None:
        """Return the place under which an earlier version knew this call, if that has recorded anything."""
        if self.old_steps.is_empty or self._is_known(place):
            return None

        def fits(key: str) -> bool | None:
            return self._fits(key, digest)

        if is_own:
            return self.old_steps.step_in_own_task(stem, position, fits)
        return self.old_steps.step_in_subtask(stem, current_task(), fits)

    def _fits(self, place: str, digest: str | None) -> bool | None:
        """Return whether the record of a place has these arguments, as far as can be known; None without a record."""
        record = self._record(place)
        return None if record is None else None in {digest, record.digest} or digest == record.digest

    def _is_known(self, place: str) -> bool:
        return place in self._context.held(self.owner.activation_id) or self._context.journal.find(place) is not None

    def _record(self, place: str) -> StepRecord | None:
        found = self._context.journal.find(place)
        return None if found is None else StepRecord.of(found, place)

    @cached_property
    def _keys_before(self) -> Sequence[str]:
        """The keys of all records of this activation, if an earlier entry or attempt can have left any."""
        has_before = self._context.has_records or (self._is_retry and self._context.keeps_records)
        return self._context.journal.keys(self.owner.activation_id) if has_before else ()

    @cached_property
    def old_steps(self) -> OldSteps:
        """The records that an earlier version has left."""
        return OldSteps(self.owner.activation_id, self._keys_before)

    def turn_key(self, make_key: Callable[[str], str]) -> str:
        """Return the key of an agent's turn, as an earlier version made it if that has recorded one."""
        key = make_key("")
        if self._has_turn(key):
            return key
        task = current_task()
        for path in () if self.is_in_own_task else self.old_steps.task_paths(task):
            if self._has_turn(old := make_key(path)):
                assert task is not None, "paths are those of tasks"
                self.old_steps.note_task_path(task, path)
                return old
        return key

    def _has_turn(self, key: str) -> bool:
        start, quoted = self.scope.place, quote(key, safe="")
        marks = (f"@{quoted}%23", f"/agent/{quoted}.")
        return any(each.startswith(start) and any(mark in each for mark in marks) for each in self._keys_before)

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

    def error_records(self) -> Mapping[str, Kept]:
        """Return the records of caught errors, for a handler that is suspended."""
        return self._errors.records()

    def fail(self, error: BaseException) -> None:
        """Note that the handler raised: the next attempt tries the steps again that led to it."""
        self._errors.forget_causes(error)

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
            self._errors.deliver(error)
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
            await self._errors.record(is_in_own_task=is_own, except_place=step.place)
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
        held = self._context.held(self.owner.activation_id).get(step.place)
        if held is not None:
            self._raise_again(step, None)
            self._count_spending(step, held.spent)
            return self._decode(step, held.result)
        if self._context.keeps_records:
            return await self._recorded_result(step)
        self._raise_again(step, None)
        return await self._attempt(step)

    def _raise_again(self, step: _Step, record: StepRecord | None) -> None:
        error = self._errors.next_error(step.place, step.name, record)
        if error is not None:
            raise error

    def _count_spending(self, step: _Step, spent: Mapping[str, float]) -> None:
        """Count what a step has spent, once for all calls of one key."""
        if step.place not in self._counted:
            self._counted.add(step.place)
            self.owner.count(spent)

    async def _recorded_result(self, step: _Step) -> Any:
        record = self._record(step.place)
        if record is not None and self._fits(step.place, step.digest) is False:
            raise self._mismatch(step.call)
        self._raise_again(step, record)
        if record is not None and record.result is not None:
            self._count_spending(step, record.spent)
            return self._decode(step, record.result)
        if record is not None:
            if record.is_open:
                result = await self._reconcile(step, record)
                if result is not NOT_DONE:
                    found = step.call.found
                    return await self._save(step, result if found is None else found(result, step.place), {})
            step = replace(step, round=record.round + 1)
        return await self._attempt(step)

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
        retries = Retries(self._context, f"{step.place}/attempts", step.call.retry)
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
                    key=step.key,
                    outer=self.running,
                    is_awaited_in_line=step.is_in_line,
                    may_restart=step.call.if_interrupted == "rerun",
                    is_function=step.call.is_function,
                )
                try:
                    result = await self._call_traced(step, running)
                except Exception as error:  # noqa: BLE001 - it is raised again unless there is another attempt
                    retry_message = await self._fail_attempt(step, retries, error)
                else:
                    return await self._save(step, result, running.spent)
            self.owner.warn(f"step {step.name!r} of executor {self.owner.executor_id!r}: {retry_message}")

    async def _fail_attempt(self, step: _Step, retries: Retries, error: Exception) -> str:
        """Return a text about the next attempt. Raise the error if there is none."""
        self._errors.forget_inside(step.place)
        retry_message = await retries.fail(error)
        # Work that was cut off in the middle may have been done: without another attempt that stays open.
        if retry_message is not None or not (isinstance(error, StepTimeoutError) or is_final(error)):
            await self._record_intent(step, is_open=False)
        if retry_message is None or step.task.is_interrupted:
            self._note_error(step, error)
            raise error
        return retry_message

    def _note_error(self, step: _Step, error: Exception) -> None:
        """Remember an error that the handler may catch, unless it is unclear whether the work was done."""
        is_unclear = isinstance(error, StepTimeoutError) and step.call.if_interrupted != "rerun"
        if not (is_final(error) or is_unclear or step.task.is_interrupted):
            at, is_sequential = now(self._context.clock), step.state.is_sequential
            record = StepRecord(at, step.digest, step.round, is_open=False, is_sequential=is_sequential)
            self._errors.add(step.place, record, error)

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
            await self._context.put(step.place, record.encoded(), is_progress=not is_open)

    async def _wait_for_attempt(self, step: _Step, retries: Retries) -> None:
        # A short backoff is work: the handler is not suspended meanwhile, whatever else it waits for.
        with self.owner.suspender.working():
            is_due = await retries.wait_until_due(may_suspend=self.may_suspend)
        if not is_due:
            await self.wait(Wait(wake_at=retries.due), is_in_line=step.is_in_line)

    async def _call_traced(self, step: _Step, running: RunningStep) -> Any:
        span = self.owner.span.child("perdure.step", step=step.name, executor_id=self.owner.executor_id)
        with traced(span), current(span):
            return await self._call_in_time(step, running)

    async def _call_in_time(self, step: _Step, running: RunningStep) -> Any:
        call = step.call
        work = step.task.call(call.fn, call.args, running)
        if call.timeout is None:
            return await work
        try:
            return await within(self._context.clock, call.timeout, work)
        except OutOfTimeError as error:
            raise StepTimeoutError(call.name, seconds=call.timeout) from error.__cause__

    # Results

    async def _save(self, step: _Step, result: Any, spent: Mapping[str, float]) -> Any:
        """Record the result, or hold it in memory. Return it as every later entry gets it."""
        self._count_spending(step, spent)
        kept = self._encode(step, result)
        if not await self._is_recorded(step, kept, spent):
            self._context.held(self.owner.activation_id)[step.place] = Held(kept, spent)
        return self._decode(step, kept)

    async def _is_recorded(self, step: _Step, kept: Kept, spent: Mapping[str, float]) -> bool:
        if not self._context.keeps_records or kept.refusal is not None:
            if kept.refusal is not None:
                self.owner.warn(f"{kept.refusal}; if the process dies the step is interrupted")
            self._errors.mark_done(step.place, None)
            return False
        record = StepRecord(
            now(self._context.clock),
            step.digest,
            result=kept,
            spent=spent,
            raised=self._errors.raised_before(step.place),
            is_sequential=step.state.is_sequential,
        )
        self._errors.mark_done(step.place, record)
        return await self._context.put(step.place, record.encoded())

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


def identifying_blobs(fn: Callable[..., Any], executor: object) -> tuple[object, ...] | None:
    """Return what tells a function from others of its name, to be digested; None if nothing does.

    A function that its module knows by its name needs nothing else. A closure is told apart by nothing.
    """
    found: object = without_partial(fn)
    if isinstance(found, MethodType):
        blobs = identifying_blobs(found.__func__, executor)
        is_known = found.__self__ is executor or isinstance(found.__self__, type)
        return blobs if blobs is None or is_known else (*blobs, found.__self__)
    if isinstance(found, FunctionType):
        if _is_importable(found):
            return ()
        defaults = (found.__defaults__, found.__kwdefaults__)
        is_closed = bool(found.__closure__) or found.__name__ == "<lambda>"
        return None if is_closed else (() if defaults == (None, None) else defaults)
    if isinstance(found, BuiltinFunctionType):
        is_known = found.__self__ is None or isinstance(found.__self__, type | ModuleType)
        return () if is_known else (found.__self__,)
    return () if isinstance(found, type) else (found,)


def _is_importable(fn: FunctionType) -> bool:
    found: object = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is fn


def skipped_steps(owner: ActivationRecorder, called: AbstractSet[str]) -> list[str]:
    """Return the names of an activation's recorded steps that were not called, without nested ones."""
    is_entered_again = owner.activation.delivery.activation_id is not None
    recorded = owner.context.journal.steps_before(owner.activation_id, is_entered_again=is_entered_again)
    inner = [place.removeprefix(f"{owner.activation_id}{STEP}") for place in recorded if place not in called]
    return sorted({unquote(re.split("[#@]", each)[0]) for each in inner if "/" not in each})
