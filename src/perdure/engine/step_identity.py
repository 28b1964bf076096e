"""The identity of steps: which recorded step a call is, by this version's rules and by those of earlier versions.

A step is identified by its activation, the step around it, its name and its key. Without a key, the digest of its
arguments and the ordinal among calls of equal name and digest take its place. The identity is fixed when `ctx.step` is
called, so in the code's own task it does not depend on timing. In a subtask the order of calls is a matter of timing:
there an unkeyed call must be identified by its name and arguments alone.

In an earlier scheme an unkeyed call was known by its position: `name#2` was the third call of its name in the handler's
own task. In a function, calls in subtasks were counted by task: `name@ branch:1#0` was the first call of its name in
the second task whose coroutine is called `branch`. Tasks are not numbered any more. So a call in a subtask is matched
by the digest of its arguments, and what is matched once tells which task of the earlier version this one is.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

from perdure.checkpoint import StepRecord, call_digest
from perdure.clock import seconds_of
from perdure.data_classes import value_class
from perdure.engine.journal import STEP
from perdure.engine.tasks import CallScope, current_task, without_partial
from perdure.errors import StepMismatchError
from perdure.records import digest as hash_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator, Sequence, Set as AbstractSet

    from perdure.engine.activation import ActivationRecorder
    from perdure.graph import StepCall

_DIGEST_LENGTH = 16
_NO_DIGEST = "-"
_ENTERED = "entered"
_STEP = re.compile(r"/step/[^/#@]+(?P<rest>#\d+(~[^/]*)?|@%20[^/]*)(?=/|$)")
_OLD_SCOPE = re.compile(rf"{_STEP.pattern}$")
_WAIT = re.compile(r"/(?P<kind>ask|sleep)/(?P<rest> .*#\d+|\d+)(~[^/]*)?$")
_TASKS_MAX = 64


class StepIdentities:
    """Find the records of the steps that one attempt at an activation calls."""

    def __init__(self, owner: ActivationRecorder) -> None:
        self._owner = owner
        self._context = owner.context
        self._is_retry = _ENTERED in owner.memo
        owner.memo[_ENTERED] = True
        self.called: set[str] = set()
        """The keys of the steps that were called."""

    def identify(
        self, call: StepCall, scope: CallScope, *, is_own: bool, is_sequential: bool, is_in_function: bool
    ) -> tuple[str, str | None, StepMismatchError | None]:
        """Return the key of a call's record, the digest of its arguments, and why it can't be identified.

        `is_own` says that the call is made in the code's own task.
        """
        stem = f"{scope.place}{STEP}{quote(call.name, safe='')}"
        keeps = self._context.keeps_records
        digest = call_digest(call.fn, call.args, (), self._context.values) if keeps else None
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
            if is_own or not is_in_function:
                scope.positions[stem] += 1
            place = f"{stem}#{scope.count(stem, identity)}"
            old = self._old_place(stem, place, digest, position, is_own=is_own)
            if old is not None:
                place, mismatch = old, None
            elif mismatch is None and is_sequential and self._has_moved(stem, place, position, digest):
                mismatch = self.mismatch(call)
        self.called.add(place)
        return place, digest, mismatch

    def _identity_in_subtask(self, call: StepCall) -> str:
        """Return the digest of a call that nothing but its name and arguments identify. Raises StepMismatchError."""
        blobs = () if call.is_stable else identifying_blobs(call.fn, self._owner.executor)
        if blobs is None:
            raise self.mismatch(
                call,
                "is a lambda or closure that is called in a subtask, where the order of calls is a matter of timing: "
                "give it its own key=..., or use a plain function and hand it what it needs as arguments",
            )
        digest = call_digest(call.fn, call.args, blobs, self._context.values)
        if digest is None and self._context.keeps_records:
            raise self.mismatch(
                call,
                "is called in a subtask with arguments, or is a method of an object, that can't be encoded, so nothing "
                "tells the call from others: give it its own key=...",
            )
        return _NO_DIGEST if digest is None else digest[:_DIGEST_LENGTH]

    def mismatch(self, call: StepCall, reason: str | None = None) -> StepMismatchError:
        """Return the error of a call that is not the recorded one."""
        return StepMismatchError(call.name, executor_id=self._owner.executor_id, reason=reason)

    def _has_moved(self, stem: str, place: str, position: int, digest: str | None) -> bool:
        """Return whether sequential code that had called this step calls it with other arguments now."""
        if self._is_known(place):
            return False
        # Of records without a digest, an earlier version knew the position.
        old = f"{stem}#{position}"
        if not self.old_steps.is_empty and old not in self.old_steps.taken and self.fits(old, digest) is False:
            return True
        return any(record.is_sequential for _, record in self._untaken(stem))

    def _place_before_key(self, stem: str, place: str, call: StepCall, digest: str | None) -> str | None:
        """Return the place of a record that this call had before it was given a key, if any."""
        if not call.args or digest is None or self._is_known(place):
            return None
        for found, record in self._untaken(stem):
            is_old = not self.old_steps.is_empty and re.search(r"#\d+$|@%20", found) is not None
            if (record.is_sequential or is_old) and record.digest == digest:
                self.old_steps.taken.add(found)
                return found
        return None

    def _untaken(self, stem: str) -> Iterator[tuple[str, StepRecord]]:
        """Iterate over the records of unkeyed calls of one name that this entry has not made so far."""
        for place in self._keys_before:
            rest = place.removeprefix(stem)
            is_unkeyed = place.startswith(stem) and rest.startswith(("#", "@%20")) and "/" not in rest
            if is_unkeyed and place not in self.called and (record := self.record(place)) is not None:
                yield place, record

    def _old_place(self, stem: str, place: str, digest: str | None, position: int, *, is_own: bool) -> str | None:
        """Return the place under which an earlier version knew this call, if that has recorded anything."""
        if self.old_steps.is_empty or self._is_known(place):
            return None

        def fits(key: str) -> bool | None:
            return self.fits(key, digest)

        if is_own:
            return self.old_steps.step_in_own_task(stem, position, fits)
        return self.old_steps.step_in_subtask(stem, current_task(), fits)

    def fits(self, place: str, digest: str | None) -> bool | None:
        """Return whether the record of a place has these arguments, as far as can be known; None without a record."""
        record = self.record(place)
        return None if record is None else None in {digest, record.digest} or digest == record.digest

    def _is_known(self, place: str) -> bool:
        return place in self._context.held(self._owner.activation_id) or self._context.journal.find(place) is not None

    def record(self, place: str) -> StepRecord | None:
        """Return the record of a step, if there is one."""
        found = self._context.journal.find(place)
        return None if found is None else StepRecord.of(found, place)

    @cached_property
    def _keys_before(self) -> Sequence[str]:
        """The keys of all records of this activation, if an earlier entry or attempt can have left any."""
        has_before = self._context.has_records or (self._is_retry and self._context.keeps_records)
        return self._context.journal.keys(self._owner.activation_id) if has_before else ()

    @cached_property
    def old_steps(self) -> OldSteps:
        """The records that an earlier version has left."""
        return OldSteps(self._owner.activation_id, self._keys_before)

    def turn_key(self, make_key: Callable[[str], str], scope: CallScope, *, is_own: bool) -> str:
        """Return the key of an agent's turn, as an earlier version made it if that has recorded one."""
        key = make_key("")
        if self._has_turn(key, scope):
            return key
        task = current_task()
        for path in () if is_own else self.old_steps.task_paths(task):
            if self._has_turn(old := make_key(path), scope):
                assert task is not None, "paths are those of tasks"
                self.old_steps.note_task_path(task, path)
                return old
        return key

    def _has_turn(self, key: str, scope: CallScope) -> bool:
        start, quoted = scope.place, quote(key, safe="")
        marks = (f"@{quoted}%23", f"/agent/{quoted}.")
        return any(each.startswith(start) and any(mark in each for mark in marks) for each in self._keys_before)

    def key_of_sleep(self, until: datetime | timedelta | float, scope: CallScope, *, is_own: bool) -> str:
        """Return the key of a sleep. In a subtask, sleeps of one length are interchangeable."""
        if is_own:
            return f"{scope.place}/sleep/{scope.numberings['sleep'].take()}"
        text = until.isoformat() if isinstance(until, datetime) else f"{seconds_of('a sleep', until):g}"
        stem = f"{scope.place}/sleep/"
        key = f"{stem}{scope.count('sleep', hash_of(text.encode())[:_DIGEST_LENGTH])}"
        if self._context.journal.find(key) is not None:
            return key
        return self.old_steps.sleep_in_subtask(stem, current_task()) or key


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


