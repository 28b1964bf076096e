"""The checkpoints of a directory, each a file named by its id. That the file is there is that the commit happened."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING
from urllib.parse import unquote

from perdure.errors import CheckpointDamagedError
from perdure.storage.file.document import decode, encode
from perdure.storage.file.settling import settle
from perdure.storage.ids import file_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perdure.records import Part
    from perdure.storage.disk import Disk, Stamp
    from perdure.storage.file.document import Document
    from perdure.storage.retention import Entry

_SUFFIX = ".json"
_REMEMBERED_DOCUMENTS_MAX = 64
_REMEMBERED_PARTS_MAX = 200_000
_REMEMBERED_PATHS_MAX = 512


def usual_id(run_id: str, position: int) -> str:
    """The id that a checkpoint of a run has unless its author has chosen another one."""
    return f"{run_id}@{position}"


class Documents:
    """Reads, writes and removes them. A few are remembered, since a commit looks at the one before it."""

    def __init__(self, disk: Disk, directory: Path, *, aside: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._aside = aside
        self._remembered: OrderedDict[str, tuple[Stamp, Document]] = OrderedDict()
        self._homes: dict[str, str] = {}
        self._paths: dict[str, Path] = {}

    def exists(self, checkpoint_id: str) -> bool:
        """Whether there is such a checkpoint, whole or damaged."""
        return self._disk.stamp(self._path(checkpoint_id)) is not None

    def find(self, checkpoint_id: str) -> Document | None:
        """The checkpoint of that id. Raises CheckpointDamagedError."""
        stamp = self._disk.stamp(self._path(checkpoint_id))
        if stamp is None:
            return None
        remembered = self._remembered.get(checkpoint_id)
        if remembered and remembered[0] == stamp:
            self._remembered.move_to_end(checkpoint_id)
            return remembered[1]
        document = self._read(self._path(checkpoint_id).name)
        if document:
            self._remember(stamp, document)
        return document

    def at(self, run_id: str, position: int) -> Document | None:
        """The checkpoint of a run at that position, if its id is the usual one. Raises CheckpointDamagedError."""
        document = self.find(usual_id(run_id, position))
        is_it = document is not None and (document.manifest.run_id, document.manifest.position) == (run_id, position)
        return document if is_it else None

    def holds(self, entry: Entry) -> bool:
        """Whether the checkpoint of that entry is there, and not another that got its id since.

        A damaged one counts: whoever reads it will be told.
        """
        try:
            document = self.find(entry.checkpoint_id)
        except CheckpointDamagedError:
            return True
        return document is not None and document.sequence == entry.sequence

    def all(self) -> Iterator[Document]:
        """Every checkpoint, in no order. Raises CheckpointDamagedError."""
        return (document for document in map(self._read, self.names()) if document)

    def names(self) -> list[str]:
        """The names of their files."""
        names = self._disk.names(self._directory)
        return [name for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]

    def put(self, document: Document) -> None:
        """Let a checkpoint appear. It lasts when this returns."""
        target = self._path(document.manifest.checkpoint_id)
        self._disk.write_new(self._aside, encode(document))
        # Linking appears at once and never replaces: a crash leaves the old history or the new one.
        self._disk.link(self._aside, target)
        try:
            self._disk.sync_directory(self._directory)
        except OSError:
            self._disk.remove(target)
            raise
        self._disk.remove(self._aside)
        stamp = self._disk.stamp(target)
        if stamp:
            self._remember(stamp, document)

    def settle(self, checkpoint_id: str) -> None:
        """Let a checkpoint last that was not waited for when it appeared."""
        settle(self._disk, self._path(checkpoint_id))

    def remove(self, checkpoint_id: str) -> None:
        """Let a checkpoint disappear. To last, `sync` has to follow."""
        self._disk.remove(self._path(checkpoint_id))
        self._remembered.pop(checkpoint_id, None)

    def sync(self) -> None:
        """Let removals last."""
        self._disk.sync_directory(self._directory)

    def part(self, part_hash: str) -> Part | None:
        """A part that stands in one of the files, as far as they were looked at."""
        home = self._homes.get(part_hash)
        if home is None:
            return None
        try:
            document = self.find(home)
        except CheckpointDamagedError:
            return None
        return document.parts.get(part_hash) if document else None

    def look_for_parts(self) -> None:
        """Go through all files, to know which parts stand in them."""
        for name in self.names():
            try:
                self._read(name)
            except CheckpointDamagedError:
                # Nobody asked for this one; whoever does is told.
                continue

    def name_of(self, checkpoint_id: str) -> str:
        """The name that the file of a checkpoint has or would have."""
        return file_name(checkpoint_id) + _SUFFIX

    def _path(self, checkpoint_id: str) -> Path:
        # A commit asks five times for the same one, and making one costs as much as a look at the disk.
        path = self._paths.get(checkpoint_id)
        if path is None:
            if len(self._paths) > _REMEMBERED_PATHS_MAX:
                self._paths.clear()
            path = self._paths[checkpoint_id] = self._directory / self.name_of(checkpoint_id)
        return path

    def _read(self, name: str) -> Document | None:
        document = self.named(name)
        if document:
            self._homes.update(dict.fromkeys(document.parts, document.manifest.checkpoint_id))
        return document

    def named(self, name: str) -> Document | None:
        """The checkpoint in the file of that name, of which nothing is remembered. Raises CheckpointDamagedError."""
        label = unquote(name.removesuffix(_SUFFIX))
        try:
            data = self._disk.read(self._directory / name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointDamagedError(label, f"its file can't be read ({error.strerror})") from error
        document = decode(data, label)
        checkpoint_id = document.manifest.checkpoint_id
        if self._path(checkpoint_id).name != name:
            raise CheckpointDamagedError(label, f"its file is that of {checkpoint_id!r}")
        return document

    def _remember(self, stamp: Stamp, document: Document) -> None:
        checkpoint_id = document.manifest.checkpoint_id
        self._remembered[checkpoint_id] = (stamp, document)
        if len(self._remembered) > _REMEMBERED_DOCUMENTS_MAX:
            self._remembered.popitem(last=False)
        if len(self._homes) > _REMEMBERED_PARTS_MAX:
            self._homes.clear()
        self._homes.update(dict.fromkeys(document.parts, checkpoint_id))
