"""Append-only files of checksummed lines.

A line is a checksum, a space, a JSON value and a newline. A crash can leave half a line at the end; readers ignore it
and the next append overwrites it. A complete line with a wrong checksum is damage, and so is a line whose newline was
replaced.

A power cut can leave zeros in place of lines that were not fsynced, even if later lines survive. A file is therefore
fsynced before the next line is appended, or its lines say how much of it was fsynced (`read_before_hole`).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import Blob, digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from perdure.records import RunRecord
    from perdure.storage.disk import Disk, Stamp

Identity: TypeAlias = "tuple[Stamp, bytes] | None"
"""The stamp of a file and its first checksum: a new file can get the stamp of the one that it replaces."""

_CHECKSUM_LENGTH = 16
_BLOCK_SIZE = 4096
_SECTOR_SIZE = 512
_INLINE_SIZE_MAX = 4096
_ZERO = b"\0"
"""No line contains this byte: JSON escapes it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A value and its place in the file, newline included."""

    value: Any
    start: int
    end: int


def encode(value: object) -> bytes:
    """Return the line that holds a value."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _checksum(text) + b" " + text + b"\n"


def identify(disk: Disk, path: Path) -> Identity:
    """Return the identity of a file, None if there is none."""
    stamp = disk.stamp(path)
    return (stamp, disk.read(path, end=_CHECKSUM_LENGTH)) if stamp else None


def append(disk: Disk, path: Path, value: object, *, sync: bool, sync_before: bool = False) -> int:
    """Append a line and return the size of the file. `sync_before` fsyncs what is there before."""
    line = encode(value)
    end = _sound_end(disk, path)
    if sync_before and end:
        disk.write_at(path, end, b"", sync=True)
    disk.write_at(path, end, line, sync=sync)
    return end + len(line)


def read(disk: Disk, path: Path, *, start: int = 0) -> tuple[list[Line], int]:
    """Return the lines from an offset on, and the offset behind the last complete one."""
    try:
        data = disk.read(path, start=start)
    except FileNotFoundError:
        return [], start
    complete, newline, rest = data.rpartition(b"\n")
    _require_torn(path, rest)
    return _split(path, complete + newline, start)


def read_before_hole(disk: Disk, path: Path) -> tuple[list[Line], int]:
    """Read lines up to the first hole that a power cut left.

    Each value says under "synced" how much of the file was fsynced when it was written. A hole in that is damage.
    """
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return [], 0
    hole = _find_hole(data)
    if hole is None:
        return read(disk, path)
    end = data.rfind(b"\n", 0, hole) + 1
    later = (_decode(path, line) for line in data[end:].split(b"\n") if _is_sound(line))
    if any(value.get("synced", 0) > end for value in later):
        raise _damaged(path)
    return _split(path, data[:end], 0)


def read_at(disk: Disk, path: Path, start: int, end: int) -> Any:
    """Return the value in one place."""
    data = disk.read(path, start=start, end=end)
    if not data.endswith(b"\n"):
        raise _damaged(path)
    return _decode(path, data[:-1])


def read_backward(disk: Disk, path: Path) -> Iterator[Any]:
    """Return the values, newest first, and read only as much of the file as is asked for."""
    stamp = disk.stamp(path)
    start = stamp.size if stamp else 0
    rest = b""
    is_end = True
    while start > 0:
        end, start = start, max(0, start - _BLOCK_SIZE)
        data = disk.read(path, start=start, end=end) + rest
        if is_end:
            complete, newline, torn = data.rpartition(b"\n")
            if not newline and start > 0:
                rest = data
                continue
            _require_torn(path, torn)
            data, is_end = complete + newline, False
        if start > 0:
            # The first line may begin in the block before.
            first, newline, data = data.partition(b"\n")
            rest = first + newline
        for line in reversed(data.split(b"\n")[:-1]):
            yield _decode(path, line)


def read_only_line(path: Path, data: bytes) -> Any | None:
    """Return the value of a file of one line that contains these bytes, None if it is damaged."""
    try:
        return _decode(path, data.partition(b"\n")[0])
    except WorkflowCheckpointException:
        return None


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


def decode_blobs(fields: Iterable[dict[str, Any]]) -> tuple[Blob, ...]:
    """Return the blobs that `encode_parts` has encoded."""
    return tuple(Blob(each["hash"], decode_bytes(each), tuple(each["refs"]), each["kind"]) for each in fields)


def split_blobs(blobs: Iterable[Blob]) -> tuple[tuple[Blob, ...], tuple[Blob, ...]]:
    """Return the blobs that go into a line and those that get files of their own, each once."""
    distinct = {blob.hash: blob for blob in blobs}.values()
    inline = tuple(blob for blob in distinct if len(blob.data) <= _INLINE_SIZE_MAX)
    return inline, tuple(blob for blob in distinct if len(blob.data) > _INLINE_SIZE_MAX)


