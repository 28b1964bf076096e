"""A checkpoint as a manifest: its header, its entries by path, and the snapshot they hold.

An entry is inline, in the table of contents, or in the base of that table. Full chunks of a trail are grouped by
sixteen, so that the table of contents stays short however long a run gets. `docs/checkpoint-format.md` describes the
format.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.checkpoint.documents import DocumentReader, Entry, require_form, tree_of
from perdure.codec import MALFORMED, Codec, DamagedPartError, Encoded, document, dumps, loads, verified
from perdure.data_classes import new_dict, value_class
from perdure.errors import CheckpointDamagedError, PartDamagedError, WorkflowCheckpointException
from perdure.records import Blob, Manifest, NewRun

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from perdure.kernel import Answered, Snapshot, Trail

FORMAT = 2

ORIGIN = ("created_at", "nonce", "input_digest", "parent_checkpoint_id")
"""The start of a run in a header, in the order of the format."""

_TRACE = b'"trace"'
"""Most headers have no trace, and need not be parsed for it."""

TOC_LENGTH_MAX = 4096
"""A longer table of contents becomes a blob, and later checkpoints only list the differences from it."""

# Requests stay in the table, because stores compare them with what a command expects. Entries about status and outputs
# stay too, so that they can be read without the rest.
_LISTED = ("state/", "executor/", "carried/", "child/")

_ENTRY_LENGTH = 48
"""The length of a table entry without its path: a hash and punctuation."""


@value_class
class Contents:
    """The entries of one checkpoint. Those in `pieces` and `toc` override those `listed` in the base.

    Attributes:
        pieces: Inline texts.
        gone: The paths of the base that no longer exist, in order.
        spent: The total size of the differences from the base in all checkpoints since it was written.
    """

    pieces: Mapping[str, bytes] = field(default_factory=new_dict)
    toc: Mapping[str, str] = field(default_factory=new_dict)
    base: str | None = None
    listed: Mapping[str, str] = field(default_factory=new_dict)
    gone: Mapping[str, None] = field(default_factory=new_dict)
    spent: int = 0

    @classmethod
    def of(cls, manifest: Manifest, blobs: Mapping[str, bytes]) -> Contents:
        """Read the contents of a checkpoint. `blobs` must hold its base. Raises DamagedPartError."""
        listed = {} if manifest.base is None else _listed(verified(blobs, manifest.base))
        changed = sum(path.startswith(_LISTED) for path in manifest.toc) + len(manifest.gone)
        return cls(
            _pieces(manifest),
            manifest.toc,
            manifest.base,
            listed,
            dict.fromkeys(manifest.gone),
            # The cost as if the differences had come one by one.
            spent=changed * changed * _ENTRY_LENGTH // 2,
        )

    def entries(self) -> dict[str, Entry]:
        """Return all entries by path: a hash or an inline text."""
        rest = {path: address for path, address in self.listed.items() if path not in self.gone}
        return {**rest, **self.toc, **self.pieces}

    def address(self, path: str) -> str | None:
        """Return the hash of the blob at a path."""
        if path in self.pieces:
            return None
        return self.toc.get(path) or (None if path in self.gone else self.listed.get(path))

    def followed(
        self, pieces: Mapping[str, bytes], *, changed: Mapping[str, str], removed: Iterable[str]
    ) -> tuple[Contents, Blob | None]:
        """Return the contents of the next checkpoint, and the blob of its base if that is new.

        `pieces` are all inline texts; `changed` and `removed` are differences in the table of contents.
        """
        toc = {path: address for path, address in self.toc.items() if path not in pieces}
        gone = dict(self.gone)
        for path in removed:
            toc.pop(path, None)
            if path in self.listed:
                gone[path] = None
        for path, address in changed.items():
            gone.pop(path, None)
            if self.listed.get(path) == address:
                toc.pop(path, None)
            else:
                toc[path] = address
        spent = self.spent + _length(toc) + _length(gone)
        after = Contents(pieces, toc, self.base, self.listed, gone, spent)
        if self.base is not None:
            needs_base = spent > _length(self.listed)
        else:
            needs_base = _length([path for path in toc if path.startswith(_LISTED)]) > TOC_LENGTH_MAX
        return after._rebased() if needs_base else (after, None)

    def _rebased(self) -> tuple[Contents, Blob | None]:
        """Move the table into a new base, or drop the base if the table is short."""
        rest = {path: address for path, address in self.toc.items() if not path.startswith(_LISTED)}
        kept = {path: address for path, address in self.listed.items() if path not in self.gone}
        every = {**kept, **{path: address for path, address in self.toc.items() if path not in rest}}
        listed = {path: address for path, address in every.items() if path not in self.pieces}
        if _length(listed) <= TOC_LENGTH_MAX // 2:
            return Contents(self.pieces, {**rest, **listed}), None
        addresses = list(listed.values())
        # Written like a value with chunks, so that its references are found.
        text = dumps({"~": "toc", "paths": list(listed), "chunks": addresses})
        blob = Blob.of(text, tuple(sorted(set(addresses))))
        return Contents(self.pieces, rest, blob.hash, listed), blob


def pieces_text(pieces: Mapping[str, bytes]) -> bytes:
    """Format inline texts for a manifest."""
    return document({path: Encoded(text) for path, text in pieces.items()}).text if pieces else b""


def entries_of(manifest: Manifest, blobs: Mapping[str, bytes]) -> dict[str, Entry]:
    """Return all entries of a checkpoint by path: the hash of a blob, or an inline text.

    `blobs` must hold its base. Raises CheckpointDamagedError.
    """
    with _reading(manifest):
        return Contents.of(manifest, blobs).entries()


def only(manifest: Manifest, beginnings: tuple[str, ...]) -> Manifest:
    """Return a manifest with only the paths that start with one of `beginnings`, so that nothing else is read.

    Entries of the base are left out. Raises CheckpointDamagedError.
    """
    toc = {path: address for path, address in manifest.toc.items() if path.startswith(beginnings)}
    with _reading(manifest):
        pieces = {path: text for path, text in _pieces(manifest).items() if path.startswith(beginnings)}
    return replace(manifest, toc=toc, pieces=pieces_text(pieces), base=None, gone=())


def _pieces(manifest: Manifest) -> dict[str, bytes]:
    trees: Any = loads(manifest.pieces) if manifest.pieces else {}
    if type(trees) is not dict:
        raise DamagedPartError("its inline entries are not a JSON object")
    return {path: dumps(tree) for path, tree in cast("dict[str, Any]", trees).items()}


def _listed(text: bytes) -> dict[str, str]:
    try:
        table: Any = loads(text)
        return dict(zip(require_form(table["paths"], list[str]), table["chunks"], strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedPartError(f"its table of contents can't be read: {error!r}") from error


def _length(paths: Iterable[str]) -> int:
    return sum([len(path) + _ENTRY_LENGTH for path in paths])


WIDTH = 16


class Gathered(NamedTuple):
    """A blob that groups chunks, at the path of the first of them."""

    path: str
    blob: Blob
    gone: tuple[str, ...]
    """The paths of the other chunks, which are removed."""


def gathered(path: str, address: Callable[[str], str | None]) -> Iterator[Gathered]:
    """Yield the groups to form now that the chunk at `path` is full. `address` returns the hash at a path."""
    trail, _, number = path.rpartition("/")
    count, step = int(number) + 1, 1
    while count % (step * WIDTH) == 0:
        firsts = range(count - step * WIDTH, count, step)
        # Chunks of earlier releases may not be grouped, and then the next one is still there.
        complete = [each for each in firsts if step == 1 or address(f"{trail}/{each + 1}") is None]
        known = [address(f"{trail}/{each}") for each in complete]
        addresses = [each for each in known if each is not None]
        if len(addresses) < WIDTH:
            return
        blob = Blob.of(dumps({"~": "index", "chunks": addresses}), tuple(sorted(set(addresses))))
        path, *gone = [f"{trail}/{each}" for each in firsts]
        yield Gathered(path, blob, tuple(gone))
        step *= WIDTH


_HEADER: Mapping[str, Any] = {
    "graph_signature_hash": str,
    "turn": int,
    "since_input": int,
    "pending_request_info_events": dict[str, dict[str, str | None]],
    "withheld_kwargs": list[str] | None,
    "run": dict[str, str | None] | None,
    "metadata": dict[str, Any] | None,
    "version": str | None,
    "trace": str | None,
}
"""The forms of the members that are read. None stands for a member that may be missing."""


def header_of(manifest: Manifest) -> dict[str, Any]:
    """Return the header of a manifest. Raises WorkflowCheckpointException for a newer format."""
    try:
        header = loads(manifest.header)
        written = require_form(header["format"], int)
        if written <= FORMAT:
            for name, form in _HEADER.items():
                require_form(header.get(name), form)
    except MALFORMED as error:
        reason = f"its header can't be read: {error or repr(error)}"
        raise CheckpointDamagedError(manifest.checkpoint_id, reason) from error
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


@contextmanager
def _reading(manifest: Manifest) -> Generator[None]:
    """Raise CheckpointDamagedError for anything that can't be read."""
    try:
        yield
    except MALFORMED as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, str(error) or repr(error)) from error


