"""A whole run as lines of text, to be kept elsewhere. docs/export-format.md describes what is written here."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.records import (
        Archive,
        ArchivedCheckpoint,
        Command,
        EventBatch,
        Halt,
        JournalRecord,
        Part,
        RunRecord,
    )

PRODUCT = "perdure"
FORMAT = 2

_DIGEST_SIZE = 20


class Tally:
    """Counts the lines of an export by their type, and hashes them."""

    def __init__(self) -> None:
        self.counts = {"run": 0, "checkpoint": 0, "part": 0, "journal": 0, "command": 0, "events": 0}
        self._hash = hashlib.blake2b(digest_size=_DIGEST_SIZE)

    def hash(self, line: bytes) -> None:
        """Take the bytes of a line in."""
        self._hash.update(line)

    def digest(self) -> str:
        """The hash of all of them so far."""
        return self._hash.hexdigest()


def lines_of(archive: Archive) -> Iterator[bytes]:
    """The lines of an export, each with its newline. Each is made when it is asked for."""
    tally = Tally()
    for document in _documents(archive):
        if document["type"] in tally.counts:
            tally.counts[document["type"]] += 1
        line = _line(document)
        tally.hash(line)
        yield line
    yield _line({"type": "end", "counts": tally.counts, "digest": tally.digest()})


def _line(document: dict[str, Any]) -> bytes:
    """A document as a line of UTF-8, also if it has lone surrogates in it."""
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
    # In an order that no store decides: the same run gives the same file.
    yield from (_part(part) for part in sorted(archive.parts, key=lambda part: part.hash))
    yield from (_journal(entry, record) for entry in archive.journal)
    yield from (_command(command, record.run_id) for command in archive.inbox)
    yield from (_events(batch) for batch in archive.events)


def run_checksum(document: dict[str, Any]) -> str:
    """The checksum of the line about the run itself."""
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
    """What a closed run keeps of its export: which one that is, and the halt that it had before."""
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


def _part(part: Part) -> dict[str, Any]:
    data = {"base64": _base64(part.data)} if part.kind == "raw" else _packed(part.data)
    return {"type": "part", "hash": part.hash, "kind": part.kind, "refs": list(part.refs), "data": data}


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
    """Bytes as text where they are that, so that people and other programs can read them."""
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": _base64(data)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
