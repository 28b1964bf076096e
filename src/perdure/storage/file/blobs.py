"""Blobs in files of their own, named by hash, and the choice of which blobs get one.

A blob that has a file has all that it refers to in files, too. A large blob has a file of its own. Small blobs that are
written together share a file that has as many names as blobs: they cost one fsync, and each is found and removed by its
own name. The space of a shared file is free when its last name is gone.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

from perdure.errors import BlobDamagedError
from perdure.records import Blob
from perdure.storage.file.checkpoint_file import fits_inline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perdure.storage.disk import Disk, Stamp

_SHARED_BLOB_SIZE_MAX = 4 * 1024
_SHARED_FILE_SIZE_MAX = 32 * 1024
_SHARED_FILE_BLOBS_MAX = 256
_HEAD_SIZE = 4096
_CACHED_NAMES_MAX = 100_000

_NEW_INLINE_SIZE_MAX = 16 * 1024
"""The total size of new blobs in one checkpoint's file."""

_CARRIED_INLINE_SIZE_MAX = 4 * 1024
"""The total size of unchanged blobs that are written again with each checkpoint's file.

A blob that may change with the next commit then needs no file. If there is more, they get files, once."""


def closure(roots: Iterable[str], find: Callable[[str], Blob | None]) -> dict[str, Blob]:
    """Return these blobs and all that they refer to, as far as they are found."""
    found: dict[str, Blob] = {}
    waiting = list(dict.fromkeys(roots))
    seen = set(waiting)
    for blob_hash in waiting:
        blob = find(blob_hash)
        if blob is not None:
            found[blob_hash] = blob
            # The list grows during the loop. Every hash comes once.
            waiting.extend(ref for ref in dict.fromkeys(blob.refs) if ref not in seen)
            seen.update(blob.refs)
    return found


