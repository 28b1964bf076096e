"""Answers to requests: found, brought to the type that was asked for, checked. A wrong one changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint import coerce, request_event
from perdure.errors import AlreadyAnsweredError, AnswerTypeError, UnknownRequestError
from perdure.graph import Executor, WorkflowMessage, response_handler_of
from perdure.typenames import describe, type_of, with_article
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.codec import Values
    from perdure.graph import Graph
    from perdure.kernel import Request, Snapshot


def accepted(
    responses: Mapping[str, Any],
    *,
    graph: Graph,
    snapshot: Snapshot,
    values: Values,
    run_id: str,
    later: Snapshot | None = None,
) -> list[tuple[Request, object]]:
    """The requests that are answered, each with its fixed answer. `later` is the head of the run, if it went on.

    Raises UnknownRequestError, AlreadyAnsweredError, AnswerTypeError.
    """
    checked: list[tuple[Request, Any]] = []
    for request_id, answer in responses.items():
        request = _require_open(request_id, snapshot, later, run_id)
        checked.append((request, checked_answer(request, answer, graph, values)))
    return [(request, values.fix(answer, f"answer to request {request.id!r}")) for request, answer in checked]


def _require_open(request_id: str, snapshot: Snapshot, later: Snapshot | None, run_id: str) -> Request:
    """The open request of this id. An id may be asked again after its answer, so the answers are counted."""
    given = snapshot.answers_to(request_id)
    given_since = () if later is None else later.answers_to(request_id)[len(given) :]
    request = snapshot.requests.get(request_id)
    if request is not None and not given_since:
        return request
    if given_since or given:
        last = (given_since or given)[-1]
        raise AlreadyAnsweredError(request_id, run_id=run_id, answered_at=last.at, by=last.by, what=last.what)
    raise UnknownRequestError(request_id, pending=list(snapshot.requests))


def checked_answer(request: Request, answer: Any, graph: Graph, values: Values) -> Any:
    """The answer as the type that was asked for. Raises AnswerTypeError."""
    try:
        coerced = coerce(answer, request.response_type)
    except (TypeError, ValueError) as error:
        raise AnswerTypeError(
            request.id, expected=_asked_for(request), got=f"{answer!r}, which does not fit: {error}"
        ) from error
    if not is_instance_of(coerced, request.response_type):
        raise AnswerTypeError(request.id, expected=_asked_for(request), got=with_article(type_of(answer)))
    executor = graph.executors[request.executor_id]
    if request.resumes is None and not takes_answer(executor, request, coerced, values):
        raise AnswerTypeError(
            request.id,
            expected=f"what a @response_handler of executor {executor.id!r} takes",
            got=f"{with_article(type_of(coerced))}, which none of them takes",
        )
    return coerced


def _asked_for(request: Request) -> str:
    return with_article(describe(request.response_type))


def takes_answer(executor: Executor, request: Request, answer: Any, values: Values) -> bool:
    """Whether an executor has a response handler for this answer to this request."""
    if executor.__class__.can_handle is Executor.can_handle:
        return response_handler_of(executor, values.give(request.data), answer) is not None
    event = request_event(request, values)
    return executor.can_handle(WorkflowMessage(answer, executor.id, original_request_info_event=event))
