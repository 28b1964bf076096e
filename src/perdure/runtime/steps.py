"""Steps: named work inside an activation. What finished is on disk, and is not done again."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, get_type_hints
from urllib.parse import quote

from perdure.checkpoint.steps import InterruptedStep, StepDecision, StepRecord, arguments_digest
from perdure.errors import EncodeError, StepMismatchError, StepTimeoutError, StepUnsettledError, UntrustedTypeError
from perdure.moments import now
from perdure.runtime.parking import OutOfTimeError, within
from perdure.runtime.tries import Tries
from perdure.tracing import current, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from perdure.checkpoint.values import Kept
    from perdure.graph.port import StepCall
    from perdure.runtime.activation import Surroundings
    from perdure.runtime.parking import Parking
    from perdure.tracing import Span


class NotDone(Enum):
    """The type of `NOT_DONE`."""

    NOT_DONE = "not done"

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE: Final = NotDone.NOT_DONE
"""What a function for `if_interrupted` returns if the work was not done: then the step is run again."""

_key: ContextVar[str | None] = ContextVar("perdure_step_key", default=None)
_spent: ContextVar[dict[str, float] | None] = ContextVar("perdure_step_spent", default=None)


def step_key() -> str:
    """The idempotency key of the step that is running: the same over retries and resumes, another in a fork.

    Hand it to a service that does a thing once for each key, such as a payment provider. It can be read in threads,
    too. Raises RuntimeError outside of a step.
    """
    key = _key.get()
    if key is None:
        raise RuntimeError("step_key() is for the function of a step; outside of one, use ctx.idempotency_key")
    return key


def is_inside_step() -> bool:
    """Whether a step is running. It is finished or not, and can't be left in the middle to wait."""
    return _key.get() is not None


def spent_by_step() -> dict[str, float] | None:
    """Where the step that is running counts what it spends, so that it is counted with its record; None outside."""
    return _spent.get()


