"""Steps: named work inside an activation. What finished is on disk, and is not done again."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Never, Protocol
from urllib.parse import quote

from perdure.checkpoint import InterruptedStep, StepDecision, StepRecord, arguments_digest
from perdure.clock import now
from perdure.codec import Held, Kept
from perdure.data import frozen
from perdure.engine.branches import task_path
from perdure.engine.caught import Caught
from perdure.engine.flight import Flight, Inside, enclosing, is_inside_step, result_types, step_key
from perdure.engine.journal import STEP
from perdure.engine.moved import Found, Moved, Sought
from perdure.engine.parking import OutOfTimeError, within
from perdure.engine.reading import compared
from perdure.engine.tries import Tries, is_final
from perdure.errors import EncodeError, StepMismatchError, StepTimeoutError, StepUnsettledError, UntrustedTypeError
from perdure.graph import Numbering
from perdure.tracing import current, traced

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from perdure.engine.activation import ActivationContext
    from perdure.engine.parking import Parking
    from perdure.engine.reading import Reading
    from perdure.graph import StepCall
    from perdure.kernel import Moment
    from perdure.tracing import Span


__all__ = ["NOT_DONE", "NotDone", "StepOwner", "Steps", "is_inside_step", "step_key"]


class NotDone(Enum):
    """The type of `NOT_DONE`."""

    NOT_DONE = "not done"

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE: Final = NotDone.NOT_DONE
"""What a function for `if_interrupted` returns if the work was not done: then the step is run again."""


class StepOwner(Protocol):
    """The activation that steps belong to, as far as they need it."""

    around: ActivationContext
    parking: Parking
    span: Span

    @property
    def home(self) -> str:
        """What their records are named after."""
        ...

    @property
    def executor_id(self) -> str:
        """Whose steps they are."""
        ...

    @property
    def reading(self) -> Reading | None:
        """How the function reads that the handler is; None if it is none."""
        ...

    def require_running(self) -> None:
        """Raise RuntimeError if the handler has returned."""
        ...

    def wait_for(self, request_id: str, data: Any, response_type: Any) -> None:
        """Open a request that the activation itself waits for."""
        ...

    def warn(self, text: str) -> None:
        """Tell a warning."""
        ...

    def count(self, spent: Mapping[str, float]) -> None:
        """Count what was spent."""
        ...


@frozen
class _Step:
    """A step that was called: its place in the records, its idempotency key, what its arguments are.

    `stem` is where all calls of its name are. `round` counts how often it was begun before.
    """

    call: StepCall
    stem: str
    place: str
    key: str
    flight: Flight
    digest: str | None = None
    round: int = 0

    @property
    def name(self) -> str:
        """What the user calls it."""
        return self.call.name


class Steps:
    """The steps of one attempt at an activation."""

    def __init__(self, owner: StepOwner) -> None:
        self._owner = owner
        self._around = owner.around
        self._calls: Counter[str] = Counter()
        self._numberings: defaultdict[str, Numbering] = defaultdict(Numbering)
        self._flights: dict[str, Flight] = {}
        self._counted: set[str] = set()
        self._moved = Moved(owner.around, owner.home)
        self._caught = Caught(owner.around, owner.home)
        self.begun: set[str] = set()
        """The places of the steps that were called."""

    def begin(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """A step, to be awaited. Which one it is does not depend on the order in which steps are awaited."""
        task_path(self._owner)  # It numbers the task, so that what is asked in it later is known by that.
        outer = self.enclosing
        home, calls = (self._owner.home, self._calls) if outer is None else (outer.place, outer.calls)
        name = quote(call.name, safe="")
        stem = f"{home}{STEP}{name}"
        if call.key is None:
            place = f"{stem}#{calls[name]}"
            calls[name] += 1
        else:
            place = f"{stem}@{quote(call.key, safe='')}"
        self.begun.add(place)
        return self._alone(_Step(call, stem, place, self._around.derived_id(place), Flight(self._owner.parking)))

    def numbering(self, name: str) -> Numbering:
        """Numbers for things of this name: those of the handler, or of the step that is running here."""
        outer = self.enclosing
        return (self._numberings if outer is None else outer.numberings)[name]

    @property
    def enclosing(self) -> Inside | None:
        """The step of this activation whose function is running here, if one is."""
        return enclosing(self)

    @property
    def reading(self) -> Reading | None:
        """How the function reads that is running here; None if it is no function of a workflow."""
        inside = self.enclosing
        around = () if inside is None else inside.around()
        return next((each.reading for each in around if each.reading is not None), self._owner.reading)

    async def park(self, *, wake_at: Moment | None = None, awaits: str | None = None) -> Never:
        """Leave the handler, and the functions around this with it. They are entered again."""
        inside = self.enclosing
        with self._owner.parking.resting([] if inside is None else list(inside.around())):
            await self._owner.parking.park(wake_at=wake_at, awaits=awaits)

    @property
    def may_park(self) -> bool:
        """Whether the handler can be left here: what is running is no step, or one that is a function of a workflow."""
        inside = self.enclosing
        return inside is None or inside.is_scope

    def left(self) -> Mapping[str, Kept]:
        """What there is to record of a handler that is left: the errors that it has caught."""
        return self._caught.left()

    def failed(self, error: BaseException) -> None:
        """The handler raised: steps that this came from are tried again."""
        self._caught.forget(error)

    def interrupt(self) -> None:
        """The handler was cancelled: let the steps in flight end, too."""
        for flight in self._flights.values():
            flight.interrupt()

    async def settle(self) -> None:
        """Wait until no step is in flight. Who is cancelled while waiting cancels them."""
        interruption: asyncio.CancelledError | None = None
        while flight := next((each for each in self._flights.values() if not each.has_landed), None):
            try:
                await flight.wait()
            except asyncio.CancelledError as error:
                interruption = error
                self.interrupt()
        if interruption is not None:
            raise interruption

    async def _alone(self, step: _Step) -> Any:
        """Let nobody else do this step at the same time: who comes second gets what the first one did."""
        self._require_may_begin()
        await self._caught.keep(task_path(self._owner), but=step.place)
        while (other := self._flights.get(step.place)) is not None and not other.has_landed:
            await other.wait()
            self._require_may_begin()
        self._flights[step.place] = step.flight
        try:
            return await step.flight.take_off(self._done(step))
        except Exception as error:
            self._caught.heard(error, task_path(self._owner))
            raise
        finally:
            if self._flights[step.place] is step.flight:
                del self._flights[step.place]

    def _require_may_begin(self) -> None:
        self._owner.require_running()
        self._owner.parking.require_not_left()

    async def _done(self, step: _Step) -> Any:
        held = self._around.held(self._owner.home).get(step.place)
        if held is not None:
            self._raise_again(step, None)
            self._count(step, held.spent)
            return self._given(step, held.result)
        if self._around.keeps_records:
            return await self._recorded(step)
        self._raise_again(step, None)
        return await self._attempted(step)

    def _raise_again(self, step: _Step, record: StepRecord | None) -> None:
        error = self._caught.again(step.place, step.name, record)
        if error is not None:
            raise error

    def _count(self, step: _Step, spent: Mapping[str, float]) -> None:
        """Count what a step has spent, once, however many calls of one key there are."""
        if step.place not in self._counted:
            self._counted.add(step.place)
            self._owner.count(spent)

    async def _recorded(self, step: _Step) -> Any:
        values = self._around.values
        step = replace(step, digest=arguments_digest(step.call.fn, step.call.args, values))
        step, record = self._located(step)
        self._raise_again(step, record)
        if record is not None and record.result is not None:
            self._count(step, record.spent)
            return self._given(step, record.result)
        if record is not None:
            if record.is_open:
                settled = await self._settled(step, record)
                if settled is not NOT_DONE:
                    found = step.call.found
                    return await self._kept(step, settled if found is None else found(settled, step.place), {})
            step = replace(step, round=record.round + 1)
        return await self._attempted(step)

    def _located(self, step: _Step) -> tuple[_Step, StepRecord | None]:
        """The step where its record is, or is to be; and its record. Raises StepMismatchError."""
        sought = Sought(step.stem, step.place, step.digest)
        reading = self.reading if step.call.moves else None
        if reading is None:
            record = self._moved.record(step.place)
            found = Found(step.place, record) if record is None or sought.is_made_of(record) else None
        else:
            found = self._moved.found(sought, reading)
        if found is None:
            raise StepMismatchError(step.name, executor_id=self._owner.executor_id)
        if found.place == step.place:
            return step, found.record
        if not self._moved.is_used(step.place):
            self.begun.discard(step.place)
        self.begun.add(found.place)
        return replace(step, place=found.place, key=self._around.derived_id(found.place)), found.record

    async def _settled(self, step: _Step, record: StepRecord) -> Any:
        """What became of a step that was interrupted: its result, or NOT_DONE."""
        match step.call.if_interrupted:
            case "rerun":
                return NOT_DONE
            case "ask":
                return await self._decided(step, record)
            case reconcile:
                key = record.key or step.key
                inside = Inside(self, f"{step.place}/settled", key)
                try:
                    return await step.flight.called(reconcile, (key,), inside)
                except Exception as error:
                    reason = f"the function that was to find out raised {type(error).__name__}: {error}"
                    raise StepUnsettledError(step.name, reason=reason) from error

    async def _decided(self, step: _Step, record: StepRecord) -> Any:
        """What somebody outside has decided. Until they have, the handler is left."""
        # In a fork the request that was opened before it is still the one that is answered.
        derived = self._request_id(step, record.round)
        answers = (self._answer(each) for each in (record.request_id, derived) if each is not None)
        found = next((answer for answer in answers if answer is not None), None)
        if found is None:
            self._require_outermost(step)
            is_open = record.request_id in self._around.snapshot.requests
            request_id = record.request_id if is_open and record.request_id is not None else derived
            question = InterruptedStep(step.name, record.key or step.key, self._owner.executor_id, record.at)
            self._owner.wait_for(request_id, question, StepDecision)
            await self.park(awaits=request_id)
        decision: StepDecision = self._around.values.give(found)
        match decision.action:
            case "rerun":
                return NOT_DONE
            case "done":
                return decision.result
            case "fail":
                raise StepUnsettledError(step.name, reason="who was asked decided to let it fail")

    def _request_id(self, step: _Step, number: int) -> str:
        return self._around.derived_id(f"{step.place}/ask/{number}")

    def _answer(self, request_id: str) -> Kept | None:
        return self._around.journal.find(f"{self._owner.home}/answer/{request_id}")

    def _require_outermost(self, step: _Step) -> None:
        if not self.may_park:
            reason = "it runs inside another step, which can't be left to ask; call it outside of other steps"
            raise StepUnsettledError(step.name, reason=reason)

    async def _attempted(self, step: _Step) -> Any:
        tries = Tries(self._around, f"{step.place}/attempts", step.call.retry)
        while True:
            await self._wait(tries)
            with self._owner.parking.working():
                # From here on the handler is not left before this is done.
                self._owner.parking.require_not_left()
                await self._say(step, is_open=True)
                may_be_left = step.call.if_interrupted == "rerun"
                inside = Inside(self, step.place, step.key, outer=self.enclosing, may_be_left=may_be_left)
                if step.call.scope is not None:
                    inside.reading = compared(self._around, step.place, step.call.scope.reads)
                try:
                    result = await self._timed(step, inside)
                except Exception as error:  # noqa: BLE001 - it is raised again unless there is another attempt
                    outlook = await self._failed(step, tries, error)
                else:
                    return await self._kept(step, result, inside.spent)
            self._owner.warn(f"step {step.name!r} of executor {self._owner.executor_id!r}: {outlook}")

    async def _failed(self, step: _Step, tries: Tries, error: Exception) -> str:
        """When the next attempt is made, in words. Raises the error if there is none."""
        self._caught.forget_inside(step.place)
        outlook = await tries.failed(error)
        # One that was cut off in the middle may have been done: if it is not tried again here, that stays open.
        if outlook is not None or not (isinstance(error, StepTimeoutError) or is_final(error)):
            await self._say(step, is_open=False)
        if outlook is None or step.flight.is_interrupted:
            self._note_failure(step, error)
            raise error
        return outlook

    def _note_failure(self, step: _Step, error: Exception) -> None:
        """A function may catch this and go on. What may have been done all the same stays open."""
        is_unclear = isinstance(error, StepTimeoutError) and step.call.if_interrupted != "rerun"
        if self.reading is not None and not (is_final(error) or is_unclear or step.flight.is_interrupted):
            like = StepRecord(now(self._around.clock), step.digest, step.round, is_open=False)
            self._caught.note(step.place, like, error)

    async def _say(self, step: _Step, *, is_open: bool) -> None:
        """Where a crash is not simply answered by doing it again: put on disk that a step begins, or that it raised."""
        if step.call.if_interrupted != "rerun":
            record = StepRecord(
                now(self._around.clock),
                step.digest,
                step.round,
                is_open,
                key=step.key,
                request_id=self._request_id(step, step.round),
            )
            # Of a process that dies in the step each time, this is all that is ever written.
            await self._around.put(step.place, record.encoded(), is_progress=not is_open)

    async def _wait(self, tries: Tries) -> None:
        # A wait in place is work: another wait of the handler, however long, does not put off the next attempt.
        with self._owner.parking.working():
            is_ready = await tries.is_ready(may_leave=self.may_park)
        if not is_ready:
            await self.park(wake_at=tries.due)

    async def _timed(self, step: _Step, inside: Inside) -> Any:
        span = self._owner.span.child("perdure.step", step=step.name, executor_id=self._owner.executor_id)
        with traced(span), current(span):
            return await self._called_in_time(step, inside)

    async def _called_in_time(self, step: _Step, inside: Inside) -> Any:
        call = step.call
        work = step.flight.called(call.fn, call.args, inside)
        if call.timeout is None:
            return await work
        try:
            return await within(self._around.clock, call.timeout, work)
        except OutOfTimeError as error:
            raise StepTimeoutError(call.name, seconds=call.timeout) from error.__cause__

    async def _kept(self, step: _Step, result: Any, spent: Mapping[str, float]) -> Any:
        """The result as every life sees it, on disk; or for this life alone, where that is all there is."""
        self._count(step, spent)
        kept = self._fixed(step, result)
        if not await self._is_recorded(step, kept, spent):
            self._around.held(self._owner.home)[step.place] = Held(kept, spent)
        return self._given(step, kept)

    async def _is_recorded(self, step: _Step, kept: Kept, spent: Mapping[str, float]) -> bool:
        if not self._around.keeps_records or kept.refusal is not None:
            if kept.refusal is not None:
                self._owner.warn(f"{kept.refusal}; if the process dies the step is interrupted")
            self._caught.done(step.place, None)
            return False
        raised = self._caught.before(step.place)
        record = StepRecord(now(self._around.clock), step.digest, result=kept, spent=spent, raised=raised)
        self._caught.done(step.place, record)
        return await self._around.put(step.place, record.encoded())

    def _fixed(self, step: _Step, result: Any) -> Kept:
        """The result, kept. Its type may be known by nothing but the annotation of the step's function."""
        path = f"result of step {step.name!r}"
        if not self._around.keeps_records:
            return Kept(path=path, live=result, has_live=True)
        try:
            return self._around.values.fix(result, path)
        except EncodeError:
            return self._around.values.trusting(*result_types(step.call.fn)).fix(result, path)

    def _given(self, step: _Step, kept: Kept) -> Any:
        try:
            return self._around.values.give(kept)
        except UntrustedTypeError:
            return self._around.values.trusting(*result_types(step.call.fn)).give(kept)
