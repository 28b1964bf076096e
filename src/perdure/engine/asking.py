"""The requests that one activation opens: the terms that they come with, and what is approved by an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import coerce, value_digest
from perdure.clock import moment_of, now
from perdure.data import frozen
from perdure.errors import ApprovalMismatchError
from perdure.events import WorkflowEvent
from perdure.graph import ABSENT, Terms
from perdure.kernel import Request
from perdure.typenames import describe, type_of
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from perdure.codec import Kept
    from perdure.engine.activation import ActivationContext
    from perdure.engine.events import ActivationEvents
    from perdure.graph import Executor
    from perdure.kernel import Moment


@frozen
class _Asked:
    """A request whose data is fixed when the activation ends."""

    id: str
    data: object
    response_type: object
    opened_at: Moment
    deadline: Moment | None
    default: Kept | None
    approves: str | None


class Asking:
    """The requests of one attempt at an activation."""

    def __init__(self, executor: Executor, around: ActivationContext, home: str, book: ActivationEvents) -> None:
        self._executor = executor
        self._around = around
        self._home = home
        self._book = book
        self._asked: list[_Asked] = []
        self._awaited: list[Request] = []

    def request(self, data: Any, response_type: Any, request_id: str | None, terms: Terms) -> None:
        """Open a request that a response handler is given the answer to. Raises ValueError."""
        chosen = request_id or self._around.derived_id(f"{self._home}/request/{len(self._asked)}")
        self._require_free(chosen)
        asked = self._with_terms(chosen, data, response_type, terms)
        if not self._executor.is_request_supported(type(data), response_type):
            self._book.warn(
                f"executor {self._executor.id!r} asks with a {type_of(data)} for a {describe(response_type)} "
                "but has no @response_handler for the two: an answer would be refused"
            )
        self._asked.append(asked)
        self._around.opened.add(chosen)
        event = WorkflowEvent.request_info(chosen, self._executor.id, data, response_type)
        self._book.request(event, len(self._asked) - 1)

    def _with_terms(self, request_id: str, data: Any, response_type: Any, terms: Terms) -> _Asked:
        clock, values = self._around.clock, self._around.values
        deadline = None if terms.deadline is None else moment_of(clock, terms.deadline, "the deadline of a request")
        if (deadline is None) != (terms.default is ABSENT):
            raise ValueError(
                f"request {request_id!r} has a {'default' if deadline is None else 'deadline'} alone: give "
                "request_info both, the deadline=... and the default=... that is the answer when it has passed"
            )
        default = None
        if terms.default is not ABSENT:
            answer = _fitting(terms.default, response_type, request_id)
            default = values.fix(answer, f"default of request {request_id!r}")
        approves = terms.approved_digest if terms.approves is ABSENT else value_digest(terms.approves, values)
        return _Asked(request_id, data, response_type, now(clock), deadline, default, approves)

    def wait_for(self, request_id: str, data: object, response_type: object, terms: Terms = Terms()) -> None:  # noqa: B008 - frozen
        """Open a request that the activation itself goes on with, unless it is open since an earlier entry."""
        if self.is_waiting_for(request_id):
            return
        self._require_free(request_id)
        asked = self._with_terms(request_id, data, response_type, terms)
        request = replace(self._fixed(asked), resumes=self._home)
        self._awaited.append(request)
        self._around.opened.add(request_id)
        event = WorkflowEvent.request_info(request_id, self._executor.id, data, response_type)
        self._book.asked(event, request)

    def is_waiting_for(self, request_id: str) -> bool:
        """Whether the activation itself has opened this request."""
        found = self._around.snapshot.requests.get(request_id)
        return (found is not None and found.resumes == self._home) or any(
            each.id == request_id for each in self._awaited
        )

    def _require_free(self, request_id: str) -> None:
        if request_id in self._around.snapshot.requests or request_id in self._around.opened:
            raise ValueError(f"request {request_id!r} is open already; choose another request_id, or none")

    @property
    def awaited(self) -> tuple[Request, ...]:
        """The requests that the activation itself waits for."""
        return tuple(self._awaited)

    def opened(self) -> tuple[Request, ...]:
        """The requests that response handlers wait for, fixed as they are now."""
        return tuple(self._fixed(asked) for asked in self._asked)

    def _fixed(self, asked: _Asked) -> Request:
        name = self._executor.id
        return Request(
            asked.id,
            name,
            self._around.values.fix(asked.data, f"request of executor {name!r}"),
            type(asked.data),
            asked.response_type,
            opened_at=asked.opened_at,
            deadline=asked.deadline,
            default=asked.default,
            approves=asked.approves,
        )

    def discard(self) -> None:
        """The attempt comes to nothing: its requests were never opened."""
        self._around.opened.difference_update(each.id for each in (*self._asked, *self._awaited))


def require_approved(value: Any, request: Request | None, around: ActivationContext) -> None:
    """Raise ApprovalMismatchError unless the request that is being answered said that it approves this value."""
    if request is None:
        raise RuntimeError("require_approved is for a @response_handler: no request is being answered here")
    digest = value_digest(value, around.values)
    if request.approves != digest:
        raise ApprovalMismatchError(request.id, approved=request.approves, now=digest)


def _fitting(default: Any, response_type: Any, request_id: str) -> Any:
    """The default as the type that is asked for. Raises ValueError."""
    try:
        answer = coerce(default, response_type)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the default of request {request_id!r} is no {describe(response_type)}: {error}") from error
    if not is_instance_of(answer, response_type):
        raise ValueError(
            f"the default of request {request_id!r} is a {type_of(default)}, not a {describe(response_type)}"
        )
    return answer
