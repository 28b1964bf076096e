"""Questions that a handler asks and goes on with itself: the handler is left, and entered again with the answer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from perdure.checkpoint.steps import AskedRecord, value_digest
from perdure.checkpoint.values import Held, Kept, as_kept
from perdure.errors import ApprovalMismatchError, EncodeError
from perdure.graph.port import ABSENT

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.graph.port import Place, Terms
    from perdure.runtime.flight import Inside
    from perdure.runtime.parking import Parking
    from perdure.runtime.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Question:
    """A question as a handler asked it."""

    data: Any
    response_type: Any
    request_id: str | None
    terms: Terms


class Asker(Protocol):
    """The activation that asks, as far as questions need it."""

    around: Surroundings
    parking: Parking

    @property
    def home(self) -> str:
        """What its records are named after."""
        ...

    @property
    def enclosing(self) -> Inside | None:
        """The step that is running here, if one is."""
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


class Questions:
    """The questions of one attempt at an activation."""

    def __init__(self, owner: Asker) -> None:
        self._owner = owner
        self._around = owner.around
        self._taken: set[str] = set()

    def begin(self, question: Question, place: Place) -> Coroutine[Any, Any, Any]:
        """The answer, to be awaited. Which question it is, is settled by the call."""
        outer = self._owner.enclosing
        scope = self._owner.home if outer is None else outer.place
        key = f"{scope}/ask/@{question.request_id}"
        if question.request_id is None:
            key = f"{scope}/ask/{self._owner.number('ask') if place.key is None else place.key}"
        return self._answered(question, key, is_counted=place.counted)

    async def _answered(self, question: Question, key: str, *, is_counted: bool) -> Any:
        asked = self._asked(question, key, is_counted=is_counted)
        answer = self._answer(asked.request_id)
        if answer is None:
            self._owner.wait_for(asked.request_id, question.data, question.response_type, question.terms)
            await self._leave(asked.request_id)
        assert answer is not None, "a handler that was left does not go on"
        self._require_approved(question, asked)
        return self._around.values.give(answer)

    def _asked(self, question: Question, key: str, *, is_counted: bool) -> AskedRecord:
        """What was asked here by whoever came first, or is asked now."""
        found = self._record(key)
        digest = self._digest(question.data)
        if found is None:
            request_id = question.request_id or self._fresh_id(key, is_counted=is_counted)
            approves = question.terms.approves
            found = AskedRecord(request_id, digest, None if approves is ABSENT else self._digest(approves))
            self._keep(key, found)
        elif None not in {digest, found.digest} and digest != found.digest and question.request_id is None:
            self._owner.warn(
                f"request {found.request_id!r} was opened with another question than is asked here now, and its answer "
                "is used; record what the question is made of with a step, or give a request_id"
            )
        self._taken.add(found.request_id)
        return found

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

    def _fresh_id(self, key: str, *, is_counted: bool) -> str:
        """The id of a request. Where runs are in each other's way a short one is not enough."""
        if not is_counted or self._around.snapshot.scope:
            return self._around.derived_id(key)
        return next(each for each in (f"auto::{n}" for n in count()) if self._is_free(each))

    def _is_free(self, request_id: str) -> bool:
        around = self._around
        is_open = request_id in around.snapshot.requests or request_id in around.opened
        return not is_open and request_id not in self._taken and self._answer(request_id) is None

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
        with self._owner.parking.resting(len(steps)):
            await self._owner.parking.park(awaits=request_id)
