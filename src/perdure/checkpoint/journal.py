"""Encode and decode journal records: finished activations, and sub-workflows between their supersteps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint.changes import ChangeFinder
from perdure.checkpoint.documents import PieceReader, PieceWriter, tree_of
from perdure.checkpoint.events import event_text, read_event
from perdure.checkpoint.manifest import PIECE_LENGTH_MAX, PIECES_LENGTH_MAX
from perdure.codec import (
    CodedValues,
    DamagedPartError,
    Needs,
    as_kept,
    blob_reference,
    dumps,
    json_array,
    json_object,
    loads,
    quoted,
    quoted_or_null,
    to_bytes,
)
from perdure.errors import CheckpointDamagedError
from perdure.kernel import ActivationResult, Effects, UnroutedMessage, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from perdure.checkpoint.documents import Entry
    from perdure.codec import Codec, Encoded
    from perdure.kernel import Activation, PendingEvent, Snapshot, StateKey

    ReadT = TypeVar("ReadT")

_CHILD = "child/-/"


class JournalWriter:
    """Encodes journal records."""

    def __init__(self, codec: Codec) -> None:
        self._pieces = PieceWriter(codec)

    def done(self, done: ActivationResult) -> Encoded:
        """Encode a finished activation."""
        pieces, effects, needs = self._pieces, done.effects, Needs()
        members = {
            "sends": json_array([self._sent(sent, needs) for sent in done.unrouted]),
            "writes": json_array([self._write(write, needs) for write in effects.writes]),
            "requests": json_array([needs.take(pieces.request(request)) for request in effects.requests]),
            "outputs": json_array([pieces.output(output, needs) for output in effects.outputs]),
            "updates": json_array([self._update(place, updates, needs) for place, updates in done.updates.items()]),
        }
        if effects.events:
            members["told"] = json_array([event_text(event, pieces, needs) for event in effects.events])
        if effects.spent:
            members["spent"] = dumps(dict(effects.spent))
        if effects.executor_state is not None:
            members["state"] = pieces.value(effects.executor_state, needs)
        if effects.child is not None:
            members["child"] = needs.take(self.snapshot(effects.child))
        return needs.whole(json_object(members))

    def told(self, told: Sequence[PendingEvent]) -> Encoded:
        """Encode the events of a sub-workflow's superstep."""
        return self._pieces.array(told, lambda each, needs: event_text(each, self._pieces, needs))

    def _sent(self, sent: UnroutedMessage, needs: Needs) -> bytes:
        value = self._pieces.value(sent.data, needs)
        return json_object({"value": value, "asked_for": quoted_or_null(sent.asked_for), "due": dumps(sent.due)})

    def _write(self, write: Write, needs: Needs) -> bytes:
        scope, key = write.key
        members = {"scope": quoted(scope), "key": quoted(key)}
        if not write.erase:
            members["value"] = self._pieces.value(write.value, needs)
        return json_object(members)

    def _update(self, place: StateKey, updates: tuple[object | None, ...], needs: Needs) -> bytes:
        scope, key = place
        values = [b"null" if each is None else json_array([self._pieces.value(each, needs)]) for each in updates]
        return json_object({"scope": quoted(scope), "key": quoted(key), "values": json_array(values)})

    def snapshot(self, snapshot: Snapshot) -> Encoded:
        """Encode a sub-workflow. Short entries are inline, the rest are blobs."""
        needs, room = Needs(), PIECES_LENGTH_MAX
        entries: dict[str, bytes] = {}
        for path, fresh in ChangeFinder(self._pieces).changes(None, snapshot, _CHILD).fresh.items():
            text = fresh.encoded.text
            if not fresh.encoded.refs and len(text) <= min(room, PIECE_LENGTH_MAX):
                room -= len(text)
                entries[path] = json_array([text])
            else:
                # Written like a value, so that the references of the record are found.
                reference = blob_reference(needs.refer(fresh.encoded))
                entries[path] = to_bytes(reference)
        return needs.whole(json_object(entries))


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


class JournalReader:
    """Decodes the journal records that follow a checkpoint."""

    def __init__(self, codec: Codec, blobs: Mapping[str, bytes], checkpoint_id: str) -> None:
        self._pieces = PieceReader(codec, blobs, checkpoint_id, brings_blobs=True)
        self._values = CodedValues(codec)
        self._checkpoint_id = checkpoint_id

    def done(self, data: bytes, activation: Activation) -> ActivationResult:
        """Decode a finished activation. Raises CheckpointDamagedError."""
        return self._read(lambda: self._done(loads(data), activation))

    def snapshot(self, data: bytes) -> Snapshot:
        """Decode a sub-workflow between two supersteps. Raises CheckpointDamagedError."""
        return self._read(lambda: self._snapshot(loads(data)))

    def told(self, data: bytes) -> tuple[PendingEvent, ...]:
        """Decode the events of a sub-workflow's superstep. Raises CheckpointDamagedError."""
        return self._read(lambda: tuple(read_event(each, self._pieces) for each in loads(data)))

    def _read(self, read: Callable[[], ReadT]) -> ReadT:
        try:
            return read()
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            reason = f"its journal can't be read: {error or repr(error)}"
            raise CheckpointDamagedError(self._checkpoint_id, reason) from error

    def _done(self, tree: dict[str, Any], activation: Activation) -> ActivationResult:
        name = activation.executor_id
        effects = Effects(
            activation,
            writes=tuple(self._write(each) for each in tree["writes"]),
            requests=tuple(map(self._pieces.request, tree["requests"])),
            outputs=tuple(map(self._pieces.output, tree["outputs"])),
            executor_state=self._pieces.inline(tree["state"], f"state of executor {name!r}")
            if "state" in tree
            else None,
            child=self._snapshot(tree["child"]) if "child" in tree else None,
            events=tuple(read_event(each, self._pieces) for each in tree.get("told", ())),
            spent=tree.get("spent", {}),
        )
        unrouted = tuple(self._unrouted(each, f"message of executor {name!r}") for each in tree["sends"])
        updates = {
            (each["scope"], each["key"]): tuple(self._update(value, each["key"]) for value in each["values"])
            for each in tree["updates"]
        }
        return ActivationResult(effects, unrouted, updates)

    def _unrouted(self, tree: dict[str, Any], path: str) -> UnroutedMessage:
        kept = self._pieces.inline(tree["value"], path)
        return UnroutedMessage(kept, tree["asked_for"], self._values.give(kept), tree.get("due"))

    def _write(self, tree: dict[str, Any]) -> Write:
        place = (tree["scope"], tree["key"])
        if "value" not in tree:
            return Write(place, None, erase=True)
        return Write(place, self._pieces.inline(tree["value"], f"state[{tree['key']!r}]"))

    def _update(self, tree: list[Any] | None, key: str) -> object | None:
        return None if tree is None else self._pieces.inline(tree[0], f"state[{key!r}]")

    def _snapshot(self, contents: dict[str, Any]) -> Snapshot:
        tree = tree_of({path: _entry(entry) for path, entry in contents.items()})["child"]["-"]
        return self._pieces.snapshot(tree, self._pieces.counts(tree))


def _entry(found: Any) -> Entry:
    match found:
        case [tree]:
            return dumps(tree)
        case {"part": address}:
            return address
        case _:
            # Records of format 1 only have hashes.
            return found
