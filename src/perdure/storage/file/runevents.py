"""The events of checkpoints that are forgotten, as a file: each line is what one commit told.

As long as there is a checkpoint, what its commit told stands in its own file.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import EventBatch
from perdure.storage.file import lineparts, lines
from perdure.storage.file.settling import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from perdure.records import Part
    from perdure.storage.disk import Disk
    from perdure.storage.file.runline import RunLine

_SIZE_BEFORE_SHORTENING = 64 * 1024


@dataclass(frozen=True, slots=True)
class Span:
    """The numbers of the events of one commit, and when it was."""

    first: int
    last: int
    moment: float | None


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What a checkpoint told that is about to be forgotten, with the small parts that it needs."""

    batch: EventBatch
    moment: float | None
    parts: tuple[Part, ...]

    @property
    def refs(self) -> set[str]:
        """What it refers to beside, and within itself."""
        return {*self.batch.refs, *chain.from_iterable(part.refs for part in self.parts)}


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a batch stands in the file, and of which run of that id it is."""

    life: int
    span: Span
    place: lines.Place

    def is_of(self, run: RunLine) -> bool:
        """Whether the run still has it."""
        return self.life == run.life and self.span.last > run.forgotten


class RunEvents:
    """The file of one run. Which batch stands where is remembered, and read on as the file grows."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._forget_file()

    def spans(self, run: RunLine) -> Mapping[int, Span]:
        """The batches in the file that the run still has, by their first numbers. Raises CheckpointDamagedError."""
        return {first: line.span for first, line in self._lines_of(run).items()}

    def batches(self, run: RunLine, *, after: int, end: int, limit: int) -> Mapping[int, EventBatch]:
        """The first of them that hold numbers behind `after` and begin up to `end`. Raises CheckpointDamagedError."""
        known = self._lines_of(run)
        wanted = sorted(first for first, line in known.items() if line.span.last > after and first <= end)
        return {first: _batch(run.state.record.run_id, self._read(run, known[first])) for first in wanted[:limit]}

    def roots(self, run: RunLine) -> set[str]:
        """The parts that these batches refer to. Raises CheckpointDamagedError."""
        values = [self._read(run, line) for line in self._lines_of(run).values()]
        return set(chain.from_iterable((*value["refs"], *_inner_refs(value)) for value in values))

    def part(self, part_hash: str) -> Part | None:
        """A part that stands in the file, as far as it was looked at."""
        place = self._homes.get(part_hash)
        if place is None:
            return None
        try:
            parts = lineparts.parts_from_json(lines.at(self._disk, self._path, place)["parts"])
        except (FileNotFoundError, WorkflowCheckpointException):
            # The file is another one by now.
            return None
        return next((part for part in parts if part.hash == part_hash), None)

    def all_parts(self) -> Iterator[Part]:
        """Every part that stands in the file. Raises WorkflowCheckpointException."""
        values, _ = lines.forward(self._disk, self._path)
        return chain.from_iterable(lineparts.parts_from_json(value["parts"]) for value in values)

    def append(self, run: RunLine, forgotten: Sequence[Forgotten]) -> None:
        """Keep what these checkpoints told; it lasts when this returns. Raises CheckpointDamagedError."""
        known = self._lines_of(run)
        # A line may be there that was never synced; another one then does no harm.
        new = [each for each in forgotten if not self._is_synced or each.batch.first not in known]
        if not new:
            return
        was_synced, self._is_synced = self._is_synced, False
        self._disk.write_at(self._path, self._end, b"".join(encoded(run.life, each) for each in new), sync=True)
        if not was_synced:
            self._disk.sync_directory(self._path.parent)
        self._refresh()
        self._is_synced = True

    def shorten(self, run: RunLine) -> None:
        """Leave out what the run no longer has, if that is most of the file. Raises CheckpointDamagedError."""
        kept = self._lines_of(run)
        size = sum(line.place.end - line.place.start for line in kept.values())
        if not kept:
            self.drop()
        # Readers know a file that is another one by its first line.
        if self._end - size < max(size, _SIZE_BEFORE_SHORTENING) or self._lines[0] in kept.values():
            return
        data = self._disk.read(self._path)
        self._forget_file()
        aside = self._path.with_suffix(".aside")
        # Line by line as they are, each with its checksum.
        self._disk.write_new(aside, b"".join(data[line.place.start : line.place.end] for line in kept.values()))
        self._disk.rename(aside, self._path)
        self._disk.sync_directory(self._path.parent)

    def settle(self) -> None:
        """Let what stands in the file last, though nobody waited for it when it was written."""
        if self._disk.stamp(self._path):
            settle(self._disk, self._path)

    def drop(self) -> None:
        """Remove the file, damaged or not."""
        self._forget_file()
        if self._disk.stamp(self._path):
            self._disk.remove(self._path)

    def _forget_file(self) -> None:
        self._mark = b""
        self._end = 0
        self._is_synced = False
        self._lines: list[_Line] = []
        self._homes: dict[str, lines.Place] = {}

    def _lines_of(self, run: RunLine) -> dict[int, _Line]:
        """By their first numbers the batches that the run still has."""
        try:
            self._refresh()
        except WorkflowCheckpointException as error:
            raise _damaged(run) from error
        return {line.span.first: line for line in self._lines if line.is_of(run)}

    def _read(self, run: RunLine, line: _Line) -> dict[str, Any]:
        try:
            return lines.at(self._disk, self._path, line.place)
        except WorkflowCheckpointException as error:
            raise _damaged(run) from error

    def _refresh(self) -> None:
        """Read what was written since the last time; all of it if the file is another one."""
        stamp = self._disk.stamp(self._path)
        mark = self._disk.read(self._path, end=lines.CHECKSUM_LENGTH) if stamp else b""
        if mark != self._mark or stamp is None or stamp.size < self._end:
            self._forget_file()
            self._mark = mark
        if stamp is None or stamp.size == self._end:
            return
        self._is_synced = False
        found, self._end = lines.forward_placed(self._disk, self._path, start=self._end)
        for value, place in found:
            span = Span(value["first"], value["first"] + value["count"] - 1, value["moment"])
            self._lines.append(_Line(value["life"], span, place))
            self._homes.update((part["hash"], place) for part in value["parts"])


def _damaged(run: RunLine) -> CheckpointDamagedError:
    record = run.state.record
    reason = f"the events of its run {record.run_id!r} are not what was written"
    return CheckpointDamagedError(record.head or f"{record.run_id}@0", reason)


def encoded(life: int, forgotten: Forgotten) -> bytes:
    """The line of what a checkpoint told, for the run that began with that number."""
    batch = forgotten.batch
    return lines.encoded(
        {
            "life": life,
            "checkpoint_id": batch.checkpoint_id,
            "first": batch.first,
            "count": batch.count,
            "moment": forgotten.moment,
            "refs": batch.refs,
            **lineparts.coded(batch.data),
            "parts": lineparts.parts_to_json(forgotten.parts),
        }
    )


def _batch(run_id: str, value: dict[str, Any]) -> EventBatch:
    return EventBatch(
        run_id=run_id,
        checkpoint_id=value["checkpoint_id"],
        first=value["first"],
        count=value["count"],
        data=lineparts.decoded(value),
        refs=tuple(value["refs"]),
    )


def _inner_refs(value: dict[str, Any]) -> Iterator[str]:
    return chain.from_iterable(part["refs"] for part in value["parts"])
