"""Errors of steps that the handler caught: a later entry raises them again, and does not repeat the work.

A step that raised is not finished. But what the handler does next may depend on the error. So the error is recorded
before the next step starts, and when the handler is suspended. If the error ends the attempt after all, its step is
tried again by the next one. An error that another process could not rebuild is forgotten with this process.
"""

from __future__ import annotations

import asyncio
import builtins
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint import RaisedRecord
from perdure.codec import Kept
from perdure.errors import StepTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.checkpoint import StepRecord
    from perdure.engine.activation import ActivationContext

_MEMO = "raised"
_PLAIN = frozenset({str, int, float, bool})
_BUILTIN: dict[str, type[Exception]] = {
    name: found
    for name, found in vars(builtins).items()
    if isinstance(found, type) and issubclass(found, Exception) and found.__name__ == name
}


@dataclass(slots=True, eq=False)
class _Raised:
    """An error that a step has raised."""

    error: Exception
    record: StepRecord | None
    """The record of the step, without the error."""
    task: asyncio.Task[Any] | None = None
    """The task that the error was raised to."""
    is_recorded: bool = False
    is_past: bool = False
    """True if the handler has surely gone on past the error."""


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
                    await self._context.put(place, record.encoded())
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
            self._context.journal.note(place, replace(record, raised=()).encoded)


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
