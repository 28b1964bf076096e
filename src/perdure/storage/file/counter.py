"""Numbers that only grow, for all processes that share a directory: the order of commits, the tokens of claims.

The file is not synced for every number. It says how far numbers were reserved, and that is synced; after the
machine has gone down, counting goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.storage.file import lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.storage.disk import Disk

_RESERVED_AT_ONCE = 1000


class Counter:
    """A file with the next number. `highest_in_use` finds out the last one when the file is lost."""

    def __init__(self, disk: Disk, path: Path, highest_in_use: Callable[[], int]) -> None:
        self._disk = disk
        self._path = path
        self._highest_in_use = highest_in_use
        self._boot = disk.boot_id()
        self._known: tuple[bytes, dict[str, Any]] = b"", {}
        """The file when it was looked at last, and what it says."""

    def take(self) -> int:
        """A number larger than all before it."""
        fields = self._fields()
        number = int(fields["next"])
        reserved = int(fields["reserved"])
        is_reserved = number < reserved
        self._write(
            {**fields, "next": number + 1, "reserved": reserved if is_reserved else number + _RESERVED_AT_ONCE},
            sync=not is_reserved,
        )
        return number

    def note_change(self) -> None:
        """Let those who watch the file take note of a change that needs no number."""
        self.take()

    def contents(self) -> bytes:
        """The file as it is; another one with every number that is taken."""
        try:
            return self._disk.read(self._path)
        except FileNotFoundError:
            return b""

    @property
    def pruned(self) -> int:
        """How many checkpoints were forgotten since the last collection."""
        return int(self._fields()["pruned"])

    @property
    def last_pruned(self) -> int:
        """The same, when this process wrote the file last."""
        return int(self._known[1].get("pruned", 0))

    def add_pruned(self, number: int) -> None:
        """Count forgotten checkpoints."""
        self._write({**self._fields(), "pruned": self.pruned + number}, sync=False)

    def reset_pruned(self) -> None:
        """Begin to count anew."""
        self._write({**self._fields(), "pruned": 0}, sync=False)

    def _fields(self) -> dict[str, Any]:
        data, fields = self.contents(), None
        if data:
            fields = self._known[1] if data == self._known[0] else lines.only(self._path, data)
        if fields is None:
            number = self._highest_in_use() + 1
            return {"boot": self._boot, "next": number, "reserved": number, "pruned": 0}
        if fields["boot"] != self._boot or not self._boot:
            return {**fields, "boot": self._boot, "next": max(fields["next"], fields["reserved"])}
        return fields

    def _write(self, fields: dict[str, Any], *, sync: bool) -> None:
        data = lines.encoded(fields)
        self._disk.write_at(self._path, 0, data, sync=sync)
        self._known = data, fields
