"""Input from outside, applied to a snapshot: messages, answers, due timers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.graph import INTERNAL_SOURCE_ID
from perdure.kernel.snapshot import Answered, Delivery, Moment, Request, Snapshot, Suspended, Trail, Value
from perdure.kernel.superstep import FanIn, RoutedMessage, Sending, deliver

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence


def begin_turn(snapshot: Snapshot, *, target_id: str, value: Value, message_id: str | None = None) -> Snapshot:
    """Start the next turn with a message for the start executor. State, requests and fan-in buffers are kept."""
    delivery = _delivery(target_id, value, f"turn:{snapshot.turn + 1}")
    return replace(
        snapshot,
        turn=snapshot.turn + 1,
        iteration=0,
        since_input=0,
        deliveries=(*snapshot.deliveries, delivery),
        outputs=Trail(),
        received=snapshot.received if message_id is None else snapshot.received.extended([message_id]),
    )


def _delivery(target_id: str, value: Value, send: str, answers: Request | None = None) -> Delivery:
    source_id = INTERNAL_SOURCE_ID(target_id)
    return Delivery(target_id, (source_id,), (value,), send, asked_for=target_id, answers=answers)


def receive(snapshot: Snapshot, *, target_id: str, value: Value, message_id: str) -> Snapshot:
    """Deliver a message from outside to any executor, in the current turn."""
    delivery = _delivery(target_id, value, message_id)
    received = snapshot.received.extended([message_id])
    return replace(snapshot, since_input=0, deliveries=(*snapshot.deliveries, delivery), received=received)


def answer(
    snapshot: Snapshot,
    answers: Sequence[tuple[Request, Value]],
    *,
    at: Moment,
    by: str | None = None,
    what: Mapping[str, str] | None = None,
    dropped: Sequence[Request] = (),
) -> Snapshot:
    """Close requests and deliver their answers. `what` holds a short form of each answer, by request id.

    `dropped` requests are closed without an answer, also in the sub-workflows that passed them on.
    """
    requests = [*(request for request, _ in answers), *dropped]
    deliveries = tuple(
        _delivery(request.executor_id, value, f"answer:{request.id}", request)
        for request, value in answers
        if request.resumes is None
    )
    given = {f"{request.resumes}/answer/{request.id}": value for request, value in answers if request.resumes}
    woken = [each for each in snapshot.suspended if _awaits_one_of(each, answers)]
    short = what or {}
    return replace(
        snapshot,
        since_input=0,
        deliveries=(*snapshot.deliveries, *(each.delivery for each in woken), *deliveries),
        suspended=tuple(each for each in snapshot.suspended if each not in woken),
        carried={**snapshot.carried, **given} if given else snapshot.carried,
        requests=_without(snapshot.requests, requests),
        children={key: _drop_inside(child, dropped) for key, child in snapshot.children.items()}
        if dropped
        else snapshot.children,
        answered=snapshot.answered.extended(Answered(each.id, at, by, short.get(each.id)) for each in requests),
    )


def _without(requests: Mapping[str, Request], closed: Iterable[Request]) -> Mapping[str, Request]:
    ids = {request.id for request in closed}
    return {key: request for key, request in requests.items() if key not in ids}


def _drop_inside(child: Snapshot, dropped: Sequence[Request]) -> Snapshot:
    inner = {key: _drop_inside(each, dropped) for key, each in child.children.items()}
    return replace(child, requests=_without(child.requests, dropped), children=inner)


def _awaits_one_of(suspended: Suspended, answers: Sequence[tuple[Request, Value]]) -> bool:
    """Return whether a suspended activation opened one of these requests. Other waits inside it simply continue."""
    owner = suspended.delivery.activation_id
    return any(suspended.awaits == request.id or request.resumes == owner for request, _ in answers if request.resumes)


def reopen(snapshot: Snapshot, request: Request, *, reason: str) -> Snapshot:
    """Keep a request open because its stored answer does not fit, and record the reason."""
    again = replace(request, refusals=(*request.refusals, reason))
    return replace(snapshot, requests={**snapshot.requests, request.id: again})


def wake(snapshot: Snapshot, *, now: Moment, fan_ins: Mapping[str, FanIn]) -> Snapshot:
    """Deliver everything that is due, earliest first: suspended activations, delayed messages, then sub-workflows."""
    due = sorted((each for each in snapshot.suspended if _is_due(each.wake_at, now)), key=lambda e: e.wake_at or "")
    arriving = sorted((each for each in snapshot.delayed if each.due <= now), key=lambda each: each.due)
    # A sub-workflow with a wake delivery is woken already.
    woken = {each.target_id for each in snapshot.deliveries if each.woken_at is not None}
    children = [key for key, child in snapshot.children.items() if key not in woken and _has_due(child, snapshot, now)]
    if not due and not arriving and not children:
        return snapshot
    sendings = [
        Sending(each.source_id, each.send, RoutedMessage(each.data, each.asked_for, each.targets, each.fan_ins))
        for each in arriving
    ]
    deliveries, fan_in = deliver(snapshot.fan_in, sendings, fan_ins)
    inner = tuple(Delivery(key, (), (), send=f"wake:{now}", woken_at=now) for key in children)
    return replace(
        snapshot,
        since_input=0,
        deliveries=(*snapshot.deliveries, *(each.delivery for each in due), *deliveries, *inner),
        suspended=tuple(each for each in snapshot.suspended if each not in due),
        delayed=tuple(each for each in snapshot.delayed if each not in arriving),
        fan_in=fan_in,
    )


def expire(snapshot: Snapshot, *, now: Moment, by: str, apart_from: Container[str] = ()) -> Snapshot:
    """Answer requests whose deadline has passed with their defaults, except those in `apart_from`."""
    expired = [
        (request, request.default)
        for request in snapshot.requests.values()
        if _is_due(request.deadline, now) and request.default is not None and request.id not in apart_from
    ]
    if not expired:
        return snapshot
    return answer(snapshot, expired, at=now, by=by, what={request.id: "the default" for request, _ in expired})


def _is_due(moment: Moment | None, now: Moment) -> bool:
    return moment is not None and moment <= now


def _has_due(child: Snapshot, parent: Snapshot, now: Moment) -> bool:
    deadlines = (moment for key, moment in child.deadlines().items() if key not in parent.requests)
    return any(_is_due(moment, now) for moment in (child.next_timer, *deadlines))


def revoke_cancel(snapshot: Snapshot) -> Snapshot:
    """Undo a cancellation."""
    return snapshot if snapshot.cancelled is None else replace(snapshot, cancelled=None, since_input=0)
