"""What one activation tells: live at once, and kept for the commit that numbers it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from perdure.codec import as_kept
from perdure.data import frozen
from perdure.engine.narration import kept_data, told_of
from perdure.events import WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.kernel import PendingEvent
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.engine.activation import Surroundings
    from perdure.graph import OutputKind
    from perdure.kernel import Output, Request

FRAMEWORK = WorkflowEventSource.FRAMEWORK


@frozen
class _Later:
    """Stands for an event whose data is fixed when the activation ends."""

    of: Literal["outputs", "requests"]
    index: int


class Logbook:
    """The events of one attempt at an activation, in order."""

    _own: Counter[str] | None = None
    """What the handler itself has told: how often each. Most tell nothing."""

    def __init__(self, around: Surroundings, executor_id: str) -> None:
        self._around = around
        self._executor_id = executor_id
        self._entries: list[PendingEvent | _Later] = []

    def tell_own(self, event: WorkflowEvent[Any], before: Mapping[str, int]) -> None:
        """Tell an event of the handler's own. `before` counts what earlier entries have told: that is kept already."""
        self._around.tell(event)
        if self._around.is_checkpointed:
            told = self._as_told(event)
            name = _name_of(told)
            self._own = Counter() if self._own is None else self._own
            self._own[name] += 1
            if self._own[name] > before.get(name, 0):
                self._entries.append(told)

    def counted_own(self, before: Mapping[str, int]) -> Mapping[str, int]:
        """How often each event of the handler's own was told, by this entry or by one before it."""
        own = self._own or Counter()
        return {name: max(own[name], before.get(name, 0)) for name in {*own, *before}}

    def _as_told(self, event: WorkflowEvent[Any]) -> PendingEvent:
        told = told_of(event, self._around.values)
        # Who reads the log later wants to know who told it, though its teller did not say.
        return told if told.executor_id else replace(told, executor_id=self._executor_id)

    def tell(self, event: WorkflowEvent[Any], *, is_kept: bool = True) -> None:
        """Tell an event."""
        self._around.tell(event)
        if is_kept and self._around.is_checkpointed:
            self._entries.append(self._as_told(event))

    def inner(self, told: PendingEvent) -> None:
        """Keep what a sub-workflow told. A later attempt goes on inside of it, and has that from the journal."""
        inner, path = (told.inner, told.path) if told.inner is not None else (told, ())
        self._keep(
            PendingEvent("sub_workflow", executor_id=self._executor_id, path=(self._executor_id, *path), inner=inner)
        )

    def warn(self, text: str) -> None:
        """Tell a warning."""
        self.tell(WorkflowEvent.warning(text))

    def invoked(self, message: Any) -> None:
        """Tell that the handler is called."""
        self._payload("executor_invoked", message)

    def completed(self, made: list[Any]) -> None:
        """Tell that the handler has returned, and what it sent and yielded."""
        self._payload("executor_completed", made or None)

    def _payload(self, kind: str, data: Any) -> None:
        """Tell with data what is kept without, unless the workflow records payloads."""
        event = WorkflowEvent(kind, data, executor_id=self._executor_id, origin=FRAMEWORK)
        if not self._around.is_checkpointed:
            self._around.tell(event)
        elif self._around.graph.rules.record_payloads:
            self.tell(event)
        else:
            self._around.tell(event)
            self._entries.append(PendingEvent(kind, executor_id=self._executor_id))

    def failed(self, error: BaseException) -> WorkflowErrorDetails:
        """Tell that the handler raised."""
        details = WorkflowErrorDetails.from_exception(error, executor_id=self._executor_id)
        event = WorkflowEvent(
            "executor_failed", details, executor_id=self._executor_id, details=details, origin=FRAMEWORK
        )
        self.tell(event, is_kept=False)
        kept, lost = kept_data(details, "details of an 'executor_failed' event", self._around.values)
        self._keep(PendingEvent("executor_failed", executor_id=self._executor_id, details=kept, lost=lost))
        return details

    def suspended(self, reason: str | None) -> None:
        """Tell that the handler was left, until when or for which request."""
        self.tell(WorkflowEvent("executor_suspended", reason, executor_id=self._executor_id, origin=FRAMEWORK))

    def show(self, kind: OutputKind, value: Any) -> None:
        """Tell an output, or a piece of one."""
        self._around.tell(WorkflowEvent(kind, value, executor_id=self._executor_id, origin=FRAMEWORK))

    def output(self, index: int) -> None:
        """Keep an output."""
        self._keep(_Later("outputs", index))

    def request(self, event: WorkflowEvent[Any], index: int) -> None:
        """Tell a request."""
        self._around.tell(event)
        self._keep(_Later("requests", index))

    def asked(self, event: WorkflowEvent[Any], request: Request) -> None:
        """Tell a request that the activation itself waits for."""
        self._around.tell(event)
        self._keep(_told_request(request))

    def _keep(self, entry: PendingEvent | _Later) -> None:
        if self._around.is_checkpointed:
            self._entries.append(entry)

    def told(self, outputs: Sequence[Output], requests: Sequence[Request]) -> tuple[PendingEvent, ...]:
        """What an activation that has ended told, with its outputs and requests as they were fixed."""
        if not self._entries:
            return ()
        return tuple([_resolved(entry, outputs, requests) for entry in self._entries])

    def rest(self) -> tuple[PendingEvent, ...]:
        """What an attempt told whose outputs and requests are discarded."""
        return tuple(entry for entry in self._entries if isinstance(entry, PendingEvent) and entry.inner is None)


def _resolved(entry: PendingEvent | _Later, outputs: Sequence[Output], requests: Sequence[Request]) -> PendingEvent:
    if isinstance(entry, PendingEvent):
        return entry
    if entry.of == "requests":
        return _told_request(requests[entry.index])
    output = outputs[entry.index]
    return PendingEvent(output.kind, output.data, output.executor_id)


def _name_of(told: PendingEvent) -> str:
    """What tells an event from others."""
    data = b"" if told.data is None else as_kept(told.data).require_encoded().text
    return digest(f"{told.type} {told.executor_id} ".encode() + data)[:16]


def _told_request(request: Request) -> PendingEvent:
    return PendingEvent("request_info", request.data, request.executor_id, request_id=request.id)
