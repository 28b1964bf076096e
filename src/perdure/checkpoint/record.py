"""`WorkflowCheckpoint`: a checkpoint as programs see it. A stored one decodes its values on first access."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from perdure import events
from perdure.checkpoint.manifest import Reader, header_of, naming
from perdure.clock import SystemClock
from perdure.codec import CodedValues, DamagedPartError, Kept, decode, loads, read_document, register_type, verified
from perdure.data_classes import new_dict, value_class
from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.events import WorkflowEvent
from perdure.failures import Failure
from perdure.graph import INTERNAL_SOURCE_ID, SHARED_SCOPE, FailedMessage, MessageType, WorkflowMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perdure.codec import Codec, Values
    from perdure.kernel import Delivery, Request, Snapshot
    from perdure.records import Manifest

EXECUTOR_STATE_KEY = "_executor_state"
WORKFLOW_RUN_KWARGS_KEY = "_workflow_run_kwargs"
SAVED_FIELDS_PATH = "fields"

VALUE_FIELDS = ("messages", "state", "pending_request_info_events")


@dataclass(eq=False, repr=False)
class WorkflowCheckpoint:
    """A run as a value after a commit.

    `messages` wait for the next superstep, by source. `state` is the shared state, with the states of executors under
    `_executor_state`. Changing these values changes nothing that is stored.
    """

    workflow_name: str
    graph_signature_hash: str
    checkpoint_id: str = field(default_factory=lambda: SystemClock().new_id())
    previous_checkpoint_id: str | None = None
    timestamp: str = field(default_factory=lambda: SystemClock().now().isoformat())
    messages: dict[str, list[WorkflowMessage]] = field(default_factory=new_dict)
    state: dict[str, Any] = field(default_factory=new_dict)
    pending_request_info_events: dict[str, WorkflowEvent[Any]] = field(default_factory=new_dict)
    iteration_count: int = 0
    metadata: dict[str, Any] = field(default_factory=new_dict)
    version: str = "1.0"
    run_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name. The values are the objects themselves."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkflowCheckpoint:
        """Create a checkpoint from `to_dict`. Raises WorkflowCheckpointException."""
        try:
            return WorkflowCheckpoint(**data)
        except TypeError as error:
            raise WorkflowCheckpointException(f"this dict is not a checkpoint: {error}", error) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowCheckpoint) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - values are mutable

    def __repr__(self) -> str:
        return (
            f"WorkflowCheckpoint(checkpoint_id={self.checkpoint_id!r}, workflow_name={self.workflow_name!r}, "
            f"run_id={self.run_id!r}, iteration_count={self.iteration_count})"
        )


@value_class
class Source:
    """The store and the trust with which the values of a stored checkpoint are read."""

    manifest: Manifest
    read: Callable[[Iterable[str]], Mapping[str, bytes]]
    codec: Callable[[], Codec]

    def blobs(self) -> Mapping[str, bytes]:
        """Read all blobs. Raises CheckpointDamagedError."""
        with naming(self.manifest.checkpoint_id):
            return self.read(self.manifest.roots)

    def values(self) -> dict[str, Any]:
        """Decode the value fields. Raises CheckpointDamagedError or UntrustedTypeError."""
        codec, blobs = self.codec(), self.blobs()
        if SAVED_FIELDS_PATH in self.manifest.toc:
            return saved_fields(self.manifest, blobs, codec)
        return checkpoint_fields(Reader(self.manifest, blobs, codec).snapshot(), CodedValues(codec))


class StoredCheckpoint(WorkflowCheckpoint):
    """A checkpoint in a storage. Its values are read and decoded on first access."""

    source: Source

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create a plain checkpoint: `dataclasses.replace` makes a changed copy, which is not stored."""
        return WorkflowCheckpoint(*args, **kwargs)

    @classmethod
    def of(cls, source: Source) -> StoredCheckpoint:
        """Create the checkpoint of a manifest. Nothing is read yet."""
        manifest, header = source.manifest, header_of(source.manifest)
        self = object.__new__(cls)
        self.source = source
        self.workflow_name = manifest.workflow_name
        self.graph_signature_hash = header["graph_signature_hash"]
        self.checkpoint_id = manifest.checkpoint_id
        self.previous_checkpoint_id = manifest.previous_id
        self.timestamp = manifest.timestamp
        self.iteration_count = manifest.iteration_count
        self.metadata = header.get("metadata", {})
        self.version = header.get("version", "1.0")
        self.run_id = manifest.run_id
        return self

    def __getattr__(self, name: str) -> Any:
        """Load the values on first access."""
        if name not in VALUE_FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        for each, value in self.source.values().items():
            self.__dict__.setdefault(each, value)
        return self.__dict__[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain checkpoint without storage."""
        return WorkflowCheckpoint.from_dict, (self.to_dict(),)

    def is_as_stored(self) -> bool:
        """Return True if nothing changed since it was read."""
        mine, stored = self.__dict__, StoredCheckpoint.of(self.source)
        for each in fields(self):
            if each.name not in VALUE_FIELDS and mine[each.name] != getattr(stored, each.name):
                return False
        codec = self.source.codec()
        return all(
            codec.encode(mine[name], path=name).text == codec.encode(getattr(stored, name), path=name).text
            for name in VALUE_FIELDS
            if name in mine
        )


def saved_fields(manifest: Manifest, blobs: Mapping[str, bytes], codec: Codec) -> dict[str, Any]:
    """Decode the values of a checkpoint that was made by hand."""
    try:
        encoded = read_document(loads(verified(blobs, manifest.toc[SAVED_FIELDS_PATH])))
    except DamagedPartError as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, str(error)) from error
    return decode(codec, Kept(path="checkpoint", encoded=encoded, stored=blobs, checkpoint_id=manifest.checkpoint_id))


def checkpoint_fields(snapshot: Snapshot, values: Values) -> dict[str, Any]:
    """Return the public fields of a snapshot."""
    state = {key: values.give(value) for (scope, key), value in snapshot.state.items() if scope == SHARED_SCOPE}
    state[EXECUTOR_STATE_KEY] = {key: values.give(value) for key, value in snapshot.executors.items()}
    state[WORKFLOW_RUN_KWARGS_KEY] = {} if snapshot.kwargs is None else values.give(snapshot.kwargs)
    pending = {request.id: request_event(request, values) for request in snapshot.requests.values()}
    return {"messages": _messages(snapshot, values), "state": state, "pending_request_info_events": pending}


def request_event(request: Request, values: Values) -> WorkflowEvent[Any]:
    """Return the `request_info` event of a request."""
    return WorkflowEvent.request_info(
        request.id, request.executor_id, values.give(request.data), request.response_type, request.request_type
    )


def _messages(snapshot: Snapshot, values: Values) -> dict[str, list[WorkflowMessage]]:
    messages: dict[str, list[WorkflowMessage]] = {}
    seen: set[str] = set()
    for delivery in snapshot.deliveries:
        if delivery.woken_at is None and delivery.send not in seen:
            seen.add(delivery.send)
            message = _message(delivery, values)
            messages.setdefault(message.source_id, []).append(message)
    return messages


def _message(delivery: Delivery, values: Values) -> WorkflowMessage:
    given = [values.give(value) for value in delivery.values]
    if delivery.is_gathered:
        # It has several sources and has passed its edges, so it must not be routed again.
        return WorkflowMessage(given, INTERNAL_SOURCE_ID(delivery.target_id), delivery.target_id)
    request = delivery.answers
    return WorkflowMessage(
        given[0],
        source_id=delivery.sources[0],
        target_id=delivery.asked_for,
        type=MessageType.STANDARD if request is None else MessageType.RESPONSE,
        original_request_info_event=None if request is None else request_event(request, values),
    )


_EVENT_FIELDS = ("type", "data", "origin", "state", "details", "executor_id", "iteration", "path")
_REQUEST_FIELDS = ("request_id", "source_executor_id", "request_type", "response_type")


def _event_fields(event: WorkflowEvent[Any]) -> dict[str, Any]:
    names = (*_EVENT_FIELDS, *_REQUEST_FIELDS) if event.type == "request_info" else _EVENT_FIELDS
    return {name: value for name in names if (value := getattr(event, name)) is not None}


register_type(WorkflowEvent, encode=_event_fields, decode=lambda fields: WorkflowEvent(**fields))
for _type in (events.CheckpointInfo, events.TakenOver, events.UndeliveredMessage, events.WorkflowErrorDetails, Failure):
    register_type(_type)
for _type in (events.StepInfo, events.SuperstepInfo):
    register_type(_type)
for _type in (events.WorkflowEventSource, events.WorkflowRunState, FailedMessage, MessageType, WorkflowMessage):
    register_type(_type)
