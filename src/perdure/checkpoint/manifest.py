"""A snapshot as a manifest and its parts, and back. docs/checkpoint-format.md describes what is written here."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint.changes import ChangeFinder
from perdure.checkpoint.contents import Contents, entries_of, gathered, only, paths_of, pieces_text
from perdure.checkpoint.documents import PieceReader, PieceWriter, tree_of
from perdure.codec import DamagedPartError, dumps, loads, plain, quoted, quoted_or_null, verified
from perdure.data import frozen, mutable, value
from perdure.errors import CheckpointDamagedError, PartDamagedError, WorkflowCheckpointException
from perdure.records import Manifest, NewRun, Part, digest
from perdure.typenames import describe_stored

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from perdure.checkpoint.changes import Changes, Fresh
    from perdure.codec import Codec
    from perdure.kernel import Answered, Snapshot, Trail

FORMAT = 2


@frozen
class Author:
    """Whose checkpoints they are, and of which graph: what all of one life say."""

    origin: NewRun
    """How the run began, so that a copy of a checkpoint in another store is a copy of the run."""
    graph_signature_hash: str
    definition_version: int


class Heading:
    """Makes the headers of a run's checkpoints. What all have in common is made once."""

    def __init__(self, author: Author) -> None:
        self.author = author
        origin = author.origin
        run = {
            "created_at": origin.created_at,
            "nonce": origin.nonce,
            "input_digest": origin.input_digest,
            "parent_checkpoint_id": origin.parent_checkpoint_id,
        }
        # Filled in one go: to put it together from a dozen pieces takes twice as long, with every superstep.
        self._form = (
            b'{"format":%d,"workflow_name":%b,"checkpoint_id":%%b,"run_id":%b,"previous_checkpoint_id":%%b'
            b',"timestamp":%%b,"iteration_count":%%d,"graph_signature_hash":%b,"kind":%%b,"turn":%%d,"since_input":%%d'
            b',"definition_version":%d,"pending_request_info_events":%%b,"withheld_kwargs":%%b'
            b',"run":%b,"metadata":{},"version":"1.0"%%b}'
        ) % (
            FORMAT,
            _literal(quoted(origin.workflow_name)),
            _literal(quoted(origin.run_id)),
            _literal(quoted(author.graph_signature_hash)),
            author.definition_version,
            _literal(dumps(run)),
        )

    def text(
        self,
        snapshot: Snapshot,
        *,
        checkpoint_id: str,
        previous_id: str | None,
        timestamp: str,
        kind: str,
        trace: str | None,
    ) -> bytes:
        """The header of one checkpoint."""
        return self._form % (
            quoted(checkpoint_id),
            quoted_or_null(previous_id),
            quoted(timestamp),
            snapshot.iteration,
            quoted(kind),
            snapshot.turn,
            snapshot.since_input,
            dumps(_requests(snapshot)) if snapshot.requests else b"{}",
            dumps(list(snapshot.withheld_kwargs)) if snapshot.withheld_kwargs else b"[]",
            b"" if trace is None else b',"trace":' + dumps(trace),
        )


def _literal(text: bytes) -> bytes:
    """A text that stands in a form as it is."""
    return text.replace(b"%", b"%%")


def _requests(snapshot: Snapshot) -> dict[str, Any]:
    return {
        request.id: {
            "type": "request_info",
            "request_id": request.id,
            "source_executor_id": request.executor_id,
            "request_type": describe_stored(request.request_type),
            "response_type": describe_stored(request.response_type),
        }
        for request in snapshot.requests.values()
    }


PIECE_LENGTH_MAX = 1024
"""What is longer becomes a part, however often it changes."""

PIECES_LENGTH_MAX = 16 * 1024
"""Of all that stands in one checkpoint itself."""

_TRACE = b'"trace"'
"""In a header: most have none, and need not be read for it."""


@value
class Written:
    """A checkpoint, as its successor has to know it."""

    manifest: Manifest | None = None
    contents: Contents = Contents()
    snapshot: Snapshot | None = None
    """What it was made of; None if its entries have to be compared one by one."""
    changed: frozenset[str] = frozenset()
    """The values that were other ones than in its predecessor."""


