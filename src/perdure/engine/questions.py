"""Requests of an activation: questions that a response handler gets the answer to, and those it waits for itself.

A handler that asks with `ctx.ask` is suspended, and re-entered with the answer. A question is identified as a step is:
by its request id; without one, by the digest of its data and answer type, and the ordinal among equal questions.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from perdure.checkpoint import AskedRecord, coerce, value_digest
from perdure.clock import moment_of, now
from perdure.codec import Held, Kept, Values, as_kept
from perdure.data_classes import value_class
from perdure.engine.suspension import Wait
from perdure.engine.tasks import CallScope, OpenCall, current_task
from perdure.errors import ApprovalMismatchError, EncodeError, StepMismatchError
from perdure.events import WorkflowEvent
from perdure.graph import ABSENT, Terms
from perdure.kernel import Request
from perdure.records import digest
from perdure.typenames import describe, describe_stored, type_of
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from perdure.engine.activation import ActivationRecorder
    from perdure.engine.steps import Steps
    from perdure.engine.superstep import ActivationContext


ASK: Final = "/ask/"
"""In a key: between an activation, or a step of it, and a question that is asked there."""
_DIGEST_LENGTH = 16
_FIRST = re.compile("1[.]0/.*#0")
"""The id of the activation that a run starts with."""


class Requests:
    """The requests that one attempt at an activation opens."""

    def __init__(self, owner: ActivationRecorder) -> None:
        self._owner = owner
        self._context = owner.context
        self._opened: list[Request] = []
        """Requests whose data is encoded when the activation ends."""
        self._awaited: list[Request] = []

    def open(self, data: Any, response_type: Any, request_id: str | None, terms: Terms) -> None:
        """Open a request whose answer a response handler gets. Raises ValueError."""
        executor = self._owner.executor
        chosen = request_id or self._context.derived_id(f"{self._owner.activation_id}/request/{len(self._opened)}")
        self._require_free(chosen)
        request = self._with_terms(chosen, data, response_type, terms)
        if not executor.is_request_supported(type(data), response_type):
            self._owner.warn(
                f"executor {executor.id!r} asks with a {type_of(data)} for a {describe(response_type)} "
                "but has no @response_handler for the two: an answer would be refused"
            )
        self._opened.append(request)
        self._context.opened.add(chosen)
        event = WorkflowEvent.request_info(chosen, executor.id, data, response_type)
        self._owner.emit_request(event, len(self._opened) - 1)

    def _with_terms(self, request_id: str, data: object, response_type: object, terms: Terms) -> Request:
        clock, values = self._context.clock, self._context.values
        deadline = None if terms.deadline is None else moment_of(clock, terms.deadline, "the deadline of a request")
        if (deadline is None) != (terms.default is ABSENT):
            raise ValueError(
                f"request {request_id!r} has a {'default' if deadline is None else 'deadline'} alone: give "
                "request_info both, the deadline=... and the default=... that is the answer when it has passed"
            )
        default = None
        if terms.default is not ABSENT:
            answer = _coerced_default(terms.default, response_type, request_id)
            default = values.fix(answer, f"default of request {request_id!r}")
        approves = terms.approved_digest if terms.approves is ABSENT else value_digest(terms.approves, values)
        return Request(
            request_id,
            self._owner.executor_id,
            data,
            type(data),
            response_type,
            opened_at=now(clock),
            deadline=deadline,
            default=default,
            approves=approves,
        )

    def wait_for(self, request_id: str, data: object, response_type: object, terms: Terms = Terms()) -> None:  # noqa: B008 - frozen
        """Open a request that the activation itself waits for, unless an earlier entry has opened it."""
        if self._is_waiting_for(request_id):
            return
        self._require_free(request_id)
        opened = self._with_terms(request_id, data, response_type, terms)
        request = replace(self._encoded(opened), resumes=self._owner.activation_id)
        self._awaited.append(request)
        self._context.opened.add(request_id)
        event = WorkflowEvent.request_info(request_id, self._owner.executor_id, data, response_type)
        self._owner.emit_request(event, request)

    def _is_waiting_for(self, request_id: str) -> bool:
        found = self._context.snapshot.requests.get(request_id)
        is_own = found is not None and found.resumes == self._owner.activation_id
        return is_own or any(each.id == request_id for each in self._awaited)

    def _require_free(self, request_id: str) -> None:
        if request_id in self._context.snapshot.requests or request_id in self._context.opened:
            raise ValueError(f"request {request_id!r} is open already; choose another request_id, or none")

    @property
    def awaited(self) -> tuple[Request, ...]:
        """Return the requests that the activation itself waits for."""
        return tuple(self._awaited)

    def opened(self) -> tuple[Request, ...]:
        """Return the requests for response handlers, with their data encoded as it is now."""
        return tuple(self._encoded(each) for each in self._opened)

    def _encoded(self, request: Request) -> Request:
        data = self._context.values.fix(request.data, f"request of executor {request.executor_id!r}")
        return replace(request, data=data)

    def discard(self) -> None:
        """Withdraw the requests of an attempt that has failed or was suspended."""
        self._context.opened.difference_update(each.id for each in (*self._opened, *self._awaited))


def terms_of(request: Request, values: Values) -> Terms:
    """Return the terms of a request, to pass them on with it."""
    if request.deadline is None:
        return Terms(approved_digest=request.approves)
    default = values.give(request.default)
    return Terms(deadline=datetime.fromisoformat(request.deadline), default=default, approved_digest=request.approves)


def require_approved(value: Any, request: Request | None, context: ActivationContext) -> None:
    """Raise ApprovalMismatchError unless the request that is being answered approves this value."""
    if request is None:
        raise RuntimeError("require_approved is for a @response_handler: no request is being answered here")
    found = value_digest(value, context.values)
    if request.approves != found:
        raise ApprovalMismatchError(request.id, approved=request.approves, now=found)


def _coerced_default(default: Any, response_type: Any, request_id: str) -> Any:
    """Return the default as the type that is asked for. Raises ValueError."""
    try:
        answer = coerce(default, response_type)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the default of request {request_id!r} is no {describe(response_type)}: {error}") from error
    if not is_instance_of(answer, response_type):
        raise ValueError(
            f"the default of request {request_id!r} is a {type_of(default)}, not a {describe(response_type)}"
        )
    return answer


@value_class
class Question:
    """A question as a handler asked it. `is_numbered` lets its request have the id `auto::<n>`."""

    data: Any
    response_type: Any
    request_id: str | None
    terms: Terms
    is_numbered: bool = False


@value_class
class _Asked:
    """A call of `ask`: where its record is."""

    scope: CallScope
    state: OpenCall
    key: str
    record: AskedRecord
    identity: str | None = None
    """The digest shared by equal unkeyed questions of a subtask."""
    mismatch: StepMismatchError | None = None


class Questions:
    """The questions that one attempt at an activation waits for itself."""

    def __init__(self, owner: ActivationRecorder, steps: Steps) -> None:
        self._owner = owner
        self._steps = steps
        self._context = owner.context
        self._asked: dict[str, AskedRecord] = {}
        """By request: the question that was asked."""
        self._taken: set[str] = set()
        self._open_in_subtasks: set[str] = set()
        self._replaced: set[str] = set()

    @property
    def given_up(self) -> tuple[str, ...]:
        """Return the requests that another question has replaced."""
        return tuple(sorted(self._replaced - self._asked.keys()))

    def begin(self, question: Question) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that gives the answer. The call alone decides which question it is."""
        scope, is_own = self._steps.scope, self._steps.is_in_own_task
        state = scope.new_call(is_own=is_own)
        asked = self._identify(question, scope, state, is_own=is_own)
        self._taken.add(asked.key)
        scope.calls.add(state)
        return self._answer_of(question, asked)

    # Identity

    def _identify(self, question: Question, scope: CallScope, state: OpenCall, *, is_own: bool) -> _Asked:
        stem, record = f"{scope.place}{ASK}", self._as_record(question)
        if question.request_id is not None:
            return _Asked(scope, state, f"{stem}@{question.request_id}", record)
        if is_own:
            old = f"{stem}{scope.numberings['ask'].take()}"
            if (found := self._record(old)) is not None and not _differ(found.wants, record.wants):
                return _Asked(scope, state, old, record, mismatch=self._old_mismatch(found, record))
            if found is not None:
                self._replaced.add(found.request_id)
        base = digest(f"{record.digest} {record.wants}".encode())[:_DIGEST_LENGTH]
        key = f"{stem}{scope.count(ASK, base)}"
        if self._record(key) is not None:
            return _Asked(scope, state, key, record, None if is_own else f"{stem}{base}")
        if not is_own:
            old_key = self._steps.identities.old_steps.question_in_subtask(
                stem, current_task(), lambda each: self._is_same(each, record)
            )
            is_clear = record.digest is not None or not self._context.keeps_records
            mismatch = None if is_clear else self._mismatch(_NOT_ENCODABLE)
            return _Asked(scope, state, old_key or key, record, f"{stem}{base}", mismatch)
        mismatch = self._mismatch(_CHANGED) if state.is_sequential and self._has_sequential_before(stem) else None
        return _Asked(scope, state, key, record, mismatch=mismatch)

    def _as_record(self, question: Question) -> AskedRecord:
        approves = question.terms.approves
        return AskedRecord(
            question.request_id or "",
            self._digest(question.data),
            None if approves is ABSENT else self._digest(approves),
            describe_stored(question.response_type),
        )

    def _is_same(self, key: str, asked: AskedRecord) -> bool | None:
        found = self._record(key)
        return None if found is None else not (_differ(found.digest, asked.digest) or _differ(found.wants, asked.wants))

    def _old_mismatch(self, found: AskedRecord, asked: AskedRecord) -> StepMismatchError | None:
        """Compare a question with the one that an earlier version asked at this position.

        That version knew by `reads` that a function was changed: then the answer must not be used.
        """
        if not _differ(found.digest, asked.digest):
            return None
        if found.reads is not None:
            return self._mismatch(_CHANGED)
        self._owner.warn(
            f"request {found.request_id!r} was opened with another question than is asked here now, and its answer "
            "is used; record what the question is made of with a step, or give a request_id"
        )
        return None

    def _has_sequential_before(self, stem: str) -> bool:
        """Return whether sequential code has asked something here that it does not ask now."""
        records = (self._record(key) for key in self._keys(stem) if key not in self._taken)
        return any(record is not None and record.is_sequential for record in records)

    def _mismatch(self, reason: str) -> StepMismatchError:
        return StepMismatchError("ask", executor_id=self._owner.executor_id, reason=reason)

    # One call

    async def _answer_of(self, question: Question, asked: _Asked) -> Any:
        try:
            return await self._wait_for_answer(question, asked)
        finally:
            asked.scope.calls.discard(asked.state)
            if asked.identity is not None:
                self._open_in_subtasks.discard(asked.key)
            self._owner.suspender.restart_grace()

    async def _wait_for_answer(self, question: Question, asked: _Asked) -> Any:
        self._owner.suspender.require_active()
        if asked.mismatch is not None:
            raise asked.mismatch
        record = self._settle(question, asked)
        if record.request_id in self._asked:
            # Code that asks in a loop may ask for ever: let other tasks run.
            await asyncio.sleep(0)
        self._asked[record.request_id] = record
        answer = self._answer(record.request_id)
        if answer is None:
            if asked.identity is not None:
                self._require_only_one_open(asked.key, asked.identity)
            self._owner.wait_for(record.request_id, question.data, question.response_type, question.terms)
            await self._suspend(record.request_id)
        assert answer is not None, "a suspended handler does not go on"
        self._require_approved(question, record)
        return self._context.values.give(answer)

    def _settle(self, question: Question, asked: _Asked) -> AskedRecord:
        """Return the record of the question. Write it, if this entry is the first to ask."""
        if question.request_id is not None:
            return self._settle_id(question.request_id, asked)
        found = self._record(asked.key)
        return found if found is not None else self._write(question, asked)

    def _write(self, question: Question, asked: _Asked) -> AskedRecord:
        request_id = question.request_id or self._fresh_id(question, asked.key)
        record = replace(asked.record, request_id=request_id, is_sequential=asked.state.is_sequential)
        if self._context.keeps_records:
            # The commit that opens the request contains it, too: nobody needs to wait for the write.
            self._context.journal.record_soon(asked.key, record.encoded)
        else:
            kept = Kept(path=f"record {asked.key!r}", live=record, has_live=True)
            self._context.held(self._owner.activation_id)[asked.key] = Held(kept, {})
        return record

    def _settle_id(self, request_id: str, asked: _Asked) -> AskedRecord:
        """Return the record of a question with an id of its own: one id is one question, wherever it is asked."""
        before, ask = self._asked.get(request_id), asked.record
        found = self._record(asked.key) or before
        if found is None:
            found = self._write(Question(None, None, request_id, Terms()), asked)
        if _differ(found.wants, ask.wants) or (before is not None and _differ(before.digest, ask.digest)):
            raise ValueError(
                f"request {request_id!r} is another question here than where it was asked before: the answer given "
                "there is no answer to this; choose another request_id, or none"
            )
        if before is not None and self._answer(request_id) is not None:
            self._owner.warn_once(
                f"request {request_id!r} is asked again: one id is one question, so its answer is returned again; to "
                "ask anew choose another request_id, or none"
            )
        # What was approved stays. The words of a question with an id may change.
        return replace(found, digest=ask.digest)

    def _require_only_one_open(self, key: str, identity: str) -> None:
        """Raise StepMismatchError if another subtask waits for the answer to an equal question."""
        if any(each != key and each.rpartition(".")[0] == identity for each in self._open_in_subtasks):
            raise self._mismatch(
                "is open in another subtask with the same question, so nothing tells the two answers apart: give each "
                "its own request_id=..., or ask in the handler itself"
            )
        self._open_in_subtasks.add(key)

    def _fresh_id(self, question: Question, key: str) -> str:
        """Return a request id that no other request of the run has had.

        A number is enough for the function that a run consists of. Elsewhere an answer that comes late, or twice,
        could be taken for the answer to another question.
        """
        running = self._steps.running
        is_alone = running is None or not any(each.is_function for each in running.enclosing())
        if not (question.is_numbered and is_alone and _FIRST.fullmatch(self._owner.activation_id)):
            return self._context.derived_id(key)
        records = (self._record(each) for each in self._keys(self._owner.activation_id))
        taken = {each.request_id for each in records if each is not None}
        taken |= {*self._context.snapshot.requests, *self._context.opened, *self._asked}
        return next(each for each in (f"auto::{n}" for n in count()) if each not in taken)

    # Records and answers

    def _keys(self, start: str) -> Iterator[str]:
        """Iterate over the keys of all recorded questions of the activation that begin with `start`."""
        activation_id = self._owner.activation_id
        keys = dict.fromkeys([*self._context.journal.keys(activation_id), *self._context.held(activation_id)])
        for key in keys:
            rest = key.removeprefix(activation_id)
            if key.startswith(start) and ASK in rest and not rest.startswith("/answer/"):
                yield key

    def _record(self, key: str) -> AskedRecord | None:
        held = self._context.held(self._owner.activation_id).get(key)
        if held is not None:
            return self._context.values.give(held.result)
        found = self._context.journal.find(key)
        return None if found is None else AskedRecord.of(found)

    def _digest(self, value: Any) -> str | None:
        try:
            return value_digest(value, self._context.values)
        except EncodeError:
            return None

    def _answer(self, request_id: str) -> Kept | None:
        key = f"{self._owner.activation_id}/answer/{request_id}"
        found = self._context.journal.find(key)
        if found is None and key in self._context.snapshot.carried:
            return as_kept(self._context.snapshot.carried[key])
        return found

    def _require_approved(self, question: Question, record: AskedRecord) -> None:
        if question.terms.approves is not ABSENT:
            found = value_digest(question.terms.approves, self._context.values)
            if found != record.approves:
                raise ApprovalMismatchError(record.request_id, approved=record.approves, now=found)

    async def _suspend(self, request_id: str) -> None:
        """Suspend the handler, with the steps around this question: they are started again with the answer."""
        running = self._steps.running
        if running is not None and not all(step.may_restart for step in running.enclosing()):
            raise RuntimeError(
                f"request {request_id!r} is asked inside of a step that must not be started again after an "
                "interruption; ask in the handler itself, or leave the step's if_interrupted at 'rerun'"
            )
        await self._steps.wait(Wait(request_id=request_id))


_CHANGED = (
    "was recorded with another question: the code has changed, or the question depends on something that is not "
    "recorded. Record what the question is made of with a step, or give it a request_id=..."
)
_NOT_ENCODABLE = (
    "is asked in a subtask with data that can't be encoded, so nothing tells the question from others: give it a "
    "request_id=..."
)


def _differ(before: str | None, after: str | None) -> bool:
    """Return whether both are known, and differ."""
    return None not in {before, after} and before != after
