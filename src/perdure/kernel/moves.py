"""What comes from outside, as moves on a snapshot: messages, answers, the passing of time, the wish to stop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.graph import INTERNAL_SOURCE_ID
from perdure.kernel.effects import Sent
from perdure.kernel.snapshot import Answered, Delivery
from perdure.kernel.superstep import Sending, arrived
from perdure.kernel.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from perdure.kernel.snapshot import Cancelled, Moment, Request, Snapshot, Suspended, Value
    from perdure.kernel.superstep import FanIn


def begin_turn(snapshot: Snapshot, *, target_id: str, value: Value, message_id: str | None = None) -> Snapshot:
    """The next turn: a message for the start executor. State, requests and fan-in buffers go on, counts begin anew."""
    source_id = INTERNAL_SOURCE_ID(target_id)
    delivery = Delivery(target_id, (source_id,), (value,), send=f"turn:{snapshot.turn + 1}", asked_for=target_id)
    return replace(
        snapshot,
        turn=snapshot.turn + 1,
        iteration=0,
        since_input=0,
        deliveries=(*snapshot.deliveries, delivery),
        outputs=Trail(),
        received=snapshot.received if message_id is None else snapshot.received.extended([message_id]),
    )


def receive(snapshot: Snapshot, *, target_id: str, value: Value, message_id: str) -> Snapshot:
    """A message from outside for any executor, in the turn that is under way."""
    source_id = INTERNAL_SOURCE_ID(target_id)
    delivery = Delivery(target_id, (source_id,), (value,), send=message_id, asked_for=target_id)
    received = snapshot.received.extended([message_id])
    return replace(snapshot, since_input=0, deliveries=(*snapshot.deliveries, delivery), received=received)


def answer(
    snapshot: Snapshot,
    answers: Sequence[tuple[Request, Value]],
    *,
    at: Moment,
    by: str | None = None,
    what: Mapping[str, str] | None = None,
) -> Snapshot:
    """Turn answers into deliveries to those who asked; the requests are closed. `what` tells them in short, by id."""
    closed = {request.id for request, _ in answers}
    deliveries = tuple(_answer(request, value) for request, value in answers if request.resumes is None)
    given = {f"{request.resumes}/answer/{request.id}": value for request, value in answers if request.resumes}
    woken = [each for each in snapshot.suspended if _goes_on(each, answers)]
    told = what or {}
    return replace(
        snapshot,
        since_input=0,
        deliveries=(*snapshot.deliveries, *(each.delivery for each in woken), *deliveries),
        suspended=tuple(each for each in snapshot.suspended if each not in woken),
        carried={**snapshot.carried, **given} if given else snapshot.carried,
        requests={key: request for key, request in snapshot.requests.items() if key not in closed},
        answered=snapshot.answered.extended(
            Answered(request.id, at, by, told.get(request.id)) for request, _ in answers
        ),
    )


def _goes_on(suspended: Suspended, answers: Sequence[tuple[Request, Value]]) -> bool:
    """Whether something that a suspended activation has asked is answered: work in it that waits for more waits on."""
    home = suspended.delivery.home
    return any(suspended.awaits == request.id or request.resumes == home for request, _ in answers if request.resumes)


def _answer(request: Request, value: Value) -> Delivery:
    return Delivery(
        request.executor_id,
        (INTERNAL_SOURCE_ID(request.executor_id),),
        (value,),
        send=f"answer:{request.id}",
        asked_for=request.executor_id,
        answers=request,
    )


def reopen(snapshot: Snapshot, request: Request, *, reason: str) -> Snapshot:
    """An answer that was accepted does not fit: the request waits on, and says why."""
    again = replace(request, refusals=(*request.refusals, reason))
    return replace(snapshot, requests={**snapshot.requests, request.id: again})


def wake(snapshot: Snapshot, *, now: Moment, fan_ins: Mapping[str, FanIn]) -> Snapshot:
    """Let go on what is due by now, what was due first before the rest.

    That are suspended activations, then delayed messages, then sub-workflows in which something is due.
    """
    due = sorted((each for each in snapshot.suspended if _is_due(each.wake_at, now)), key=_wake_at)
    arriving = sorted((each for each in snapshot.delayed if each.due <= now), key=lambda each: each.due)
    children = _due_children(snapshot, now)
    if not due and not arriving and not children:
        return snapshot
    sendings = [
        Sending(each.source_id, each.send, Sent(each.data, each.asked_for, each.targets, each.fan_ins))
        for each in arriving
    ]
    deliveries, fan_in = arrived(snapshot.fan_in, sendings, fan_ins)
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
    """Let the defaults stand of the requests whose deadline has passed, apart from some."""
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


def _wake_at(suspended: Suspended) -> Moment:
    return suspended.wake_at or ""


def _due_children(snapshot: Snapshot, now: Moment) -> list[str]:
    """The sub-workflows in which something is due, unless they are told already."""
    told = {each.target_id for each in snapshot.deliveries if each.woken_at is not None}
    return [key for key, child in snapshot.children.items() if key not in told and _has_due(child, snapshot, now)]


def _has_due(child: Snapshot, parent: Snapshot, now: Moment) -> bool:
    deadlines = (moment for key, moment in child.deadlines().items() if key not in parent.requests)
    return any(_is_due(moment, now) for moment in (child.next_timer, *deadlines))


def cancel(snapshot: Snapshot, cancelled: Cancelled, *, carried: Mapping[str, Value]) -> Snapshot:
    """Stop here. `carried` is what the superstep in progress has recorded, so that it is not done again."""
    return replace(snapshot, cancelled=cancelled, carried={**snapshot.carried, **carried})


def go_on(snapshot: Snapshot) -> Snapshot:
    """Take back the wish to stop."""
    return snapshot if snapshot.cancelled is None else replace(snapshot, cancelled=None, since_input=0)
