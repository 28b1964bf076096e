"""Blobs in files of their own, named by hash, and the choice of which blobs get one.

A blob that has a file has all that it refers to in files, too. Small blobs that are written together share a file that
has as many names as blobs: they cost one fsync, and each is found and removed by its own name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perdure.errors import BlobDamagedError
from perdure.records import Blob
from perdure.storage.file.checkpoints import fits_inline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.storage.disk import Disk

_SHARED_BLOB_SIZE_MAX = 4 * 1024
_SHARED_FILE_BLOBS_MAX = 64
# The total size of new blobs in one checkpoint's file.
_NEW_INLINE_SIZE_MAX = 16 * 1024
# The total size of unchanged blobs that are written again with each checkpoint's file. More of them get files, once.
_CARRIED_INLINE_SIZE_MAX = 4 * 1024


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
        # Names that were fsynced with all that their blobs refer to, with the inodes of their files.
        self._flushed: dict[str, int] = {}

    def read(self, blob_hash: str) -> Mapping[str, Blob]:
        """Return the blobs in the file of a blob, none if there is no file. Raises BlobDamagedError."""
        if not _is_hash(blob_hash):
            return {}
        path = self._directory / blob_hash
        try:
            return _decode(blob_hash, self._disk.read(path))
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise BlobDamagedError(f"the first line of the blob {str(path)!r} is not what was written") from error

    def refs_of(self, blob_hash: str) -> Sequence[str] | None:
        """Return what a blob refers to, None if it has no file. Raises BlobDamagedError."""
        blob = self.read(blob_hash).get(blob_hash)
        return blob.refs if blob else None

    def names(self) -> list[str]:
        """Return the hashes of all blobs."""
        return self._disk.names(self._directory)

    def add(self, blobs: Iterable[Blob]) -> None:
        """Write blobs durably, as far as they have no files."""
        wanted = {blob.hash: blob for blob in blobs}.values()
        if not wanted:
            return
        new = [blob for blob in wanted if self._disk.stamp(self._path(blob.hash)) is None]
        small = [blob for blob in new if len(blob.data) <= _SHARED_BLOB_SIZE_MAX]
        groups = [[blob] for blob in new if len(blob.data) > _SHARED_BLOB_SIZE_MAX]
        groups += [
            small[start : start + _SHARED_FILE_BLOBS_MAX] for start in range(0, len(small), _SHARED_FILE_BLOBS_MAX)
        ]
        for group in groups:
            self._disk.write_new(self._aside, _encode(group))
            for blob in group:
                self._disk.link(self._aside, self._path(blob.hash))
            self._disk.remove(self._aside)
        # Also if nothing is new: the process that wrote a name may have been killed before it was durable.
        self._disk.sync_directory(self._directory)

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
            stamp = self._disk.stamp(self._path(blob_hash))
            if stamp and self._flushed.get(blob_hash) != stamp.inode and blob_hash not in inodes:
                inodes[blob_hash] = stamp.inode
                # The list grows during the loop.
                waiting.extend(self.refs_of(blob_hash) or ())
        # Blobs that were written together share a file.
        files = {inode: self._path(blob_hash) for blob_hash, inode in inodes.items()}
        self._disk.flush(*files.values())
        self._flushed.update(inodes)

    def _path(self, blob_hash: str) -> Path:
        assert _is_hash(blob_hash), f"{blob_hash!r} is not a hash"
        return self._directory / blob_hash


def _encode(blobs: Sequence[Blob]) -> bytes:
    """Return the bytes of a file: a line that describes the blobs, and their data."""
    if len(blobs) == 1:
        head: dict[str, Any] = {"kind": blobs[0].kind, "refs": blobs[0].refs}
    else:
        head = {"parts": [[blob.hash, blob.kind, blob.refs, len(blob.data)] for blob in blobs]}
    return b"".join((json.dumps(head).encode("ascii"), b"\n", *(blob.data for blob in blobs)))


def _decode(blob_hash: str, data: bytes) -> dict[str, Blob]:
    head, _, body = data.partition(b"\n")
    fields = json.loads(head)
    if "parts" not in fields:
        return {blob_hash: Blob(blob_hash, body, tuple(fields["refs"]), fields["kind"])}
    found: dict[str, Blob] = {}
    start = 0
    for key, kind, refs, size in fields["parts"]:
        found[key] = Blob(key, body[start : start + size], tuple(refs), kind)
        start += size
    return found


def _is_hash(value: str) -> bool:
    """Ask whether a value from a file can be a file name."""
    return value.isascii() and value.isalnum()