@mutable
class _Draft:
    """A checkpoint while it is put together: what stands in it, and its new parts by path."""

    pieces: dict[str, bytes] = field(default_factory=dict[str, bytes])
    fresh: dict[str, Part] = field(default_factory=dict[str, Part])
    nested: list[Part] = field(default_factory=list[Part])
    changed: list[str] = field(default_factory=list[str])
    gone: set[str] = field(default_factory=set[str])
    """Paths at which nothing stands any more, though what stood there is needed."""
    room: int = PIECES_LENGTH_MAX


class Writer:
    """Writes the checkpoints of one run, each as what changed since the one before.

    Small things that change with every superstep stand in the checkpoint itself: what comes and goes, and values that
    have changed twice in a row. What then rests becomes a part, so that each change is written at most twice.
    """

    def __init__(self, codec: Codec, graph: Mapping[str, Any], author: Author, head: Written | None = None) -> None:
        self._codec = codec
        self._finder = ChangeFinder(PieceWriter(codec))
        self._graph = plain(graph).part()
        self._heading = Heading(author)
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
    ) -> tuple[Manifest, tuple[Part, ...]]:
        """The manifest of a snapshot, and the parts that its predecessor might not have."""
        contents, parts, changed = self._contents(self._changes(snapshot))
        run = self._heading.author.origin
        checkpoint_id = f"{run.run_id}@{position}"
        header = self._heading.text(
            snapshot, checkpoint_id=checkpoint_id, previous_id=previous_id, timestamp=timestamp, kind=kind, trace=trace
        )
        manifest = Manifest(
            checkpoint_id,
            run.run_id,
            # A run keeps the name that it began under, whatever the workflow that goes on with it is called.
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
        return manifest, parts

    def stand(self, manifest: Manifest) -> None:
        """What was written last is the head now. Until this is said the next one follows the same predecessor."""
        assert manifest is self._next.manifest, "the head is what was written last"
        self._head = self._next

    @property
    def standing(self) -> Snapshot | None:
        """What the head was made of; None if that is not known."""
        return self._head.snapshot

    def is_of(self, codec: Codec, author: Author) -> bool:
        """Whether it writes in this author's name, with this codec."""
        return self._codec is codec and self._heading.author == author

    def follows(self, manifest: Manifest | None) -> bool:
        """Whether the next checkpoint is written as what changes since this one."""
        return self._head.manifest is manifest

    def _changes(self, snapshot: Snapshot) -> Changes:
        """What has changed; an entry may be the same though it was written anew."""
        before = self._head
        changes = self._finder.changes(before.snapshot, snapshot)
        if before.snapshot is None:
            there = {"graph", *changes.fresh}
            changes.gone = [path for path in before.contents.entries() if path not in there]
        return changes

    def _contents(self, changes: Changes) -> tuple[Contents, tuple[Part, ...], list[str]]:
        """What the checkpoint has, the parts to be written for it, and the values that have changed."""
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
                # It has not changed again: from now on it costs nothing.
                draft.fresh[path] = Part.of(text)
        if full:
            self._gather(draft, full)
        contents, base = before.followed(
            draft.pieces,
            changed={path: part.hash for path, part in draft.fresh.items()},
            removed=[path for path in (*changes.gone, *draft.gone) if path in before.toc or path in before.listed],
        )
        if not draft.fresh and base is None:
            return contents, (), draft.changed
        parts = [*draft.nested, *draft.fresh.values(), *([] if base is None else [base])]
        return contents, tuple({part.hash: part for part in parts}.values()), draft.changed

    def _gather(self, draft: _Draft, full: Sequence[str]) -> None:
        """Put chunks of trails together that are full."""

        def address(path: str) -> str | None:
            if path in draft.fresh:
                return draft.fresh[path].hash
            return None if path in draft.gone else self._head.contents.address(path)

        for path in full:
            for each in gathered(path, address):
                draft.nested += [draft.fresh.pop(old) for old in (each.path, *each.gone) if old in draft.fresh]
                draft.fresh[each.path] = each.part
                draft.gone.update(each.gone)

    def _place(self, draft: _Draft, path: str, entry: Fresh) -> None:
        """Put an entry where it belongs, unless it stands there already."""
        text, address = entry.encoded.text, self._head.contents.address(path)
        if len(text) <= draft.room and self._stands_inside(path, entry):
            if address is not None and address == digest(text):
                return
            draft.pieces[path] = text
            draft.room -= len(text)
        else:
            part = entry.part()
            if address == part.hash:
                return
            draft.fresh[path] = part
            draft.nested += entry.nested()
        if entry.pace == "value":
            draft.changed.append(path)

    def _stands_inside(self, path: str, entry: Fresh) -> bool:
        """Whether an entry is small and will soon be another one."""
        if entry.encoded.refs or len(entry.encoded.text) > PIECE_LENGTH_MAX:
            # What it refers to would have to be brought along with every checkpoint.
            return False
        is_busy = path in self._head.changed or path in self._head.contents.pieces
        return entry.pace == "passing" or (entry.pace == "value" and is_busy)


def header_of(manifest: Manifest) -> dict[str, Any]:
    """The header of a manifest. Raises WorkflowCheckpointException for a format of a later release."""
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
    """Name the checkpoint whose parts are being read when one of them proves damaged."""
    try:
        yield
    except PartDamagedError as error:
        raise CheckpointDamagedError(checkpoint_id, error.reason) from error


def trace_of(manifest: Manifest) -> str | None:
    """The span under which a checkpoint was written, if one was."""
    return header_of(manifest).get("trace") if _TRACE in manifest.header else None


def origin_of(manifest: Manifest) -> NewRun:
    """How the run of a checkpoint began, as far as it is told."""
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
    """Whether the checkpoint leaves nothing to do and nothing to answer. Raises CheckpointDamagedError."""
    at_work = ("deliveries", "suspended", "delayed", "cancelled")
    return not any(path in at_work or path.startswith("request/") for path in known_paths(manifest))


def known_paths(manifest: Manifest) -> set[str]:
    """The paths that say how the run stands and what it gave; no part is read. Raises CheckpointDamagedError."""
    try:
        return paths_of(manifest)
    except DamagedPartError as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, str(error)) from error


