"""Write a snapshot as a manifest and blobs, and read it. `docs/checkpoint-format.md` describes the format."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.changes import ChangeFinder
from perdure.checkpoint.contents import Contents, entries_of, gathered, only, paths_of, pieces_text
from perdure.checkpoint.documents import PieceReader, PieceWriter, tree_of
from perdure.codec import DamagedPartError, dumps, loads, plain, verified
from perdure.errors import CheckpointDamagedError, PartDamagedError, WorkflowCheckpointException
from perdure.records import Blob, Manifest, NewRun, digest
from perdure.typenames import describe_stored

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from perdure.checkpoint.changes import Changes, Fresh
    from perdure.codec import Codec
    from perdure.kernel import Answered, Snapshot, Trail

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Author:
    """The run and the graph that write checkpoints."""

    origin: NewRun
    """The start of the run, so that a copied checkpoint carries the whole identity of its run."""
    graph_signature_hash: str
    definition_version: int


def _header(
    author: Author,
    snapshot: Snapshot,
    *,
    checkpoint_id: str,
    previous_id: str | None,
    timestamp: str,
    kind: str,
    trace: str | None,
) -> bytes:
    """Return the header of a checkpoint. The order of its members is part of the format."""
    origin = author.origin
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
        "run": {
            "created_at": origin.created_at,
            "nonce": origin.nonce,
            "input_digest": origin.input_digest,
            "parent_checkpoint_id": origin.parent_checkpoint_id,
        },
        "metadata": {},
        "version": "1.0",
    }
    if trace is not None:
        members["trace"] = trace
    return dumps(members)


PIECE_LENGTH_MAX = 1024
"""A longer text becomes a blob, however often it changes."""

PIECES_LENGTH_MAX = 16 * 1024
"""The limit for all inline texts of one checkpoint."""

_TRACE = b'"trace"'
"""Most headers have no trace, and need not be parsed for it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint, as the writer of the next one needs it."""

    manifest: Manifest | None = None
    contents: Contents = field(default_factory=Contents)
    snapshot: Snapshot | None = None
    """The snapshot it was made of; None if entries must be compared one by one."""
    changed: frozenset[str] = frozenset()
    """The values that differ from the previous checkpoint."""


@dataclass(slots=True)
class _Draft:
    """A checkpoint under construction: inline texts, and new blobs by path."""

    pieces: dict[str, bytes] = field(default_factory=dict[str, bytes])
    fresh: dict[str, Blob] = field(default_factory=dict[str, Blob])
    nested: list[Blob] = field(default_factory=list[Blob])
    changed: list[str] = field(default_factory=list[str])
    gone: set[str] = field(default_factory=set[str])
    """Removed paths whose blobs are still needed."""
    room: int = PIECES_LENGTH_MAX


class Writer:
    """Writes the checkpoints of one run, each as its differences from the previous one.

    Small entries that change in every superstep are inline: passing ones, and values that changed twice in a row. Once
    they stop changing they become blobs, so that each change is written at most twice.
    """

    def __init__(self, codec: Codec, graph: Mapping[str, Any], author: Author, head: Written | None = None) -> None:
        self._codec = codec
        self._finder = ChangeFinder(PieceWriter(codec))
        self._graph = plain(graph).blob()
        self._author = author
        self._head = head or Written()
        self._next = self._head

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
        head = self._head
        # An entry may be listed although it is equal.
        changes = self._finder.changes(head.snapshot, snapshot)
        if head.snapshot is None:
            there = {"graph", *changes.fresh}
            changes.gone = [path for path in head.contents.entries() if path not in there]
        contents, blobs, changed = self._contents(changes)
        run = self._author.origin
        checkpoint_id = f"{run.run_id}@{position}"
        header = _header(
            self._author,
            snapshot,
            checkpoint_id=checkpoint_id,
            previous_id=previous_id,
            timestamp=timestamp,
            kind=kind,
            trace=trace,
        )
        manifest = Manifest(
            checkpoint_id,
            run.run_id,
            # A run keeps its first workflow name, even if a renamed workflow continues it.
            run.workflow_name,
            position,
            previous_id,
            timestamp,
            snapshot.iteration,
            header,
            contents.toc,
            pieces_text(contents.pieces),
            base=contents.base,
            gone=tuple(contents.gone),
        )
        self._next = Written(manifest, contents, snapshot, frozenset(changed))
        return manifest, blobs

    def stand(self, manifest: Manifest) -> None:
        """Make the last written checkpoint the head. Until then, the next one still follows the previous head."""
        assert manifest is self._next.manifest, "the head is what was written last"
        self._head = self._next

    @property
    def standing(self) -> Snapshot | None:
        """The snapshot of the head; None if it is not known."""
        return self._head.snapshot

    def is_of(self, codec: Codec, author: Author) -> bool:
        """Return True if this writer has the same author and codec."""
        return self._codec is codec and self._author == author

    def follows(self, manifest: Manifest | None) -> bool:
        """Return True if the next checkpoint is written as differences from this one."""
        return self._head.manifest is manifest

    def _contents(self, changes: Changes) -> tuple[Contents, tuple[Blob, ...], list[str]]:
        """Return the contents of the checkpoint, its new blobs, and the changed values."""
        before, gone, draft = self._head.contents, frozenset(changes.gone), _Draft()
        if before.toc.get("graph") != self._graph.hash:
            draft.fresh["graph"] = self._graph
        full: list[str] = []
        for path, entry in changes.fresh.items():
            if before.pieces.get(path) != entry.encoded.text:
                self._place(draft, path, entry)
            if entry.pace == "full":
                full.append(path)
        for path, text in before.pieces.items():
            if path not in draft.pieces and path not in draft.fresh and path not in gone:
                # It did not change again, so it becomes a blob and costs nothing from now on.
                draft.fresh[path] = Blob.of(text)
        if full:
            self._gather(draft, full)
        contents, base = before.followed(
            draft.pieces,
            changed={path: blob.hash for path, blob in draft.fresh.items()},
            removed=[path for path in (*changes.gone, *draft.gone) if path in before.toc or path in before.listed],
        )
        if not draft.fresh and base is None:
            return contents, (), draft.changed
        blobs = [*draft.nested, *draft.fresh.values(), *([] if base is None else [base])]
        return contents, tuple({blob.hash: blob for blob in blobs}.values()), draft.changed

    def _gather(self, draft: _Draft, full: Sequence[str]) -> None:
        """Group the full chunks of trails."""

        def address(path: str) -> str | None:
            if path in draft.fresh:
                return draft.fresh[path].hash
            return None if path in draft.gone else self._head.contents.address(path)

        for path in full:
            for each in gathered(path, address):
                draft.nested += [draft.fresh.pop(old) for old in (each.path, *each.gone) if old in draft.fresh]
                draft.fresh[each.path] = each.blob
                draft.gone.update(each.gone)

    def _place(self, draft: _Draft, path: str, entry: Fresh) -> None:
        """Store an entry inline or as a blob, unless it is there already."""
        text, address = entry.encoded.text, self._head.contents.address(path)
        if len(text) <= draft.room and self._stands_inside(path, entry):
            if address is not None and address == digest(text):
                return
            draft.pieces[path] = text
            draft.room -= len(text)
        else:
            blob = entry.blob()
            if address == blob.hash:
                return
            draft.fresh[path] = blob
            draft.nested += entry.nested()
        if entry.pace == "value":
            draft.changed.append(path)

    def _stands_inside(self, path: str, entry: Fresh) -> bool:
        """Return True if an entry is small and will probably change again soon."""
        if entry.encoded.refs or len(entry.encoded.text) > PIECE_LENGTH_MAX:
            # Its blobs would have to be written with every checkpoint.
            return False
        is_busy = path in self._head.changed or path in self._head.contents.pieces
        return entry.pace == "passing" or (entry.pace == "value" and is_busy)


def header_of(manifest: Manifest) -> dict[str, Any]:
    """Return the header of a manifest. Raises WorkflowCheckpointException for a newer format."""
    try:
        header = loads(manifest.header)
        written = header["format"]
    except (DamagedPartError, KeyError, TypeError) as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, f"its header can't be read: {error}") from error
    if written > FORMAT:
        raise WorkflowCheckpointException(
            f"checkpoint {manifest.checkpoint_id!r} has format {written}, this perdure reads up to {FORMAT}; "
            "upgrade perdure to read it"
        )
    return header


@contextmanager
def naming(checkpoint_id: str) -> Generator[None]:
    """Add the checkpoint's id to errors about damaged blobs."""
    try:
        yield
    except PartDamagedError as error:
        raise CheckpointDamagedError(checkpoint_id, error.reason) from error


