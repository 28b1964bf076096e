"""Checkpoints, each a readable JSON file named after its id, and blobs. A commit has happened if its file exists.

    {
      ... the fields of the header ...,
      "manifest": {"checkpoint_id": ..., "run_id": ..., "position": ..., ...},
      "toc": {"path": "hash of the blob", ...},
      "pieces": {"path": ..., ...},
      "events": {"first": ..., "count": ..., "refs": [...], "value": ...},
      "parts": {
        "hash": {"refs": [...], "value": ...}
      },
      "checksum": "over every byte before"
    }

Small blobs, the pieces of the checkpoint and the events of the commit are lines of the file, byte for byte as given.

Other blobs are in files of their own, named by hash. A blob that has a file has all that it refers to in files, too.
Small blobs that are written together share a file that has as many names as blobs: they cost one fsync, and each is
found and removed by its own name.
"""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from perdure.errors import BlobDamagedError, CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import Blob, EventBatch, HeadStatus, Manifest, digest
from perdure.storage.rules import file_name, moment, reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perdure.storage.disk import Disk

FORMAT = 1

_SUFFIX = ".json"
# The size of a blob that can be in a checkpoint's file, or share a file with others.
_SMALL_SIZE_MAX = 4096
_SHARED_FILE_BLOBS_MAX = 64
_FLUSHED_NAMES_MAX = 100_000
# The total size of new blobs in one checkpoint's file.
_NEW_INLINE_SIZE_MAX = 16 * 1024
# The total size of unchanged blobs that are written again with each checkpoint's file. More of them get files, once.
_CARRIED_INLINE_SIZE_MAX = 4 * 1024

_MANIFEST_FIELDS = (
    "checkpoint_id",
    "run_id",
    "workflow_name",
    "position",
    "previous_id",
    "timestamp",
    "iteration_count",
)
_FILE_FIELDS = ("settled", "sequence", "status", "wake_at", "events")
_OWN_FIELDS = frozenset({"manifest", "toc", "pieces", "events", "parts", "checksum"})

