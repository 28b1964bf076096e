"""Encode the events of a commit as one document, and decode them with their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint.documents import INLINE_LENGTH_MAX, OUTPUT_LENGTH_MAX, PieceReader, PieceWriter
from perdure.codec import (
    DamagedPartError,
    Needs,
    as_kept,
    decode,
    dumps,
    json_array,
    json_object,
    loads,
    quoted,
    quoted_all,
    verified,
)
from perdure.errors import CheckpointDamagedError, EncodeError, IncompatibleTypeError, UntrustedTypeError
from perdure.events import Undecoded, WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.kernel import PendingEvent
from perdure.records import NewEvents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.codec import Codec
    from perdure.events import CheckpointInfo
    from perdure.kernel import Request
    from perdure.records import EventBatch

_OUTPUTS = frozenset({"output", "intermediate"})

_OF_THE_ENGINE = frozenset(
    {
        "started",
        "status",
        "failed",
        "superstep_started",
        "superstep_completed",
        "checkpoint",
        "executor_invoked",
        "executor_completed",
        "executor_failed",
        "executor_bypassed",
        "executor_suspended",
        "output",
        "intermediate",
        "answered",
        "received",
        "woken",
        "cancelled",
        "undelivered",
        "sub_workflow",
        "warning",
    }
)


def event_text(
    event: PendingEvent, pieces: PieceWriter, needs: Needs, further: Mapping[str, bytes] | None = None
) -> bytes:
    """Encode an event. A value that can't be encoded is left out with a reason, so that events never fail a run.

    `further` are members that only some events have.
    """
    members = {"type": quoted(event.type)}
    if event.executor_id is not None:
        members["executor_id"] = quoted(event.executor_id)
    if event.path:
        members["path"] = quoted_all(event.path)
    if event.request_id is not None:
        members["request_id"] = quoted(event.request_id)
    if event.iteration is not None:
        members["iteration"] = dumps(event.iteration)
    values, lost = _values(event, pieces, needs)
    if lost is not None:
        members["lost"] = dumps(lost)
    if event.inner is not None:
        members["inner"] = event_text(event.inner, pieces, needs)
    return json_object({**members, **values, **(further or {})})


def _values(event: PendingEvent, pieces: PieceWriter, needs: Needs) -> tuple[dict[str, bytes], str | None]:
    """Encode the values of an event, and return the reason if one can't be encoded."""
    members: dict[str, bytes] = {}
    lost = event.lost
    # The event and the checkpoint share the blob of an output.
    length_max = OUTPUT_LENGTH_MAX if event.type in _OUTPUTS else INLINE_LENGTH_MAX
    for name, value in (("data", event.data), ("details", event.details)):
        try:
            if value is not None:
                members[name] = pieces.value(value, needs, length_max=length_max)
        except EncodeError as refusal:
            lost = str(refusal)
    return members, lost


def read_event(tree: dict[str, Any], pieces: PieceReader) -> PendingEvent:
    """Decode an event. Its values stay encoded."""
    path = f"data of a {tree['type']!r} event"
    return PendingEvent(
        tree["type"],
        pieces.inline(tree["data"], path) if "data" in tree else None,
        tree.get("executor_id"),
        tuple(tree.get("path", ())),
        tree.get("request_id"),
        tree.get("iteration"),
        pieces.inline(tree["details"], path) if "details" in tree else None,
        tree.get("lost"),
        read_event(tree["inner"], pieces) if "inner" in tree else None,
    )