class Reader:
    """Reads the snapshot of one checkpoint. Values stay encoded until they are asked for."""

    def __init__(self, manifest: Manifest, parts: Mapping[str, bytes], codec: Codec) -> None:
        self._manifest = manifest
        self._parts = parts
        # What its own pieces refer to is for its successor to bring.
        self._pieces = PieceReader(codec, parts, manifest.checkpoint_id, brings_parts=bool(manifest.refs))

    def snapshot(self) -> Snapshot:
        """The run as this checkpoint has it. Raises CheckpointDamagedError."""
        header = header_of(self._manifest)
        counts = (header["turn"], self._manifest.iteration_count, header["since_input"])
        try:
            snapshot = self._pieces.snapshot(tree_of(entries_of(self._manifest, self._parts)), counts)
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error
        return replace(snapshot, withheld_kwargs=tuple(header.get("withheld_kwargs", ())))

    def written(self, snapshot: Snapshot | None) -> Written:
        """What the writer of the next checkpoint has to know, with the snapshot that was read from this one.

        Raises CheckpointDamagedError.
        """
        try:
            contents = Contents.of(self._manifest, self._parts)
        except DamagedPartError as error:
            raise self._damaged(error) from error
        if self._manifest.refs:
            # We write no such pieces: all of them are written anew.
            return Written(self._manifest, replace(contents, pieces={}))
        return Written(self._manifest, contents, snapshot)

    def answered(self) -> Trail[Answered]:
        """The requests that were answered so far; nothing else is looked at."""
        try:
            manifest = only(self._manifest, ("answered/",))
            return self._pieces.answered(tree_of(entries_of(manifest, self._parts)))
        except (DamagedPartError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def graph(self) -> dict[str, Any]:
        """What the checkpoint says of the graph that wrote it; empty for one that was made by hand."""
        address = self._manifest.toc.get("graph")
        try:
            return {} if address is None else loads(verified(self._parts, address))
        except DamagedPartError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> CheckpointDamagedError:
        return CheckpointDamagedError(self._manifest.checkpoint_id, str(error) or repr(error))