def trace_of(manifest: Manifest) -> str | None:
    """Return the trace context under which a checkpoint was written."""
    return header_of(manifest).get("trace") if _TRACE in manifest.header else None


def origin_of(manifest: Manifest) -> NewRun:
    """Return how the run of a checkpoint started."""
    known: dict[str, Any] = header_of(manifest).get("run", {})
    usual = {"created_at": manifest.timestamp, "nonce": manifest.run_id}
    origin: dict[str, Any] = {name: known.get(name, usual.get(name)) for name in ORIGIN}
    return NewRun(manifest.run_id, manifest.workflow_name, **origin)


def is_settled(manifest: Manifest) -> bool:
    """Return True if the checkpoint has no work and no open requests. Raises CheckpointDamagedError."""
    at_work = ("deliveries", "suspended", "delayed", "cancelled")
    return not any(path in at_work or path.startswith("request/") for path in known_paths(manifest))


def known_paths(manifest: Manifest) -> set[str]:
    """Return the paths about the run's status and outputs, without reading a blob. Raises CheckpointDamagedError."""
    with _reading(manifest):
        return {*manifest.toc, *_pieces(manifest)}


def require_graph(tree: Any) -> dict[str, Any]:
    """Return the stored description of a graph, with those of its sub-workflows. Raises TypeError."""
    graph: dict[str, Any] = require_form(tree, dict[str, Any])
    require_form(graph.get("version"), int | None)
    require_form(graph.get("interfaces", {}), dict[str, dict[str, list[Any] | None]])
    signature: dict[str, Any] = require_form(graph.get("signature", {}), dict[str, Any])
    require_form(signature.get("executors", {}), dict[str, Any])
    for group in require_form(signature.get("edge_groups", []), list[dict[str, Any]]):
        require_form(group["group_type"], str)
        for edge in require_form(group["edges"], list[dict[str, Any]]):
            require_form([edge["source"], edge["target"]], list[str])
    for inner in require_form(graph.get("children", {}), dict[str, Any]).values():
        require_graph(inner)
    return graph


