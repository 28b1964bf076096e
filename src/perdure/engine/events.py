"""Events of an activation: emitted live at once, and kept for the commit that numbers them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from perdure.codec import as_kept
from perdure.errors import EncodeError, IncompatibleTypeError, UntrustedTypeError
from perdure.events import WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.kernel import PendingEvent
from perdure.records import digest
from perdure.streams import pieces_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from perdure.codec import Values
    from perdure.engine.activation import ActivationContext
    from perdure.graph import OutputKind
    from perdure.kernel import Output, Request

FRAMEWORK = WorkflowEventSource.FRAMEWORK


@dataclass(frozen=True, slots=True)
class _Placeholder:
    """An event whose data is encoded when the activation ends."""

    of: Literal["outputs", "requests"]
    index: int


class ActivationEvents:
    """The events of one attempt, in order. Without checkpoints they are emitted and not kept."""

    _own: Counter[str] | None = None
    """The number of times the handler itself emitted each event."""

    def __init__(self, context: ActivationContext, executor_id: str) -> None:
        self._context = context
        self._executor_id = executor_id
        self._entries: list[PendingEvent | _Placeholder] = []

    def emit(self, event: WorkflowEvent[Any], *, is_kept: bool = True) -> None:
        """Emit an event, and keep it for the commit unless it is transient."""
        self._context.emit(event)
        if is_kept and self._context.is_checkpointed:
            self._entries.append(self._pending(event))

    def emit_own(self, event: WorkflowEvent[Any], before: Mapping[str, int]) -> None:
        """Emit an event of the handler itself. Earlier attempts have kept those that `before` counts."""
        self._context.emit(event)
        if self._context.is_checkpointed:
            pending = self._pending(event)
            name = _identity(pending)
            self._own = Counter() if self._own is None else self._own
            self._own[name] += 1
            if self._own[name] > before.get(name, 0):
                self._entries.append(pending)

    def count_own(self, before: Mapping[str, int]) -> Mapping[str, int]:
        """Return how often this or an earlier attempt emitted each event of the handler."""
        own = self._own or Counter()
        return {name: max(own[name], before.get(name, 0)) for name in {*own, *before}}

    def _pending(self, event: WorkflowEvent[Any]) -> PendingEvent:
        pending = pending_event(event, self._context.values)
        # A reader of the log wants to know the executor even if the handler did not name it.
        return pending if pending.executor_id else replace(pending, executor_id=self._executor_id)

    def emit_call(self, kind: str, data: Any) -> None:
        """Emit the start or end of the handler. The payload is kept only if the workflow records payloads."""
        event, context = WorkflowEvent(kind, data, executor_id=self._executor_id, origin=FRAMEWORK), self._context
        context.emit(event)
        if context.is_checkpointed:
            records = context.graph.rules.record_payloads
            self._entries.append(self._pending(event) if records else PendingEvent(kind, executor_id=self._executor_id))

    def emit_failure(self, error: BaseException) -> WorkflowErrorDetails:
        """Emit that the handler raised."""
        name, values = self._executor_id, self._context.values
        details = WorkflowErrorDetails.from_exception(error, executor_id=name)
        self._context.emit(
            WorkflowEvent("executor_failed", details, executor_id=name, details=details, origin=FRAMEWORK)
        )
        kept, lost = encode_data(details, "details of an 'executor_failed' event", values)
        self._keep(PendingEvent("executor_failed", executor_id=name, details=kept, lost=lost))
        return details

    def emit_suspension(self, reason: str | None) -> None:
        """Emit that the handler was suspended, with the moment or request that it waits for."""
        self.emit(WorkflowEvent("executor_suspended", reason, executor_id=self._executor_id, origin=FRAMEWORK))

    def show(self, kind: OutputKind, value: Any) -> None:
        """Emit a piece of an output without keeping it."""
        self._context.emit(WorkflowEvent(kind, value, executor_id=self._executor_id, origin=FRAMEWORK))

    def emit_output(self, kind: OutputKind, value: Any, index: int, *, is_live: bool) -> None:
        """Keep an output, and emit it unless its pieces were shown."""
        if is_live:
            self._context.emit(WorkflowEvent(kind, value, executor_id=self._executor_id, origin=FRAMEWORK))
        if self._context.is_checkpointed:
            self._entries.append(_Placeholder("outputs", index))

    def request(self, event: WorkflowEvent[Any], index: int) -> None:
        """Emit a request for a response handler."""
        self._context.emit(event)
        self._keep(_Placeholder("requests", index))

    def asked(self, event: WorkflowEvent[Any], request: Request) -> None:
        """Emit a request that the activation itself awaits."""
        self._context.emit(event)
        self._keep(_request_event(request))

    def keep_inner(self, event: PendingEvent) -> None:
        """Keep an event of a sub-workflow. A later attempt gets it from the journal."""
        inner, path = (event.inner, event.path) if event.inner is not None else (event, ())
        name = self._executor_id
        self._keep(PendingEvent("sub_workflow", executor_id=name, path=(name, *path), inner=inner))

    def warn(self, text: str) -> None:
        """Emit a warning."""
        self.emit(WorkflowEvent.warning(text))

    def _keep(self, entry: PendingEvent | _Placeholder) -> None:
        if self._context.is_checkpointed:
            self._entries.append(entry)

    def collect(self, outputs: Sequence[Output], requests: Sequence[Request]) -> tuple[PendingEvent, ...]:
        """Return the events of an ended activation with its encoded outputs and requests."""
        events: list[PendingEvent] = []
        for entry in self._entries:
            if isinstance(entry, PendingEvent):
                events.append(entry)
            elif entry.of == "requests":
                events.append(_request_event(requests[entry.index]))
            else:
                output = outputs[entry.index]
                events.append(PendingEvent(output.kind, output.data, output.executor_id))
        return tuple(events)

    def collect_discarded(self) -> tuple[PendingEvent, ...]:
        """Return the events of an attempt whose outputs and requests are discarded."""
        return tuple(entry for entry in self._entries if isinstance(entry, PendingEvent) and entry.inner is None)


def _identity(event: PendingEvent) -> str:
    data = b"" if event.data is None else as_kept(event.data).require_encoded().text
    return digest(f"{event.type} {event.executor_id} ".encode() + data)[:16]


def _request_event(request: Request) -> PendingEvent:
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