class LineFile:
    """A file of lines that belongs to one run. Its content is remembered until the file changes.

    Subclasses keep the content: `_clear` forgets it, `_take` adds a line to it.
    """

    noun: str

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._forget()

    def drop(self) -> None:
        """Remove the file, damaged or not."""
        self._forget()
        if self._disk.stamp(self._path):
            self._disk.remove(self._path)

    def find_blob(self, blob_hash: str) -> Blob | None:
        """Return a blob that the file contains, if it was read before."""
        raise NotImplementedError

    def read_blobs(self) -> Iterator[Blob]:
        """Read every blob that the file contains. Raises WorkflowCheckpointException."""
        for line in self._read_lines()[0]:
            yield from decode_blobs(line.value["parts"])

    def _clear(self) -> None:
        raise NotImplementedError

    def _take(self, line: Line) -> None:
        raise NotImplementedError

    def _read_lines(self, *, start: int = 0) -> tuple[list[Line], int]:
        return read(self._disk, self._path, start=start)

    def _has_grown(self, identity: Identity) -> bool:
        """Ask whether it is enough to read what was appended. Files that are always short are read whole."""
        del identity
        return False

    def _forget(self) -> None:
        self._identity: Identity = None
        self._end = 0
        self._is_synced = False
        """True if this process knows that the name is durable, and the content unless it is appended without fsync."""
        self._clear()

    def _refresh(self, run: RunRecord) -> None:
        """Read the file if it has changed. Raises CheckpointDamagedError, which names the head of the run."""
        identity = identify(self._disk, self._path)
        if identity == self._identity:
            return
        self._is_synced = False
        if not self._has_grown(identity):
            self._forget()
        try:
            found, end = self._read_lines(start=self._end)
        except WorkflowCheckpointException as error:
            self._forget()
            raise self._damaged(run) from error
        for line in found:
            self._take(line)
        self._end, self._identity = end, identity

    def _append(self, values: Sequence[object], *, sync: bool) -> None:
        was_synced, self._is_synced = self._is_synced, False
        data, found = _lay_out(values, self._end)
        self._disk.write_at(self._path, self._end, data, sync=sync)
        if sync and not was_synced:
            self._disk.sync_directory(self._path.parent)
        self._remember(found, is_synced=sync or was_synced)

    def _rewrite(self, values: Sequence[object]) -> None:
        """Replace the content of the file, durably."""
        self._forget()
        data, found = _lay_out(values, 0)
        self._disk.replace(self._path, data)
        self._remember(found, is_synced=True)

    def _remember(self, found: Sequence[Line], *, is_synced: bool) -> None:
        for line in found:
            self._take(line)
            self._end = line.end
        self._is_synced = is_synced
        self._identity = identify(self._disk, self._path)

    def _damaged(self, run: RunRecord) -> CheckpointDamagedError:
        reason = f"the {self.noun} of its run {run.run_id!r} is not what was written"
        return CheckpointDamagedError(run.head or f"{run.run_id}@0", reason)


def _split(path: Path, data: bytes, start: int) -> tuple[list[Line], int]:
    """Return the lines of data that begins at an offset, and the offset behind them."""
    found: list[Line] = []
    for line in data.split(b"\n")[:-1]:
        found.append(Line(_decode(path, line), start, start + len(line) + 1))
        start += len(line) + 1
    return found, start


def _lay_out(values: Iterable[object], start: int) -> tuple[bytes, list[Line]]:
    """Return the bytes of lines that begin at an offset, and the lines."""
    data = bytearray()
    found: list[Line] = []
    for value in values:
        line = encode(value)
        found.append(Line(value, start + len(data), start + len(data) + len(line)))
        data += line
    return bytes(data), found


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
    size = end = stamp.size if stamp else 0
    while end > 0:
        start = max(0, end - _BLOCK_SIZE)
        newline = disk.read(path, start=start, end=end).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        _require_torn(path, disk.read(path, start=end))
    return end


def _checksum(text: bytes) -> bytes:
    return digest(text)[:_CHECKSUM_LENGTH].encode("ascii")


def _decode(path: Path, line: bytes) -> Any:
    if not _is_sound(line):
        raise _damaged(path)
    return json.loads(line[_CHECKSUM_LENGTH + 1 :].decode("utf-8", "surrogatepass"))


def _require_torn(path: Path, rest: bytes) -> None:
    """Refuse an end of the file that is a complete line with another byte in place of its newline."""
    # A power cut can leave a zero there.
    if not rest.endswith(_ZERO) and _is_sound(rest[:-1]):
        raise _damaged(path)


def _is_sound(line: bytes) -> bool:
    return line[: _CHECKSUM_LENGTH + 1] == _checksum(line[_CHECKSUM_LENGTH + 1 :]) + b" "


def _damaged(path: Path) -> WorkflowCheckpointException:
    return WorkflowCheckpointException(
        f"{str(path)!r} is damaged: a line is not what was written; restore the storage from a backup"
    )
