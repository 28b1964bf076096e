"""Questions that a handler asks and goes on with itself: the handler is left, and entered again with the answer."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from perdure.checkpoint import AskedRecord, value_digest
from perdure.codec import Held, Kept, as_kept
from perdure.data import frozen
from perdure.engine.branches import branch_place
from perdure.errors import ApprovalMismatchError, EncodeError
from perdure.graph import ABSENT
from perdure.typenames import describe_stored

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.engine.activation import ActivationContext
    from perdure.engine.flight import Inside
    from perdure.engine.parking import Parking
    from perdure.engine.reading import Reading
    from perdure.graph import Place, Terms


ASK: Final = "/ask/"
"""In a key: between an activation, or a step of it, and a question that is asked there."""
_FIRST = re.compile("1[.]0/.*#0")
"""The home of the activation that the run begins with."""


def _differ(before: str | None, now: str | None) -> bool:
    """Whether two things are known to be others."""
    return None not in {before, now} and before != now


@frozen
class Question:
    """A question as a handler asked it."""

    data: Any
    response_type: Any
    request_id: str | None
    terms: Terms


@frozen
class Spot:
    """Where a question is asked: the key of its record, and what the keys of all begin with that are asked there.

    `is_counted` lets the request have a short id.
    """

    scope: str
    key: str
    is_counted: bool

    @property
    def is_beside_others(self) -> bool:
        """Whether it is asked in one of several tasks, which may come to their questions in another order."""
        return self.key.startswith(f"{self.scope} ")


class Asker(Protocol):
    """The activation that asks, as far as questions need it."""

    around: ActivationContext
    parking: Parking

    @property
    def home(self) -> str:
        """What its records are named after."""
        ...

    @property
    def enclosing(self) -> Inside | None:
        """The step that is running here, if one is."""
        ...

    @property
    def reading_here(self) -> Reading | None:
        """How the function reads that is running here; None if it is none."""
        ...

    def number(self, name: str) -> int:
        """How often something of this name was begun before, here or in the step that is running here."""
        ...

    def wait_for(self, request_id: str, data: Any, response_type: Any, terms: Terms = ...) -> None:
        """Open a request that the activation itself goes on with, unless it is open."""
        ...

    def warn(self, text: str) -> None:
        """Tell a warning."""
        ...

    def warn_once(self, text: str) -> None:
        """Tell a warning, unless this attempt has told it."""
        ...


class Questions:
    """The questions of one attempt at an activation."""

    def __init__(self, owner: Asker) -> None:
        self._owner = owner
        self._around = owner.around
        self._asked: dict[str, AskedRecord] = {}
        """By request: what is asked now."""
        self._replaced: set[str] = set()

    @property
    def given_up(self) -> tuple[str, ...]:
        """The requests in whose place another question is asked now."""
        return tuple(sorted(self._replaced - self._asked.keys()))

    def begin(self, question: Question, place: Place) -> Coroutine[Any, Any, Any]:
        """The answer, to be awaited. Which question it is, is settled by the call."""
        outer = self._owner.enclosing
        scope = f"{self._owner.home if outer is None else outer.place}{ASK}"
        key = f"{scope}@{question.request_id}"
        if question.request_id is None:
            named = branch_place("ask", self._owner) if place.key is None else place.key
            key = f"{scope}{self._owner.number('ask') if named is None else named}"
        return self._answered(question, Spot(scope, key, is_counted=place.counted))

    async def _answered(self, question: Question, spot: Spot) -> Any:
        self._owner.parking.require_not_left()
        asked = self._settled(question, spot)
        if asked.request_id in self._asked:
            # Who asks in a loop may ask for ever: let others run.
            await asyncio.sleep(0)
        self._asked[asked.request_id] = asked
        answer = self._answer(asked.request_id)
        if answer is None:
            self._owner.wait_for(asked.request_id, question.data, question.response_type, question.terms)
            await self._leave(asked.request_id)
        assert answer is not None, "a handler that was left does not go on"
        self._require_approved(question, asked)
        return self._around.values.give(answer)

    def _settled(self, question: Question, spot: Spot) -> AskedRecord:
        """What was asked here by whoever came first, or is asked now."""
        now = self._as_asked_now(question)
        if question.request_id is not None:
            return self._under_its_id(question.request_id, now, spot)
        found = self._record(spot.key)
        if found is not None and self._is_same(found, now):
            return found
        moved = self._moved(now, spot, is_displaced=found is not None and spot.is_beside_others)
        if moved is not None:
            return moved
        if found is None:
            return self._begun(now, spot)
        return self._instead_of(found, now, spot)

    def _as_asked_now(self, question: Question) -> AskedRecord:
        reading, approves = self._owner.reading_here, question.terms.approves
        return AskedRecord(
            question.request_id or "",
            self._digest(question.data),
            None if approves is ABSENT else self._digest(approves),
            describe_stored(question.response_type),
            None if reading is None else reading.now,
        )

    def _is_same(self, found: AskedRecord, now: AskedRecord) -> bool:
        return not (_differ(found.digest, now.digest) or _differ(found.wants, now.wants))

    def _begun(self, now: AskedRecord, spot: Spot) -> AskedRecord:
        record = now if now.request_id else replace(now, request_id=self._fresh_id(spot))
        self._keep(spot.key, record)
        return record

    def _under_its_id(self, request_id: str, now: AskedRecord, spot: Spot) -> AskedRecord:
        """A question whose id was given: one id is one question, and its answer is given to all who ask it."""
        before = self._asked.get(request_id)
        found = self._record(spot.key) or before or self._begun(now, spot)
        if _differ(found.wants, now.wants) or (before is not None and _differ(before.digest, now.digest)):
            raise ValueError(
                f"request {request_id!r} is another question here than where it was asked before: what was answered "
                "there is no answer to this; choose another request_id, or none"
            )
        if before is not None and self._answer(request_id) is not None:
            self._owner.warn_once(
                f"request {request_id!r} is asked again: one id is one question, so the answer that was given is given "
                "again; to ask anew choose another request_id, or none"
            )
        # The record of what was approved stays; that the question is worded otherwise now is what an id is given for.
        return replace(found, digest=now.digest)

    def _moved(self, now: AskedRecord, spot: Spot, *, is_displaced: bool) -> AskedRecord | None:
        """The same question, if a function that was changed asks it in another place now, or tasks overtake."""
        reading = self._owner.reading_here
        may_have_moved = is_displaced or (reading is not None and reading.may_have_moved)
        if not may_have_moved or now.digest is None:
            return None
        for key, found in self._records().items():
            is_free = key.startswith(spot.scope) and found.request_id not in self._asked
            if is_free and found.digest == now.digest and not _differ(found.wants, now.wants):
                return found
        return None

    def _instead_of(self, found: AskedRecord, now: AskedRecord, spot: Spot) -> AskedRecord:
        """Another question in the place of one that was asked. Only who is sure to have asked it has its answer."""
        is_own = not (_differ(found.wants, now.wants) or _differ(found.reads, now.reads))
        if is_own and not spot.is_beside_others:
            self._owner.warn(
                f"request {found.request_id!r} was opened with another question than is asked here now, and its answer "
                "is used; record what the question is made of with a step, or give a request_id"
            )
            return found
        self._replaced.add(found.request_id)
        beside = f"{spot.key}~"
        self._replaced |= {each.request_id for key, each in self._records().items() if key.startswith(beside)}
        anew = replace(spot, key=f"{beside}{(now.digest or now.wants or '')[:16]}")
        asked = self._record(anew.key)
        if asked is None:
            asked = self._begun(now, anew)
            why = (
                "it asks in several tasks. Record what the question is made of with a step, or give a request_id"
                if is_own
                else "the function was changed since"
            )
            self._owner.warn(
                f"request {found.request_id!r} was another question than is asked in its place now: {why}. It is asked "
                f"anew as {asked.request_id!r}, and the answer to the other one is not used"
            )
        return asked

    def _record(self, key: str) -> AskedRecord | None:
        held = self._around.held(self._owner.home).get(key)
        if held is not None:
            return self._around.values.give(held.result)
        found = self._around.journal.find(key)
        return None if found is None else AskedRecord.of(found)

    def _keep(self, key: str, record: AskedRecord) -> None:
        if self._around.keeps_records:
            # The commit that opens the request has it, too: nobody need wait for it.
            self._around.journal.note(key, record.encoded)
        else:
            kept = Kept(path=f"record {key!r}", live=record, has_live=True)
            self._around.held(self._owner.home)[key] = Held(kept, {})

    def _records(self) -> dict[str, AskedRecord]:
        """All that this activation has asked so far, by place."""
        home = self._owner.home
        found = {
            key: AskedRecord.of(kept)
            for key, kept in self._around.journal.records(home).items()
            if ASK in (rest := key.removeprefix(home)) and not rest.startswith("/answer/")
        }
        held = self._around.held(home).items()
        return found | {
            key: self._around.values.give(each.result)
            for key, each in held
            if isinstance(each.result.live, AskedRecord)
        }

    def _fresh_id(self, spot: Spot) -> str:
        """The id of a request, which no other one of the run has had.

        A short one is enough where there is nothing but one function, which is entered once. Elsewhere an answer that
        comes late, or twice, would be taken for one to another question.
        """
        outer = self._owner.enclosing
        is_alone = outer is None or all(each.reading is None for each in outer.around())
        if not (spot.is_counted and is_alone and _FIRST.fullmatch(self._owner.home)):
            return self._around.derived_id(spot.key)
        taken = {each.request_id for each in self._records().values()}
        taken |= {*self._around.snapshot.requests, *self._around.opened, *self._asked}
        return next(each for each in (f"auto::{n}" for n in count()) if each not in taken)

    def _digest(self, value: Any) -> str | None:
        """What tells a value from others; None if that can't be said of it."""
        try:
            return value_digest(value, self._around.values)
        except EncodeError:
            return None

    def _answer(self, request_id: str) -> Kept | None:
        key = f"{self._owner.home}/answer/{request_id}"
        found = self._around.journal.find(key)
        if found is None and key in self._around.snapshot.carried:
            return as_kept(self._around.snapshot.carried[key])
        return found

    def _require_approved(self, question: Question, asked: AskedRecord) -> None:
        if question.terms.approves is not ABSENT:
            digest = value_digest(question.terms.approves, self._around.values)
            if digest != asked.approves:
                raise ApprovalMismatchError(asked.request_id, approved=asked.approves, now=digest)

    async def _leave(self, request_id: str) -> None:
        """Leave the handler, and the steps around this question with it: they are begun again."""
        inside = self._owner.enclosing
        steps = [] if inside is None else list(inside.around())
        if not all(step.may_be_left for step in steps):
            raise RuntimeError(
                f"request {request_id!r} is asked inside of a step that must not be begun again when it was "
                "interrupted; ask in the handler itself, or leave the step's if_interrupted at 'rerun'"
            )
        with self._owner.parking.resting(steps):
            await self._owner.parking.park(awaits=request_id)
