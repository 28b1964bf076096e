"""Events as a commit keeps them, and as they are told live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import EncodeError, IncompatibleTypeError, UntrustedTypeError
from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.kernel import PendingEvent
from perdure.streams import pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from perdure.codec import Values
    from perdure.kernel import Output


def told_of(event: WorkflowEvent[Any], values: Values) -> PendingEvent:
    """An event to be numbered. Data that can't be kept is left out, and the event says why."""
    data, lost = kept_data(event.data, f"data of a {event.type!r} event", values)
    details, _ = kept_data(event.details, f"details of a {event.type!r} event", values)
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


def kept_data(data: object, path: str, values: Values) -> tuple[object | None, str | None]:
    """The data of an event, kept; or why it can't be."""
    if data is None:
        return None, None
    try:
        kept = values.fix(data, path)
    except EncodeError as error:
        return None, str(error)
    return (kept, None) if kept.refusal is None else (None, str(kept.refusal))


def output_events(outputs: Iterable[Output], values: Values, *, in_pieces: bool) -> Iterator[WorkflowEvent[Any]]:
    """Outputs that were recorded, as they are told again: to whoever reads a stream in pieces, as far as they were."""
    for output in outputs:
        data = values.give(output.data)
        for told in pieces_of(data) if in_pieces and not output.is_whole else (data,):
            yield WorkflowEvent(output.kind, told, executor_id=output.executor_id, origin=WorkflowEventSource.FRAMEWORK)


def live(told: PendingEvent, values: Values) -> WorkflowEvent[Any]:
    """The event as it is told live."""
    try:
        data = None if told.data is None else values.give(told.data)
    except (UntrustedTypeError, IncompatibleTypeError):
        # Who reads the log sees it as plain data.
        data = None
    return WorkflowEvent(
        told.type,
        data,
        executor_id=told.executor_id,
        path=told.path,
        iteration=told.iteration,
        origin=WorkflowEventSource.FRAMEWORK,
    )
