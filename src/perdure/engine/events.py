"""Events of the engine: emitted live at once, and encoded for the commit that numbers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import EncodeError, IncompatibleTypeError, UntrustedTypeError
from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.kernel import PendingEvent
from perdure.streams import pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.codec import Values
    from perdure.kernel import Output, Request

FRAMEWORK = WorkflowEventSource.FRAMEWORK


def request_opened(request: Request) -> PendingEvent:
    """Return the event of a request that an activation opens."""
    return PendingEvent("request_info", request.data, request.executor_id, request_id=request.id)


def warning_event(text: str) -> WorkflowEvent[Any]:
    """Return a warning of the engine."""
    return WorkflowEvent("warning", text, origin=FRAMEWORK)


def pending_event(event: WorkflowEvent[Any], values: Values) -> PendingEvent:
    """Encode an event for the commit. Data that can't be encoded is left out, and the event says why."""
    data, lost = encode_data(event.data, f"data of a {event.type!r} event", values)
    details, _ = encode_data(event.details, f"details of a {event.type!r} event", values)
    return PendingEvent(
        event.type,
        data,
        event.executor_id,
        event.path,
        event.request_id if event.type in {"request_info", "answered"} else None,
        event.iteration,
        details,
        lost,
    )


def encode_data(data: object, path: str, values: Values) -> tuple[object | None, str | None]:
    """Encode the data of an event. Return it, or None and the reason why it can't be encoded."""
    if data is None:
        return None, None
    try:
        kept = values.fix(data, path)
    except EncodeError as error:
        return None, str(error)
    return (kept, None) if kept.refusal is None else (None, str(kept.refusal))


def output_events(outputs: Iterable[Output], values: Values, *, in_pieces: bool) -> Iterator[WorkflowEvent[Any]]:
    """Return recorded outputs as events. With `in_pieces`, those that were streamed come in pieces again."""
    for output in outputs:
        data = values.give(output.data)
        for piece in pieces_of(data) if in_pieces and not output.is_whole else (data,):
            yield WorkflowEvent(output.kind, piece, executor_id=output.executor_id, origin=FRAMEWORK)


def live_event(event: PendingEvent, values: Values) -> WorkflowEvent[Any]:
    """Return a pending event as it is emitted live."""
    try:
        data = None if event.data is None else values.give(event.data)
    except (UntrustedTypeError, IncompatibleTypeError):
        data = None  # a reader of the log sees it as plain data
    return WorkflowEvent(
        event.type,
        data,
        executor_id=event.executor_id,
        path=event.path,
        iteration=event.iteration,
        origin=FRAMEWORK,
    )
