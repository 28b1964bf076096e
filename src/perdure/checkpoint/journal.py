"""What the superstep in progress has finished, as bytes: activations, and sub-workflows between their supersteps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.checkpoint.codec import DamagedPartError, Encoded
from perdure.checkpoint.documents import array, document, dumps, loads, plain
from perdure.checkpoint.events import told_document, told_in
from perdure.checkpoint.pieces import PieceReader, PieceWriter, tree_of
from perdure.checkpoint.values import CodedValues
from perdure.errors import CheckpointDamagedError
from perdure.kernel.effects import Done, Effects, Unrouted, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from perdure.checkpoint.codec import Codec
    from perdure.kernel.effects import Activation, Told
    from perdure.kernel.snapshot import Snapshot, StateKey
    from perdure.records import Part

    ReadT = TypeVar("ReadT")

_CHILD = "child/-/"


class JournalWriter:
    """Encodes records."""

    def __init__(self, codec: Codec) -> None:
        self._pieces = PieceWriter(codec)

    def done(self, done: Done) -> Encoded:
        """An activation that has ended."""
        pieces, effects = self._pieces, done.effects
        members = {
            "sends": array(
                document({"value": pieces.value(sent.data), "asked_for": plain(sent.asked_for), "due": plain(sent.due)})
                for sent in done.unrouted
            ),
            "writes": array(map(self._write, effects.writes)),
            "requests": array(map(pieces.request, effects.requests)),
            "outputs": array(map(pieces.output, effects.outputs)),
            "updates": array(self._update(place, updates) for place, updates in done.updates.items()),
        }
        if effects.told:
            members["told"] = array(told_document(told, pieces) for told in effects.told)
        if effects.spent:
            members["spent"] = plain(dict(effects.spent))
        if effects.executor_state is not None:
            members["state"] = pieces.value(effects.executor_state)
        if effects.child is not None:
            members["child"] = self.snapshot(effects.child)
        return document(members)

    def told(self, told: Sequence[Told]) -> Encoded:
        """What a superstep of a sub-workflow told."""
        return array(told_document(each, self._pieces) for each in told)

    def _write(self, write: Write) -> Encoded:
        scope, key = write.key
        members = {"scope": plain(scope), "key": plain(key)}
        if not write.erase:
            members["value"] = self._pieces.value(write.value)
        return document(members)

    def _update(self, place: StateKey, updates: tuple[object | None, ...]) -> Encoded:
        scope, key = place
        values = array(plain(None) if each is None else array([self._pieces.value(each)]) for each in updates)
        return document({"scope": plain(scope), "key": plain(key), "values": values})

    def snapshot(self, snapshot: Snapshot) -> Encoded:
        """A sub-workflow: its table of contents, and all of its parts."""
        toc: dict[str, str] = {}
        parts: dict[str, Part] = {}
        for path, part, nested in self._pieces.parts(snapshot, _CHILD):
            toc[path] = part.hash
            parts.update((inner.hash, inner) for inner in (part, *nested))
        return Encoded(dumps(toc), tuple(parts.values()), tuple(dict.fromkeys(toc.values())), immutable=True)


class JournalReader:
    """Reads records, which follow a checkpoint."""

    def __init__(self, codec: Codec, parts: Mapping[str, bytes], checkpoint_id: str) -> None:
        self._pieces = PieceReader(codec, parts, checkpoint_id, brings_parts=True)
        self._values = CodedValues(codec)
        self._checkpoint_id = checkpoint_id

    def done(self, data: bytes, activation: Activation) -> Done:
        """An activation that has ended. Raises CheckpointDamagedError."""
        return self._read(lambda: self._done(loads(data), activation))

    def snapshot(self, data: bytes) -> Snapshot:
        """A sub-workflow between two of its supersteps. Raises CheckpointDamagedError."""
        return self._read(lambda: self._snapshot(loads(data)))

    def told(self, data: bytes) -> tuple[Told, ...]:
        """What a superstep of a sub-workflow told. Raises CheckpointDamagedError."""
        return self._read(lambda: tuple(told_in(each, self._pieces) for each in loads(data)))

    def _read(self, read: Callable[[], ReadT]) -> ReadT:
        try:
            return read()
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            reason = f"its journal can't be read: {error or repr(error)}"
            raise CheckpointDamagedError(self._checkpoint_id, reason) from error

    def _done(self, tree: dict[str, Any], activation: Activation) -> Done:
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
            told=tuple(told_in(each, self._pieces) for each in tree.get("told", ())),
            spent=tree.get("spent", {}),
        )
        unrouted = tuple(self._unrouted(each, f"message of executor {name!r}") for each in tree["sends"])
        updates = {
            (each["scope"], each["key"]): tuple(self._update(value, each["key"]) for value in each["values"])
            for each in tree["updates"]
        }
        return Done(effects, unrouted, updates)

    def _unrouted(self, tree: dict[str, Any], path: str) -> Unrouted:
        kept = self._pieces.inline(tree["value"], path)
        return Unrouted(kept, tree["asked_for"], self._values.give(kept), tree.get("due"))

    def _write(self, tree: dict[str, Any]) -> Write:
        place = (tree["scope"], tree["key"])
        if "value" not in tree:
            return Write(place, None, erase=True)
        return Write(place, self._pieces.inline(tree["value"], f"state[{tree['key']!r}]"))

    def _update(self, tree: list[Any] | None, key: str) -> object | None:
        return None if tree is None else self._pieces.inline(tree[0], f"state[{key!r}]")

    def _snapshot(self, toc: dict[str, str]) -> Snapshot:
        tree = tree_of(toc)["child"]["-"]
        return self._pieces.snapshot(tree, self._pieces.counts(tree))
