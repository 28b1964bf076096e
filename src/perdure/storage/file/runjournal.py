"""A journal as a file: a line is what one call has recorded, and says which stay at a head it is of.

The head moves without the journal being touched, and that alone makes the lines void; the file is removed afterwards.
A head can be returned to, by rewinding, but never with the same nonce.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import JournalRecord, Part
from perdure.storage.file import lineparts, lines
from perdure.storage.file.placing import closure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from perdure.records import RunRecord
    from perdure.storage.disk import Disk, Stamp

_SIZE_BEFORE_COMPACTION = 256 * 1024


@dataclass(frozen=True, slots=True)
class Stay:
    """A run while its head stands still."""

    head: str | None
    nonce: str

    @classmethod
    def of(cls, run: RunRecord) -> Stay:
        """The present one of a run."""
        return cls(run.head, run.nonce)


@dataclass(frozen=True, slots=True)
class JournalLine:
    """What one call has recorded, with its small parts."""

    stay: Stay
    records: tuple[JournalRecord, ...]
    parts: tuple[Part, ...]
    synced: int = 0
    """Up to which offset the file was known to be synced when this was written."""


def split(stay: Stay, records: Sequence[JournalRecord]) -> tuple[JournalLine, Sequence[Part]]:
    """The line for these records, and the parts to be written beside it."""
    inline, beside = lineparts.split(part for record in records for part in record.parts)
    return JournalLine(stay, tuple(replace(record, parts=()) for record in records), inline), beside


@dataclass(slots=True)
class _Contents:
    """What stands in the file, up to the end of its last whole line."""

    stamp: Stamp | None = None
    end: int = 0
    synced: int = 0
    is_name_synced: bool = False
    stay: Stay | None = None
    records: dict[str, JournalRecord] = field(default_factory=dict[str, JournalRecord])
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    replaced: int = 0
    """How many records that were replaced had parts beside the file."""

    def take(self, line: JournalLine) -> None:
        self.synced = max(self.synced, line.synced)
        if line.stay != self.stay:
            self.stay = line.stay
            self.records.clear()
            self.parts.clear()
        self.parts.update((part.hash, part) for part in line.parts)
        for record in line.records:
            before = self.records.get(record.key)
            self.replaced += before is not None and self.has_parts_beside(before)
            # A key that is there already keeps its place.
            self.records[record.key] = record

    def has_parts_beside(self, record: JournalRecord) -> bool:
        return not self.parts.keys() >= set(record.refs)


class RunJournal:
    """The journal of one run. What the file holds is remembered until it changes."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._contents = _Contents()

    def records(self, stay: Stay) -> Sequence[JournalRecord]:
        """The records of that stay. Raises CheckpointDamagedError."""
        contents = self._refreshed(stay)
        return tuple(contents.records.values()) if contents.stay == stay else ()

    def roots(self, stay: Stay) -> set[str]:
        """The parts that the file refers to. Raises CheckpointDamagedError."""
        contents = self._refreshed(stay)
        return {ref for each in chain(contents.records.values(), contents.parts.values()) for ref in each.refs}

    def part(self, part_hash: str) -> Part | None:
        """A part that stands in the file, as far as it was looked at."""
        return self._contents.parts.get(part_hash)

    def all_parts(self) -> Iterator[Part]:
        """Every part that stands in the file. Raises WorkflowCheckpointException."""
        written, _ = read(self._disk, self._path)
        return chain.from_iterable(line.parts for line in written)

    def append(self, new: Sequence[JournalLine], *, sync: bool) -> None:
        """Write these lines, all of one stay. Raises CheckpointDamagedError for what is there already."""
        contents = self._refreshed(new[0].stay)
        before = contents.end
        data = b"".join(encoded(replace(line, synced=contents.synced)) for line in new)
        if contents.stamp and contents.stamp.size > before:
            # Of lines behind a hole no half may be left behind these: it would be a line that nobody wrote.
            self._disk.write_at(self._path, before, b"", sync=True)
        self._disk.write_at(self._path, before, data, sync=sync)
        if sync and not contents.is_name_synced:
            self._disk.sync_directory(self._path.parent)
            contents.is_name_synced = True
        for line in new:
            contents.take(line)
        contents.end += len(data)
        contents.synced = contents.end if sync else contents.synced
        contents.stamp = self._disk.stamp(self._path)
        # At each doubling, so that a journal that can't be shortened costs little to try.
        if contents.end >= _SIZE_BEFORE_COMPACTION and before.bit_length() < contents.end.bit_length():
            # The lines are written; what can't be shortened now is so later.
            with contextlib.suppress(OSError):
                self._compact(new[0].stay)

    def drop_if_void(self, stay: Stay) -> None:
        """Remove the file if it is of another stay. Raises CheckpointDamagedError."""
        if self._refreshed(stay).stay not in {None, stay}:
            self.drop()

    def drop(self) -> int:
        """Remove the file, damaged or not; how many of its records, as far as is known, had parts beside it."""
        contents, self._contents = self._contents, _Contents()
        if self._disk.stamp(self._path):
            self._disk.remove(self._path)
        return contents.replaced + sum(map(contents.has_parts_beside, contents.records.values()))

    def _refreshed(self, stay: Stay) -> _Contents:
        """What is in the file now, read again if it has changed. The stay is for the error to name its head."""
        stamp = self._disk.stamp(self._path)
        if stamp != self._contents.stamp:
            self._contents = _Contents()
            try:
                written, end = read(self._disk, self._path)
            except WorkflowCheckpointException as error:
                checkpoint_id = stay.head or f"{self._path.stem}@0"
                raise CheckpointDamagedError(checkpoint_id, "its journal is not what was written") from error
            for line in written:
                self._contents.take(line)
            self._contents.end = end
            self._contents.stamp = stamp
        return self._contents

    def _compact(self, stay: Stay) -> None:
        """Leave out what was replaced, and the parts that nothing else refers to."""
        records = tuple(self.records(stay))
        parts = closure(chain.from_iterable(record.refs for record in records), self.part)
        data = encoded(JournalLine(stay, records, tuple(parts.values())))
        aside = self._path.with_suffix(".aside")
        self._disk.write_new(aside, data)
        self._disk.rename(aside, self._path)
        self._disk.sync_directory(self._path.parent)
        self._contents = _Contents(
            stamp=self._disk.stamp(self._path),
            end=len(data),
            synced=len(data),
            is_name_synced=True,
            stay=stay,
            records={record.key: record for record in records},
            parts=parts,
            replaced=self._contents.replaced,
        )


def read(disk: Disk, path: Path) -> tuple[list[JournalLine], int]:
    """The lines of a file, and where the last whole one ends."""
    values, end = lines.before_a_hole(disk, path)
    return [_from_json(value) for value in values], end


def encoded(line: JournalLine) -> bytes:
    """The line as it stands in the file."""
    return lines.encoded(
        {
            "head": line.stay.head,
            "nonce": line.stay.nonce,
            "synced": line.synced,
            "records": [{"key": each.key, "refs": each.refs, **lineparts.coded(each.data)} for each in line.records],
            "parts": lineparts.parts_to_json(line.parts),
        }
    )


def _from_json(value: dict[str, Any]) -> JournalLine:
    return JournalLine(
        stay=Stay(value["head"], value["nonce"]),
        records=tuple(
            JournalRecord(each["key"], lineparts.decoded(each), tuple(each["refs"])) for each in value["records"]
        ),
        parts=lineparts.parts_from_json(value["parts"]),
        synced=value.get("synced", 0),
    )
