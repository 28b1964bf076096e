"""What has been referred to since a collection began, so that it is spared.

While the file stands, a collection is under way or was cut off. Whoever writes something that refers to parts notes
them here first, under the directory's lock. A collection removes nothing without having read that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.storage.file import lines

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from perdure.storage.disk import Disk

_SIZE_MAX = 16 * 1024 * 1024
"""The file of a collection that was cut off would grow until the next one. One that lives has to begin anew then."""


class Protection:
    """The file of one collection at a time, which has a number. Nothing in it need outlast the machine."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def begin(self, number: int) -> None:
        """Let a collection begin; one that is under way ends."""
        self._disk.write_at(self._path, 0, lines.encoded({"collection": number}), sync=False)

    def end(self) -> None:
        """Let nobody note anything any more."""
        self._disk.remove(self._path)

    def note(self, refs: Collection[str]) -> None:
        """Spare these parts, and what they refer to."""
        stamp = self._disk.stamp(self._path) if refs else None
        if stamp is None:
            return
        if stamp.size > _SIZE_MAX:
            self.end()
            return
        lines.append(self._disk, self._path, {"refs": list(refs)}, sync=False)

    def noted(self, number: int) -> set[str] | None:
        """What was noted since the collection of that number began; None if it is not under way any more."""
        values: list[dict[str, Any]]
        values, _ = lines.forward(self._disk, self._path)
        if not values or values[0].get("collection") != number:
            return None
        return {ref for value in values[1:] for ref in value["refs"]}
