"""Parts in files of their own, by their hashes; and which parts of a checkpoint go there.

A part of a checkpoint that is kept here has all that it refers to here, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.errors import PartDamagedError
from perdure.records import Part
from perdure.stores.document import fits_inline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from perdure.stores.disk import Disk

_INLINE_TOTAL_SIZE_MAX = 64 * 1024
"""Of the parts within one checkpoint's file. What does not change is written anew with each file up to here."""

_HEAD_SIZE = 4096


class Besides:
    """The directory of parts that are too large, or too many, for the files of checkpoints."""

    def __init__(self, disk: Disk, directory: Path, *, aside: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._aside = aside

    def find(self, part_hash: str) -> Part | None:
        """The part of that hash, if it is here."""
        return self._read(part_hash, None)

    def add(self, parts: Iterable[Part]) -> None:
        """Keep these parts; they last when this returns."""
        added = False
        for part in parts:
            assert _is_hash(part.hash), f"{part.hash!r} is no hash"
            path = self._directory / part.hash
            if self._disk.stamp(path) is None:
                self._disk.write_new(self._aside, _encoded(part))
                self._disk.rename(self._aside, path)
                added = True
        if added:
            self._disk.sync_directory(self._directory)

    def sweep(self, roots: Iterable[str]) -> int:
        """Remove all but these parts and what they refer to; the number of those removed."""
        needed = closure(roots, self._find_head).keys()
        unneeded = [name for name in self._disk.names(self._directory) if name not in needed]
        for name in unneeded:
            self._disk.remove(self._directory / name)
        return len(unneeded)

    def _find_head(self, part_hash: str) -> Part | None:
        """The part without most of its data, for what it refers to."""
        return self._read(part_hash, _HEAD_SIZE)

    def _read(self, part_hash: str, size: int | None) -> Part | None:
        if not _is_hash(part_hash):
            return None
        path = self._directory / part_hash
        try:
            data = self._disk.read(path, end=size)
            if size is not None and b"\n" not in data:
                data = self._disk.read(path)
        except FileNotFoundError:
            return None
        return _decoded(path, part_hash, data)


def closure(roots: Iterable[str], find: Callable[[str], Part | None]) -> dict[str, Part]:
    """These parts and all that they refer to, as far as they are found."""
    found: dict[str, Part] = {}
    waiting = list(dict.fromkeys(roots))
    seen = set(waiting)
    for part_hash in waiting:
        part = find(part_hash)
        if part is not None:
            found[part_hash] = part
            # The list grows while it is walked; every hash comes once.
            waiting.extend(ref for ref in dict.fromkeys(part.refs) if ref not in seen)
            seen.update(part.refs)
    return found


def placed(
    roots: Iterable[str], *, carried: Mapping[str, Part], new: Mapping[str, Part], told: Iterable[str] = ()
) -> tuple[dict[str, Part], dict[str, Part]]:
    """Which parts of a checkpoint go into its file, and which beside it.

    `carried` are those in the predecessor's file. All that the checkpoint needs besides these and the new ones is
    beside already. What its events refer to, the parts `told`, is placed like its own.
    """
    known = {**new, **carried}
    needed = closure([*roots, *told], known.get)
    misfits = [part_hash for part_hash, part in needed.items() if part_hash not in carried and not fits_inline(part)]
    beside = closure(misfits, known.get)
    size = 0
    for part_hash, part in needed.items():
        if part_hash not in beside:
            size += len(part.data)
            if size > _INLINE_TOTAL_SIZE_MAX:
                beside |= closure([part_hash], known.get)
    return {part_hash: part for part_hash, part in needed.items() if part_hash not in beside}, beside


def _encoded(part: Part) -> bytes:
    return json.dumps({"kind": part.kind, "refs": part.refs}).encode("ascii") + b"\n" + part.data


def _decoded(path: Path, part_hash: str, data: bytes) -> Part:
    try:
        head, _, body = data.partition(b"\n")
        fields = json.loads(head)
        return Part(part_hash, body, tuple(fields["refs"]), fields["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise PartDamagedError(f"the part in {str(path)!r} has another first line than was written") from error


def _is_hash(value: str) -> bool:
    """Hashes become file names, and some come from files."""
    return value.isascii() and value.isalnum()
