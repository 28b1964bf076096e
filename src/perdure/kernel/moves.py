"""What comes from outside, as moves on a snapshot: a message, answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.graph.messages import INTERNAL_SOURCE_ID
from perdure.kernel.snapshot import Answered, Delivery
from perdure.kernel.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.kernel.snapshot import Request, Snapshot, Value


def begin_turn(snapshot: Snapshot, *, target_id: str, value: Value) -> Snapshot:
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
    )


def answer(snapshot: Snapshot, answers: Sequence[tuple[Request, Value]], *, at: str) -> Snapshot:
    """Turn answers into deliveries to those who asked; the requests are closed."""
    closed = {request.id for request, _ in answers}
    deliveries = tuple(
        Delivery(
            request.executor_id,
            (INTERNAL_SOURCE_ID(request.executor_id),),
            (value,),
            send=f"answer:{request.id}",
            asked_for=request.executor_id,
            answers=request,
        )
        for request, value in answers
    )
    return replace(
        snapshot,
        since_input=0,
        deliveries=snapshot.deliveries + deliveries,
        requests={key: request for key, request in snapshot.requests.items() if key not in closed},
        answered=snapshot.answered.extended(Answered(request.id, at) for request, _ in answers),
    )
