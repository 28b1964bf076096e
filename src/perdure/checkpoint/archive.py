"""Export a run as lines of text, and read such an export. `docs/export-format.md` describes the format.

A table says which members a line has. Reading verifies their forms and every checksum.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast, get_args

from perdure import records
from perdure.checkpoint.import_check import DamagedExportError
from perdure.data_classes import new_dict, new_list, value_class
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PRODUCT = "perdure"
FORMAT = 2

_DIGEST_SIZE = 20
_PAIR = 2
_ADDRESS = re.compile(r"[0-9a-f]{40}")
_NUMBER_MAX = 2**53
"""The largest integer that every JSON reader keeps exactly."""


class NoExportError(Exception):
    """The data is not an export."""


class NewerExportError(Exception):
    """The export has a newer format; the message is its version."""


def _same(value: Any) -> Any:
    return value


@value_class
class _Kind:
    """A kind of member: the check of what is read, and the conversion from and to JSON."""

    is_valid: Callable[[Any], bool]
    read: Callable[[Any], Any] = _same
    write: Callable[[Any], Any] = _same


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _is_toc(value: Any) -> bool:
    return is_instance_of(value, dict[str, str]) and all(
        address == "" if path.startswith("/gone/") else _is_address(address) for path, address in value.items()
    )


def _is_packed(value: Any) -> bool:
    return is_instance_of(value, dict[str, str]) and ("text" in value or "base64" in value)


def _packed(data: bytes) -> dict[str, str]:
    """Store bytes as text if they are UTF-8, so that people and other programs can read them."""
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _unpacked(packed: dict[str, str]) -> bytes:
    if "text" in packed:
        return packed["text"].encode("utf-8")
    return base64.b64decode(packed["base64"], validate=True)


_TEXT = _Kind(lambda value: isinstance(value, str))
_TEXT_OR_NONE = _Kind(lambda value: value is None or isinstance(value, str))
_NUMBER = _Kind(lambda value: type(value) is int and 0 <= value <= _NUMBER_MAX)
_FLAG = _Kind(lambda value: isinstance(value, bool))
_SECONDS = _Kind(lambda value: type(value) in (int, float) and abs(value) < _NUMBER_MAX)
_STATUS = _Kind(lambda value: value in get_args(records.HeadStatus))
_BLOB_KIND = _Kind(lambda value: value in get_args(records.BlobKind))
_REFS = _Kind(lambda value: isinstance(value, list) and all(map(_is_address, cast("list[Any]", value))), tuple, list)
_TOC = _Kind(_is_toc, write=dict)
_DATA = _Kind(_is_packed, _unpacked, _packed)
_EXPECTS = _Kind(
    lambda value: value is None or (is_instance_of(value, list[str]) and len(value) == _PAIR),
    lambda value: None if value is None else tuple(value),
    lambda value: None if value is None else list(value),
)
# A run is closed only in the store that it leaves.
_HALT_KIND = _Kind(lambda value: value in get_args(records.HaltKind) and value != "exported")

_COUNT_OR_NONE = _Kind(lambda value: value is None or _NUMBER.is_valid(value))


def _is_object_text(value: Any, kind: tuple[type, ...]) -> bool:
    """Return whether a value is None, or the text of a JSON object of such values."""
    try:
        members: Any = {} if value is None else json.loads(value)
    except (TypeError, ValueError):
        return False
    return isinstance(members, dict) and all(type(each) in kind for each in cast("dict[str, Any]", members).values())


# What listings show of a run, where the store that it leaves knows it.
_FACTS = {
    "parent_run_id": _TEXT_OR_NONE,
    "tags": _Kind(lambda value: _is_object_text(value, (str,))),
    "version": _COUNT_OR_NONE,
    "supersteps": _NUMBER,
    "requests": _COUNT_OR_NONE,
    "spent": _Kind(lambda value: _is_object_text(value, (int, float))),
}
_HALT = {"kind": _HALT_KIND, "at": _TEXT, "reason": _TEXT, "data": _DATA}


def _all(kind: _Kind, *names: str) -> dict[str, _Kind]:
    return dict.fromkeys(names, kind)


_AFTER_COMMIT = {"settled": _FLAG, "status": _STATUS, "wake_at": _TEXT_OR_NONE}

# By type of line: its members, in order.
_LINES: Mapping[str, Mapping[str, _Kind]] = {
    "run": {
        **_all(_TEXT, "run_id", "workflow_name", "created_at", "nonce"),
        **_all(_TEXT_OR_NONE, "input_digest", "parent_checkpoint_id"),
        "head": _TEXT,
        "position": _NUMBER,
        **_AFTER_COMMIT,
        "events": _NUMBER,
    },
    "checkpoint": {
        **_all(_TEXT, "checkpoint_id", "run_id", "workflow_name"),
        "position": _NUMBER,
        "previous_id": _TEXT_OR_NONE,
        "timestamp": _TEXT,
        "iteration_count": _NUMBER,
        **_AFTER_COMMIT,
        "header": _DATA,
        "toc": _TOC,
    },
    "part": {"hash": _TEXT, "kind": _BLOB_KIND, "refs": _REFS, "data": _DATA},
    "journal": {"key": _TEXT, "refs": _REFS, "data": _DATA},
    "command": {"id": _TEXT, "kind": _TEXT, "number": _NUMBER, "expects": _EXPECTS, "refs": _REFS, "data": _DATA},
    "events": {"checkpoint_id": _TEXT, "first": _NUMBER, "count": _NUMBER, "refs": _REFS, "data": _DATA},
}


def _written(members: Mapping[str, _Kind], source: object) -> dict[str, Any]:
    return {name: kind.write(getattr(source, name)) for name, kind in members.items()}


def _read(members: Mapping[str, _Kind], line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a line. Raises DamagedExportError."""
    values: dict[str, Any] = {}
    for name, kind in members.items():
        if name not in line or not kind.is_valid(line[name]):
            raise DamagedExportError(f"its {name!r} is missing or invalid")
        try:
            values[name] = kind.read(line[name])
        except ValueError as error:
            raise DamagedExportError(f"its {name!r} can't be read") from error
    return values


