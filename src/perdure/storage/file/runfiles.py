"""The files of one kind that runs have in a directory. Such a file has the file name of its run's log."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from perdure.errors import WorkflowCheckpointException
from perdure.storage.ids import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from perdure.records import Part
    from perdure.storage.disk import Disk

_SUFFIX = ".log"
_REMEMBERED_MAX = 64


class RunFile(Protocol):
    """A file of a run in which parts stand."""

    def part(self, part_hash: str) -> Part | None:
        """A part that stands in the file, as far as it was looked at."""
        ...

    def all_parts(self) -> Iterable[Part]:
        """Every part that stands in the file. Raises WorkflowCheckpointException."""
        ...


F = TypeVar("F", bound=RunFile)


class RunFiles(Generic[F]):
    """These files, by run id or by file name. A few are remembered."""

    def __init__(self, disk: Disk, directory: Path, open_file: Callable[[Disk, Path], F]) -> None:
        self._disk = disk
        self._directory = directory
        self._open_file = open_file
        self._remembered: OrderedDict[str, F] = OrderedDict()

    def of(self, run_id: str) -> F:
        """The file of a run, which need not exist."""
        return self.named(file_name(run_id) + _SUFFIX)

    def named(self, name: str) -> F:
        """The file of that name."""
        file = self._remembered.pop(name, None) or self._open_file(self._disk, self._directory / name)
        self._remembered[name] = file
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return file

    def forget(self, name: str) -> None:
        """Remember nothing of the file of that name: it is another one, or gone."""
        self._remembered.pop(name, None)

    def names(self) -> list[str]:
        """The names of all files."""
        return [name for name in self._disk.names(self._directory) if name.endswith(_SUFFIX)]

    def sync(self) -> None:
        """Let removals last."""
        self._disk.sync_directory(self._directory)

    def part(self, part_hash: str) -> Part | None:
        """A part that stands in one of the files, as far as they were looked at."""
        found = (file.part(part_hash) for file in self._remembered.values())
        return next((part for part in found if part), None)

    def all_parts(self) -> Mapping[str, Part]:
        """The parts that stand in any of the files."""
        parts: dict[str, Part] = {}
        for name in self.names():
            try:
                parts.update(
                    (part.hash, part) for part in self._open_file(self._disk, self._directory / name).all_parts()
                )
            except WorkflowCheckpointException:
                # Nobody asked for this one; whoever does is told.
                continue
        return parts
