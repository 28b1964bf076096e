"""A checkpoint as a file that people can read.

    {
      ... the fields of the header ...,
      "manifest": {"checkpoint_id": ..., "run_id": ..., "position": ..., ...},
      "toc": {"path": "hash of the part", ...},
      "pieces": {"path": ..., ...},
      "events": {"first": ..., "count": ..., "refs": [...], "value": ...},
      "parts": {
        "hash": {"refs": [...], "value": ...}
      },
      "checksum": "over every byte before"
    }

Each small part is a line of its own and stands there byte by byte as it was given, and so do the pieces of the
checkpoint and the events that the commit told, if there are any.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, cast

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import EventBatch, Manifest, Part, digest
from perdure.storage.retention import Entry, moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perdure.records import HeadStatus

FORMAT = 1
"""The number of this layout, in every file."""

_INLINE_SIZE_MAX = 4096
_OWN_FIELDS = frozenset({"manifest", "toc", "pieces", "events", "parts", "checksum"})

_PIECES = b',\n  "pieces": '
_EVENTS = b',\n  "events": '
_PARTS = b',\n  "parts": {'
_REFS = b'": {"refs": '
_VALUE = b', "value": '
_BASE64 = b', "base64": "'
_CHECKSUM = b',\n  "checksum": "'
_END = b'"\n}\n'

_TEXT = json.JSONEncoder(ensure_ascii=False)
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class LogEntry(Entry):
    """A checkpoint as the log of its run knows it."""

    events: int = 0
    """The number of the run's newest event as of this commit."""
    told: int = 0
    """How many of them the commit told."""


@dataclass(frozen=True, slots=True)
class RunAfter:
    """What the log of a run would say after a commit, besides what is known from the checkpoint itself."""

    after: str | None
    """The head on which the commit was made."""
    consumed: tuple[int, ...] = ()
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A checkpoint with its small parts, what it told, and its place among all commits."""

    manifest: Manifest
    settled: bool
    sequence: int
    parts: Mapping[str, Part] = field(repr=False)
    status: HeadStatus = "running"
    wake_at: str | None = None
    events: int = 0
    """The number of the run's newest event as of this commit."""
    batch: EventBatch | None = None
    run: RunAfter | None = None
    """None in files that were written when every commit had a line in the log."""

    @property
    def entry(self) -> LogEntry:
        """The checkpoint as retention, order and log see it."""
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


def status_of(settled: bool) -> HeadStatus:  # noqa: FBT001 - the one thing that it depends on
    """The status of a run, as far as files tell that were written before they told it."""
    return "idle" if settled else "running"


def fits_inline(part: Part) -> bool:
    """Whether a part is small, and JSON that can stand on a line as it is."""
    return part.kind == "json" and len(part.data) <= _INLINE_SIZE_MAX and _fits_line(part.data)


def encode(document: Document) -> bytes:
    """The bytes of the file."""
    manifest = document.manifest
    fields: dict[str, Any] = {**_header_fields(document), "toc": dict(manifest.table())}
    # A line for each field: with an indent, json would do it in Python and take five times as long.
    top = ",\n  ".join(f"{_TEXT.encode(name)}: {_TEXT.encode(value)}" for name, value in fields.items())
    pieces = _pieces_line(manifest.pieces) if manifest.pieces else b""
    told = _events_line(document.batch) if document.batch else b""
    parts = b",".join(map(_line, document.parts.values()))
    body = b"".join((b"{\n  ", top.encode("utf-8", "surrogatepass"), pieces, told, _PARTS, parts, b"\n  }"))
    return body + _CHECKSUM + digest(body).encode("ascii") + _END