@value_class
class _OldCall:
    """A call that an earlier version recorded: its key, the task it was made in, its number there."""

    key: str
    path: str
    number: int

    @property
    def order(self) -> tuple[tuple[tuple[int, str], ...], int, str]:
        """Return a sort key: of tasks with one name, the later one comes later."""
        elements = (each.rpartition(":") for each in self.path.split(".") if each)
        return tuple((int(number), name) for name, _, number in elements), self.number, self.key

    @property
    def task_name(self) -> str:
        """Return the name of the coroutine function that the task ran; nothing if it was not known."""
        return self.path.rpartition(".")[2].rpartition(":")[0]


def _old_call(key: str, rest: str) -> _OldCall:
    path, _, number = rest.rpartition("#")
    return _OldCall(key, path.strip(), int(number))


class OldSteps:
    """Match the calls of one attempt at an activation with the records of an earlier version.

    Attributes:
        _calls: By stem (the key up to the position), then by key.
        _scopes: The places of the handler and of steps in which an earlier version has called steps.
        taken: The keys of records that calls have.
    """

    def __init__(self, activation_id: str, keys: Iterable[str]) -> None:
        self._calls: defaultdict[str, dict[str, _OldCall]] = defaultdict(dict)
        for key in keys:
            for stem, call in _calls_in(activation_id, key):
                self._calls[stem].setdefault(call.key, call)
        self._scopes = {activation_id, *(stem.rpartition("/step/")[0] for stem in self._calls)}
        self.taken: set[str] = set()
        self._paths: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def is_empty(self) -> bool:
        """Return whether no earlier version has recorded anything of this activation."""
        return not self._calls

    def step_in_own_task(self, stem: str, position: int, fits: Callable[[str], bool | None]) -> str | None:
        """Return the key of a call in the code's own task, which goes on under its position.

        `fits` returns whether a record has the same arguments; None if there is no record.
        """
        scope = stem.rpartition("/step/")[0]
        if scope not in self._scopes and not _OLD_SCOPE.search(scope):
            return None
        key = f"{stem}#{position}"
        if key not in self.taken and fits(key) is not False:
            return self._take(key)
        found = next((each for each in self._untaken(stem) if fits(each.key)), None)
        return None if found is None else self._take(found.key)

    def step_in_subtask(
        self, stem: str, task: asyncio.Task[Any] | None, fits: Callable[[str], bool | None]
    ) -> str | None:
        """Return the key of a call in a subtask: of its task if that is known, else one with the same arguments."""
        return self._in_subtask(stem, task, fits, lambda path, number: f"{stem}@{quote(f' {path}#{number}', safe='')}")

    def question_in_subtask(
        self, stem: str, task: asyncio.Task[Any] | None, fits: Callable[[str], bool | None]
    ) -> str | None:
        """Return the key of a question in a subtask."""
        found = self._in_subtask(stem, task, fits, lambda path, number: f"{stem} {path}#{number}")
        return found if found is not None and fits(found) else None

    def sleep_in_subtask(self, stem: str, task: asyncio.Task[Any] | None) -> str | None:
        """Return the key of a sleep in a subtask. Nothing but its task tells it from others."""
        calls = self._calls.get(stem, {})
        return self._in_subtask(stem, task, calls.__contains__, lambda path, number: f"{stem} {path}#{number}")

    def _in_subtask(
        self,
        stem: str,
        task: asyncio.Task[Any] | None,
        fits: Callable[[str], bool | None],
        make_key: Callable[[str, int], str],
    ) -> str | None:
        path = None if task is None else self._paths.get(task)
        if path is not None:
            key = make_key(path, self._counts[path, stem])
            if key not in self.taken and fits(key) is not False:
                self._counts[path, stem] += 1
                return self._take(key)
        found = self._best(stem, _name_of(task), fits)
        if found is None:
            return None
        if task is not None and found.path and path is None:
            self._paths[task] = found.path
        self._counts[found.path, stem] = found.number + 1
        return self._take(found.key)

    def _best(self, stem: str, task_name: str, fits: Callable[[str], bool | None]) -> _OldCall | None:
        left = list(self._untaken(stem))
        same = [each for each in left if each.task_name in {task_name, ""}]
        exact = next((each for each in same if fits(each.key)), None) or next(
            (each for each in left if fits(each.key)), None
        )
        # Without a record of its own, only the records inside of it show that there was such a call.
        return exact or next((each for each in same if each.path and fits(each.key) is None), None)

    def _untaken(self, stem: str) -> Iterator[_OldCall]:
        calls = sorted(self._calls.get(stem, {}).values(), key=lambda each: each.order)
        return (each for each in calls if each.key not in self.taken)

    def _take(self, key: str) -> str:
        self.taken.add(key)
        return key

    def task_paths(self, task: asyncio.Task[Any] | None) -> Sequence[str]:
        """Return the paths that the task may have had in an earlier version, the likeliest first."""
        if self.is_empty or task is None:
            return ()
        if task in self._paths:
            return (self._paths[task],)
        name = _name_of(task)
        known = {each.path for calls in self._calls.values() for each in calls.values() if each.path}
        alike = sorted(path for path in known if path.rpartition(".")[2].rpartition(":")[0] in {name, ""})
        guesses = [text for number in range(_TASKS_MAX) for text in (f"{name}:{number}", str(number))]
        return tuple(dict.fromkeys([*alike, *guesses]))

    def note_task_path(self, task: asyncio.Task[Any], path: str) -> None:
        """Remember which task of the earlier version this one is."""
        self._paths.setdefault(task, path)


def _calls_in(activation_id: str, key: str) -> Iterator[tuple[str, _OldCall]]:
    """Find the calls that a key belongs to: that of the record itself, and those of the steps around it."""
    start = len(activation_id)
    for match in _STEP.finditer(key, start):
        rest = match["rest"].partition("~")[0]
        place = key[: match.end()]
        yield key[: match.start("rest")], _old_call(place, rest if rest.startswith("#") else unquote(rest[1:]))
    wait = _WAIT.search(key, start)
    # Sleeps in the code's own task are counted as ever.
    if wait is not None and not (wait["kind"] == "sleep" and wait["rest"].isdigit()):
        rest = wait["rest"]
        yield key[: wait.start("rest")], _old_call(key, f"#{rest}" if rest.isdigit() else rest)


def _name_of(task: asyncio.Task[Any] | None) -> str:
    return "" if task is None else str(getattr(task.get_coro(), "__name__", ""))