class StepOwner(Protocol):
    """The activation that steps belong to, as far as they need it."""

    home: str
    around: Surroundings
    parking: Parking
    span: Span

    @property
    def executor_id(self) -> str:
        """Whose steps they are."""
        ...

    def require_running(self) -> None:
        """Raise RuntimeError if the handler has returned."""
        ...

    def ask(self, request_id: str, data: Any, response_type: Any) -> None:
        """Open a request that the activation itself waits for."""
        ...

    def warn(self, text: str) -> None:
        """Tell a warning."""
        ...

    def spend(self, amounts: Mapping[str, float]) -> None:
        """Count what was spent."""
        ...


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was called: its place in the records, its idempotency key, what its arguments are.

    `round` counts how often it was begun before.
    """

    call: StepCall
    place: str
    key: str
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
        self._running: dict[str, asyncio.Future[None]] = {}
        self._unrecorded: dict[str, Any] = {}

    def begin(self, call: StepCall) -> Coroutine[Any, Any, Any]:
        """A step, to be awaited. Which one it is does not depend on the order in which steps are awaited."""
        name = quote(call.name, safe="")
        if call.key is None:
            place = f"{self._owner.home}/step/{name}#{self._calls[name]}"
            self._calls[name] += 1
        else:
            place = f"{self._owner.home}/step/{name}@{quote(call.key, safe='')}"
        return self._alone(_Step(call, place, self._around.derived_id(place)))

    async def _alone(self, step: _Step) -> Any:
        """Let nobody else do this step at the same time: who comes second gets what the first one did."""
        self._owner.require_running()
        while (other := self._running.get(step.place)) is not None:
            await asyncio.wait((other,))
        if step.place in self._unrecorded:
            return self._unrecorded[step.place]
        ended = self._running[step.place] = asyncio.get_running_loop().create_future()
        try:
            return await (self._recorded(step) if self._around.keeps_records else self._attempted(step))
        finally:
            del self._running[step.place]
            ended.set_result(None)

    async def _recorded(self, step: _Step) -> Any:
        values = self._around.values
        step = replace(step, digest=arguments_digest(step.call.fn, step.call.args, values))
        record = self._record(step)
        if record is not None:
            if None not in {record.digest, step.digest} and record.digest != step.digest:
                raise StepMismatchError(step.name, executor_id=self._owner.executor_id)
            if record.result is not None:
                self._owner.spend(record.spent)
                return self._given(step, record.result)
            if record.is_open:
                settled = await self._settled(step, record)
                if settled is not NOT_DONE:
                    return await self._kept(step, settled, {})
            step = replace(step, round=record.round + 1)
        return await self._attempted(step)

    def _record(self, step: _Step) -> StepRecord | None:
        found = self._around.journal.find(step.place)
        return None if found is None else StepRecord.of(found, step.name)

    async def _settled(self, step: _Step, record: StepRecord) -> Any:
        """What became of a step that was interrupted: its result, or NOT_DONE."""
        match step.call.if_interrupted:
            case "rerun":
                return NOT_DONE
            case "ask":
                return await self._decided(step, record)
            case reconcile:
                try:
                    return await _called(reconcile, (step.key,), step.key)
                except Exception as error:
                    reason = f"the function that was to find out raised {type(error).__name__}: {error}"
                    raise StepUnsettledError(step.name, reason=reason) from error

    async def _decided(self, step: _Step, record: StepRecord) -> Any:
        """What somebody outside has decided. Until they have, the handler is left."""
        request_id = self._around.derived_id(f"{step.place}/ask/{record.round}")
        found = self._around.journal.find(f"{self._owner.home}/answer/{request_id}")
        if found is None:
            self._require_outermost(step)
            question = InterruptedStep(step.name, step.key, self._owner.executor_id, record.at)
            self._owner.ask(request_id, question, StepDecision)
            await self._owner.parking.park(awaits=request_id)
        decision: StepDecision = self._around.values.give(found)
        match decision.action:
            case "rerun":
                return NOT_DONE
            case "done":
                return decision.result
            case "fail":
                raise StepUnsettledError(step.name, reason="who was asked decided to let it fail")

    @staticmethod
    def _require_outermost(step: _Step) -> None:
        if is_inside_step():
            reason = "it runs inside another step, which can't be left to ask; call it in the handler itself"
            raise StepUnsettledError(step.name, reason=reason)

    async def _attempted(self, step: _Step) -> Any:
        tries = Tries(self._around, f"{step.place}/attempts", step.call.retry)
        while True:
            await self._wait(tries)
            try:
                with self._owner.parking.working():
                    await self._say(step, is_open=True)
                    return await self._finished(step)
            except Exception as error:
                outlook = await tries.failed(error)
                # One that was cut off in the middle may have been done: if it is not tried again here, that stays open.
                if outlook is not None or not isinstance(error, StepTimeoutError):
                    await self._say(step, is_open=False)
                if outlook is None:
                    raise
                self._owner.warn(f"step {step.name!r} of executor {self._owner.executor_id!r}: {outlook}")

    async def _finished(self, step: _Step) -> Any:
        spent: dict[str, float] = {}
        token = _spent.set(spent)
        try:
            result = await self._timed(step)
        finally:
            _spent.reset(token)
        return await self._kept(step, result, spent)

    async def _say(self, step: _Step, *, is_open: bool) -> None:
        """Where a crash is not simply answered by doing it again: put on disk that a step begins, or that it raised."""
        if step.call.if_interrupted != "rerun":
            record = StepRecord(now(self._around.clock), step.digest, step.round, is_open)
            await self._around.put(step.place, record.encoded())

    async def _wait(self, tries: Tries) -> None:
        if not await tries.is_ready(may_leave=not is_inside_step()):
            await self._owner.parking.park(wake_at=tries.due)

    async def _timed(self, step: _Step) -> Any:
        span = self._owner.span.child("perdure.step", step=step.name, executor_id=self._owner.executor_id)
        with traced(span), current(span):
            return await self._called_in_time(step)

    async def _called_in_time(self, step: _Step) -> Any:
        call = step.call
        work = _called(call.fn, call.args, step.key)
        if call.timeout is None:
            return await work
        try:
            return await within(self._around.clock, call.timeout, work)
        except OutOfTimeError as error:
            raise StepTimeoutError(call.name, seconds=call.timeout) from error.__cause__

    async def _kept(self, step: _Step, result: Any, spent: Mapping[str, float]) -> Any:
        """The result as every life sees it, on disk."""
        self._owner.spend(spent)
        kept = self._fixed(step, result) if self._around.keeps_records else None
        if kept is None or kept.refusal is not None:
            self._unrecorded[step.place] = result
            return result
        record = StepRecord(now(self._around.clock), step.digest, result=kept, spent=spent)
        await self._around.put(step.place, record.encoded())
        return self._given(step, kept)

    def _fixed(self, step: _Step, result: Any) -> Kept:
        """The result, kept. Its type may be known by nothing but the annotation of the step's function."""
        path = f"result of step {step.name!r}"
        try:
            return self._around.values.fix(result, path)
        except EncodeError:
            return self._around.values.trusting(*_result_types(step.call.fn)).fix(result, path)

    def _given(self, step: _Step, kept: Kept) -> Any:
        try:
            return self._around.values.give(kept)
        except UntrustedTypeError:
            return self._around.values.trusting(*_result_types(step.call.fn)).give(kept)


async def _called(fn: Callable[..., Any], args: tuple[Any, ...], key: str) -> Any:
    """Call a function that may be async. A plain one runs in a thread, so that it holds up nobody."""
    token = _key.set(key)
    try:
        outcome = fn(*args) if _is_async(fn) else await asyncio.to_thread(fn, *args)
        return await outcome if inspect.isawaitable(outcome) else outcome
    finally:
        _key.reset(token)


def _result_types(fn: Callable[..., Any]) -> tuple[object, ...]:
    """What the function of a step says that it returns, if it says it in a way that can be read."""
    try:
        hints = get_type_hints(_innermost(fn))
    except (NameError, TypeError):
        return ()
    return (hints["return"],) if "return" in hints else ()


def _innermost(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _is_async(fn: Callable[..., Any]) -> bool:
    fn = _innermost(fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004
