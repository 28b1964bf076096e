"""`WorkflowCheckpoint`: a checkpoint as programs see it. A stored one decodes its values when they are looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.codec import DamagedPartError
from perdure.checkpoint.documents import loads, piece, verified
from perdure.checkpoint.manifest import Reader, header_of
from perdure.checkpoint.values import CodedValues, Kept, decode
from perdure.clock import SystemClock
from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.events import WorkflowEvent
from perdure.graph.context import SHARED_SCOPE
from perdure.graph.messages import MessageType, WorkflowMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perdure.checkpoint.codec import Codec
    from perdure.checkpoint.values import Values
    from perdure.kernel.snapshot import Request, Snapshot
    from perdure.records import Manifest

EXECUTOR_STATE_KEY = "_executor_state"
WORKFLOW_RUN_KWARGS_KEY = "_workflow_run_kwargs"
SAVED_FIELDS_PATH = "fields"

_FIELDS = (
    "workflow_name",
    "graph_signature_hash",
    "checkpoint_id",
    "run_id",
    "previous_checkpoint_id",
    "timestamp",
    "messages",
    "state",
    "pending_request_info_events",
    "iteration_count",
    "metadata",
    "version",
)


@dataclass(frozen=True, slots=True)
class Contents:
    """The values of a checkpoint, decoded."""

    messages: dict[str, list[WorkflowMessage]]
    state: dict[str, Any]
    pending_request_info_events: dict[str, WorkflowEvent[Any]]


class WorkflowCheckpoint:
    """The run as a value after a commit.

    `messages` are those that wait for the next superstep, by source. `state` is the shared state, with the executors'
    states under `_executor_state`. What these hand out is yours: changing it changes nothing that is stored.
    """

    def __init__(  # noqa: PLR0917 - the documented fields in the documented order
        self,
        workflow_name: str,
        graph_signature_hash: str,
        checkpoint_id: str | None = None,
        previous_checkpoint_id: str | None = None,
        timestamp: str | None = None,
        messages: dict[str, list[WorkflowMessage]] | None = None,
        state: dict[str, Any] | None = None,
        pending_request_info_events: dict[str, WorkflowEvent[Any]] | None = None,
        iteration_count: int = 0,
        metadata: dict[str, Any] | None = None,
        version: str = "1.0",
        run_id: str = "",
    ) -> None:
        clock = SystemClock()
        self.workflow_name = workflow_name
        self.graph_signature_hash = graph_signature_hash
        self.checkpoint_id = checkpoint_id or clock.new_id()
        self.run_id = run_id
        self.previous_checkpoint_id = previous_checkpoint_id
        self.timestamp = timestamp or clock.now().isoformat()
        self.iteration_count = iteration_count
        self.metadata: dict[str, Any] = metadata if metadata is not None else {}
        self.version = version
        self._given = Contents(messages or {}, state or {}, pending_request_info_events or {})

    def contents(self) -> Contents:
        """The three kinds of values."""
        return self._given

    @property
    def messages(self) -> dict[str, list[WorkflowMessage]]:
        """The messages that wait for the next superstep, by source."""
        return self.contents().messages

    @property
    def state(self) -> dict[str, Any]:
        """The shared state, the executors' states and the run kwargs."""
        return self.contents().state

    @property
    def pending_request_info_events(self) -> dict[str, WorkflowEvent[Any]]:
        """The requests that have no answer yet, by id."""
        return self.contents().pending_request_info_events

    def to_dict(self) -> dict[str, Any]:
        """All fields by name; the values are the objects themselves."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkflowCheckpoint:
        """The checkpoint of `to_dict`. Raises WorkflowCheckpointException."""
        try:
            return WorkflowCheckpoint(**data)
        except TypeError as error:
            raise WorkflowCheckpointException(f"this is not the dict of a checkpoint: {error}", error) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowCheckpoint) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - values are mutable

    def __repr__(self) -> str:
        return (
            f"WorkflowCheckpoint(checkpoint_id={self.checkpoint_id!r}, workflow_name={self.workflow_name!r}, "
            f"run_id={self.run_id!r}, iteration_count={self.iteration_count})"
        )


class StoredCheckpoint(WorkflowCheckpoint):
    """A checkpoint that a storage has. Its values are read and decoded when first looked at."""

    def __init__(
        self, manifest: Manifest, read: Callable[[Iterable[str]], Mapping[str, bytes]], codec: Callable[[], Codec]
    ) -> None:
        header = header_of(manifest)
        super().__init__(
            workflow_name=manifest.workflow_name,
            graph_signature_hash=header["graph_signature_hash"],
            checkpoint_id=manifest.checkpoint_id,
            previous_checkpoint_id=manifest.previous_id,
            timestamp=manifest.timestamp,
            iteration_count=manifest.iteration_count,
            metadata=header.get("metadata", {}),
            version=header.get("version", "1.0"),
            run_id=header["run_id"],
        )
        self.manifest = manifest
        self._read = read
        self._codec = codec
        self._decoded: Contents | None = None

    def parts(self) -> Mapping[str, bytes]:
        """The bytes of every part."""
        return self._read(self.manifest.toc.values())

    def contents(self) -> Contents:
        """Decode everything, once. Raises CheckpointDamagedError, UntrustedTypeError."""
        if self._decoded is None:
            codec, parts = self._codec(), self.parts()
            address = self.manifest.toc.get(SAVED_FIELDS_PATH)
            if address is not None:
                self._decoded = Contents(**saved_fields(self.manifest, parts, codec))
            else:
                snapshot = Reader(self.manifest, parts, codec).snapshot()
                self._decoded = contents_of(snapshot, CodedValues(codec))
        return self._decoded


def saved_fields(manifest: Manifest, parts: Mapping[str, bytes], codec: Codec) -> dict[str, Any]:
    """The values of a checkpoint that was made by hand."""
    try:
        encoded = piece(loads(verified(parts, manifest.toc[SAVED_FIELDS_PATH])))
    except DamagedPartError as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, str(error)) from error
    return decode(codec, Kept(path="checkpoint", encoded=encoded, stored=parts, checkpoint_id=manifest.checkpoint_id))


def contents_of(snapshot: Snapshot, values: Values) -> Contents:
    """The documented view of a snapshot."""
    state = {key: values.give(value) for (scope, key), value in snapshot.state.items() if scope == SHARED_SCOPE}
    state[EXECUTOR_STATE_KEY] = {key: values.give(value) for key, value in snapshot.executors.items()}
    state[WORKFLOW_RUN_KWARGS_KEY] = {} if snapshot.kwargs is None else values.give(snapshot.kwargs)
    pending = {request.id: request_event(request, values) for request in snapshot.requests.values()}
    return Contents(_messages(snapshot, values), state, pending)


def request_event(request: Request, values: Values) -> WorkflowEvent[Any]:
    """A request as the event that tells it."""
    return WorkflowEvent.request_info(
        request.id, request.executor_id, values.give(request.data), request.response_type, request.request_type
    )


def _messages(snapshot: Snapshot, values: Values) -> dict[str, list[WorkflowMessage]]:
    messages: dict[str, list[WorkflowMessage]] = {}
    seen: set[str] = set()
    for delivery in snapshot.deliveries:
        if delivery.send in seen:
            continue
        seen.add(delivery.send)
        given = [values.give(value) for value in delivery.values]
        request = delivery.answers
        messages.setdefault(delivery.sources[0], []).append(
            WorkflowMessage(
                given if delivery.is_gathered else given[0],
                source_id=delivery.sources[0],
                target_id=delivery.target_id if delivery.is_gathered else delivery.asked_for,
                type=MessageType.STANDARD if request is None else MessageType.RESPONSE,
                original_request_info_event=None if request is None else request_event(request, values),
            )
        )
    return messages