@value_class
class WrittenCheckpoint:
    """A checkpoint, as the writer of the next one needs it.

    Attributes:
        snapshot: The snapshot it was made of; None if entries must be compared one by one.
        changed: The values that differ from the previous checkpoint.
    """

    manifest: Manifest | None = None
    contents: Contents = field(default_factory=Contents)
    snapshot: Snapshot | None = None
    changed: frozenset[str] = frozenset()


class Reader:
    """Reads the snapshot of one checkpoint. Values stay encoded until they are needed."""

    def __init__(self, manifest: Manifest, blobs: Mapping[str, bytes], codec: Codec) -> None:
        self._manifest = manifest
        self._blobs = blobs
        # The next checkpoint must write the blobs of inline texts again.
        self._documents = DocumentReader(codec, blobs, manifest.checkpoint_id, brings_blobs=bool(manifest.refs))

    def snapshot(self) -> Snapshot:
        """Return the snapshot. Raises CheckpointDamagedError."""
        header = header_of(self._manifest)
        counts = (header["turn"], self._manifest.iteration_count, header["since_input"])
        with _reading(self._manifest):
            snapshot = self._documents.snapshot(tree_of(entries_of(self._manifest, self._blobs)), counts)
        return replace(snapshot, withheld_kwargs=tuple(header.get("withheld_kwargs", ())))

    def written(self, snapshot: Snapshot | None) -> WrittenCheckpoint:
        """Return what the writer of the next checkpoint needs, given the snapshot of this one.

        Raises CheckpointDamagedError.
        """
        with _reading(self._manifest):
            contents = Contents.of(self._manifest, self._blobs)
        if self._manifest.refs:
            # Inline texts with references are no longer written, so write all of them again.
            return WrittenCheckpoint(self._manifest, replace(contents, pieces={}))
        return WrittenCheckpoint(self._manifest, contents, snapshot)

    def answered(self) -> Trail[Answered]:
        """Return the answered requests without reading anything else. Raises CheckpointDamagedError."""
        with _reading(self._manifest):
            manifest = only(self._manifest, ("answered/",))
            return self._documents.answered(tree_of(entries_of(manifest, self._blobs)))

    def graph(self) -> dict[str, Any]:
        """Return the stored description of the graph; empty for a checkpoint that was made by hand."""
        address = self._manifest.toc.get("graph")
        with _reading(self._manifest):
            return {} if address is None else require_graph(loads(verified(self._blobs, address)))
