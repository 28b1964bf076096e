"""Export a run as lines of text, and read such an export. `docs/export-format.md` describes the format.

Reading verifies everything before any of it is used.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from perdure.checkpoint.manifest import header_of
from perdure.records import (
    Archive,
    ArchivedCheckpoint,
    Blob,
    BlobKind,
    Command,
    EventBatch,
    Halt,
    HaltKind,
    HeadStatus,
    JournalRecord,
    Manifest,
    RunRecord,
    digest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


PRODUCT = "perdure"
FORMAT = 2

_DIGEST_SIZE = 20


class Tally:
    """Counts the lines of an export by type, and hashes them."""

    def __init__(self) -> None:
        self.counts = {"run": 0, "checkpoint": 0, "part": 0, "journal": 0, "command": 0, "events": 0}
        self._hash = hashlib.blake2b(digest_size=_DIGEST_SIZE)

    def hash(self, line: bytes) -> None:
        """Add a line to the hash."""
        self._hash.update(line)

    def digest(self) -> str:
        """Return the hash of the lines so far."""
        return self._hash.hexdigest()


def lines_of(archive: Archive) -> Iterator[bytes]:
    """Yield the lines of an export, each with its newline."""
    tally = Tally()
    for document in _documents(archive):
        if document["type"] in tally.counts:
            tally.counts[document["type"]] += 1
        line = _line(document)
        tally.hash(line)
        yield line
    yield _line({"type": "end", "counts": tally.counts, "digest": tally.digest()})


def _line(document: dict[str, Any]) -> bytes:
    """Encode a document as a line of UTF-8, even if it contains lone surrogates."""
    try:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        text = json.dumps(document, separators=(",", ":")).encode("ascii")
    return text + b"\n"


def _documents(archive: Archive) -> Iterator[dict[str, Any]]:
    record = archive.record
    yield {
        "type": "export",
        "product": PRODUCT,
        "format": FORMAT,
        "run_id": record.run_id,
        "workflow_name": record.workflow_name,
    }
    yield _run(record)
    yield from (_checkpoint(checkpoint) for checkpoint in archive.checkpoints)
    # Sorted by hash, so that every store gives the same file for the same run.
    yield from (_blob(blob) for blob in sorted(archive.blobs, key=lambda blob: blob.hash))
    yield from (_journal(entry, record) for entry in archive.journal)
    yield from (_command(command, record.run_id) for command in archive.inbox)
    yield from (_events(batch) for batch in archive.events)


def run_checksum(document: dict[str, Any]) -> str:
    """Return the checksum of the line about the run."""
    told = {name: value for name, value in document.items() if name != "checksum"}
    return digest(json.dumps(told, sort_keys=True, separators=(",", ":")).encode("ascii"))


def _run(record: RunRecord) -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": "run",
        "run_id": record.run_id,
        "workflow_name": record.workflow_name,
        "created_at": record.created_at,
        "nonce": record.nonce,
        "input_digest": record.input_digest,
        "parent_checkpoint_id": record.parent_checkpoint_id,
        "head": record.head,
        "position": record.position,
        "settled": record.settled,
        "status": record.status,
        "wake_at": record.wake_at,
        "events": record.events,
    }
    if record.halt is not None:
        document["halt"] = _halt(record.halt)
    return {**document, "checksum": run_checksum(document)}


def _halt(halt: Halt) -> dict[str, Any]:
    return {"kind": halt.kind, "at": halt.at, "reason": halt.reason, "data": _packed(halt.data)}


def closing_note(export_id: str, halt: Halt | None) -> bytes:
    """Return the note that a closed run keeps: the id of its export and its former halt."""
    return _line({"export": export_id, "halt": None if halt is None else _halt(halt)})


def _checkpoint(checkpoint: ArchivedCheckpoint) -> dict[str, Any]:
    manifest = checkpoint.manifest
    return {
        "type": "checkpoint",
        "checkpoint_id": manifest.checkpoint_id,
        "run_id": manifest.run_id,
        "workflow_name": manifest.workflow_name,
        "position": manifest.position,
        "previous_id": manifest.previous_id,
        "timestamp": manifest.timestamp,
        "iteration_count": manifest.iteration_count,
        "settled": checkpoint.settled,
        "status": checkpoint.status,
        "wake_at": checkpoint.wake_at,
        "header": _packed(manifest.header),
        "toc": dict(manifest.table()),
        **({"pieces": _packed(manifest.pieces)} if manifest.pieces else {}),
        "checksum": manifest.checksum(),
    }


def _blob(blob: Blob) -> dict[str, Any]:
    data = {"base64": _base64(blob.data)} if blob.kind == "raw" else _packed(blob.data)
    return {"type": "part", "hash": blob.hash, "kind": blob.kind, "refs": list(blob.refs), "data": data}


def _journal(entry: JournalRecord, record: RunRecord) -> dict[str, Any]:
    return {
        "type": "journal",
        "key": entry.key,
        "refs": list(entry.refs),
        "data": _packed(entry.data),
        "checksum": entry.checksum(run_id=record.run_id, head=record.head),
    }


def _command(command: Command, run_id: str) -> dict[str, Any]:
    return {
        "type": "command",
        "id": command.id,
        "kind": command.kind,
        "number": command.number,
        "expects": None if command.expects is None else list(command.expects),
        "refs": list(command.refs),
        "data": _packed(command.data),
        "checksum": command.checksum(run_id=run_id),
    }


def _events(batch: EventBatch) -> dict[str, Any]:
    return {
        "type": "events",
        "checkpoint_id": batch.checkpoint_id,
        "first": batch.first,
        "count": batch.count,
        "refs": list(batch.refs),
        "data": _packed(batch.data),
        "checksum": batch.checksum(),
    }


def _packed(data: bytes) -> dict[str, str]:
    """Store bytes as text if they are UTF-8, so that people and other programs can read them."""
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": _base64(data)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


T = TypeVar("T")

_ADDRESS = re.compile(r"[0-9a-f]{40}")
_NUMBER_MAX = 2**53
"""The largest integer that every JSON reader keeps exactly."""


class NoExportError(Exception):
    """The data is not an export."""


class NewerExportError(Exception):
    """The export has a newer format; the message is its version."""


class DamagedExportError(Exception):
    """The export is damaged; the message says where and how."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The fields of a line. Each accessor checks the type and raises DamagedExportError."""

    fields: dict[str, Any]

    def _value(self, name: str, is_right: Callable[[Any], bool]) -> Any:
        value = self.fields.get(name)
        if name not in self.fields or not is_right(value):
            raise DamagedExportError(f"its {name!r} is missing or invalid")
        return value

    def text(self, name: str) -> str:
        return self._value(name, lambda value: isinstance(value, str))

    def text_or_none(self, name: str) -> str | None:
        return self._value(name, lambda value: value is None or isinstance(value, str))

    def number(self, name: str) -> int:
        return self._value(name, lambda value: type(value) is int and 0 <= value <= _NUMBER_MAX)

    def flag(self, name: str) -> bool:
        return self._value(name, lambda value: isinstance(value, bool))

    def status(self) -> HeadStatus:
        return self._value("status", lambda value: value in get_args(HeadStatus))

    def kind(self) -> BlobKind:
        return self._value("kind", lambda value: value in get_args(BlobKind))

    def halt(self) -> Halt | None:
        """Read why the run is halted; None if it is not."""
        fields = self.fields.get("halt")
        if fields is None:
            return None
        if not isinstance(fields, dict):
            raise DamagedExportError("its 'halt' is invalid")
        halt = _Line(cast("dict[str, Any]", fields))
        return Halt(halt.halt_kind(), halt.text("at"), halt.text("reason"), halt.data())

    def halt_kind(self) -> HaltKind:
        # A run is closed only in the store that it leaves.
        return self._value("kind", lambda value: value in get_args(HaltKind) and value != "exported")

    def refs(self) -> tuple[str, ...]:
        return tuple(self._value("refs", _are_addresses))

    def toc(self) -> dict[str, str]:
        return self._value("toc", _names_addresses)

    def expects(self) -> tuple[str, str] | None:
        value = self._value("expects", lambda value: value is None or _is_pair_of_texts(value))
        return None if value is None else tuple(value)

    def data(self, name: str = "data") -> bytes:
        packed = self._value(name, lambda value: isinstance(value, dict))
        try:
            match packed:
                case {"text": str(text)}:
                    return text.encode("utf-8")
                case {"base64": str(text)}:
                    return base64.b64decode(text, validate=True)
                case _:
                    raise DamagedExportError(f"its {name!r} is neither text nor base64")
        except ValueError as error:
            raise DamagedExportError(f"its {name!r} can't be read") from error

    def verified(self, record: T, checksum: str) -> T:
        if self.text("checksum") != checksum:
            raise DamagedExportError("its checksum does not match")
        return record


