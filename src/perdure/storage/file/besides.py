"""Parts beside the files that need them, by their hashes.

A part that is kept here has all that it refers to here, too. A large part has a file of its own. Small ones that come
together share one, which has as many names as it has parts: so they cost one sync, and each is found, and removed, by
its own name. What a shared file takes up is free when its last name is gone.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from perdure.errors import PartDamagedError
from perdure.records import Part
from perdure.storage.file.settling import settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perdure.storage.disk import Disk, Stamp
    from perdure.storage.file.protecting import Protection

_SHARED_PART_SIZE_MAX = 4 * 1024
_SHARED_FILE_SIZE_MAX = 32 * 1024
_SHARED_FILE_PARTS_MAX = 256
_HEAD_SIZE = 4096
_REMEMBERED_MAX = 100_000


class Besides:
    """The directory of parts that are too large, or too many, for the files of checkpoints."""

    def __init__(self, disk: Disk, directory: Path, *, aside: Path, protection: Protection) -> None:
        self._disk = disk
        self._directory = directory
        self._aside = aside
        self._protection = protection
        self._lasting: dict[str, int] = {}
        """The names that this process knows to outlast the machine, each with its file's inode."""
        self._shared: tuple[Stamp, Mapping[str, Part]] | None = None
        """The shared file that was read last: its parts are looked for one after the other."""
        self._settled: dict[str, int] = {}
        """The names that were settled, with all that their parts refer to, each with its file's inode."""

    def find(self, part_hash: str) -> Part | None:
        """The part of that hash, if it is here."""
        return self._read(part_hash, None)

    def add(self, parts: Iterable[Part]) -> None:
        """Keep these parts; they last when this returns."""
        wanted = {part.hash: part for part in parts}
        if not wanted:
            return
        there = self._inodes(wanted)
        self._protection.note(there.keys())
        new = [part for part_hash, part in wanted.items() if part_hash not in there]
        for together in _groups(new):
            self._write(together)
        # A name that is there may be one that a process was killed over before it lasted.
        if new or any(self._lasting.get(part_hash) != inode for part_hash, inode in there.items()):
            self._disk.sync_directory(self._directory)
            self._remember(self._inodes(wanted))

    def settle(self, roots: Iterable[str]) -> None:
        """Let these parts last, as far as they are here, and all that they refer to, though nobody waited for them."""
        if not self._disk.is_lazy:
            return
        waiting = list(dict.fromkeys(roots))
        inodes: dict[str, int] = {}
        for part_hash in waiting:
            # The list grows while it is walked.
            for found, inode in self._inodes([part_hash]).items():
                if self._settled.get(found) != inode and found not in inodes:
                    inodes[found] = inode
                    waiting.extend(self.refs_of(found))
        # Parts that were written together are one file.
        files = {inode: self._path(part_hash) for part_hash, inode in inodes.items()}
        settle(self._disk, *files.values())
        if len(self._settled) > _REMEMBERED_MAX:
            self._settled.clear()
        self._settled.update(inodes)

    def _inodes(self, hashes: Iterable[str]) -> dict[str, int]:
        """Of these parts those that are here, each with its file's inode."""
        stamps = ((part_hash, self._disk.stamp(self._path(part_hash))) for part_hash in hashes)
        return {part_hash: stamp.inode for part_hash, stamp in stamps if stamp}

    def _write(self, together: Sequence[Part]) -> None:
        self._disk.write_new(self._aside, _encoded(together))
        for part in together:
            self._disk.link(self._aside, self._path(part.hash))
        self._disk.remove(self._aside)

    def _remember(self, lasting: Mapping[str, int]) -> None:
        if len(self._lasting) > _REMEMBERED_MAX:
            self._lasting.clear()
        self._lasting.update(lasting)

    def _path(self, part_hash: str) -> Path:
        assert _is_hash(part_hash), f"{part_hash!r} is no hash"
        return self._directory / part_hash

    def names(self) -> list[str]:
        """The hashes of all parts that are here."""
        return self._disk.names(self._directory)

    def refs_of(self, part_hash: str) -> Sequence[str]:
        """What a part refers to, nothing if it is not here; without most of its data being read."""
        part = self._read(part_hash, _HEAD_SIZE)
        return part.refs if part else ()

    def remove(self, part_hash: str) -> None:
        """Remove a part that nothing needs."""
        self._disk.remove(self._directory / part_hash)

    def _read(self, part_hash: str, size: int | None) -> Part | None:
        if not _is_hash(part_hash):
            return None
        path = self._directory / part_hash
        stamp = self._disk.stamp(path)
        if stamp is None:
            return None
        if self._shared and self._shared[0] == stamp:
            return self._shared[1].get(part_hash)
        try:
            data = self._disk.read(path, end=size)
            if size is not None and (b"\n" not in data or _is_shared(data)):
                data = self._disk.read(path)
        except FileNotFoundError:
            return None
        return self._decoded(path, part_hash, data, stamp)

    def _decoded(self, path: Path, part_hash: str, data: bytes, stamp: Stamp) -> Part:
        try:
            if not _is_shared(data):
                return _single(part_hash, data)
            parts = {part.hash: part for part in _several(data)}
            self._shared = stamp, parts
            return parts[part_hash]
        except (ValueError, KeyError, TypeError) as error:
            raise PartDamagedError(f"the part in {str(path)!r} has another first line than was written") from error


def _groups(parts: Iterable[Part]) -> Iterator[Sequence[Part]]:
    """Which of them are written together."""
    group: list[Part] = []
    size = 0
    for part in parts:
        if len(part.data) > _SHARED_PART_SIZE_MAX:
            yield (part,)
            continue
        if group and (size + len(part.data) > _SHARED_FILE_SIZE_MAX or len(group) == _SHARED_FILE_PARTS_MAX):
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part.data)
    if group:
        yield group


def _encoded(parts: Sequence[Part]) -> bytes:
    """A line that says what follows, and the data."""
    if len(parts) == 1:
        head: dict[str, Any] = {"kind": parts[0].kind, "refs": parts[0].refs}
    else:
        head = {"parts": [[part.hash, part.kind, part.refs, len(part.data)] for part in parts]}
    return b"".join(chain((json.dumps(head).encode("ascii"), b"\n"), (part.data for part in parts)))


def _is_shared(data: bytes) -> bool:
    return data.startswith(b'{"parts"')


def _single(part_hash: str, data: bytes) -> Part:
    head, _, body = data.partition(b"\n")
    fields = json.loads(head)
    return Part(part_hash, body, tuple(fields["refs"]), fields["kind"])


def _several(data: bytes) -> Iterator[Part]:
    head, _, body = data.partition(b"\n")
    start = 0
    for part_hash, kind, refs, size in json.loads(head)["parts"]:
        yield Part(part_hash, body[start : start + size], tuple(refs), kind)
        start += size


def _is_hash(value: str) -> bool:
    """Hashes become file names, and some come from files."""
    return value.isascii() and value.isalnum()