def place(
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
        self._durable: dict[str, int] = {}
        """Names that this process knows to be durable, with the inodes of their files."""
        self._flushed: dict[str, int] = {}
        """Names that were flushed with all that their blobs refer to, with the inodes of their files."""
        self._shared: tuple[Stamp, Mapping[str, Blob]] | None = None
        """The shared file that was read last: its blobs are usually read one after the other."""

    def find(self, blob_hash: str) -> Blob | None:
        """Return a blob, None if it has no file. Raises BlobDamagedError."""
        return self._read(blob_hash, None)

    def refs_of(self, blob_hash: str) -> Sequence[str] | None:
        """Return what a blob refers to, None if it has no file, without reading most of it. Raises BlobDamagedError."""
        blob = self._read(blob_hash, _HEAD_SIZE)
        return blob.refs if blob else None

    def names(self) -> list[str]:
        """Return the hashes of all blobs."""
        return self._disk.names(self._directory)

    def add(self, blobs: Iterable[Blob]) -> None:
        """Write blobs durably, as far as they have no files."""
        wanted = {blob.hash: blob for blob in blobs}
        if not wanted:
            return
        there = self._inodes(wanted)
        new = [blob for blob_hash, blob in wanted.items() if blob_hash not in there]
        for group in _group(new):
            self._disk.write_new(self._aside, _encode(group))
            for blob in group:
                self._disk.link(self._aside, self._path(blob.hash))
            self._disk.remove(self._aside)
        # The process that wrote a name may have been killed before it was durable.
        if new or any(self._durable.get(blob_hash) != inode for blob_hash, inode in there.items()):
            self._disk.sync_directory(self._directory)
            if len(self._durable) > _CACHED_NAMES_MAX:
                self._durable.clear()
            self._durable.update(self._inodes(wanted))

    def remove(self, blob_hash: str) -> None:
        """Remove a blob that nothing needs."""
        self._disk.remove(self._directory / blob_hash)

    def flush(self, roots: Iterable[str]) -> None:
        """Fsync these blobs, and all that they refer to, if they were written without fsync."""
        if not self._disk.is_lazy:
            return
        inodes: dict[str, int] = {}
        waiting = list(dict.fromkeys(roots))
        for blob_hash in waiting:
            # The list grows during the loop.
            for found, inode in self._inodes([blob_hash]).items():
                if self._flushed.get(found) != inode and found not in inodes:
                    inodes[found] = inode
                    waiting.extend(self.refs_of(found) or ())
        # Blobs that were written together share a file.
        files = {inode: self._path(blob_hash) for blob_hash, inode in inodes.items()}
        self._disk.flush(*files.values())
        if len(self._flushed) > _CACHED_NAMES_MAX:
            self._flushed.clear()
        self._flushed.update(inodes)

    def _inodes(self, hashes: Iterable[str]) -> dict[str, int]:
        """Return the inodes of those blobs that have files."""
        stamps = ((blob_hash, self._disk.stamp(self._path(blob_hash))) for blob_hash in hashes)
        return {blob_hash: stamp.inode for blob_hash, stamp in stamps if stamp}

    def _path(self, blob_hash: str) -> Path:
        assert _is_hash(blob_hash), f"{blob_hash!r} is not a hash"
        return self._directory / blob_hash

    def _read(self, blob_hash: str, size: int | None) -> Blob | None:
        if not _is_hash(blob_hash):
            return None
        path = self._directory / blob_hash
        stamp = self._disk.stamp(path)
        if stamp is None:
            return None
        if self._shared and self._shared[0] == stamp:
            return self._shared[1].get(blob_hash)
        try:
            data = self._disk.read(path, end=size)
            if size is not None and (b"\n" not in data or _is_shared(data)):
                data = self._disk.read(path)
        except FileNotFoundError:
            return None
        try:
            if not _is_shared(data):
                return _decode(blob_hash, data)
            blobs = {blob.hash: blob for blob in _decode_shared(data)}
            self._shared = stamp, blobs
            return blobs[blob_hash]
        except (ValueError, KeyError, TypeError) as error:
            raise BlobDamagedError(f"the first line of the blob {str(path)!r} is not what was written") from error


def _group(blobs: Iterable[Blob]) -> Iterator[Sequence[Blob]]:
    """Group blobs into files."""
    group: list[Blob] = []
    size = 0
    for blob in blobs:
        if len(blob.data) > _SHARED_BLOB_SIZE_MAX:
            yield (blob,)
            continue
        if group and (size + len(blob.data) > _SHARED_FILE_SIZE_MAX or len(group) == _SHARED_FILE_BLOBS_MAX):
            yield group
            group, size = [], 0
        group.append(blob)
        size += len(blob.data)
    if group:
        yield group


def _encode(blobs: Sequence[Blob]) -> bytes:
    """Return the bytes of a file: a line that describes the blobs, and their data."""
    if len(blobs) == 1:
        head: dict[str, Any] = {"kind": blobs[0].kind, "refs": blobs[0].refs}
    else:
        head = {"parts": [[blob.hash, blob.kind, blob.refs, len(blob.data)] for blob in blobs]}
    return b"".join(chain((json.dumps(head).encode("ascii"), b"\n"), (blob.data for blob in blobs)))


def _is_shared(data: bytes) -> bool:
    return data.startswith(b'{"parts"')


def _decode(blob_hash: str, data: bytes) -> Blob:
    head, _, body = data.partition(b"\n")
    fields = json.loads(head)
    return Blob(blob_hash, body, tuple(fields["refs"]), fields["kind"])


def _decode_shared(data: bytes) -> Iterator[Blob]:
    head, _, body = data.partition(b"\n")
    start = 0
    for blob_hash, kind, refs, size in json.loads(head)["parts"]:
        yield Blob(blob_hash, body[start : start + size], tuple(refs), kind)
        start += size


def _is_hash(value: str) -> bool:
    """Ask whether a value from a file can be a file name."""
    return value.isascii() and value.isalnum()
