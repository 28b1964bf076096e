"""Append-only files of checksummed lines.

A line is a checksum, a space, a JSON value and a newline. Every append is fsynced, so a crash can only tear the last
one. It can leave half a line at the end; readers ignore it and the next append overwrites it. A power cut can also
leave sectors of zeros in what was not fsynced. Everything else that is not a sound line is damage.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from perdure.errors import WorkflowCheckpointException
from perdure.records import Blob, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from perdure.storage.disk import Disk

_CHECKSUM_LENGTH = 16
_BLOCK_SIZE = 4096
_SECTOR_SIZE = 512
_INLINE_SIZE_MAX = 4096
# No line contains this byte: JSON escapes it.
_ZERO = b"\0"


def encode(value: object) -> bytes:
    """Return the line that holds a value."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _checksum(text) + b" " + text + b"\n"


def decode(path: Path, line: bytes) -> Any:
    """Return the value of a line without its newline. Raises WorkflowCheckpointException, which names the file."""
    if not _is_sound(line):
        raise _damaged(path)
    return json.loads(line[_CHECKSUM_LENGTH + 1 :].decode("utf-8", "surrogatepass"))


def append(disk: Disk, path: Path, values: Iterable[object], *, end: int | None = None) -> int:
    """Append lines durably and return the size of the file. `end` is the end of its sound lines, if known."""
    data = b"".join(map(encode, values))
    end = _sound_end(disk, path) if end is None else end
    if end == 0:
        # A file that is not empty has a durable name, whoever has written it.
        disk.write_at(path, 0, b"", sync=False)
        disk.sync_directory(path.parent)
    disk.write_at(path, end, data, sync=True)
    return end + len(data)


def read(disk: Disk, path: Path) -> list[Any]:
    """Return the values of a file, none if there is no file."""
    return [decode(path, line) for line in read_sound(disk, path).split(b"\n")[:-1]]


def read_sound(disk: Disk, path: Path) -> bytes:
    """Return the complete lines of a file, up to the first hole that a power cut left."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return b""
    hole = _find_hole(data)
    if hole is None:
        end = data.rfind(b"\n") + 1
        _require_torn(path, data[end:])
        return data[:end]
    end = data.rfind(b"\n", 0, hole) + 1
    later = (decode(path, line) for line in data[end:].split(b"\n") if _is_sound(line))
    # Journals of earlier releases have lines that were not fsynced. They say how much of the file was.
    if any(value.get("synced", len(data)) > end for value in later):
        raise _damaged(path)
    return data[:end]


def read_backward(disk: Disk, path: Path) -> Iterator[Any]:
    """Return the values, newest first, and read only as much of the file as is asked for."""
    start, rest = _sound_end(disk, path), b""
    while start > 0:
        end, start = start, max(0, start - _BLOCK_SIZE)
        rest = disk.read(path, start=start, end=end) + rest
        # The first line may begin in the block before.
        cut = rest.find(b"\n") + 1 if start else 0
        rest, complete = rest[:cut], rest[cut:]
        for line in reversed(complete.split(b"\n")[:-1]):
            yield decode(path, line)


def encode_bytes(data: bytes) -> dict[str, str]:
    """Return bytes as fields of a line, as readable text if possible."""
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def decode_bytes(fields: dict[str, Any]) -> bytes:
    """Return the bytes that `encode_bytes` has encoded."""
    return fields["text"].encode("utf-8") if "text" in fields else base64.b64decode(fields["base64"])


def encode_blobs(blobs: Iterable[Blob]) -> list[dict[str, Any]]:
    """Return blobs as fields of a line."""
    return [{"hash": each.hash, "kind": each.kind, "refs": each.refs, **encode_bytes(each.data)} for each in blobs]


def decode_blobs(values: Iterable[dict[str, Any]]) -> dict[str, Blob]:
    """Return the blobs in the values of a file, by hash."""
    fields = (each for value in values for each in value["parts"])
    return {each["hash"]: Blob(each["hash"], decode_bytes(each), tuple(each["refs"]), each["kind"]) for each in fields}


def split_blobs(blobs: Iterable[Blob]) -> tuple[tuple[Blob, ...], tuple[Blob, ...]]:
    """Return the blobs that go into a line and those that get files of their own, each once."""
    distinct = {blob.hash: blob for blob in blobs}.values()
    inline = tuple(blob for blob in distinct if len(blob.data) <= _INLINE_SIZE_MAX)
    return inline, tuple(blob for blob in distinct if len(blob.data) > _INLINE_SIZE_MAX)


def _find_hole(data: bytes) -> int | None:
    """Return the start of zeros that a power cut can have left.

    What a disk loses are whole sectors, the bytes that were added to a sector last, or the end of the file.
    """
    start = data.find(_ZERO)
    if start < 0:
        return None
    end = len(data) - len(data[start:].lstrip(_ZERO))
    is_added = data[:start].endswith(b"\n")
    is_of_sectors = end % _SECTOR_SIZE == 0 and (start % _SECTOR_SIZE == 0 or is_added)
    return start if end == len(data) or is_of_sectors else None


def _sound_end(disk: Disk, path: Path) -> int:
    """Return the offset behind the last complete line."""
    stamp = disk.stamp(path)
    start, rest = stamp.size if stamp else 0, b""
    while start > 0 and b"\n" not in rest:
        end, start = start, max(0, start - _BLOCK_SIZE)
        rest = disk.read(path, start=start, end=end) + rest
    complete = rest.rfind(b"\n") + 1
    _require_torn(path, rest[complete:])
    return start + complete


def _require_torn(path: Path, rest: bytes) -> None:
    """Refuse an end of the file that is a complete line with another byte in place of its newline."""
    # A power cut can leave a zero there.
    if not rest.endswith(_ZERO) and _is_sound(rest[:-1]):
        raise _damaged(path)


def _checksum(text: bytes) -> bytes:
    return digest(text)[:_CHECKSUM_LENGTH].encode("ascii")


def _is_sound(line: bytes) -> bool:
    return line[: _CHECKSUM_LENGTH + 1] == _checksum(line[_CHECKSUM_LENGTH + 1 :]) + b" "


def _damaged(path: Path) -> WorkflowCheckpointException:
    return WorkflowCheckpointException(
        f"{str(path)!r} is damaged: a line is not what was written; restore the storage from a backup"
    )