_PIECES = b',\n  "pieces": '
_EVENTS = b',\n  "events": '
_BLOBS = b',\n  "parts": {'
_REFS = b'": {"refs": '
_VALUE = b', "value": '
_BASE64 = b', "base64": "'
_CHECKSUM = b',\n  "checksum": "'
_END = b'"\n}\n'


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A checkpoint as the log of its run describes it.

    `sequence` is the number of this commit among all commits of the store, `events` the number of the run's newest
    event as of this commit, `told` the number of events that it emitted.
    """

    checkpoint_id: str
    position: int
    sequence: int
    moment: float | None
    settled: bool
    status: HeadStatus = "running"
    wake_at: str | None = None
    events: int = 0
    told: int = 0


@dataclass(frozen=True, slots=True)
class RunAfter:
    """The run after a commit, as far as its checkpoint does not say it. `after` is the head before the commit."""

    after: str | None
    consumed: tuple[int, ...] = ()
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """The content of a checkpoint's file.

    `sequence` is the number of this commit among all commits of the store, `events` the number of the run's newest
    event. `blobs` are the small blobs, by hash. Files of early releases have no `run`.
    """

    manifest: Manifest
    settled: bool
    sequence: int
    blobs: Mapping[str, Blob] = field(repr=False)
    status: HeadStatus = "running"
    wake_at: str | None = None
    events: int = 0
    batch: EventBatch | None = None
    run: RunAfter | None = None

    @property
    def entry(self) -> LogEntry:
        """Return the entry for the log of the run."""
        return LogEntry(
            checkpoint_id=self.manifest.checkpoint_id,
            position=self.manifest.position,
            sequence=self.sequence,
            moment=moment(self.manifest.timestamp),
            settled=self.settled,
            status=self.status,
            wake_at=self.wake_at,
            events=self.events,
            told=self.batch.count if self.batch else 0,
        )


def usual_id(run_id: str, position: int) -> str:
    """Return the id of a checkpoint whose author did not choose one."""
    return f"{run_id}@{position}"


def status_of(settled: bool) -> HeadStatus:  # noqa: FBT001 - the only argument
    """Return the status of a run in files that were written before they had one."""
    return "idle" if settled else "running"


class Checkpoints:
    """The checkpoints of a directory. `sources` notes which file has which small blob."""

    def __init__(self, disk: Disk, directory: Path, *, aside: Path, sources: dict[str, Path]) -> None:
        self._disk = disk
        self._directory = directory
        self._aside = aside
        self._sources = sources

    def path(self, checkpoint_id: str) -> Path:
        """Return the path of a checkpoint."""
        return self._directory / (file_name(checkpoint_id) + _SUFFIX)

    def paths(self) -> list[Path]:
        """Return the paths of all checkpoints."""
        names = self._disk.names(self._directory)
        return [self._directory / name for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]

    def exists(self, checkpoint_id: str) -> bool:
        """Ask whether there is such a checkpoint, damaged or not."""
        return self._disk.stamp(self.path(checkpoint_id)) is not None

    def find(self, checkpoint_id: str) -> CheckpointFile | None:
        """Return the checkpoint of that id. Raises CheckpointDamagedError."""
        return self.read(self.path(checkpoint_id))

    def find_entry(self, entry: LogEntry) -> CheckpointFile | None:
        """Return the checkpoint of a log entry, unless another one has its id now. Raises CheckpointDamagedError."""
        file = self.find(entry.checkpoint_id)
        return file if file and file.sequence == entry.sequence else None

    def holds(self, entry: LogEntry) -> bool:
        """Ask whether the checkpoint of a log entry exists. A damaged one does: whoever reads it gets the error."""
        try:
            return self.find_entry(entry) is not None
        except CheckpointDamagedError:
            return True

    def all(self) -> Iterator[CheckpointFile]:
        """Read every checkpoint, in no order. Raises CheckpointDamagedError."""
        return (file for file in map(self.read, self.paths()) if file)

    def read(self, path: Path) -> CheckpointFile | None:
        """Read a file, None if it is gone. Raises CheckpointDamagedError."""
        label = unquote(path.name.removesuffix(_SUFFIX))
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointDamagedError(label, f"its file can't be read ({error.strerror})") from error
        file = decode(data, label)
        checkpoint_id = file.manifest.checkpoint_id
        if self.path(checkpoint_id) != path:
            raise CheckpointDamagedError(label, f"its file contains {checkpoint_id!r}")
        self._sources.update(dict.fromkeys(file.blobs, path))
        return file

    def put(self, file: CheckpointFile) -> None:
        """Write a checkpoint durably. Raises FileExistsError."""
        target = self.path(file.manifest.checkpoint_id)
        self._disk.write_new(self._aside, encode(file))
        # A link appears at once and replaces nothing: a crash leaves the old history or the new one.
        self._disk.link(self._aside, target)
        try:
            self._disk.sync_directory(self._directory)
        except OSError:
            self._disk.remove(target)
            raise
        self._disk.remove(self._aside)
        self._sources.update(dict.fromkeys(file.blobs, target))


def fits_inline(blob: Blob) -> bool:
    """Ask whether a blob is small, and JSON that fits on one line unchanged."""
    return blob.kind == "json" and len(blob.data) <= _SMALL_SIZE_MAX and _fits_line(blob.data)


def encode(file: CheckpointFile) -> bytes:
    """Return the bytes of a checkpoint's file."""
    manifest = file.manifest
    fields: dict[str, Any] = {**_header_fields(file), "toc": dict(manifest.table())}
    top = ",\n  ".join(f"{_text(name)}: {_text(value)}" for name, value in fields.items())
    pieces = _encode_pieces(manifest.pieces) if manifest.pieces else b""
    events = _encode_events(file.batch) if file.batch else b""
    blobs = b",".join(map(_encode_blob, file.blobs.values()))
    body = b"".join((b"{\n  ", top.encode("utf-8", "surrogatepass"), pieces, events, _BLOBS, blobs, b"\n  }"))
    return body + _CHECKSUM + digest(body).encode("ascii") + _END


