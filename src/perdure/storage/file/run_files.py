"""The journal, the inbox and the old events of a run, each a file of lines named like the run's log."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import override

from perdure.errors import WorkflowCheckpointException
from perdure.records import Command, EventBatch, JournalRecord
from perdure.storage.file import lines
from perdure.storage.file.blobs import closure
from perdure.storage.file.lines import LineFile
from perdure.storage.file.run_log import SUFFIX
from perdure.storage.ids import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.records import Blob, RunRecord
    from perdure.storage.disk import Disk
    from perdure.storage.file.run_log import LogLine

CONSUMED_MAX = 32
"""A run's log names at most this many consumed commands before they are removed from the inbox's file."""

_CACHED_FILES_MAX = 64
_JOURNAL_SIZE_BEFORE_COMPACTION = 256 * 1024
_EVENTS_SIZE_BEFORE_COMPACTION = 64 * 1024

F = TypeVar("F", bound=LineFile)


class RunFiles(Generic[F]):
    """The files of one kind, by run id or file name."""

    def __init__(self, disk: Disk, directory: Path, open_file: Callable[[Disk, Path], F]) -> None:
        self._disk = disk
        self._directory = directory
        self._open_file = open_file
        self._cache: OrderedDict[str, F] = OrderedDict()

    def of(self, run_id: str) -> F:
        """Return the file of a run, which need not exist."""
        return self.named(file_name(run_id) + SUFFIX)

    def named(self, name: str) -> F:
        """Return the file of that name."""
        file = self._cache.pop(name, None) or self._open_file(self._disk, self._directory / name)
        self._cache[name] = file
        if len(self._cache) > _CACHED_FILES_MAX:
            self._cache.popitem(last=False)
        return file

    def forget(self, name: str) -> None:
        """Remember nothing of a file that was replaced or removed."""
        self._cache.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [name for name in self._disk.names(self._directory) if name.endswith(SUFFIX)]

    def find_blob(self, blob_hash: str) -> Blob | None:
        """Return a blob that one of the files contains, if that was read before."""
        found = (file.find_blob(blob_hash) for file in self._cache.values())
        return next((blob for blob in found if blob), None)

    def read_blobs(self) -> Mapping[str, Blob]:
        """Read the blobs of all files."""
        blobs: dict[str, Blob] = {}
        for name in self.names():
            # Nobody asked for a damaged file. Whoever does gets the error.
            with contextlib.suppress(WorkflowCheckpointException):
                blobs.update((blob.hash, blob) for blob in self.named(name).read_blobs())
        return blobs


class Journal(LineFile):
    """The records since the head of a run. One line holds what one call has recorded.

    A line belongs to a head and to the nonce that the run had there. It is void once the head moves, and stays so if
    the head is moved back, because a rewind changes the nonce.
    """

    noun = "journal"

    @override
    def _clear(self) -> None:
        self._belongs_to: tuple[str | None, str] | None = None
        self._records: dict[str, JournalRecord] = {}
        self._blobs: dict[str, Blob] = {}
        self._synced = 0
        """The offset up to which the file is known to be fsynced."""
        self._replaced = 0
        """The number of replaced records with blobs in files of their own."""

    @override
    def _read_lines(self, *, start: int = 0) -> tuple[list[lines.Line], int]:
        assert start == 0, "a journal is read whole"
        return lines.read_before_hole(self._disk, self._path)

    @override
    def _take(self, line: lines.Line) -> None:
        value = line.value
        self._synced = max(self._synced, value.get("synced", 0))
        if self._belongs_to != (value["head"], value["nonce"]):
            self._belongs_to = (value["head"], value["nonce"])
            self._records.clear()
            self._blobs.clear()
        self._blobs.update((blob.hash, blob) for blob in lines.decode_blobs(value["parts"]))
        for each in value["records"]:
            before = self._records.get(each["key"])
            self._replaced += before is not None and self._has_blobs(before)
            # A key that exists keeps its place.
            self._records[each["key"]] = JournalRecord(each["key"], lines.decode_bytes(each), tuple(each["refs"]))

    @override
    def find_blob(self, blob_hash: str) -> Blob | None:
        return self._blobs.get(blob_hash)

    def records(self, run: RunRecord) -> Sequence[JournalRecord]:
        """Return the records since the head of the run. Raises CheckpointDamagedError."""
        self._refresh(run)
        return tuple(self._records.values()) if self._belongs_to == (run.head, run.nonce) else ()

    def roots(self, run: RunRecord) -> set[str]:
        """Return the blobs that the file refers to. Raises CheckpointDamagedError."""
        self._refresh(run)
        return {ref for each in chain(self._records.values(), self._blobs.values()) for ref in each.refs}

    def append(
        self, run: RunRecord, calls: Sequence[tuple[Sequence[JournalRecord], Sequence[Blob]]], *, sync: bool
    ) -> None:
        """Append the records of several calls with their small blobs. Raises CheckpointDamagedError."""
        self._refresh(run)
        before = self._end
        if self._identity and self._identity[0].size > before:
            # Half a line behind a hole would look like a line that nobody wrote.
            self._disk.write_at(self._path, before, b"", sync=True)
        self._append([journal_line(run, *call, synced=self._synced) for call in calls], sync=sync)
        if sync:
            self._synced = self._end
        # At each doubling of the size, so that a journal that can't be shortened costs little.
        if self._end >= _JOURNAL_SIZE_BEFORE_COMPACTION and before.bit_length() < self._end.bit_length():
            # The records are written. If this fails, a later append tries again.
            with contextlib.suppress(OSError):
                self._compact(run)

    def drop_if_void(self, run: RunRecord) -> None:
        """Remove the file if it belongs to another head. Raises CheckpointDamagedError."""
        self._refresh(run)
        if self._belongs_to not in {None, (run.head, run.nonce)}:
            self.drop()

    def count_blobs(self) -> int:
        """Return the number of records that had blobs in files of their own, as far as the file was read."""
        return self._replaced + sum(map(self._has_blobs, self._records.values()))

    def _has_blobs(self, record: JournalRecord) -> bool:
        return not self._blobs.keys() >= set(record.refs)

    def _compact(self, run: RunRecord) -> None:
        """Remove records that were replaced, and the blobs that only they needed."""
        records, replaced = self.records(run), self._replaced
        blobs = closure(chain.from_iterable(record.refs for record in records), self._blobs.get)
        self._rewrite([journal_line(run, records, tuple(blobs.values()))])
        self._synced, self._replaced = self._end, replaced


def journal_line(
    run: RunRecord, records: Sequence[JournalRecord], blobs: Sequence[Blob], *, synced: int = 0
) -> dict[str, Any]:
    """Return the line of a journal for the records of one call."""
    return {
        "head": run.head,
        "nonce": run.nonce,
        "synced": synced,
        "records": [{"key": each.key, "refs": each.refs, **lines.encode_bytes(each.data)} for each in records],
        "parts": lines.encode_blobs(blobs),
    }


@dataclass(frozen=True, slots=True)
class _Posted:
    """A command with its small blobs."""

    life: int
    command: Command
    blobs: tuple[Blob, ...]


class Inbox(LineFile):
    """The commands that wait for a run, one per line.

    A commit lists the commands that it consumes, so they leave the inbox together with the commit. Their lines are
    removed later.
    """

    noun = "inbox"

    @override
    def _clear(self) -> None:
        self._posted: list[_Posted] = []

    @override
    def _take(self, line: lines.Line) -> None:
        value = line.value
        expects = value["expects"]
        command = Command(
            id=value["id"],
            kind=value["kind"],
            data=lines.decode_bytes(value),
            refs=tuple(value["refs"]),
            expects=(expects[0], expects[1]) if expects else None,
            number=value["number"],
        )
        self._posted.append(_Posted(value["life"], command, lines.decode_blobs(value["parts"])))

    @override
    def find_blob(self, blob_hash: str) -> Blob | None:
        blobs = chain.from_iterable(posted.blobs for posted in self._posted)
        return next((blob for blob in blobs if blob.hash == blob_hash), None)

    def waiting(self, run: LogLine) -> list[Command]:
        """Return the commands that wait, in order. Raises CheckpointDamagedError."""
        return [posted.command for posted in self._waiting(run)]

    def expecting(self, run: LogLine) -> tuple[int, ...]:
        """Return the numbers of the commands that expect something of the head and are dropped when it moves."""
        return tuple(command.number for command in self.waiting(run) if command.expects is not None)

    def newest(self, run: LogLine) -> int:
        """Return the number of the newest command that waits, 0 if none does."""
        return max((command.number for command in self.waiting(run)), default=0)

    def roots(self, run: LogLine) -> set[str]:
        """Return the blobs that waiting commands refer to. Raises CheckpointDamagedError."""
        return {
            ref
            for posted in self._waiting(run)
            for ref in chain(posted.command.refs, *(blob.refs for blob in posted.blobs))
        }

    def highest_number(self, run: LogLine) -> int:
        """Return the highest number of any command in the file. Raises CheckpointDamagedError."""
        self._refresh(run.record)
        return max((posted.command.number for posted in self._posted), default=0)

    def append(self, run: LogLine, command: Command, blobs: Sequence[Blob]) -> None:
        """Append a command durably. Raises CheckpointDamagedError."""
        self._refresh(run.record)
        self._append([inbox_line(run.life, command, blobs)], sync=True)

    def sync(self, run: LogLine) -> None:
        """Make the file durable. The process that wrote it may have died before its fsync."""
        self._refresh(run.record)
        if not self._is_synced:
            self._keep(self._waiting(run))

    def shorten(self, run: LogLine) -> None:
        """Remove the commands that no longer wait from the file."""
        waiting = self._waiting(run)
        if not waiting:
            self.drop()
            self._disk.sync_directory(self._path.parent)
        elif len(waiting) < len(self._posted):
            self._keep(waiting)

    def _keep(self, posted: Iterable[_Posted]) -> None:
        self._rewrite([inbox_line(each.life, each.command, each.blobs) for each in posted])

    def _waiting(self, run: LogLine) -> Sequence[_Posted]:
        self._refresh(run.record)
        consumed = set(run.consumed)
        return [each for each in self._posted if each.life == run.life and each.command.number not in consumed]


def inbox_line(life: int, command: Command, blobs: Sequence[Blob]) -> dict[str, Any]:
    """Return the line of an inbox for a command to the run that began with that token."""
    return {
        "life": life,
        "number": command.number,
        "id": command.id,
        "kind": command.kind,
        "expects": command.expects,
        "refs": command.refs,
        **lines.encode_bytes(command.data),
        "parts": lines.encode_blobs(blobs),
    }


@dataclass(frozen=True, slots=True)
class OldBatch:
    """The events of a checkpoint that is removed, with the small blobs that they need."""

    batch: EventBatch
    moment: float | None
    blobs: tuple[Blob, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The numbers of the events of one commit, and the time of the commit."""

    first: int
    last: int
    moment: float | None


