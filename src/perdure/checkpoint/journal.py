"""Encode and decode journal records: finished activations, and sub-workflows between their supersteps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from perdure.checkpoint.documents import (
    EVENT,
    OUTPUT,
    REQUEST,
    DocumentReader,
    event_tree,
    inline,
    request_tree,
    tree_of,
)
from perdure.checkpoint.writer import PIECE_LENGTH_MAX, PIECES_LENGTH_MAX, Changes
from perdure.codec import CodedValues, DamagedPartError, as_kept, document, dumps, loads
from perdure.errors import CheckpointDamagedError
from perdure.kernel import ActivationResult, Effects, UnroutedMessage, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from perdure.checkpoint.documents import Entry, Tree
    from perdure.codec import Codec, Encoded
    from perdure.kernel import Activation, PendingEvent, Snapshot

    ReadT = TypeVar("ReadT")

_CHILD = "child/-/"


def activation_record(done: ActivationResult, codec: Codec) -> Encoded:
    """Encode a finished activation. Raises EncodeError."""
    effects = done.effects
    tree: Tree = {
        "sends": [{"value": inline(sent.data), "asked_for": sent.asked_for, "due": sent.due} for sent in done.unrouted],
        "writes": [_write_tree(write) for write in effects.writes],
        "requests": [request_tree(request, codec) for request in effects.requests],
        "outputs": [OUTPUT.write(output, codec) for output in effects.outputs],
        "updates": [
            {"scope": scope, "key": key, "values": [None if each is None else [inline(each)] for each in updates]}
            for (scope, key), updates in done.updates.items()
        ],
    }
    if effects.events:
        tree["told"] = [event_tree(event, codec) for event in effects.events]
    if effects.spent:
        tree["spent"] = dict(effects.spent)
    if effects.executor_state is not None:
        tree["state"] = inline(effects.executor_state)
    if effects.child is not None:
        tree["child"] = snapshot_record(effects.child, codec)
    return document(tree)


def _write_tree(write: Write) -> Tree:
    scope, key = write.key
    return {"scope": scope, "key": key} | ({} if write.erase else {"value": inline(write.value)})


def events_record(events: Sequence[PendingEvent], codec: Codec) -> Encoded:
    """Encode the events of a sub-workflow's superstep."""
    return document([event_tree(event, codec) for event in events])


def snapshot_record(snapshot: Snapshot, codec: Codec) -> Encoded:
    """Encode a sub-workflow. Short entries are inline, the rest are blobs."""
    room = PIECES_LENGTH_MAX
    entries: Tree = {}
    for path, fresh in Changes(codec).compare(None, snapshot, _CHILD).fresh.items():
        encoded = fresh.encoded
        if not encoded.refs and len(encoded.text) <= min(room, PIECE_LENGTH_MAX):
            room -= len(encoded.text)
            entries[path] = [encoded]
        else:
            # Written like a value, so that the references of the record are found.
            entries[path] = encoded.inline(0)
    return document(entries)


def stored_of(done: ActivationResult, before: Snapshot) -> set[str]:
    """Return the blobs that the checkpoint already has, so that the record of an activation need not bring them."""
    effects = done.effects
    values = [before.state.get(write.key) for write in effects.writes if not write.erase]
    if effects.executor_state is not None:
        values.append(before.executors.get(effects.activation.executor_id))
    delivery = effects.activation.delivery
    if any(as_kept(sent.data).require_encoded().refs for sent in done.unrouted):
        # A message is often passed on with something added.
        values += next((each.values for each in before.deliveries if each is delivery), ())
    addresses: set[str] = set()
    for value in values:
        encoded = None if value is None else as_kept(value).encoded
        # Values without references may be inline in the checkpoint, and then they are no blobs.
        if encoded is not None and encoded.refs:
            addresses.update(encoded.refs, encoded.made, encoded.branches)
    return addresses


@dataclass(frozen=True, slots=True)
class JournalReader:
    """Decodes the journal records that follow a checkpoint."""

    codec: Codec
    blobs: Mapping[str, bytes]
    checkpoint_id: str

    def activation(self, data: bytes, activation: Activation) -> ActivationResult:
        """Decode a finished activation. Raises CheckpointDamagedError."""
        return self._read(data, lambda tree, documents: self._activation(tree, documents, activation))

    def snapshot(self, data: bytes) -> Snapshot:
        """Decode a sub-workflow between two supersteps. Raises CheckpointDamagedError."""
        return self._read(data, _snapshot)

    def events(self, data: bytes) -> tuple[PendingEvent, ...]:
        """Decode the events of a sub-workflow's superstep. Raises CheckpointDamagedError."""
        return self._read(data, lambda trees, documents: tuple(EVENT.read(each, documents) for each in trees))

    def _read(self, data: bytes, read: Callable[[Any, DocumentReader], ReadT]) -> ReadT:
        try:
            return read(loads(data), DocumentReader(self.codec, self.blobs, self.checkpoint_id, brings_blobs=True))
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            reason = f"its journal can't be read: {error or repr(error)}"
            raise CheckpointDamagedError(self.checkpoint_id, reason) from error

    def _activation(self, tree: Tree, documents: DocumentReader, activation: Activation) -> ActivationResult:
        name = activation.executor_id
        values = CodedValues(self.codec)
        effects = Effects(
            activation,
            writes=tuple(_read_write(each, documents) for each in tree["writes"]),
            requests=tuple(REQUEST.read(each, documents) for each in tree["requests"]),
            outputs=tuple(OUTPUT.read(each, documents) for each in tree["outputs"]),
            executor_state=documents.inline(tree["state"], f"state of executor {name!r}") if "state" in tree else None,
            child=_snapshot(tree["child"], documents) if "child" in tree else None,
            events=tuple(EVENT.read(each, documents) for each in tree.get("told", ())),
            spent=tree.get("spent", {}),
        )
        sent = [(documents.inline(each["value"], f"message of executor {name!r}"), each) for each in tree["sends"]]
        updates = {
            (each["scope"], each["key"]): tuple(
                None if value is None else documents.inline(value[0], f"state[{each['key']!r}]")
                for value in each["values"]
            )
            for each in tree["updates"]
        }
        unrouted = [UnroutedMessage(kept, each["asked_for"], values.give(kept), each.get("due")) for kept, each in sent]
        return ActivationResult(effects, tuple(unrouted), updates)


def _read_write(tree: Tree, documents: DocumentReader) -> Write:
    place = (tree["scope"], tree["key"])
    if "value" not in tree:
        return Write(place, None, erase=True)
    return Write(place, documents.inline(tree["value"], f"state[{tree['key']!r}]"))


def _snapshot(contents: Tree, documents: DocumentReader) -> Snapshot:
    return documents.snapshot(tree_of({path: _entry(entry) for path, entry in contents.items()})["child"]["-"])


def _entry(found: Any) -> Entry:
    match found:
        case [tree]:
            return dumps(tree)
        case {"part": address}:
            return cast("str", address)
        case _:
            # Records of format 1 only have hashes.
            return found