def trace_of(manifest: Manifest) -> str | None:
    """Return the trace context under which a checkpoint was written."""
    return header_of(manifest).get("trace") if _TRACE in manifest.header else None


def origin_of(manifest: Manifest) -> NewRun:
    """Return how the run of a checkpoint started."""
    told = header_of(manifest).get("run", {})
    return NewRun(
        manifest.run_id,
        manifest.workflow_name,
        told.get("created_at", manifest.timestamp),
        told.get("nonce", manifest.run_id),
        told.get("input_digest"),
        told.get("parent_checkpoint_id"),
    )


def is_settled(manifest: Manifest) -> bool:
    """Return True if the checkpoint has no work and no open requests. Raises CheckpointDamagedError."""
    at_work = ("deliveries", "suspended", "delayed", "cancelled")
    return not any(path in at_work or path.startswith("request/") for path in known_paths(manifest))


def known_paths(manifest: Manifest) -> set[str]:
    """Return the paths about the run's status and outputs, without reading a blob. Raises CheckpointDamagedError."""
    try:
        return paths_of(manifest)
    except DamagedPartError as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, str(error)) from error


class Reader:
    """Reads the snapshot of one checkpoint. Values stay encoded until they are needed."""

    def __init__(self, manifest: Manifest, blobs: Mapping[str, bytes], codec: Codec) -> None:
        self._manifest = manifest
        self._blobs = blobs
        # The next checkpoint must write the blobs of inline texts again.
        self._pieces = PieceReader(codec, blobs, manifest.checkpoint_id, brings_blobs=bool(manifest.refs))

    def snapshot(self) -> Snapshot:
        """Return the snapshot. Raises CheckpointDamagedError."""
        header = header_of(self._manifest)
        counts = (header["turn"], self._manifest.iteration_count, header["since_input"])
        try:
            snapshot = self._pieces.snapshot(tree_of(entries_of(self._manifest, self._blobs)), counts)
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error
        return replace(snapshot, withheld_kwargs=tuple(header.get("withheld_kwargs", ())))

    def written(self, snapshot: Snapshot | None) -> Written:
        """Return what the writer of the next checkpoint needs, given the snapshot of this one.

        Raises CheckpointDamagedError.
        """
        try:
            contents = Contents.of(self._manifest, self._blobs)
        except DamagedPartError as error:
            raise self._damaged(error) from error
        if self._manifest.refs:
            # Inline texts with references are no longer written, so write all of them again.
            return Written(self._manifest, replace(contents, pieces={}))
        return Written(self._manifest, contents, snapshot)

    def answered(self) -> Trail[Answered]:
        """Return the answered requests without reading anything else."""
        try:
            manifest = only(self._manifest, ("answered/",))
            return self._pieces.answered(tree_of(entries_of(manifest, self._blobs)))
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def graph(self) -> dict[str, Any]:
        """Return the stored description of the graph; empty for a checkpoint that was made by hand."""
        address = self._manifest.toc.get("graph")
        try:
            return {} if address is None else loads(verified(self._blobs, address))
        except DamagedPartError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CheckpointDamagedError:
        return CheckpointDamagedError(self._manifest.checkpoint_id, str(error) or repr(error))