def _are_addresses(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_address, cast("list[Any]", value)))


def _names_addresses(value: Any) -> bool:
    return isinstance(value, dict) and all(
        address == "" if path.startswith("/gone/") else _is_address(address)
        for path, address in cast("dict[str, Any]", value).items()
    )


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _is_pair_of_texts(value: Any) -> bool:
    match value:
        case [str(), str()]:
            return True
        case _:
            return False


@dataclass(slots=True)
class _Gathered:
    """The parts of the export that were read so far."""

    record: RunRecord | None = None
    checkpoints: list[ArchivedCheckpoint] = field(default_factory=list[ArchivedCheckpoint])
    blobs: dict[str, Blob] = field(default_factory=dict[str, Blob])
    journal: list[JournalRecord] = field(default_factory=list[JournalRecord])
    inbox: list[Command] = field(default_factory=list[Command])
    events: list[EventBatch] = field(default_factory=list[EventBatch])

    def take(self, kind: str, line: _Line) -> None:
        """Add a line. The first one must be about the run, and the others belong to it."""
        if kind == "run" and self.record is None:
            self.record = _read_run(line)
            return
        if self.record is None or kind == "run":
            raise DamagedExportError("there must be exactly one line about the run, before all others")
        match kind:
            case "checkpoint":
                self.checkpoints.append(_read_checkpoint(line))
            case "part":
                blob = _read_blob(line)
                self.blobs[blob.hash] = blob
            case "journal":
                self.journal.append(_read_journal(line, self.record))
            case "command":
                self.inbox.append(_read_command(line, self.record))
            case "events":
                self.events.append(_read_events(line, self.record))
            case _:
                raise DamagedExportError(f"its type {kind!r} is unknown")

    def archive(self) -> Archive:
        """Return the complete archive. Raises DamagedExportError."""
        if self.record is None:
            raise DamagedExportError("there is no line about the run")
        archive = Archive(
            self.record,
            tuple(self.checkpoints),
            tuple(self.blobs.values()),
            tuple(self.journal),
            tuple(self.inbox),
            tuple(self.events),
        )
        require_whole(archive)
        return archive