def decode(data: bytes, checkpoint_id: str) -> Document:
    """The checkpoint in a file. Raises CheckpointDamagedError, for that id, unless every byte is as it was written."""
    body, mark, tail = data.rpartition(_CHECKSUM)
    if not mark:
        raise CheckpointDamagedError(checkpoint_id, "its file is not whole, or not one of perdure's")
    if tail != digest(body).encode("ascii") + _END:
        raise CheckpointDamagedError(checkpoint_id, "its checksum does not match")
    try:
        return _decode_body(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamagedError(checkpoint_id, f"its file can't be understood ({error})") from error


def _header_fields(document: Document) -> dict[str, Any]:
    """The header's fields, if it can be had back from them, and the manifest's."""
    manifest = document.manifest
    own: dict[str, Any] = {
        "format": FORMAT,
        "checkpoint_id": manifest.checkpoint_id,
        "run_id": manifest.run_id,
        "workflow_name": manifest.workflow_name,
        "position": manifest.position,
        "previous_id": manifest.previous_id,
        "timestamp": manifest.timestamp,
        "iteration_count": manifest.iteration_count,
        "settled": document.settled,
        "sequence": document.sequence,
        "status": document.status,
        "wake_at": document.wake_at,
        "events": document.events,
        **({"run": _run_fields(document.run)} if document.run else {}),
    }
    header = _json_object(manifest.header)
    if header is not None and not _OWN_FIELDS & header.keys() and _compact(header) == manifest.header:
        return {**header, "manifest": own}
    return {"manifest": {**own, "header_base64": base64.b64encode(manifest.header).decode("ascii")}}


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(data.decode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _decode_body(body: bytes) -> Document:
    # The layout's own newlines are the only ones, so what looks like the mark is the mark.
    top, _, part_lines = body.partition(_PARTS)
    top, _, told = top.partition(_EVENTS)
    top, _, pieces = top.partition(_PIECES)
    fields = json.loads((top + b"\n}").decode("utf-8", "surrogatepass"))
    toc, own = fields.pop("toc"), fields.pop("manifest")
    written = own.pop("format")
    if written != FORMAT:
        raise WorkflowCheckpointException(
            f"checkpoint {own['checkpoint_id']!r} is in file format {written}, this perdure reads {FORMAT}; "
            "upgrade perdure to read it"
        )
    coded = own.pop("header_base64", None)
    settled, sequence = own.pop("settled"), own.pop("sequence")
    status, wake_at = own.pop("status", status_of(settled)), own.pop("wake_at", None)
    events = own.pop("events", 0)
    header = _compact(fields) if coded is None else base64.b64decode(coded)
    run = own.pop("run", None)
    manifest = Manifest(**own, header=header, toc={}, pieces=_pieces(pieces)).with_table(toc)
    return Document(
        manifest=manifest,
        settled=settled,
        sequence=sequence,
        status=status,
        wake_at=wake_at,
        events=events,
        batch=_batch(manifest, told) if told else None,
        parts={part.hash: part for part in _parts(part_lines)},
        run=RunAfter(run["after"], tuple(run["consumed"]), run["forgotten"]) if run else None,
    )


def _run_fields(run: RunAfter) -> dict[str, Any]:
    return {"after": run.after, "consumed": run.consumed, "forgotten": run.forgotten}


def _pieces_line(pieces: bytes) -> bytes:
    """The object as it was given; anything else as text."""
    if pieces.startswith(b"{") and _fits_line(pieces):
        return _PIECES + pieces
    return _PIECES + b'"' + base64.b64encode(pieces) + b'"'


def _pieces(line: bytes) -> bytes:
    return base64.b64decode(line.strip(b'"')) if line.startswith(b'"') else line


def _events_line(batch: EventBatch) -> bytes:
    fields = {"first": batch.first, "count": batch.count, "refs": batch.refs}
    head = _EVENTS + json.dumps(fields).encode("ascii").removesuffix(b"}")
    if _fits_line(batch.data):
        return head + _VALUE + batch.data + b"}"
    return head + _BASE64 + base64.b64encode(batch.data) + b'"}'


def _batch(manifest: Manifest, line: bytes) -> EventBatch:
    head, is_plain, text = line.partition(_VALUE)
    if is_plain:
        data = text.removesuffix(b"}")
    else:
        head, _, text = line.partition(_BASE64)
        data = base64.b64decode(text.removesuffix(b'"}'))
    fields = json.loads(head + b"}")
    refs = tuple(fields["refs"])
    return EventBatch(manifest.run_id, manifest.checkpoint_id, fields["first"], fields["count"], data, refs)


def _fits_line(data: bytes) -> bool:
    """Whether bytes are JSON that can stand on a line as it is."""
    if b"\n" in data or b"\r" in data:
        return False
    try:
        json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _line(part: Part) -> bytes:
    refs = json.dumps(part.refs).encode("ascii")
    return b'\n    "' + part.hash.encode("ascii") + _REFS + refs + _VALUE + part.data + b"}"


def _parts(lines: bytes) -> Iterator[Part]:
    for line in lines.split(b"\n")[1:-1]:
        key, _, rest = line.partition(_REFS)
        refs, _, value = rest.partition(_VALUE)
        yield Part(
            hash=key.removeprefix(b'    "').decode("ascii"),
            data=value.removesuffix(b",").removesuffix(b"}"),
            refs=tuple(json.loads(refs)),
        )


def _compact(value: object) -> bytes:
    return _COMPACT.encode(value).encode("utf-8", "surrogatepass")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
