"""What a call brings from outside: checked against the run first, then taken in. A refusal changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import answer_id, shown
from perdure.data import frozen
from perdure.engine import kwargs as run_kwargs
from perdure.engine.answers import accepted, checked_answer
from perdure.engine.call import ABSENT
from perdure.engine.outside import answered
from perdure.engine.routing import accepts
from perdure.errors import (
    AlreadyAnsweredError,
    AnswerTypeError,
    IncompatibleTypeError,
    MissingRunKwargsError,
    UntrustedTypeError,
)
from perdure.graph import WorkflowMessage
from perdure.kernel import PendingEvent, answer, begin_turn, revoke_cancel
from perdure.typenames import describe, type_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.checkpoint import AnswerCommand
    from perdure.codec import Values
    from perdure.engine.call import Call
    from perdure.engine.opening import Tenure
    from perdure.graph import Graph
    from perdure.kernel import Limits, Request, Snapshot


@frozen
class Intake:
    """What a call brings: answers that were accepted, and the kwargs of the run from here on."""

    answers: tuple[tuple[Request, object], ...]
    kwargs: dict[str, Any]
    is_turn: bool
    limits: Limits
    shown: Mapping[str, str]
    """The answers in short, by request."""
    changes_limits: bool = False
    revokes_cancel: bool = False
    message_id: str | None = None
    """What names the message that begins a turn, if something does."""

    @property
    def kind(self) -> str | None:
        """The kind of the checkpoint that takes it in, if there is anything to take in."""
        if self.is_turn:
            return "entry"
        if self.answers:
            return "response"
        return "resume" if self.changes_limits or self.revokes_cancel else None

    @property
    def done(self) -> tuple[str, ...]:
        """The ids of commands that would do the same."""
        return tuple(answer_id(request.id) for request, _ in self.answers)

    def told(self, values: Values, *, by: str | None) -> tuple[PendingEvent, ...]:
        """What the checkpoint tells."""
        first = (PendingEvent("started"),) if self.is_turn else ()
        answers = (answered(request, values, by=by, what=self.shown.get(request.id)) for request, _ in self.answers)
        return (*first, *answers, PendingEvent("checkpoint"))


def checked(
    graph: Graph,
    call: Call,
    tenure: Tenure,
    *,
    is_turn: bool,
    live_kwargs: Mapping[str, Any],
    later: Snapshot | None,
    waiting: Mapping[str, AnswerCommand],
) -> Intake:
    """What the call brings, if the run can take it.

    `later` is the head of the run that a fork leaves; `live_kwargs` are those that this process has of the run;
    `waiting` are the answers in its inbox, by request. Raises RequestError, MissingRunKwargsError.
    """
    responses = dict(call.responses or {})
    if call.repeats_answers:
        responses = {key: answer for key, answer in responses.items() if not _is_given(key, answer, tenure.snapshot)}
    for request_id, command in waiting.items():
        if request_id in responses:
            # The same answer again is no news: the one that waits is taken in.
            _require_same(responses.pop(request_id), command, graph, tenure)
    answers = accepted(
        responses,
        graph=graph,
        snapshot=tenure.snapshot,
        values=tenure.values,
        run_id=tenure.run_id if tenure.head is None else tenure.head.run_id,
        later=later,
    )
    given = run_kwargs.resolved(call.kwargs, graph.executors)
    if not is_turn:
        given = _continued(tenure, live_kwargs) | given
        missing = run_kwargs.missing(tenure.snapshot.withheld_kwargs, given)
        if missing and not (tenure.snapshot.is_settled and not answers):
            raise MissingRunKwargsError(run_id=tenure.run_id, names=missing)
    before = tenure.snapshot.limits
    limits = replace(
        before,
        deadline=call.deadline or before.deadline,
        budget=before.budget if call.budget is None else {**before.budget, **call.budget},
    )
    return Intake(
        tuple(answers),
        given,
        is_turn,
        limits,
        {request_id: shown(answer) for request_id, answer in responses.items()},
        changes_limits=limits != before,
        message_id=call.message_id,
        revokes_cancel=tenure.snapshot.cancelled is not None and not (call.only_cancels or call.is_unasked),
    )


def _is_given(request_id: str, answer: Any, snapshot: Snapshot) -> bool:
    """Whether a request that is not open any more was answered with just this."""
    given = snapshot.answers_to(request_id)
    return request_id not in snapshot.requests and bool(given) and given[-1].what == shown(answer)


def _require_same(answer: Any, command: AnswerCommand, graph: Graph, tenure: Tenure) -> None:
    """Raise AlreadyAnsweredError unless the answer is the one that waits, or AnswerTypeError if it does not fit."""
    request, values = tenure.snapshot.requests.get(command.request_id), tenure.values
    given = ABSENT if request is None else checked_answer(request, answer, graph, values)
    if request is None or given != _standing(request, command, graph, values):
        raise AlreadyAnsweredError(
            command.request_id, run_id=tenure.run_id, answered_at=command.at, by=command.by, what=command.shown
        )


def _standing(request: Request, command: AnswerCommand, graph: Graph, values: Values) -> Any:
    """The answer that waits. It may prove not to fit; that is told when the run takes it in."""
    try:
        return checked_answer(request, values.give(command.value), graph, values)
    except (AnswerTypeError, UntrustedTypeError, IncompatibleTypeError):
        return ABSENT


def _continued(tenure: Tenure, live: Mapping[str, Any]) -> dict[str, Any]:
    kept = tenure.snapshot.kwargs
    stored: dict[str, Any] = {} if kept is None else tenure.values.give(kept)
    return run_kwargs.completed(stored, tenure.snapshot.withheld_kwargs, live)


def taken_in(intake: Intake, graph: Graph, tenure: Tenure, message: Any, *, at: str, by: str | None) -> Snapshot:
    """The snapshot of the run with what came from outside."""
    goes_on = intake.revokes_cancel or intake.is_turn or bool(intake.answers)
    snapshot = replace(revoke_cancel(tenure.snapshot) if goes_on else tenure.snapshot, limits=intake.limits)
    if intake.is_turn:
        value = tenure.values.fix(handled(graph, message), "the message of the run")
        snapshot = begin_turn(snapshot, target_id=graph.start_id, value=value, message_id=intake.message_id)
    elif intake.answers:
        snapshot = answer(snapshot, intake.answers, at=at, by=by, what=intake.shown)
    kept, withheld = run_kwargs.storable(intake.kwargs, tenure.values)
    if run_kwargs.missing(snapshot.withheld_kwargs, intake.kwargs) and not intake.is_turn:
        # A run that has settled needs them no more; it must not forget that it had them.
        return snapshot
    return replace(snapshot, kwargs=kept, withheld_kwargs=withheld)


def handled(graph: Graph, message: Any) -> Any:
    """The message, unwrapped, if the start executor takes it. Raises RuntimeError."""
    if isinstance(message, WorkflowMessage):
        message = message.data
    start = graph.executors[graph.start_id]
    if not accepts(start, message):
        takes = ", ".join(describe(type_) for type_ in start.input_types)
        raise RuntimeError(
            f"start executor {start.id!r} can't handle a message of type {type_of(message)}; it takes {takes}"
        )
    return message
