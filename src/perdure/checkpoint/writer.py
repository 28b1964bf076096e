"""Write snapshots as manifests and blobs: each checkpoint as its differences from the previous one.

Identical objects are skipped, so the cost depends on what changed, not on what exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from perdure.checkpoint.documents import DELAYED, DELIVERY, OUTPUT, SUSPENDED, fan_in_tree, request_tree
from perdure.checkpoint.manifest import FORMAT, ORIGIN, Contents, WrittenCheckpoint, gathered, pieces_text
from perdure.codec import Codec, Encoded, as_kept, document, dumps
from perdure.data_classes import new_dict, new_list, new_set, value_class
from perdure.kernel import Limits, Snapshot, Trail
from perdure.records import Blob, Manifest, NewRun, digest
from perdure.typenames import describe_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


PIECE_LENGTH_MAX = 1024
"""A longer text becomes a blob, however often it changes."""

PIECES_LENGTH_MAX = 16 * 1024
"""The limit for all inline texts of one checkpoint."""

EntryKind: TypeAlias = Literal["passing", "value", "lasting", "full"]
"""When an entry changes: "passing" with nearly every superstep, "value" when the program sets it, "lasting" never until
it is removed; "full" is a complete chunk of a trail and never changes.
"""

_NOTHING = Snapshot()


class Fresh(NamedTuple):
    """An entry that is new or changed."""

    encoded: Encoded
    kind: EntryKind
    before: Encoded | None = None
    """The previous content, if it has blobs that the new content may share."""

    def nested(self) -> Sequence[Blob]:
        """Return the blobs that the entry needs and its previous content did not."""
        if self.before is None:
            return self.encoded.blobs
        return tuple(self.encoded.beyond(self.before.has))


# Entries that are always written as a whole: how their content becomes a document.
_WHOLE: Mapping[str, Callable[[Any, Codec], object]] = {
    "deliveries": lambda items, codec: [DELIVERY.write(each, codec) for each in items],
    "fan_in": lambda buffers, _: fan_in_tree(buffers),
    "suspended": lambda items, codec: [SUSPENDED.write(each, codec) for each in items],
    "delayed": lambda items, codec: [DELAYED.write(each, codec) for each in items],
    "cancelled": lambda wish, _: [wish.at, wish.by, wish.reason],
    "limits": lambda limits, _: [limits.deadline, dict(limits.budget), dict(limits.spent)],
}

# Sequences that only grow: how an element becomes a document.
_TRAILS: Mapping[str, Callable[[Any, Codec], object]] = {
    "outputs": OUTPUT.write,
    "answered": lambda answer, _: [answer.request_id, answer.at, answer.by, answer.what],
    "received": lambda message_id, _: message_id,
}


@dataclass(slots=True)
class Changes:
    """The entries that differ between two snapshots, and removed paths."""

    codec: Codec
    tails: dict[str, list[tuple[object, Encoded]]] = field(default_factory=new_dict)
    """The elements of incomplete chunks, as they were last written."""
    fresh: dict[str, Fresh] = field(default_factory=new_dict)
    gone: list[str] = field(default_factory=new_list)

    def compare(self, before: Snapshot | None, after: Snapshot, prefix: str = "") -> Changes:
        """Add the entries of `after` that differ from `before`, or all of them if `before` is None.

        A prefix is the path of a sub-workflow.
        """
        counts = [after.turn, after.iteration, after.since_input]
        if prefix and (before is None or counts != [before.turn, before.iteration, before.since_input]):
            self.fresh[f"{prefix}counts"] = Fresh(document(counts), "passing")
        before = before or _NOTHING
        self._values(before.executors, after.executors, lambda key: f"{prefix}executor/{key}")
        self._values(before.state, after.state, lambda key: f"{prefix}state/{_escaped(key[0])}/{key[1]}")
        for key, request in after.requests.items():
            if before.requests.get(key) is not request:
                self.fresh[f"{prefix}request/{key}"] = Fresh(document(request_tree(request, self.codec)), "lasting")
        self.gone += [f"{prefix}request/{key}" for key in before.requests if key not in after.requests]
        for name in _WHOLE:
            if (new := getattr(after, name)) is not (old := getattr(before, name)):
                self._whole(name, old, new, prefix)
        for name in _TRAILS:
            if (new := getattr(after, name)) is not (old := getattr(before, name)):
                self._trail(name, old, new, prefix)
        if after.kwargs is not before.kwargs:
            old, new = ({} if each is None else {"kwargs": each} for each in (before.kwargs, after.kwargs))
            self._values(old, new, lambda key: f"{prefix}{key}")
        self._values(before.carried, after.carried, lambda key: f"{prefix}carried/{key}")
        self._children(before.children, after.children, prefix)
        return self

    def _children(self, before: Mapping[str, Snapshot], after: Mapping[str, Snapshot], prefix: str) -> None:
        for key in {**after, **before}:
            path, old, new = f"{prefix}child/{_escaped(key)}/", before.get(key), after.get(key)
            if new is None:
                self.gone += [f"{path}counts", *Changes(self.codec).compare(old, _NOTHING, path).gone]
            elif new is not old:
                self.compare(old, new, path)

    def _values(self, before: Mapping[Any, object], after: Mapping[Any, object], path: Callable[[Any], str]) -> None:
        if before is after:
            return
        changed = [key for key, value in after.items() if before.get(key) is not value]
        for key in changed:
            new, old = as_kept(after[key]).require_encoded(), before.get(key)
            self.fresh[path(key)] = Fresh(new, "value", None if old is None else as_kept(old).encoded)
        # Fewer keys were kept than there were: some are removed.
        if len(before) > len(after) - sum([key not in before for key in changed]):
            self.gone += [path(key) for key in before if key not in after]

    def _whole(self, name: str, before: Any, after: Any, prefix: str) -> None:
        if before == after:
            return
        if not after or after == Limits():
            self.gone.append(f"{prefix}{name}")
            return
        write = _WHOLE[name]
        encoded = document(write(after, self.codec))
        # Of a log that is passed on, only the new elements are written.
        old = document(write(before, self.codec)) if encoded.refs and before else None
        self.fresh[f"{prefix}{name}"] = Fresh(encoded, "passing", old)

    def _trail(self, name: str, before: Trail[Any], after: Trail[Any], prefix: str) -> None:
        shared = len(before.sealed)
        # A trail only grows: if it has a chunk, it has everything before it.
        if not shared or shared > len(after.sealed) or after.sealed[shared - 1] is not before.sealed[shared - 1]:
            shared = 0
        chunks, count_before = [*after.sealed, after.tail], len(before.sealed)
        for index in range(shared, len(chunks)):
            path, chunk = f"{prefix}{name}/{index}", chunks[index]
            old = before.tail if index == count_before else ()
            is_full = index < len(after.sealed)
            if chunk and (is_full or chunk != old):
                self.fresh[path] = self._chunk(path, chunk, _TRAILS[name], old, "full" if is_full else "passing")
            if is_full:
                self.tails.pop(path, None)
        count, count_before = [len(trail.sealed) + bool(trail.tail) for trail in (after, before)]
        self.gone += [f"{prefix}{name}/{index}" for index in range(count, count_before)]

    def _chunk(
        self, path: str, items: tuple[Any, ...], write: Callable[[Any, Codec], object], before: Any, kind: EntryKind
    ) -> Fresh:
        """Encode a chunk, reusing the elements that were encoded when it was last written."""
        known = self.tails.get(path, [])
        shared = 0
        while shared < min(len(known), len(items)) and known[shared][0] is items[shared]:
            shared += 1
        written = known[:shared] + [(item, document(write(item, self.codec))) for item in items[shared:]]
        self.tails[path] = written
        encoded = document([each for _, each in written])
        if not encoded.refs:
            return Fresh(encoded, kind)
        old = [each for (item, each), former in zip(written, before, strict=False) if item is former]
        return Fresh(encoded, kind, document(old))


@lru_cache(maxsize=1024)
def _escaped(name: str) -> str:
    return quote(name, safe="")


@value_class
class Author:
    """The run and the graph that write checkpoints."""

    origin: NewRun
    """The start of the run, so that a copied checkpoint carries the whole identity of its run."""
    graph_signature_hash: str
    definition_version: int


@dataclass(slots=True)
class _Draft:
    """A checkpoint under construction: inline texts, and new blobs by path."""

    pieces: dict[str, bytes] = field(default_factory=new_dict)
    fresh: dict[str, Blob] = field(default_factory=new_dict)
    nested: list[Blob] = field(default_factory=new_list)
    changed: list[str] = field(default_factory=new_list)
    regrouped: set[str] = field(default_factory=new_set)
    """Paths whose blobs moved into a group: the paths are removed, the blobs are still needed."""
    room: int = PIECES_LENGTH_MAX


class CheckpointWriter:
    """Writes the checkpoints of one run.

    Small entries that change in every superstep are inline: passing ones, and values that changed twice in a row. Once
    they stop changing they become blobs, so that each change is written at most twice.
    """

    def __init__(
        self, codec: Codec, graph: Mapping[str, Any], author: Author, head: WrittenCheckpoint | None = None
    ) -> None:
        self.codec = codec
        self.author = author
        self.head = head or WrittenCheckpoint()
        """The last checkpoint that was committed. The next one follows it."""
        self._graph = document(graph).blob()
        self._tails: dict[str, list[tuple[object, Encoded]]] = {}
        self._next = self.head

    def write(
        self,
        snapshot: Snapshot,
        *,
        position: int,
        previous_id: str | None,
        timestamp: str,
        kind: str,
        trace: str | None = None,
    ) -> tuple[Manifest, tuple[Blob, ...]]:
        """Return the manifest of a snapshot and the blobs that the previous checkpoint may not have."""
        head = self.head
        # `compare` may list unchanged entries; `_place` skips them.
        changes = Changes(self.codec, self._tails).compare(head.snapshot, snapshot)
        if head.snapshot is None:
            there = {"graph", *changes.fresh}
            changes.gone = [path for path in head.contents.entries() if path not in there]
        contents, blobs, changed = self._contents(changes)
        run = self.author.origin
        checkpoint_id = f"{run.run_id}@{position}"
        manifest = Manifest(
            checkpoint_id,
            run.run_id,
            # A run keeps its first workflow name, even if a renamed workflow continues it.
            run.workflow_name,
            position,
            previous_id,
            timestamp,
            snapshot.iteration,
            self._header(snapshot, (checkpoint_id, previous_id, timestamp, kind), trace),
            contents.toc,
            pieces_text(contents.pieces),
            base=contents.base,
            gone=tuple(contents.gone),
        )
        self._next = WrittenCheckpoint(manifest, contents, snapshot, frozenset(changed))
        return manifest, blobs

    def _header(self, snapshot: Snapshot, identity: tuple[str, str | None, str, str], trace: str | None) -> bytes:
        """Return the header of a checkpoint. The order of its members is part of the format."""
        author, origin = self.author, self.author.origin
        checkpoint_id, previous_id, timestamp, kind = identity
        members: dict[str, Any] = {
            "format": FORMAT,
            "workflow_name": origin.workflow_name,
            "checkpoint_id": checkpoint_id,
            "run_id": origin.run_id,
            "previous_checkpoint_id": previous_id,
            "timestamp": timestamp,
            "iteration_count": snapshot.iteration,
            "graph_signature_hash": author.graph_signature_hash,
            "kind": kind,
            "turn": snapshot.turn,
            "since_input": snapshot.since_input,
            "definition_version": author.definition_version,
            "pending_request_info_events": {
                request.id: {
                    "type": "request_info",
                    "request_id": request.id,
                    "source_executor_id": request.executor_id,
                    "request_type": describe_stored(request.request_type),
                    "response_type": describe_stored(request.response_type),
                }
                for request in snapshot.requests.values()
            },
            "withheld_kwargs": list(snapshot.withheld_kwargs),
            "run": {name: getattr(origin, name) for name in ORIGIN},
            "metadata": {},
            "version": "1.0",
        }
        return dumps(members if trace is None else {**members, "trace": trace})

    def commit(self, manifest: Manifest) -> None:
        """Make the last written checkpoint the head. Until then, the next one still follows the previous head."""
        assert manifest is self._next.manifest, "the head is what was written last"
        self.head = self._next

    def _contents(self, changes: Changes) -> tuple[Contents, tuple[Blob, ...], list[str]]:
        """Return the contents of the checkpoint, its new blobs, and the changed values."""
        before, gone, draft = self.head.contents, frozenset(changes.gone), _Draft()
        if before.toc.get("graph") != self._graph.hash:
            draft.fresh["graph"] = self._graph
        for path, entry in changes.fresh.items():
            if before.pieces.get(path) != entry.encoded.text:
                self._place(draft, path, entry)
        for path, text in before.pieces.items():
            if path not in draft.pieces and path not in draft.fresh and path not in gone:
                # It did not change again, so it becomes a blob and costs nothing from now on.
                draft.fresh[path] = Blob.of(text)
        for path, entry in changes.fresh.items():
            if entry.kind == "full":
                self._gather(draft, path)
        contents, base = before.followed(
            draft.pieces,
            changed={path: blob.hash for path, blob in draft.fresh.items()},
            removed=[path for path in (*changes.gone, *draft.regrouped) if path in before.toc or path in before.listed],
        )
        blobs = [*draft.nested, *draft.fresh.values(), *([] if base is None else [base])]
        return contents, tuple({blob.hash: blob for blob in blobs}.values()), draft.changed

    def _gather(self, draft: _Draft, path: str) -> None:
        """Group the full chunks of a trail."""

        def address(path: str) -> str | None:
            if path in draft.fresh:
                return draft.fresh[path].hash
            return None if path in draft.regrouped else self.head.contents.address(path)

        for each in gathered(path, address):
            draft.nested += [draft.fresh.pop(old) for old in (each.path, *each.gone) if old in draft.fresh]
            draft.fresh[each.path] = each.blob
            draft.regrouped.update(each.gone)

    def _place(self, draft: _Draft, path: str, entry: Fresh) -> None:
        """Store an entry inline or as a blob, unless it is there already."""
        head, encoded = self.head, entry.encoded
        text, address = encoded.text, head.contents.address(path)
        changes_soon = entry.kind == "passing" or (
            entry.kind == "value" and (path in head.changed or path in head.contents.pieces)
        )
        # The blobs of an inline text would have to be written with every checkpoint.
        if changes_soon and not encoded.refs and len(text) <= min(draft.room, PIECE_LENGTH_MAX):
            if address is not None and address == digest(text):
                return
            draft.pieces[path] = text
            draft.room -= len(text)
        else:
            blob = encoded.blob()
            if address == blob.hash:
                return
            draft.fresh[path] = blob
            draft.nested += entry.nested()
        if entry.kind == "value":
            draft.changed.append(path)
