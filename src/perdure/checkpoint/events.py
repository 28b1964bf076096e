"""What a commit tells, as bytes: one document for the events of a commit, and back to events with their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint.codec import DamagedPartError
from perdure.checkpoint.documents import array, document, loads, plain, verified
from perdure.checkpoint.pieces import PieceReader, PieceWriter
from perdure.checkpoint.values import as_kept, decode
from perdure.errors import CheckpointDamagedError, EncodeError, IncompatibleTypeError, UntrustedTypeError
from perdure.events import Undecoded, WorkflowErrorDetails, WorkflowEvent, WorkflowEventSource
from perdure.kernel.effects import Told
from perdure.records import NewEvents

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perdure.checkpoint.codec import Codec, Encoded
    from perdure.events import CheckpointInfo
    from perdure.kernel.snapshot import Request
    from perdure.records import EventBatch

_SOMETIMES = ("executor_id", "path", "request_id", "iteration", "lost")
"""What an event has only in some cases, as plain data."""

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


def told_document(told: Told, pieces: PieceWriter) -> Encoded:
    """An event. What can't be encoded is left out, and the event says why: telling never fails a run."""
    return document(_members(told, pieces))


def _members(told: Told, pieces: PieceWriter) -> dict[str, Encoded]:
    values: dict[str, Encoded] = {}
    lost = told.lost
    for name, value in (("data", told.data), ("details", told.details)):
        try:
            if value is not None:
                values[name] = pieces.value(value)
        except EncodeError as refusal:
            lost = str(refusal)
    members = {"type": plain(told.type)}
    for name in _SOMETIMES:
        found = lost if name == "lost" else getattr(told, name)
        if found not in {None, ()}:
            members[name] = plain(found)
    if told.inner is not None:
        members["inner"] = told_document(told.inner, pieces)
    return members | values


def told_in(tree: dict[str, Any], pieces: PieceReader) -> Told:
    """The event of a document. Its values stay encoded."""
    path = f"data of a {tree['type']!r} event"
    return Told(
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
        self._codec = codec
        self._pieces = PieceWriter(codec)

    def batch(
        self,
        told: Sequence[Told],
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
        encoded = array(self._event(each, (requests or {}).get(each.request_id or ""), checkpoint) for each in told)
        parts = {part.hash: part for part in encoded.parts}
        return NewEvents(len(told), encoded.text, encoded.refs, tuple(parts.values()))

    def _event(self, told: Told, request: Request | None, checkpoint: CheckpointInfo | None) -> Encoded:
        members = _members(told, self._pieces)
        match told.type:
            case "request_info" if request is not None:
                path = f"request {request.id!r}"
                members["request_type"] = self._pieces.type(request.request_type, path)
                members["response_type"] = self._pieces.type(request.response_type, path)
            case "checkpoint" if checkpoint is not None:
                members.setdefault("data", self._codec.inline(self._codec.encode(checkpoint, path="checkpoint")))
            case _:
                pass
        return document(members)


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
        self, told: Told, *, seq: int | None = None, types: tuple[Any, Any] = (None, None)
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


def _origin(told: Told) -> WorkflowEventSource:
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
