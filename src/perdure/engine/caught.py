"""Steps that raised, and whose error the function caught: a later entry raises it again, and does not do the work.

A step that raised is not finished. But what the function does next, in whichever of its tasks, may rest on the error,
so it is recorded before another step is begun, and when the function is left to wait. If the error ends the attempt all
the same, the step is tried again by the next one. An error that another life could not make again is forgotten with the
life.
"""

from __future__ import annotations

import asyncio
import builtins
from dataclasses import replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint import RaisedRecord
from perdure.codec import Kept
from perdure.data import mutable
from perdure.engine.branches import is_begun_by
from perdure.errors import StepTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.checkpoint import StepRecord
    from perdure.engine.activation import ActivationContext

_MEMO = "raised"
_BUILTIN: dict[str, type[Exception]] = {
    name: found
    for name, found in vars(builtins).items()
    if isinstance(found, type) and issubclass(found, Exception) and found.__name__ == name
}


@mutable
class _Raised:
    """An error that a step has raised here, and whether that is on record."""

    error: Exception
    like: StepRecord | None
    """What a record of the step is like, but for the error."""
    task: asyncio.Task[Any] | None = None
    path: str = ""
    """The branch of the function that the task is."""
    is_kept: bool = False
    is_past: bool = False
    """Whether the task has gone on past it for sure, or one that had begun the task and has it back."""

    def is_behind(self, task: asyncio.Task[Any] | None, path: str) -> bool:
        """Whether a task that begins another step has gone on past it."""
        if self.task is None or self.task is task:
            return self.task is task
        return self.task.done() and is_begun_by(self.path, path)


class Caught:
    """The errors that the steps of one attempt have raised, by place: one that is called again may raise again."""

    def __init__(self, around: ActivationContext, home: str) -> None:
        self._around = around
        self._home = home
        self._raised: dict[str, list[_Raised]] = {}

    def note(self, place: str, like: StepRecord, error: Exception) -> None:
        """A step has raised. Nothing is recorded yet: it may be what ends the attempt."""
        self._raised.setdefault(place, []).append(_Raised(error, like))

    def heard(self, error: Exception, path: str) -> None:
        """The error comes to the task that called the step."""
        for raised in self._all():
            if raised.error is error and raised.task is None:
                raised.task, raised.path = asyncio.current_task(), path

    def _all(self) -> Iterator[_Raised]:
        return chain.from_iterable(self._raised.values())

    def before(self, place: str) -> tuple[RaisedRecord, ...]:
        """What calls of a step have raised that has given a result now: later lives raise it again before that."""
        return _recorded(self._raised.get(place, ()))

    def done(self, place: str, record: StepRecord | None) -> None:
        """A step has given a result, and that is on record if there is one."""
        for each in self._raised.get(place, ()):
            each.like, each.is_kept, each.is_past = record, True, True

    def again(self, place: str, name: str, record: StepRecord | None) -> Exception | None:
        """What a call of a step raises, since an earlier entry has caught that; None if the step is to be done."""
        before = self._remembered(place)
        if before is None and record is not None:
            before = [rebuilt(each, name) for each in record.raised]
        number = len(self._raised.get(place, ()))
        error = before[number] if before is not None and number < len(before) else None
        if error is not None:
            self._raised.setdefault(place, []).append(_Raised(error, record, is_kept=True))
            error.__traceback__ = None
        return error

    def _remembered(self, place: str) -> Sequence[Exception | None] | None:
        """The errors themselves, if the entry that caught them was in this life."""
        return self._memo().get(place) if _MEMO in self._around.memo(self._home) else None

    def _memo(self) -> dict[str, list[Exception]]:
        return cast("dict[str, list[Exception]]", self._around.memo(self._home).setdefault(_MEMO, {}))

    async def keep(self, path: str, *, but: str) -> None:
        """Record what was raised, since a step is begun; `but` for the one that is begun.

        What nobody has looked at yet is recorded as well. If that ends the attempt it is forgotten again.
        """
        if not self._raised:
            return
        task = asyncio.current_task()
        for place, several in list(self._raised.items()):
            for each in several:
                each.is_past = each.is_past or each.is_behind(task, path)
            if place != but and any(each.task is not None and not each.is_kept for each in several):
                record = self._record(several)
                if record is not None:
                    await self._around.put(place, record.encoded())
                for each in several:
                    each.is_kept = True

    def left(self) -> Mapping[str, Kept]:
        """The records of all that was raised, for a function that is left to wait."""
        records: dict[str, Kept] = {}
        for place, several in self._raised.items():
            self._memo()[place] = [each.error for each in several]
            record = None if all(each.is_kept for each in several) else self._record(several)
            if record is not None:
                records[place] = Kept(path=f"record {place!r}", encoded=record.encoded())
        return records

    def _record(self, several: Sequence[_Raised]) -> StepRecord | None:
        like = several[-1].like
        if like is None or not self._around.keeps_records:
            return None
        raised = _recorded(several)
        return replace(like, raised=raised) if raised else None

    def forget(self, error: BaseException) -> None:
        """An error ends the attempt: steps that it came from are tried again.

        What was raised while another error was handled did not come from that, if steps were begun in between.
        """
        causes = {id(each) for each in _behind(error, with_contexts=False)}
        contexts = {id(each) for each in _behind(error, with_contexts=True)}
        for place, several in list(self._raised.items()):
            if any(id(each.error) in (causes if each.is_past else contexts) for each in several):
                self._forget(place)

    def forget_inside(self, place: str) -> None:
        """A step has failed: what has failed inside of it is tried again with it."""
        for each in [each for each in self._raised if each.startswith(f"{place}/")]:
            self._forget(each)

    def _forget(self, place: str) -> None:
        several = self._raised.pop(place)
        self._memo().pop(place, None)
        like = several[-1].like
        if like is not None and any(each.is_kept for each in several):
            self._around.journal.note(place, replace(like, raised=()).encoded)


def _recorded(several: Sequence[_Raised]) -> tuple[RaisedRecord, ...]:
    """The errors, up to the first one that another life could not raise."""
    recorded = takewhile(lambda each: each is not None, (_recordable(each.error) for each in several))
    return tuple(each for each in recorded if each is not None)


def _behind(error: BaseException, *, with_contexts: bool) -> Iterator[BaseException]:
    """An error, and those that it came from; or those as well that were being handled when it was raised."""
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


def _recordable(error: Exception) -> RaisedRecord | None:
    """An error as a record; None if another life could not raise the same."""
    if type(error) is StepTimeoutError:
        return RaisedRecord(StepTimeoutError.__name__, (error.seconds,))
    name, args = type(error).__name__, _arguments(error)
    if _BUILTIN.get(name) is not type(error) or not all(each is None or type(each) in _PLAIN for each in args):
        return None
    record = RaisedRecord(name, args)
    again = rebuilt(record, name)
    return record if type(again) is type(error) and str(again) == str(error) else None


_PLAIN = frozenset({str, int, float, bool})


def _arguments(error: Exception) -> tuple[object, ...]:
    """What an error is made of."""
    if isinstance(error, OSError) and error.filename is not None:
        # It keeps these apart from its arguments. The one between them is for Windows.
        second = () if error.filename2 is None else (None, error.filename2)
        return (error.errno, error.strerror, error.filename, *second)
    return cast("tuple[object, ...]", error.args)


def rebuilt(record: RaisedRecord, step_name: str) -> Exception | None:
    """The error that a step has raised in an earlier life; None if it is not known here."""
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