@dataclass(frozen=True, slots=True)
class _Place:
    life: int
    span: Span
    start: int
    end: int


class EventFile(LineFile):
    """The events of removed checkpoints, one commit per line. Other events are in the files of their checkpoints.

    Only the places of the lines are remembered: a run can have many events.
    """

    noun = "event file"

    @override
    def _clear(self) -> None:
        self._lines: list[_Place] = []
        self._places: dict[str, _Place] = {}
        """By the hash of a small blob the line that contains it."""

    @override
    def _has_grown(self, identity: lines.Identity) -> bool:
        if identity is None or self._identity is None:
            return False
        (now, mark), (before, mark_before) = identity, self._identity
        return mark == mark_before and now.inode == before.inode and now.size > before.size

    @override
    def _take(self, line: lines.Line) -> None:
        value = line.value
        span = Span(value["first"], value["first"] + value["count"] - 1, value["moment"])
        place = _Place(value["life"], span, line.start, line.end)
        self._lines.append(place)
        self._places.update((blob["hash"], place) for blob in value["parts"])

    @override
    def find_blob(self, blob_hash: str) -> Blob | None:
        place = self._places.get(blob_hash)
        if place is None:
            return None
        try:
            blobs = lines.decode_blobs(self._read(place)["parts"])
        except (FileNotFoundError, WorkflowCheckpointException):
            # The file was replaced.
            return None
        return next((blob for blob in blobs if blob.hash == blob_hash), None)

    def spans(self, run: LogLine) -> Mapping[int, Span]:
        """Return the spans of the batches in the file, by their first numbers. Raises CheckpointDamagedError."""
        return {first: place.span for first, place in self._places_of(run).items()}

    def batches(self, run: LogLine, *, after: int, end: int, limit: int) -> Mapping[int, EventBatch]:
        """Return the first batches with numbers above `after` that begin up to `end`. Raises CheckpointDamagedError."""
        places = self._places_of(run)
        wanted = sorted(first for first, place in places.items() if place.span.last > after and first <= end)
        found: dict[int, EventBatch] = {}
        for first in wanted[:limit]:
            value = self._read_of(run, places[first])
            found[first] = EventBatch(
                run_id=run.record.run_id,
                checkpoint_id=value["checkpoint_id"],
                first=value["first"],
                count=value["count"],
                data=lines.decode_bytes(value),
                refs=tuple(value["refs"]),
            )
        return found

    def roots(self, run: LogLine) -> set[str]:
        """Return the blobs that the batches refer to. Raises CheckpointDamagedError."""
        values = [self._read_of(run, place) for place in self._places_of(run).values()]
        return {ref for each in values for ref in chain(each["refs"], *(blob["refs"] for blob in each["parts"]))}

    def append(self, run: LogLine, batches: Sequence[OldBatch]) -> None:
        """Append batches durably. Raises CheckpointDamagedError."""
        known = self._places_of(run)
        # A line that is there may not be durable. A second one does no harm.
        new = [each for each in batches if not self._is_synced or each.batch.first not in known]
        if new:
            self._append([event_line(run.life, each) for each in new], sync=True)

    def shorten(self, run: LogLine) -> None:
        """Remove what the run has forgotten, if that is most of the file. Raises CheckpointDamagedError."""
        kept = {(place.start, place.end) for place in self._places_of(run).values()}
        size = sum(end - start for start, end in kept)
        if not kept:
            self.drop()
        elif self._end - size >= max(size, _EVENTS_SIZE_BEFORE_COMPACTION):
            found, _ = self._read_lines()
            self._rewrite([line.value for line in found if (line.start, line.end) in kept])

    def content(self, run: LogLine) -> bytes:
        """Return the complete lines of the file. Raises CheckpointDamagedError."""
        self._refresh(run.record)
        return self._disk.read(self._path, end=self._end) if self._identity else b""

    def flush(self) -> None:
        """Fsync the file if it was written without fsync."""
        if self._disk.stamp(self._path):
            self._disk.flush(self._path)

    def _places_of(self, run: LogLine) -> dict[int, _Place]:
        """Return the lines with events that the run has not forgotten, by their first numbers."""
        self._refresh(run.record)
        return {
            each.span.first: each for each in self._lines if each.life == run.life and each.span.last > run.forgotten
        }

    def _read(self, place: _Place) -> dict[str, Any]:
        return lines.read_at(self._disk, self._path, place.start, place.end)

    def _read_of(self, run: LogLine, place: _Place) -> dict[str, Any]:
        try:
            return self._read(place)
        except WorkflowCheckpointException as error:
            raise self._damaged(run.record) from error


def event_line(life: int, old: OldBatch) -> dict[str, Any]:
    """Return the line of an event file for a batch of the run that began with that token."""
    batch = old.batch
    return {
        "life": life,
        "checkpoint_id": batch.checkpoint_id,
        "first": batch.first,
        "count": batch.count,
        "moment": old.moment,
        "refs": batch.refs,
        **lines.encode_bytes(batch.data),
        "parts": lines.encode_blobs(old.blobs),
    }


def split_records(
    records: Iterable[JournalRecord],
) -> tuple[tuple[JournalRecord, ...], tuple[Blob, ...], tuple[Blob, ...]]:
    """Return the records for one line, their small blobs and the large ones, which get files of their own."""
    records = tuple(records)
    inline, large = lines.split_blobs(blob for record in records for blob in record.blobs)
    return tuple(replace(record, blobs=()) for record in records), inline, large
