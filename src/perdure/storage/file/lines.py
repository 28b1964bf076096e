"""Files that grow by lines, each with a checksum. A line that was not written to its end does not count.

A line is its checksum, a space, a JSON value and a newline. After a crash the file may end in a piece of a line,
which is cut off by the next one; a whole line with a wrong checksum is damage, and so is one that has something else
in the place of its newline.

When the machine goes down, of several writes that were not synced a later one may last and an earlier one not, which
leaves a hole of zeros. So either a file has no two of them, or its lines say what was synced when they were written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.errors import WorkflowCheckpointException
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.storage.disk import Disk

CHECKSUM_LENGTH = 16
_BLOCK_SIZE = 4096
_TAIL_SIZE = 2048
_SECTOR_SIZE = 512
_ZERO = b"\0"
"""No line has one: JSON writes it otherwise."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line stands, its newline included."""

    start: int
    end: int


class Tail:
    """The end of a file, remembered: what was read of it need not be read again as long as it is the same."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._known: tuple[int, bytes] | None = None
        self._seen: tuple[int, bytes] | None = None

    def is_known(self) -> bool:
        """Whether it is the one that was remembered."""
        self._seen = self._look()
        return self._seen == self._known

    def remember(self) -> None:
        """Take note that the file was read as it was seen last, and is sound."""
        self._known = self._seen

    def _look(self) -> tuple[int, bytes]:
        stamp = self._disk.stamp(self._path)
        if stamp is None:
            return 0, b""
        # The last line is in it with its checksum, or at least the end of a line that is longer.
        start = max(0, stamp.size - _TAIL_SIZE)
        return stamp.size, self._disk.read(self._path, start=start, end=stamp.size)


def append(disk: Disk, path: Path, value: object, *, sync: bool, settle: bool = False) -> tuple[int, int]:
    """Add a line; the size of the file before and after. With `settle` what is there already is synced first."""
    line = encoded(value)
    end = _sound_end(disk, path)
    if settle and end:
        disk.write_at(path, end, b"", sync=True)
    disk.write_at(path, end, line, sync=sync)
    return end, end + len(line)


def encoded(value: object) -> bytes:
    """The line that holds a value."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _checksum(text) + b" " + text + b"\n"


def forward(disk: Disk, path: Path, *, start: int = 0) -> tuple[list[Any], int]:
    """The values from an offset on, and the offset after the last whole line."""
    placed, end = forward_placed(disk, path, start=start)
    return [value for value, _ in placed], end


def forward_placed(disk: Disk, path: Path, *, start: int = 0) -> tuple[list[tuple[Any, Place]], int]:
    """The same, each value with its place."""
    try:
        data = disk.read(path, start=start)
    except FileNotFoundError:
        return [], start
    whole, newline, piece = data.rpartition(b"\n")
    _require_torn(path, piece)
    found: list[tuple[Any, Place]] = []
    for line in whole.split(b"\n") if newline else []:
        end = start + len(line) + 1
        found.append((_decoded(path, line), Place(start, end)))
        start = end
    return found, start


def before_a_hole(disk: Disk, path: Path) -> tuple[list[Any], int]:
    """The values up to the first hole, and the offset after the last of them.

    Each value says under "synced" up to which offset the file was synced when it was written; if one says so of the
    hole, that is damage.
    """
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return [], 0
    hole = _hole(data)
    if hole is None:
        return forward(disk, path)
    end = data.rfind(b"\n", 0, hole) + 1
    later = (line for line in data[end:].split(b"\n") if _is_sound(line))
    if any(_decoded(path, line).get("synced", 0) > end for line in later):
        raise _damaged(path)
    return [_decoded(path, line) for line in data[:end].split(b"\n")[:-1]], end


def _hole(data: bytes) -> int | None:
    """Where zeros begin that a power cut can have left; None if there are none, or others.

    What did not come to the disk are whole sectors, in one of them what was added to it last, or the end of the file.
    """
    start = data.find(_ZERO)
    if start < 0:
        return None
    end = len(data) - len(data[start:].lstrip(_ZERO))
    is_added = data[:start].endswith(b"\n")
    is_of_sectors = end % _SECTOR_SIZE == 0 and (start % _SECTOR_SIZE == 0 or is_added)
    return start if end == len(data) or is_of_sectors else None


def at(disk: Disk, path: Path, place: Place) -> Any:
    """The value in one place."""
    data = disk.read(path, start=place.start, end=place.end)
    if not data.endswith(b"\n"):
        raise _damaged(path)
    return _decoded(path, data[:-1])


def backward(disk: Disk, path: Path) -> Iterator[Any]:
    """The values, newest first, without reading more of the file than is asked for."""
    stamp = disk.stamp(path)
    start = stamp.size if stamp else 0
    cut = b""
    is_torn = True
    while start > 0:
        end, start = start, max(0, start - _BLOCK_SIZE)
        data = disk.read(path, start=start, end=end) + cut
        if is_torn:
            whole, newline, piece = data.rpartition(b"\n")
            if not newline and start > 0:
                cut = data
                continue
            _require_torn(path, piece)
            data, is_torn = whole + newline, False
        if start > 0:
            # The first line may have its beginning in the block before.
            first, newline, data = data.partition(b"\n")
            cut = first + newline
        for line in reversed(data.split(b"\n")[:-1]):
            yield _decoded(path, line)


def only(path: Path, data: bytes) -> Any | None:
    """The value of a file of one line that has these bytes; None if it did not survive."""
    try:
        return _decoded(path, data.partition(b"\n")[0])
    except WorkflowCheckpointException:
        return None


def _sound_end(disk: Disk, path: Path) -> int:
    """Where the last whole line ends."""
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
    return digest(text)[:CHECKSUM_LENGTH].encode("ascii")


def _decoded(path: Path, line: bytes) -> Any:
    if not _is_sound(line):
        raise _damaged(path)
    return json.loads(line[CHECKSUM_LENGTH + 1 :].decode("utf-8", "surrogatepass"))


def _require_torn(path: Path, piece: bytes) -> None:
    """Refuse an end of the file that is no beginning of a line, since the whole line stands there."""
    # A power cut can leave a zero in the place of the newline.
    if not piece.endswith(_ZERO) and _is_sound(piece[:-1]):
        raise _damaged(path)


def _is_sound(line: bytes) -> bool:
    return line[: CHECKSUM_LENGTH + 1] == _checksum(line[CHECKSUM_LENGTH + 1 :]) + b" "


def _damaged(path: Path) -> WorkflowCheckpointException:
    return WorkflowCheckpointException(
        f"{str(path)!r} is damaged: a line of it is not what was written; restore the storage from a copy"
    )