def read_archive(lines: Iterable[bytes]) -> Archive:
    """Read an export. Raises NoExportError, NewerExportError, DamagedExportError or CheckpointDamagedError."""
    tally, gathered = Tally(), _Gathered()
    ending: _Line | None = None
    for number, text in enumerate(lines, start=1):
        if number == 1:
            _require_export(text)
        elif ending is not None:
            raise DamagedExportError(f"line {number} comes after the last one")
        else:
            ending = _taken(number, text, gathered, tally)
        if ending is None:
            tally.hash(text)
    if ending is None:
        raise DamagedExportError("the end is missing")
    if ending.fields.get("counts") != tally.counts or ending.fields.get("digest") != tally.digest():
        raise DamagedExportError("the last line does not match the lines before")
    return gathered.archive()


def _require_export(text: bytes) -> None:
    """Refuse data that does not start like an export."""
    try:
        header = json.loads(text)
        is_ours = header["type"] == "export" and header["product"] == PRODUCT and type(header["format"]) is int
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise NoExportError from error
    if not is_ours:
        raise NoExportError
    if header["format"] > FORMAT:
        raise NewerExportError(str(header["format"]))


def _taken(number: int, text: bytes, gathered: _Gathered, tally: Tally) -> _Line | None:
    """Add a line. Return it if it is the last one."""
    try:
        fields = json.loads(text) if text.endswith(b"\n") else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise DamagedExportError(f"line {number} is cut off or not a JSON object")
    line = _Line(cast("dict[str, Any]", fields))
    try:
        kind = line.text("type")
        if kind == "end":
            return line
        gathered.take(kind, line)
    except DamagedExportError as error:
        raise DamagedExportError(f"line {number}: {error}") from error
    tally.counts[kind] += 1
    return None


def _read_run(line: _Line) -> RunRecord:
    record = RunRecord(
        run_id=line.text("run_id"),
        workflow_name=line.text("workflow_name"),
        created_at=line.text("created_at"),
        nonce=line.text("nonce"),
        input_digest=line.text_or_none("input_digest"),
        parent_checkpoint_id=line.text_or_none("parent_checkpoint_id"),
        head=line.text("head"),
        position=line.number("position"),
        settled=line.flag("settled"),
        owner=None,
        status=line.status(),
        wake_at=line.text_or_none("wake_at"),
        events=line.number("events"),
        halt=line.halt(),
    )
    return line.verified(record, run_checksum(line.fields))


def halt_before(note: bytes) -> Halt | None:
    """Read the halt that a run had before it was closed, from the note it keeps. Raises DamagedExportError."""
    try:
        fields: Any = json.loads(note) if note else {}
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise DamagedExportError("the state before the run was closed can't be read")
    return _Line(cast("dict[str, Any]", fields)).halt()