class EventWriter:
    """Encodes the events of commits."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._pieces = PieceWriter(codec)

    def batch(
        self,
        events: Sequence[PendingEvent],
        *,
        requests: Mapping[str, Request] | None = None,
        checkpoint: CheckpointInfo | None = None,
    ) -> NewEvents | None:
        """Encode the events of one commit; None if there are none.

        `requests` are the open requests after the commit, whose types the events include. `checkpoint` is the data of
        the `checkpoint` event.
        """
        if not events:
            return None
        needs, pieces = Needs(), self._pieces
        texts = [
            event_text(each, pieces, needs, self._further(each, requests or {}, checkpoint, needs)) for each in events
        ]
        encoded = needs.whole(json_array(texts))
        return NewEvents(len(events), encoded.text, encoded.refs, encoded.blobs)

    def _further(
        self, event: PendingEvent, requests: Mapping[str, Request], checkpoint: CheckpointInfo | None, needs: Needs
    ) -> dict[str, bytes]:
        """Encode members that depend on the commit."""
        if event.type == "checkpoint" and checkpoint is not None and event.data is None:
            return {"data": needs.take(self._codec.encode(checkpoint, path="data of a 'checkpoint' event"))}
        request = requests.get(event.request_id or "") if event.type == "request_info" else None
        if request is None:
            return {}
        path = f"request {request.id!r}"
        return {
            "request_type": needs.take(self._codec.encode(request.request_type, path=path)),
            "response_type": needs.take(self._codec.encode(request.response_type, path=path)),
        }


class EventReader:
    """Decodes the events of a commit with the trust of one program."""

    def __init__(self, codec: Codec, batch: EventBatch, blobs: Mapping[str, bytes]) -> None:
        self._codec = codec
        self._batch = batch
        self._blobs = blobs
        self._pieces = PieceReader(codec, blobs, batch.checkpoint_id)

    def events(self, *, from_seq: int = 1) -> list[WorkflowEvent[Any]]:
        """Return the events from a number on. Raises CheckpointDamagedError.

        A value that this program can't decode becomes `Undecoded`, so that the rest stays readable.
        """
        batch = self._batch
        try:
            trees = loads(batch.data)
            if not isinstance(trees, list) or len(cast("list[object]", trees)) != batch.count:
                raise DamagedPartError(f"there are not {batch.count} events")  # noqa: TRY301 - handled below
            numbered = enumerate(cast("list[dict[str, Any]]", trees), start=batch.first)
            return [self._read(seq, tree) for seq, tree in numbered if seq >= from_seq]
        except (DamagedPartError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"its events can't be read: {error or repr(error)}"
            raise CheckpointDamagedError(batch.checkpoint_id, reason) from error

    def _read(self, seq: int, tree: dict[str, Any]) -> WorkflowEvent[Any]:
        types = self._type(tree, "request_type"), self._type(tree, "response_type")
        return self._event(read_event(tree, self._pieces), seq=seq, types=types)

    def _event(
        self, event: PendingEvent, *, seq: int | None = None, types: tuple[Any, Any] = (None, None)
    ) -> WorkflowEvent[Any]:
        data, details = self._value(event.data), self._value(event.details)
        if event.inner is not None:
            data = self._event(event.inner)
        if data is None and event.lost is not None:
            data = Undecoded(event.lost)
        if data is None and (event.type == "executor_failed" or isinstance(details, Undecoded)):
            data = details
        return WorkflowEvent(
            event.type,
            data,
            origin=_origin(event),
            details=details if isinstance(details, WorkflowErrorDetails) else None,
            executor_id=event.executor_id,
            request_id=event.request_id,
            source_executor_id=event.executor_id,
            request_type=types[0],
            response_type=types[1],
            iteration=event.iteration,
            path=event.path,
            seq=seq,
        )

    def _value(self, value: object) -> Any:
        if value is None:
            return None
        kept = as_kept(value)
        try:
            return decode(self._codec, kept)
        except (UntrustedTypeError, IncompatibleTypeError) as error:
            return Undecoded(str(error), self._json(loads(kept.require_encoded().text)))

    def _json(self, tree: object) -> Any:
        try:
            return _unfolded(tree, self._blobs)
        except RecursionError:
            return tree

    def _type(self, tree: dict[str, Any], name: str) -> Any:
        """Decode a type; None if the program does not know it."""
        if name not in tree:
            return None
        found = self._value(self._pieces.inline(tree[name], name))
        return None if isinstance(found, Undecoded) else found


def _origin(event: PendingEvent) -> WorkflowEventSource:
    return WorkflowEventSource.FRAMEWORK if event.type in _OF_THE_ENGINE else WorkflowEventSource.EXECUTOR


def _unfolded(tree: Any, blobs: Mapping[str, bytes]) -> Any:
    """Insert blobs and chunks into a stored tree. Raises DamagedPartError."""
    match tree:
        case {"~": "part", "part": address}:
            return _unfolded(loads(verified(blobs, address)), blobs)
        case {"~": tag, "chunks": addresses, **further}:
            chunks = [_unfolded(chunk, blobs) for chunk in _chunks(addresses, blobs)]
            if tag == "object":
                return {key: value for chunk in chunks for key, value in chunk.items()}
            return {"~": tag, **_unfolded(further, blobs), "items": [each for chunk in chunks for each in chunk]}
        case dict():
            return {key: _unfolded(value, blobs) for key, value in cast("dict[str, Any]", tree).items()}
        case list():
            return [_unfolded(each, blobs) for each in cast("list[Any]", tree)]
        case _:
            return tree


def _chunks(addresses: Sequence[str], blobs: Mapping[str, bytes]) -> Iterator[Any]:
    for address in addresses:
        match loads(verified(blobs, address)):
            case {"~": "index", "chunks": inner}:
                yield from _chunks(inner, blobs)
            case chunk:
                yield chunk