def lines_of(archive: records.Archive) -> Iterator[bytes]:
    """Yield the lines of an export, each with its newline."""
    counts, hash_ = dict.fromkeys(_LINES, 0), hashlib.blake2b(digest_size=_DIGEST_SIZE)
    record = archive.record
    head = {"product": PRODUCT, "format": FORMAT, "run_id": record.run_id, "workflow_name": record.workflow_name}
    for kind, members in itertools.chain([("export", head)], _members(archive)):
        if kind in counts:
            counts[kind] += 1
        line = _line({"type": kind, **members})
        hash_.update(line)
        yield line
    yield _line({"type": "end", "counts": counts, "digest": hash_.hexdigest()})


def _line(document: dict[str, Any]) -> bytes:
    """Encode a document as a line of UTF-8, even if it contains lone surrogates."""
    try:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        text = json.dumps(document, separators=(",", ":")).encode("ascii")
    return text + b"\n"


def _members(archive: records.Archive) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the type and the members of each line."""
    record = archive.record
    run_id, head = record.run_id, record.head
    run = _written(_LINES["run"], record)
    if record.halt is not None:
        run["halt"] = _written(_HALT, record.halt)
    run["facts"] = _written(_FACTS, record)
    yield "run", {**run, "checksum": _run_checksum({"type": "run", **run})}
    for checkpoint in archive.checkpoints:
        yield "checkpoint", _checkpoint_members(checkpoint)
    # Sorted by hash, so that every store gives the same file for the same run.
    for blob in sorted(archive.blobs, key=lambda blob: blob.hash):
        raw = {"data": {"base64": base64.b64encode(blob.data).decode("ascii")}} if blob.kind == "raw" else {}
        yield "part", {**_written(_LINES["part"], blob), **raw}
    for entry in archive.journal:
        yield "journal", {**_written(_LINES["journal"], entry), "checksum": entry.checksum(run_id=run_id, head=head)}
    for command in archive.inbox:
        yield "command", {**_written(_LINES["command"], command), "checksum": command.checksum(run_id=run_id)}
    for batch in archive.events:
        moment = {} if batch.moment is None else {"moment": batch.moment}
        yield "events", {**_written(_LINES["events"], batch), **moment, "checksum": batch.checksum()}


def _checkpoint_members(checkpoint: records.ArchivedCheckpoint) -> dict[str, Any]:
    manifest = checkpoint.manifest
    members: dict[str, Any] = {}
    for name, kind in _LINES["checkpoint"].items():
        owner = checkpoint if name in _AFTER_COMMIT else manifest
        members[name] = kind.write(manifest.table() if name == "toc" else getattr(owner, name))
    if manifest.pieces:
        members["pieces"] = _packed(manifest.pieces)
    return {**members, "checksum": manifest.checksum()}


def _run_checksum(document: Mapping[str, Any]) -> str:
    members = {name: value for name, value in document.items() if name != "checksum"}
    return records.digest(json.dumps(members, sort_keys=True, separators=(",", ":")).encode("ascii"))


def closing_note(export_id: str, halt: records.Halt | None) -> bytes:
    """Return the note that a closed run keeps: the id of its export and its former halt."""
    return _line({"export": export_id, "halt": None if halt is None else _written(_HALT, halt)})


def halt_before(note: bytes) -> records.Halt | None:
    """Read the halt that a run had before it was closed, from the note it keeps. Raises DamagedExportError."""
    fields = _parsed(note) if note else {}
    if fields is None:
        raise DamagedExportError("the state before the run was closed can't be read")
    return _read_halt(fields)


def _read_facts(line: Mapping[str, Any]) -> dict[str, Any]:
    facts = line.get("facts", {})
    if not isinstance(facts, dict):
        raise DamagedExportError("its 'facts' are invalid")
    return _read(_FACTS, cast("dict[str, Any]", facts)) if facts else {}


def _read_halt(line: Mapping[str, Any]) -> records.Halt | None:
    halt = line.get("halt")
    if halt is None:
        return None
    if not isinstance(halt, dict):
        raise DamagedExportError("its 'halt' is invalid")
    return records.Halt(**_read(_HALT, cast("dict[str, Any]", halt)))


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


@dataclass(slots=True)
class _Gathered:
    """The parts of the export that were read so far."""

    record: records.RunRecord | None = None
    checkpoints: list[records.ArchivedCheckpoint] = field(default_factory=new_list)
    blobs: dict[str, records.Blob] = field(default_factory=new_dict)
    journal: list[records.JournalRecord] = field(default_factory=new_list)
    inbox: list[records.Command] = field(default_factory=new_list)
    events: list[records.EventBatch] = field(default_factory=new_list)

    def take(self, kind: str, line: dict[str, Any]) -> None:
        """Add a line. The first one must be about the run, and the others belong to it."""
        if kind not in _LINES:
            raise DamagedExportError(f"its type {kind!r} is unknown")
        if (kind == "run") is not (self.record is None):
            raise DamagedExportError("there must be exactly one line about the run, before all others")
        values = _read(_LINES[kind], line)
        checksum = self._add(kind, line, values)
        if kind != "part" and line.get("checksum") != checksum:
            raise DamagedExportError("its checksum does not match")

    def _add(self, kind: str, line: dict[str, Any], values: dict[str, Any]) -> str:
        """Add what a line says, and return the checksum that it should have."""
        if kind == "run" or self.record is None:
            self.record = records.RunRecord(**values, **_read_facts(line), owner=None, halt=_read_halt(line))
            return _run_checksum(line)
        run_id = self.record.run_id
        match kind:
            case "checkpoint":
                after = {name: values.pop(name) for name in _AFTER_COMMIT}
                pieces = _read({"pieces": _DATA}, line) if "pieces" in line else {}
                manifest = records.Manifest(**{**values, "toc": {}}, **pieces).with_table(values["toc"])
                self.checkpoints.append(records.ArchivedCheckpoint(manifest, **after))
                return manifest.checksum()
            case "journal":
                self.journal.append(records.JournalRecord(**values))
                return self.journal[-1].checksum(run_id=run_id, head=self.record.head)
            case "command":
                self.inbox.append(records.Command(**values))
                return self.inbox[-1].checksum(run_id=run_id)
            case "events":
                moment = _read({"moment": _SECONDS}, line) if "moment" in line else {}
                self.events.append(records.EventBatch(run_id=run_id, **values, **moment))
                return self.events[-1].checksum()
            case _:
                blob = records.Blob(**values)
                if records.digest(blob.data) != blob.hash:
                    raise DamagedExportError("its bytes do not match their hash")
                self.blobs[blob.hash] = blob
                return blob.hash


def read_archive(lines: Iterable[bytes]) -> records.Archive:
    """Read an export. Raises NoExportError, NewerExportError or DamagedExportError.

    `require_whole` verifies what is in it.
    """
    counts, hash_, gathered = Counter[str](), hashlib.blake2b(digest_size=_DIGEST_SIZE), _Gathered()
    ending: dict[str, Any] | None = None
    for number, text in enumerate(lines, start=1):
        if ending is not None:
            raise DamagedExportError(f"line {number} comes after the last one")
        if number == 1:
            _require_export(text)
        else:
            line = _parsed(text) if text.endswith(b"\n") else None
            if line is None:
                raise DamagedExportError(f"line {number} is cut off or not a JSON object")
            kind = line.get("type")
            if kind == "end":
                ending = line
                continue
            try:
                gathered.take(str(kind), line)
            except DamagedExportError as error:
                raise DamagedExportError(f"line {number}: {error}") from error
            counts[str(kind)] += 1
        hash_.update(text)
    if ending is None:
        raise DamagedExportError("the end is missing")
    found = {"counts": {kind: counts[kind] for kind in _LINES}, "digest": hash_.hexdigest()}
    if {name: ending.get(name) for name in found} != found:
        raise DamagedExportError("the last line does not match the lines before")
    if gathered.record is None:
        raise DamagedExportError("there is no line about the run")
    return records.Archive(
        gathered.record,
        tuple(gathered.checkpoints),
        tuple(gathered.blobs.values()),
        tuple(gathered.journal),
        tuple(gathered.inbox),
        tuple(gathered.events),
    )


def _require_export(text: bytes) -> None:
    """Refuse data that does not start like an export."""
    match _parsed(text):
        case {"type": "export", "product": product, "format": int(written)} if product == PRODUCT:
            if written > FORMAT:
                raise NewerExportError(str(written))
        case _:
            raise NoExportError
