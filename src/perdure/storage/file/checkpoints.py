"""Checkpoints, each a readable JSON file named after its id. A commit has happened if its file exists.

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
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import unquote

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import Blob, EventBatch, Manifest, digest
from perdure.storage.retention import Entry
from perdure.storage.rules import file_name, moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from perdure.records import HeadStatus
    from perdure.storage.disk import Disk

FORMAT = 1

_SUFFIX = ".json"
_INLINE_SIZE_MAX = 4096
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
class LogEntry(Entry):
    """A checkpoint as the log of its run describes it.

    `events` is the number of the run's newest event as of this commit, `told` the number of events that it emitted.
    """

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

    def find_entry(self, entry: Entry) -> CheckpointFile | None:
        """Return the checkpoint of a log entry, unless another one has its id now. Raises CheckpointDamagedError."""
        file = self.find(entry.checkpoint_id)
        return file if file and file.sequence == entry.sequence else None

    def holds(self, entry: Entry) -> bool:
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
    return blob.kind == "json" and len(blob.data) <= _INLINE_SIZE_MAX and _fits_line(blob.data)


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
    manifest, run = file.manifest, file.run
    own: dict[str, Any] = {
        "format": FORMAT,
        "checkpoint_id": manifest.checkpoint_id,
        "run_id": manifest.run_id,
        "workflow_name": manifest.workflow_name,
        "position": manifest.position,
        "previous_id": manifest.previous_id,
        "timestamp": manifest.timestamp,
        "iteration_count": manifest.iteration_count,
        "settled": file.settled,
        "sequence": file.sequence,
        "status": file.status,
        "wake_at": file.wake_at,
        "events": file.events,
    }
    if run:
        own["run"] = {"after": run.after, "consumed": run.consumed, "forgotten": run.forgotten}
    header = _decode_object(manifest.header)
    if header is not None and not _OWN_FIELDS & header.keys() and _compact(header) == manifest.header:
        return {**header, "manifest": own}
    # The header could not be restored from its fields byte for byte.
    return {"manifest": {**own, "header_base64": base64.b64encode(manifest.header).decode("ascii")}}


def _decode_object(data: bytes) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(data.decode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _decode_body(body: bytes) -> CheckpointFile:
    # The file's own line breaks are the only ones, so the marks can't be part of a value.
    top, _, blob_lines = body.partition(_BLOBS)
    top, _, events_line = top.partition(_EVENTS)
    top, _, pieces = top.partition(_PIECES)
    fields = json.loads((top + b"\n}").decode("utf-8", "surrogatepass"))
    toc, own = fields.pop("toc"), fields.pop("manifest")
    written = own.pop("format")
    if written != FORMAT:
        raise WorkflowCheckpointException(
            f"checkpoint {own['checkpoint_id']!r} has file format {written}, this perdure reads {FORMAT}; "
            "upgrade perdure to read it"
        )
    coded = own.pop("header_base64", None)
    settled, sequence = own.pop("settled"), own.pop("sequence")
    status, wake_at = own.pop("status", status_of(settled)), own.pop("wake_at", None)
    events, run = own.pop("events", 0), own.pop("run", None)
    header = _compact(fields) if coded is None else base64.b64decode(coded)
    manifest = Manifest(**own, header=header, toc={}, pieces=_decode_pieces(pieces)).with_table(toc)
    return CheckpointFile(
        manifest=manifest,
        settled=settled,
        sequence=sequence,
        status=status,
        wake_at=wake_at,
        events=events,
        batch=_decode_events(manifest, events_line) if events_line else None,
        blobs={blob.hash: blob for blob in map(_decode_blob, blob_lines.split(b"\n")[1:-1])},
        run=RunAfter(run["after"], tuple(run["consumed"]), run["forgotten"]) if run else None,
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
