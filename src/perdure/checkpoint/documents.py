"""Kernel values as JSON documents: deliveries, requests, outputs, whole snapshots.

These texts are written in every superstep. They are assembled from texts that are quoted once, which takes a tenth of
the time of a JSON encoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from perdure.checkpoint.answers import schema_of
from perdure.codec import (
    Encoded,
    Kept,
    Needs,
    as_kept,
    blob_reference,
    decode,
    document,
    dumps,
    json_array,
    json_object,
    loads,
    piece,
    plain,
    quoted,
    quoted_all,
    quoted_or_null,
    references,
    to_bytes,
    verified,
    with_blobs,
)
from perdure.kernel import (
    CHUNK_LENGTH,
    Answered,
    Cancelled,
    Delayed,
    Delivery,
    Limits,
    Output,
    Request,
    Snapshot,
    Suspended,
    Trail,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    from perdure.codec import Codec

    ItemT = TypeVar("ItemT")
    from collections.abc import Iterator

INLINE_LENGTH_MAX = 2048
"""A longer text of a value becomes a blob of its own."""

OUTPUT_LENGTH_MAX = 256
"""The limit for outputs is lower, because a chunk is written again with each output added to it."""

_SOMETIMES = ("opened_at", "deadline", "approves", "resumes", "refusals")
"""Optional members of a request."""


class PieceWriter:
    """Encodes the parts of a run."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def array(self, items: Iterable[ItemT], write: Callable[[ItemT, Needs], bytes]) -> Encoded:
        """Assemble a JSON array."""
        needs = Needs()
        return needs.whole(json_array([write(item, needs) for item in items]))

    def value(self, value: object, needs: Needs, *, length_max: int = INLINE_LENGTH_MAX) -> bytes:
        """Encode a kept value: inline if it is short, else as a reference. Raises EncodeError."""
        encoded = as_kept(value).require_encoded()
        if len(encoded.text) <= length_max:
            return needs.take(encoded)
        return to_bytes(blob_reference(needs.refer(encoded)))

    def delivery(self, delivery: Delivery, needs: Needs) -> bytes:
        """Encode a delivery."""
        members = {
            "target": quoted(delivery.target_id),
            "sources": quoted_all(delivery.sources),
            "values": json_array([self.value(value, needs) for value in delivery.values]),
            "send": quoted(delivery.send),
        }
        if delivery.is_gathered:
            members["gathered"] = b"true"
        if delivery.asked_for is not None:
            members["asked_for"] = quoted(delivery.asked_for)
        if delivery.answers is not None:
            members["answers"] = needs.take(self.request(delivery.answers))
        if delivery.activation_id is not None:
            members["home"] = quoted(delivery.activation_id)
        if delivery.woken_at is not None:
            members["woken_at"] = dumps(delivery.woken_at)
        return json_object(members)

    def output(self, output: Output, needs: Needs) -> bytes:
        """Encode an output."""
        members = {
            "executor": quoted(output.executor_id),
            "kind": quoted(output.kind),
            "data": self.value(output.data, needs, length_max=OUTPUT_LENGTH_MAX),
        }
        if output.is_whole:
            members["whole"] = b"true"
        return json_object(members)

    def request(self, request: Request) -> Encoded:
        """Encode a request."""
        path = f"request {request.id!r}"
        members = {
            "id": plain(request.id),
            "executor": plain(request.executor_id),
            "data": self._piece(request.data),
            "request_type": self._codec.encode(request.request_type, path=path),
            "response_type": self._codec.encode(request.response_type, path=path),
        }
        for name in _SOMETIMES:
            if getattr(request, name):
                members[name] = plain(getattr(request, name))
        if request.default is not None:
            members["default"] = self._piece(request.default)
        schema = schema_of(request.response_type)
        if schema is not None:
            # For people and programs that answer without this program.
            members["schema"] = plain(schema)
        return document(members)

    def _piece(self, value: object) -> Encoded:
        needs = Needs()
        return needs.whole(self.value(value, needs))

    def suspended(self, suspended: Suspended, needs: Needs) -> bytes:
        """Encode a suspended activation."""
        return json_object(
            {
                "delivery": self.delivery(suspended.delivery, needs),
                "wake_at": dumps(suspended.wake_at),
                "awaits": dumps(suspended.awaits),
            }
        )

    def delayed(self, delayed: Delayed, needs: Needs) -> bytes:
        """Encode a delayed message."""
        return json_object(
            {
                "due": dumps(delayed.due),
                "source": quoted(delayed.source_id),
                "send": quoted(delayed.send),
                "value": self.value(delayed.data, needs),
                "asked_for": quoted_or_null(delayed.asked_for),
                "targets": quoted_all(delayed.targets),
                "fan_ins": quoted_all(delayed.fan_ins),
            }
        )

    def fan_in(self, buffers: Mapping[str, Mapping[str, tuple[object, ...]]]) -> Encoded:
        """Encode the buffers of fan-in groups."""
        needs = Needs()
        groups = {
            group: json_object(
                {
                    source: json_array([self.value(value, needs) for value in values])
                    for source, values in buffer.items()
                }
            )
            for group, buffer in buffers.items()
        }
        return needs.whole(json_object(groups))


