"""What a commit tells, as bytes: one document for the events of a commit, and back to events with their numbers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint.documents import INLINE_LENGTH_MAX, OUTPUT_LENGTH_MAX, PieceReader, PieceWriter
from perdure.codec import (
    DamagedPartError,
    Needs,
    as_kept,
    decode,
    dumps,
    loads,
    quoted,
    quoted_all,
    quoted_or_null,
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

_SAYING_MORE = frozenset({"checkpoint", "request_info"})

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


def told_text(told: PendingEvent, pieces: PieceWriter, needs: Needs, further: bytes = b"") -> bytes:
    """An event. What can't be encoded is left out, and the event says why: telling never fails a run.

    `further` is what only some events have, with a comma before it.
    """
    text = _beginning(told.type, told.executor_id)
    if told.path:
        text += b',"path":' + quoted_all(told.path)
    if told.request_id is not None:
        text += b',"request_id":' + quoted(told.request_id)
    if told.iteration is not None:
        text += b',"iteration":%d' % told.iteration
    values, lost = b"", told.lost
    if told.data is not None or told.details is not None:
        values, lost = _values(told, pieces, needs)
    if lost is not None:
        text += b',"lost":' + dumps(lost)
    if told.inner is not None:
        text += b',"inner":' + told_text(told.inner, pieces, needs)
    return b"%b%b%b}" % (text, values, further)


@lru_cache(maxsize=4096)
def _beginning(kind: str, executor_id: str | None) -> bytes:
    """What an executor tells with every message begins the same each time."""
    text = b'{"type":' + quoted(kind)
    return text if executor_id is None else text + b',"executor_id":' + quoted(executor_id)


def _values(told: PendingEvent, pieces: PieceWriter, needs: Needs) -> tuple[bytes, str | None]:
    """The values of an event, and why one of them is not there."""
    text, lost = b"", told.lost
    # Of outputs there is one part for the event and for the checkpoint.
    length_max = OUTPUT_LENGTH_MAX if told.type in _OUTPUTS else INLINE_LENGTH_MAX
    for name, value in ((b"data", told.data), (b"details", told.details)):
        try:
            if value is not None:
                text += b',"%b":%b' % (name, pieces.value(value, needs, length_max=length_max))
        except EncodeError as refusal:
            lost = str(refusal)
    return text, lost


def told_in(tree: dict[str, Any], pieces: PieceReader) -> PendingEvent:
    """The event of a document. Its values stay encoded."""
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
        told_in(tree["inner"], pieces) if "inner" in tree else None,
    )


class EventWriter:
    """Encodes what commits tell."""

    def __init__(self, codec: Codec) -> None:
        self._pieces = PieceWriter(codec)

    def batch(
        self,
        told: Sequence[PendingEvent],
        *,
        requests: Mapping[str, Request] | None = None,
        checkpoint: CheckpointInfo | None = None,
    ) -> NewEvents | None:
        """The events of one commit, None if it tells nothing.

        `requests` are those that are open after the commit: an event that tells one says its types. `checkpoint` is
        what the commit writes, the data of the event that tells so.
        """
        if not told:
            return None
        needs, pieces = Needs(), self._pieces
        texts = [
            told_text(each, pieces, needs, self._further(each, requests or {}, checkpoint, needs))
            if each.type in _SAYING_MORE
            else told_text(each, pieces, needs)
            for each in told
        ]
        encoded = needs.whole(b"[" + b",".join(texts) + b"]")
        return NewEvents(len(told), encoded.text, encoded.refs, encoded.parts)

    def _further(
        self, told: PendingEvent, requests: Mapping[str, Request], checkpoint: CheckpointInfo | None, needs: Needs
    ) -> bytes:
        """What an event says beside what was told."""
        if told.type == "checkpoint":
            return b"" if checkpoint is None or told.data is not None else b',"data":' + info_text(checkpoint)
        request = requests.get(told.request_id or "")
        if request is None:
            return b""
        path = f"request {request.id!r}"
        return b',"request_type":%b,"response_type":%b' % (
            needs.take(self._pieces.type(request.request_type, path)),
            needs.take(self._pieces.type(request.response_type, path)),
        )


def info_text(info: CheckpointInfo) -> bytes:
    """What the codec makes of it, without asking the codec: it is told with every superstep."""
    return (
        b'{"~":"dataclass","type":"perdure.events:CheckpointInfo","fields":{"checkpoint_id":%b,'
        b'"previous_checkpoint_id":%b,"run_id":%b,"workflow_name":%b,"iteration_count":%d,"timestamp":%b}}'
        % (
            quoted(info.checkpoint_id),
            quoted_or_null(info.previous_checkpoint_id),
            quoted(info.run_id),
            quoted(info.workflow_name),
            info.iteration_count,
            quoted(info.timestamp),
        )
    )


class EventReader:
    """Reads what a commit has told, with the trust of one program and the parts that the events refer to."""

    def __init__(self, codec: Codec, batch: EventBatch, parts: Mapping[str, bytes]) -> None:
        self._codec = codec
        self._batch = batch
        self._parts = parts
        self._pieces = PieceReader(codec, parts, batch.checkpoint_id)

    def events(self, *, from_seq: int = 1) -> list[WorkflowEvent[Any]]:
        """The events from a number on. Raises CheckpointDamagedError.

        What this program can't decode is `Undecoded`, so that the rest of the log stays readable.
        """
        batch = self._batch
        try:
            trees = loads(batch.data)
            if not isinstance(trees, list) or len(cast("list[object]", trees)) != batch.count:
                raise DamagedPartError(f"there are not {batch.count} of them")  # noqa: TRY301 - named below
            numbered = enumerate(cast("list[dict[str, Any]]", trees), start=batch.first)
            return [self._read(seq, tree) for seq, tree in numbered if seq >= from_seq]
        except (DamagedPartError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"its events can't be read: {error or repr(error)}"
            raise CheckpointDamagedError(batch.checkpoint_id, reason) from error

    def _read(self, seq: int, tree: dict[str, Any]) -> WorkflowEvent[Any]:
        types = self._type(tree, "request_type"), self._type(tree, "response_type")
        return self._event(told_in(tree, self._pieces), seq=seq, types=types)

    def _event(
        self, told: PendingEvent, *, seq: int | None = None, types: tuple[Any, Any] = (None, None)
    ) -> WorkflowEvent[Any]:
        data, details = self._value(told.data), self._value(told.details)
        if told.inner is not None:
            data = self._event(told.inner)
        if data is None and told.lost is not None:
            data = Undecoded(told.lost)
        if data is None and (told.type == "executor_failed" or isinstance(details, Undecoded)):
            data = details
        return WorkflowEvent(
            told.type,
            data,
            origin=_origin(told),
            details=details if isinstance(details, WorkflowErrorDetails) else None,
            executor_id=told.executor_id,
            request_id=told.request_id,
            source_executor_id=told.executor_id,
            request_type=types[0],
            response_type=types[1],
            iteration=told.iteration,
            path=told.path,
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
            return _unfolded(tree, self._parts)
        except RecursionError:
            return tree

    def _type(self, tree: dict[str, Any], name: str) -> Any:
        """A type that the program does not know is not there."""
        if name not in tree:
            return None
        found = self._value(self._pieces.inline(tree[name], name))
        return None if isinstance(found, Undecoded) else found


def _origin(told: PendingEvent) -> WorkflowEventSource:
    return WorkflowEventSource.FRAMEWORK if told.type in _OF_THE_ENGINE else WorkflowEventSource.EXECUTOR


def _unfolded(tree: Any, parts: Mapping[str, bytes]) -> Any:
    """A stored tree with what was cut out of it put back. Raises DamagedPartError."""
    match tree:
        case {"~": "part", "part": address}:
            return _unfolded(loads(verified(parts, address)), parts)
        case {"~": tag, "chunks": addresses, **further}:
            chunks = [_unfolded(chunk, parts) for chunk in _chunks(addresses, parts)]
            if tag == "object":
                return {key: value for chunk in chunks for key, value in chunk.items()}
            return {"~": tag, **_unfolded(further, parts), "items": [each for chunk in chunks for each in chunk]}
        case dict():
            return {key: _unfolded(value, parts) for key, value in cast("dict[str, Any]", tree).items()}
        case list():
            return [_unfolded(each, parts) for each in cast("list[Any]", tree)]
        case _:
            return tree


def _chunks(addresses: Sequence[str], parts: Mapping[str, bytes]) -> Iterator[Any]:
    for address in addresses:
        match loads(verified(parts, address)):
            case {"~": "index", "chunks": inner}:
                yield from _chunks(inner, parts)
            case chunk:
                yield chunk