def _read_checkpoint(line: _Line) -> ArchivedCheckpoint:
    manifest = Manifest(
        checkpoint_id=line.text("checkpoint_id"),
        run_id=line.text("run_id"),
        workflow_name=line.text("workflow_name"),
        position=line.number("position"),
        previous_id=line.text_or_none("previous_id"),
        timestamp=line.text("timestamp"),
        iteration_count=line.number("iteration_count"),
        header=line.data("header"),
        toc={},
        pieces=line.data("pieces") if "pieces" in line.fields else b"",
    ).with_table(line.toc())
    checkpoint = ArchivedCheckpoint(manifest, line.flag("settled"), line.status(), line.text_or_none("wake_at"))
    return line.verified(checkpoint, manifest.checksum())


def _read_blob(line: _Line) -> Blob:
    blob = Blob(line.text("hash"), line.data(), line.refs(), line.kind())
    if digest(blob.data) != blob.hash:
        raise DamagedExportError("its bytes do not match their hash")
    return blob


def _read_journal(line: _Line, record: RunRecord) -> JournalRecord:
    entry = JournalRecord(line.text("key"), line.data(), line.refs())
    return line.verified(entry, entry.checksum(run_id=record.run_id, head=record.head))


def _read_command(line: _Line, record: RunRecord) -> Command:
    command = Command(
        id=line.text("id"),
        kind=line.text("kind"),
        data=line.data(),
        refs=line.refs(),
        expects=line.expects(),
        number=line.number("number"),
    )
    return line.verified(command, command.checksum(run_id=record.run_id))


def _read_events(line: _Line, record: RunRecord) -> EventBatch:
    batch = EventBatch(
        run_id=record.run_id,
        checkpoint_id=line.text("checkpoint_id"),
        first=line.number("first"),
        count=line.number("count"),
        data=line.data(),
        refs=line.refs(),
    )
    return line.verified(batch, batch.checksum())


def require_whole(archive: Archive) -> None:
    """Refuse a run that could not continue because something is missing or does not belong together.

    Raises DamagedExportError, and WorkflowCheckpointException for a checkpoint of a newer format.
    """
    record = archive.record
    heads = [each.manifest for each in archive.checkpoints if each.manifest.checkpoint_id == record.head]
    if len(heads) != 1:
        raise DamagedExportError(f"the newest checkpoint {record.head!r} is missing")
    _require_order(archive)
    for checkpoint in archive.checkpoints:
        manifest = checkpoint.manifest
        if manifest.run_id != record.run_id:
            raise DamagedExportError(f"checkpoint {manifest.checkpoint_id!r} belongs to another run")
        try:
            header_of(manifest)
        except TypeError as error:
            raise DamagedExportError(f"checkpoint {manifest.checkpoint_id!r} has no format") from error
    _require_blobs(archive)


def _require_order(archive: Archive) -> None:
    record = archive.record
    positions = [each.manifest.position for each in archive.checkpoints]
    numbers = [command.number for command in archive.inbox]
    if not _is_growing([*positions, record.position + 1]) or not _is_growing(numbers):
        raise DamagedExportError("checkpoints or commands are not in order")
    after = [batch.last + 1 for batch in archive.events]
    if [batch.first for batch in archive.events[1:]] != after[:-1] or any(batch.count < 1 for batch in archive.events):
        raise DamagedExportError("the events have gaps")
    if after and after[-1] != record.events + 1:
        raise DamagedExportError("the newest events are missing")


def _is_growing(numbers: list[int]) -> bool:
    return all(one < other for one, other in itertools.pairwise(numbers))


def _require_blobs(archive: Archive) -> None:
    """Refuse a run that lacks blobs it refers to. References that only seem to be in raw bytes don't count."""
    present = {blob.hash for blob in archive.blobs}
    for checkpoint in archive.checkpoints:
        _require_present(f"checkpoint {checkpoint.manifest.checkpoint_id!r}", checkpoint.manifest.roots, present)
    for entry in archive.journal:
        _require_present(f"record {entry.key!r} of its journal", entry.refs, present)
    for command in archive.inbox:
        _require_present(f"command {command.id!r}", command.refs, present)
    for batch in archive.events:
        _require_present(f"the events of {batch.checkpoint_id!r}", batch.refs, present)


def _require_present(what: str, addresses: Iterable[str], present: set[str]) -> None:
    for address in addresses:
        if address not in present:
            raise DamagedExportError(f"{what} needs part {address}, which is missing")