def answered_text(answer: Answered, needs: Needs) -> bytes:
    """Encode the record of an answered request."""
    del needs
    return dumps([answer.request_id, answer.at, answer.by, answer.what])


def received_text(message_id: str, needs: Needs) -> bytes:
    """Encode the id of a message that was sent to the run."""
    del needs
    return dumps(message_id)


def cancelled_text(wish: Cancelled) -> Encoded:
    """Encode a cancellation."""
    return plain([wish.at, wish.by, wish.reason])


def limits_text(bounds: Limits) -> Encoded:
    """Encode the limits of the run."""
    return plain([bounds.deadline, dict(bounds.budget), dict(bounds.spent)])


Entry: TypeAlias = str | bytes
"""An entry at a path: the hash of a blob, or the text itself."""


class PieceReader:
    """Decodes the parts of a run. Values stay encoded until they are needed.

    With `brings_parts`, each value holds its blobs: values read from a journal or from inline texts are written again
    into the next checkpoint.
    """

    def __init__(
        self, codec: Codec, blobs: Mapping[str, bytes], checkpoint_id: str, *, brings_blobs: bool = False
    ) -> None:
        self._codec = codec
        self._blobs = blobs
        self._checkpoint_id = checkpoint_id
        self._brings_blobs = brings_blobs

    def snapshot(self, tree: dict[str, Any], counts: tuple[int, int, int]) -> Snapshot:
        """Decode a snapshot from its tree of entries."""
        turn, iteration, since_input = counts
        return Snapshot(
            turn=turn,
            iteration=iteration,
            since_input=since_input,
            deliveries=tuple(map(self.delivery, self._read(tree.get("deliveries")) or ())),
            fan_in=self._fan_in(self._read(tree.get("fan_in")) or {}),
            state={
                (unquote(scope), key): self.stored(address, f"state[{key!r}]")
                for scope, keys in tree.get("state", {}).items()
                for key, address in keys.items()
            },
            executors={
                executor_id: self.stored(address, f"state of executor {executor_id!r}")
                for executor_id, address in tree.get("executor", {}).items()
            },
            requests={
                request_id: self.request(self._read(address)) for request_id, address in tree.get("request", {}).items()
            },
            answered=self.answered(tree),
            received=self._trail(tree.get("received", {}), str),
            outputs=self._trail(tree.get("outputs", {}), self.output),
            children={
                unquote(executor_id): self.snapshot(child, self.counts(child))
                for executor_id, child in tree.get("child", {}).items()
            },
            kwargs=self.stored(tree["kwargs"], "run kwargs") if "kwargs" in tree else None,
            suspended=tuple(map(self._suspended, self._read(tree.get("suspended")) or ())),
            delayed=tuple(map(self._delayed, self._read(tree.get("delayed")) or ())),
            carried={key: self.stored(address, f"record {key!r}") for key, address in tree.get("carried", {}).items()},
            cancelled=Cancelled(*self._read(tree["cancelled"])) if "cancelled" in tree else None,
            limits=Limits(*self._read(tree["limits"])) if "limits" in tree else Limits(),
        )

    def _suspended(self, tree: dict[str, Any]) -> Suspended:
        return Suspended(self.delivery(tree["delivery"]), tree["wake_at"], tree["awaits"])

    def _delayed(self, tree: dict[str, Any]) -> Delayed:
        return Delayed(
            tree["due"],
            tree["source"],
            tree["send"],
            self.inline(tree["value"], f"message of executor {tree['source']!r}"),
            tree["asked_for"],
            tuple(tree["targets"]),
            tuple(tree["fan_ins"]),
        )

    def counts(self, tree: dict[str, Any]) -> tuple[int, int, int]:
        """Decode the counters of a sub-workflow: turn, supersteps of the turn, supersteps since the last input."""
        turn, iteration, since_input = self._read(tree["counts"])
        return turn, iteration, since_input

    def answered(self, tree: dict[str, Any]) -> Trail[Answered]:
        """Decode the records of answered requests."""
        return self._trail(tree.get("answered", {}), lambda pair: Answered(*pair))

    def _fan_in(self, tree: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, tuple[Kept, ...]]]:
        return {
            group_id: {
                source: tuple(self.inline(value, f"message of executor {source!r}") for value in values)
                for source, values in buffer.items()
            }
            for group_id, buffer in tree.items()
        }

    def _read(self, entry: Entry | None) -> Any:
        return None if entry is None else loads(self._text(entry))

    def _text(self, entry: Entry) -> bytes:
        return entry if isinstance(entry, bytes) else verified(self._blobs, entry)

    def stored(self, entry: Entry, path: str) -> Kept:
        """Return the value at a path of its own."""
        text = self._text(entry)
        return self._kept(Encoded(text, (), references(text), immutable=False), path)

    def inline(self, tree: object, path: str) -> Kept:
        """Return a value inside a document."""
        return self._kept(piece(tree), path)

    def _kept(self, encoded: Encoded, path: str) -> Kept:
        if encoded.refs and self._brings_blobs:
            encoded = encoded.with_blobs(with_blobs(encoded.refs, self._blobs))
        return Kept(path=path, encoded=encoded, stored=self._blobs, checkpoint_id=self._checkpoint_id)

    def _type(self, tree: object, path: str) -> object:
        return decode(self._codec, self.inline(tree, path))

    def request(self, tree: dict[str, Any]) -> Request:
        """Decode a request."""
        path = f"request {tree['id']!r}"
        return Request(
            tree["id"],
            tree["executor"],
            self.inline(tree["data"], path),
            self._type(tree["request_type"], path),
            self._type(tree["response_type"], path),
            opened_at=tree.get("opened_at"),
            deadline=tree.get("deadline"),
            default=self.inline(tree["default"], f"default of {path}") if "default" in tree else None,
            approves=tree.get("approves"),
            resumes=tree.get("resumes"),
            refusals=tuple(tree.get("refusals", ())),
        )

    def delivery(self, tree: dict[str, Any]) -> Delivery:
        """Decode a delivery."""
        path = f"message for executor {tree['target']!r}"
        return Delivery(
            tree["target"],
            tuple(tree["sources"]),
            tuple(self.inline(value, path) for value in tree["values"]),
            tree["send"],
            is_gathered=tree.get("gathered", False),
            asked_for=tree.get("asked_for"),
            answers=self.request(tree["answers"]) if "answers" in tree else None,
            activation_id=tree.get("home"),
            woken_at=tree.get("woken_at"),
        )

    def output(self, tree: dict[str, Any]) -> Output:
        """Decode an output."""
        path = f"output of executor {tree['executor']!r}"
        data = self.inline(tree["data"], path)
        return Output(tree["executor"], tree["kind"], data, is_whole=tree.get("whole", False))

    def _trail(self, chunks: Mapping[str, Entry], read: Callable[[Any], Any]) -> Trail[Any]:
        in_order = [chunks[index] for index in sorted(chunks, key=int)]
        loaded = [tuple(map(read, chunk)) for chunk in self._chunks(in_order)]
        if loaded and len(loaded[-1]) < CHUNK_LENGTH:
            return Trail(tuple(loaded[:-1]), loaded[-1])
        return Trail(tuple(loaded), ())

    def _chunks(self, entries: Iterable[Entry]) -> Iterator[list[Any]]:
        for entry in entries:
            match self._read(entry):
                case {"~": "index", "chunks": inner}:
                    yield from self._chunks(inner)
                case chunk:
                    yield chunk


def tree_of(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """Arrange entries as a tree: `state/<scope>/<key>`, `child/<id>/...` and so on."""
    tree: dict[str, Any] = {}
    for path, entry in entries.items():
        _place(tree, path, entry)
    return tree


def _place(tree: dict[str, Any], path: str, entry: Entry) -> None:
    kind, _, rest = path.partition("/")
    if not rest:
        tree[kind] = entry
    elif kind == "state":
        scope, _, key = rest.partition("/")
        tree.setdefault(kind, {}).setdefault(scope, {})[key] = entry
    elif kind == "child":
        executor_id, _, inner = rest.partition("/")
        _place(tree.setdefault(kind, {}).setdefault(executor_id, {}), inner, entry)
    else:
        tree.setdefault(kind, {})[rest] = entry