def decode(data: bytes, checkpoint_id: str) -> CheckpointFile:
    """Return the content of a checkpoint's file. Raises CheckpointDamagedError if any byte has changed."""
    body, mark, tail = data.rpartition(_CHECKSUM)
    if not mark:
        raise CheckpointDamagedError(checkpoint_id, "its file is incomplete, or not a checkpoint")
    if tail != digest(body).encode("ascii") + _END:
        raise CheckpointDamagedError(checkpoint_id, "its checksum does not match")
    try:
        return _decode_body(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamagedError(checkpoint_id, f"its file can't be decoded ({error})") from error


def _header_fields(file: CheckpointFile) -> dict[str, Any]:
    """Return the fields of the header and of the manifest."""
    header = file.manifest.header
    own: dict[str, Any] = {"format": FORMAT}
    own |= {name: getattr(file.manifest, name) for name in _MANIFEST_FIELDS}
    own |= {name: getattr(file, name) for name in _FILE_FIELDS}
    if file.run:
        own["run"] = asdict(file.run)
    with contextlib.suppress(ValueError):
        fields: Any = json.loads(header.decode("utf-8", "surrogatepass"))
        if _compact(fields) == header and header.startswith(b"{") and not _OWN_FIELDS & fields.keys():
            return {**fields, "manifest": own}
    # The header could not be restored from its fields byte for byte.
    return {"manifest": {**own, "header_base64": base64.b64encode(header).decode("ascii")}}


def _decode_body(body: bytes) -> CheckpointFile:
    # The file's own line breaks are the only ones, so the marks can't be part of a value.
    top, _, blob_lines = body.partition(_BLOBS)
    top, _, events_line = top.partition(_EVENTS)
    top, _, pieces = top.partition(_PIECES)
    fields = json.loads((top + b"\n}").decode("utf-8", "surrogatepass"))
    toc, own = fields.pop("toc"), fields.pop("manifest")
    if own["format"] != FORMAT:
        raise WorkflowCheckpointException(
            f"checkpoint {own['checkpoint_id']!r} has file format {own['format']}, this perdure reads {FORMAT}; "
            "upgrade perdure to read it"
        )
    coded, run = own.get("header_base64"), own.get("run")
    header = _compact(fields) if coded is None else base64.b64decode(coded)
    identity = {name: own[name] for name in _MANIFEST_FIELDS}
    state: dict[str, Any] = {name: own[name] for name in _FILE_FIELDS if name in own}
    state.setdefault("status", status_of(own["settled"]))
    manifest = Manifest(**identity, header=header, toc={}, pieces=_decode_pieces(pieces)).with_table(toc)
    return CheckpointFile(
        manifest,
        blobs={blob.hash: blob for blob in map(_decode_blob, blob_lines.split(b"\n")[1:-1])},
        batch=_decode_events(manifest, events_line) if events_line else None,
        run=RunAfter(run["after"], tuple(run["consumed"]), run["forgotten"]) if run else None,
        **state,
    )


def _encode_pieces(pieces: bytes) -> bytes:
    if pieces.startswith(b"{") and _fits_line(pieces):
        return _PIECES + pieces
    return _PIECES + b'"' + base64.b64encode(pieces) + b'"'


def _decode_pieces(line: bytes) -> bytes:
    return base64.b64decode(line.strip(b'"')) if line.startswith(b'"') else line


def _encode_events(batch: EventBatch) -> bytes:
    fields = {"first": batch.first, "count": batch.count, "refs": batch.refs}
    head = _EVENTS + json.dumps(fields).encode("ascii").removesuffix(b"}")
    if _fits_line(batch.data):
        return head + _VALUE + batch.data + b"}"
    return head + _BASE64 + base64.b64encode(batch.data) + b'"}'


def _decode_events(manifest: Manifest, line: bytes) -> EventBatch:
    head, is_plain, text = line.partition(_VALUE)
    if is_plain:
        data = text.removesuffix(b"}")
    else:
        head, _, text = line.partition(_BASE64)
        data = base64.b64decode(text.removesuffix(b'"}'))
    fields = json.loads(head + b"}")
    refs = tuple(fields["refs"])
    return EventBatch(manifest.run_id, manifest.checkpoint_id, fields["first"], fields["count"], data, refs)


def _encode_blob(blob: Blob) -> bytes:
    refs = json.dumps(blob.refs).encode("ascii")
    return b'\n    "' + blob.hash.encode("ascii") + _REFS + refs + _VALUE + blob.data + b"}"


def _decode_blob(line: bytes) -> Blob:
    key, _, rest = line.partition(_REFS)
    refs, _, value = rest.partition(_VALUE)
    return Blob(
        hash=key.removeprefix(b'    "').decode("ascii"),
        data=value.removesuffix(b",").removesuffix(b"}"),
        refs=tuple(json.loads(refs)),
    )


def _fits_line(data: bytes) -> bool:
    """Ask whether bytes are JSON without line breaks."""
    if b"\n" in data or b"\r" in data:
        return False
    try:
        json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def closure(roots: Iterable[str], find: Callable[[str], Blob | None]) -> dict[str, Blob]:
    """Return these blobs and all that they refer to, as far as they are found."""
    found: dict[str, Blob] = {}

    def refs_of(blob_hash: str) -> Sequence[str]:
        blob = find(blob_hash)
        if blob is None:
            return ()
        found[blob_hash] = blob
        return blob.refs

    reach(roots, refs_of)
    return found


def choose_inline(
    roots: Iterable[str], *, carried: Mapping[str, Blob], new: Mapping[str, Blob]
) -> tuple[dict[str, Blob], dict[str, Blob]]:
    """Return the blobs of a checkpoint that go into its file, and those that get files of their own.

    `carried` are the blobs in the file of the previous checkpoint. Everything else that the checkpoint needs, and that
    is not new, has a file already.
    """
    known = {**new, **carried}
    needed = closure(roots, known.get)
    old = [blob_hash for blob_hash in needed if blob_hash in carried]
    leaving = old if sum(len(needed[blob_hash].data) for blob_hash in old) > _CARRIED_INLINE_SIZE_MAX else []
    misfits = [blob_hash for blob_hash, blob in needed.items() if blob_hash not in carried and not fits_inline(blob)]
    beside = closure([*leaving, *misfits], known.get)
    size = 0
    for blob_hash, blob in needed.items():
        if blob_hash not in beside and blob_hash not in carried:
            size += len(blob.data)
            if size > _NEW_INLINE_SIZE_MAX:
                beside |= closure([blob_hash], known.get)
    return {blob_hash: blob for blob_hash, blob in needed.items() if blob_hash not in beside}, beside


class Blobs:
    """The directory of blobs."""

    def __init__(self, disk: Disk, directory: Path, *, aside: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._aside = aside
        # Names that were fsynced with all that their blobs refer to, with the inodes of their files.
        self._flushed: dict[str, int] = {}

    def read(self, blob_hash: str) -> Mapping[str, Blob]:
        """Return the blobs in the file of a blob, none if there is no file. Raises BlobDamagedError."""
        if not _is_hash(blob_hash):
            return {}
        path = self._directory / blob_hash
        try:
            return _decode_blobs(blob_hash, self._disk.read(path))
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise BlobDamagedError(f"the first line of the blob {str(path)!r} is not what was written") from error

    def find_refs(self, blob_hash: str) -> Sequence[str] | None:
        """Return what a blob refers to, None if it has no file. Raises BlobDamagedError."""
        blob = self.read(blob_hash).get(blob_hash)
        return blob.refs if blob else None

    def names(self) -> list[str]:
        """Return the hashes of all blobs."""
        return self._disk.names(self._directory)

    def add(self, blobs: Iterable[Blob]) -> None:
        """Write blobs durably, as far as they have no files."""
        wanted = {blob.hash: blob for blob in blobs}.values()
        if not wanted:
            return
        new = [blob for blob in wanted if self._disk.stamp(self._path(blob.hash)) is None]
        small = [blob for blob in new if len(blob.data) <= _SMALL_SIZE_MAX]
        groups = [[blob] for blob in new if len(blob.data) > _SMALL_SIZE_MAX]
        groups += [
            small[start : start + _SHARED_FILE_BLOBS_MAX] for start in range(0, len(small), _SHARED_FILE_BLOBS_MAX)
        ]
        for group in groups:
            self._disk.write_new(self._aside, _encode_blobs(group))
            for blob in group:
                self._disk.link(self._aside, self._path(blob.hash))
            self._disk.remove(self._aside)
        # Also if nothing is new: the process that wrote a name may have been killed before it was durable.
        self._disk.sync_directory(self._directory)

    def remove(self, blob_hash: str) -> None:
        """Remove a blob that nothing needs."""
        self._disk.remove(self._directory / blob_hash)

    def flush(self, roots: Iterable[str]) -> None:
        """Fsync these blobs, and all that they refer to, if they were written without fsync."""
        if not self._disk.is_lazy:
            return
        inodes: dict[str, int] = {}

        def unflushed_refs(blob_hash: str) -> Sequence[str]:
            stamp = self._disk.stamp(self._path(blob_hash))
            if stamp is None or self._flushed.get(blob_hash) == stamp.inode:
                return ()
            inodes[blob_hash] = stamp.inode
            return self.find_refs(blob_hash) or ()

        reach(roots, unflushed_refs)
        # Blobs that were written together share a file.
        files = {inode: self._path(blob_hash) for blob_hash, inode in inodes.items()}
        self._disk.flush(*files.values())
        if len(self._flushed) > _FLUSHED_NAMES_MAX:
            self._flushed.clear()
        self._flushed.update(inodes)

    def _path(self, blob_hash: str) -> Path:
        assert _is_hash(blob_hash), f"{blob_hash!r} is not a hash"
        return self._directory / blob_hash


def _encode_blobs(blobs: Sequence[Blob]) -> bytes:
    """Return the bytes of a file: a line that describes the blobs, and their data."""
    if len(blobs) == 1:
        head: dict[str, Any] = {"kind": blobs[0].kind, "refs": blobs[0].refs}
    else:
        head = {"parts": [[blob.hash, blob.kind, blob.refs, len(blob.data)] for blob in blobs]}
    return b"".join((json.dumps(head).encode("ascii"), b"\n", *(blob.data for blob in blobs)))


def _decode_blobs(blob_hash: str, data: bytes) -> dict[str, Blob]:
    head, _, body = data.partition(b"\n")
    fields = json.loads(head)
    if "parts" not in fields:
        return {blob_hash: Blob(blob_hash, body, tuple(fields["refs"]), fields["kind"])}
    found: dict[str, Blob] = {}
    start = 0
    for key, kind, refs, size in fields["parts"]:
        found[key] = Blob(key, body[start : start + size], tuple(refs), kind)
        start += size
    return found


def _is_hash(value: str) -> bool:
    """Ask whether a value from a file can be a file name."""
    return value.isascii() and value.isalnum()
