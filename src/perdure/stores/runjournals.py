"""The journals of all runs in a directory. A journal has the file name of its run's log."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from perdure.errors import WorkflowCheckpointException
from perdure.stores.ids import file_name
from perdure.stores.runjournal import RunJournal, read

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from perdure.records import Part
    from perdure.stores.disk import Disk

_SUFFIX = ".log"
_REMEMBERED_MAX = 64


class RunJournals:
    """The journals of runs, by run id or by file name."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._remembered: OrderedDict[str, RunJournal] = OrderedDict()

    def of(self, run_id: str) -> RunJournal:
        """The journal of a run, which need not exist."""
        return self.named(file_name(run_id) + _SUFFIX)

    def named(self, name: str) -> RunJournal:
        """The journal of that file name."""
        journal = self._remembered.pop(name, None) or RunJournal(self._disk, self._directory / name)
        self._remembered[name] = journal
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return journal

    def names(self) -> list[str]:
        """The file names of all journals."""
        return [name for name in self._disk.names(self._directory) if name.endswith(_SUFFIX)]

    def sync(self) -> None:
        """Let removals last."""
        self._disk.sync_directory(self._directory)

    def part(self, part_hash: str) -> Part | None:
        """A part that stands in one of the files, as far as they were looked at."""
        found = (journal.part(part_hash) for journal in self._remembered.values())
        return next((part for part in found if part), None)

    def all_parts(self) -> Mapping[str, Part]:
        """The parts that stand in any of the files."""
        parts: dict[str, Part] = {}
        for name in self.names():
            try:
                written, _ = read(self._disk, self._directory / name)
            except WorkflowCheckpointException:
                # Nobody asked for this one; whoever does is told.
                continue
            parts.update((part.hash, part) for line in written for part in line.parts)
        return parts
