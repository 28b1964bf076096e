"""The files of one run, all of lines and with the same name: log, journal, inbox and old events.

Each line of the log is the whole run after a change, and the last line that holds is the run. The line of a commit is
written first and holds once the checkpoint exists, so a crash leaves the run as it was before or after the commit.

A checkpoint also contains what the line of its commit says. If the log has lost its end, or if an earlier release has
written no lines for some commits, the next checkpoints of the run are found by their numbers. A checkpoint behind the
last line that does not follow from it shows that other changes are lost.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import Blob, Command, EventBatch, Halt, JournalRecord, Owner, RunRecord
from perdure.storage import rules
from perdure.storage.file import lines
from perdure.storage.file.checkpoints import (
    CheckpointFile,
    Checkpoints,
    LogEntry,
    RunAfter,
    closure,
    status_of,
    usual_id,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perdure.storage.disk import Disk

CONSUMED_MAX = 32
"""A run's log names at most this many consumed commands before they are removed from the inbox's file."""

# A log is rewritten when it has this many lines more than twice the lines that it needs.
_SPARE_LINES = 64
_JOURNAL_SIZE_BEFORE_COMPACTION = 256 * 1024
_EVENTS_SIZE_BEFORE_COMPACTION = 64 * 1024
_RECORD_FIELDS = tuple(each.name for each in fields(RunRecord))


@dataclass(frozen=True, slots=True)
class LogLine:
    """A run after a change: "claim", "release", "progress", "commit", "rewind", "deletion" or "restore".

    `newest` is the newest commit, which is the head unless the run was rewound. `subject` is the checkpoint that was
    committed, restored or deleted. `life` is the token of the lease with which the run began: files of an earlier run
    of the same id have another one. `consumed` are numbers of commands that have left the inbox, although its file may
    still contain them. `forgotten` is the number of the last event that retention has removed. `since` are the commits
    that no earlier line lists, without the one of this line.
    """

    change: str
    state: rules.RunState
    newest: LogEntry | None
    subject: str | None = None
    life: int = 0
    consumed: tuple[int, ...] = ()
    forgotten: int = 0
    since: tuple[LogEntry, ...] = ()

    @property
    def record(self) -> RunRecord:
        """Return the public record of the run."""
        return self.state.record


class RunLog:
    """The log of one run."""

    def __init__(self, disk: Disk, path: Path, checkpoints: Checkpoints) -> None:
        self.path = path
        self._disk = disk
        self._checkpoints = checkpoints

    def current(self) -> LogLine | None:
        """Return the run as it is now, None if it does not exist. Raises CheckpointDamagedError."""
        lost: list[LogLine] = []
        for line in self._read_backward():
            if line.change != "commit" or (line.newest and self._checkpoints.holds(line.newest)):
                _require_history(line, lost)
                return self._follow(replace(line, since=()))
            lost.append(line)
        return None

    def entries(self, *, after: int = -1) -> list[LogEntry]:
        """Return the commits of the run in order, only those with events above `after` if that is given."""
        found: list[LogEntry] = []
        below = sys.maxsize
        for entry in self._entries_backward():
            if entry.events <= after:
                break
            # An earlier entry with a position that is not below belongs to a commit that did not happen.
            if entry.position < below and self._checkpoints.exists(entry.checkpoint_id):
                below = entry.position
                found.append(entry)
        return found[::-1]

    def files(self) -> Iterator[CheckpointFile]:
        """Read the checkpoints of the run in order. Raises CheckpointDamagedError."""
        return (file for entry in self.entries() if (file := self._checkpoints.find_entry(entry)))

    def append(self, line: LogLine) -> None:
        """Append a line durably."""
        lines.append(self._disk, self.path, [_to_json(line)])

    def lists(self, checkpoint_id: str) -> bool:
        """Ask whether a checkpoint belongs to the run."""
        return any(entry.checkpoint_id == checkpoint_id for line in self._read_backward() for entry in _entries(line))

    def shorten(self, line: LogLine, entries: Sequence[LogEntry]) -> None:
        """Rewrite the log of a run that has these checkpoints if most of it is about others."""
        if lines.read_sound(self._disk, self.path).count(b"\n") > 2 * len(entries) + _SPARE_LINES:
            self._disk.replace(self.path, encode_log(replace(line, change="claim", subject=None), entries))

    def without(self, line: LogLine, checkpoint_id: str) -> tuple[LogLine, Sequence[LogEntry]] | None:
        """Return the run and its commits after one of its checkpoints is deleted, None if that was the only one."""
        left = [entry for entry in self.entries() if entry.checkpoint_id != checkpoint_id]
        newest = next((entry for entry in reversed(left) if self._checkpoints.holds(entry)), None)
        if newest is None:
            return None
        state = line.state
        if state.record.head == checkpoint_id:
            state = rules.move_head(
                state, head=newest.checkpoint_id, settled=newest.settled, status=newest.status, wake_at=newest.wake_at
            )
        return replace(line, change="deletion", state=state, newest=newest, subject=checkpoint_id), left

    def _read_backward(self) -> Iterator[LogLine]:
        return map(_from_json, lines.read_backward(self._disk, self.path))

    def _entries_backward(self) -> Iterator[LogEntry]:
        current = self.current()
        yield from reversed(current.since if current else ())
        for line in self._read_backward():
            yield from reversed(_entries(line))

    def _follow(self, line: LogLine) -> LogLine:
        """Return the run after the commits that have no line. Raises CheckpointDamagedError."""
        while file := self._find_next(line, 1):
            if file.run is None or file.run.after != line.record.head:
                raise CheckpointDamagedError(file.manifest.checkpoint_id, "the log of its run has lost its end")
            line = replace(after_commit(line, file, file.run), since=(*line.since, file.entry))
        if self._find_next(line, 2):
            missing = usual_id(line.record.run_id, line.record.position + 1)
            raise CheckpointDamagedError(missing, "its file is gone")
        return line

    def _find_next(self, line: LogLine, distance: int) -> CheckpointFile | None:
        """Return a checkpoint that follows the newest one, unless an earlier run of this id has left it."""
        record = line.record
        file = self._checkpoints.find(usual_id(record.run_id, record.position + distance))
        if file is None or file.sequence <= line.life:
            return None
        manifest = file.manifest
        return file if (manifest.run_id, manifest.position) == (record.run_id, record.position + distance) else None


def encode_log(line: LogLine, kept: Iterable[LogEntry]) -> bytes:
    """Return a complete log that describes the run as the line does, and lists these checkpoints."""
    line = replace(line, since=())
    commits = (replace(line, change="commit", newest=entry, subject=entry.checkpoint_id) for entry in kept)
    return b"".join(lines.encode(_to_json(each)) for each in (*commits, line))


def _entries(line: LogLine) -> tuple[LogEntry, ...]:
    """Return the commits that a line lists."""
    return (*line.since, line.newest) if line.change == "commit" and line.newest else line.since


def after_commit(line: LogLine, file: CheckpointFile, run: RunAfter) -> LogLine:
    """Return the run after a commit, as its checkpoint describes it."""
    manifest, entry = file.manifest, file.entry
    record = replace(
        line.record,
        head=manifest.checkpoint_id,
        position=manifest.position,
        settled=file.settled,
        status=file.status,
        wake_at=file.wake_at,
        events=file.events,
        attempts=0,
        # The owner that committed had taken the lease, which ends a halt, but that line may be lost.
        halt=None,
        moment=entry.moment,
        requests=None,
    )
    return replace(
        line,
        change="commit",
        state=replace(line.state, record=record),
        newest=entry,
        subject=entry.checkpoint_id,
        consumed=run.consumed,
        forgotten=run.forgotten,
    )


def _require_history(line: LogLine, lost: Sequence[LogLine]) -> None:
    """Refuse a run without checkpoints if later lines show that it had some.

    Only the last commit may be missing, tried once or several times: it did not happen.
    """
    if line.record.position == rules.BEFORE_THE_FIRST and any(
        each.since or each.record.position != lost[0].record.position for each in lost
    ):
        raise CheckpointDamagedError(lost[0].subject or "", "its file is gone, and so is every other one of its run")


def _to_json(line: LogLine) -> dict[str, Any]:
    record = line.record
    halt = record.halt
    return {
        "change": line.change,
        "subject": line.subject,
        "since": [asdict(entry) for entry in line.since],
        **{name: getattr(record, name) for name in _RECORD_FIELDS},
        "owner": asdict(record.owner) if record.owner else None,
        "halt": halt and {"kind": halt.kind, "at": halt.at, "reason": halt.reason, **lines.encode_bytes(halt.data)},
        "token": line.state.token,
        "newest": asdict(line.newest) if line.newest else None,
        "life": line.life,
        "consumed": line.consumed,
        "forgotten": line.forgotten,
    }


def _from_json(value: dict[str, Any]) -> LogLine:
    """Read a line of this release or an earlier one, which may lack some of the fields."""
    record: dict[str, Any] = {name: value[name] for name in _RECORD_FIELDS if name in value}
    record.setdefault("status", status_of(value["settled"]))
    owner, halt, newest = value["owner"], value.get("halt"), value["newest"]
    record["owner"] = Owner(**owner) if owner else None
    record["halt"] = Halt(halt["kind"], halt["at"], halt["reason"], lines.decode_bytes(halt)) if halt else None
    return LogLine(
        change=value["change"],
        state=rules.RunState(RunRecord(**record), token=value["token"]),
        newest=_entry_from_json(newest) if newest else None,
        subject=value["subject"],
        life=value.get("life", 0),
        consumed=tuple(value.get("consumed", ())),
        forgotten=value.get("forgotten", 0),
        since=tuple(map(_entry_from_json, value.get("since", ()))),
    )


def _entry_from_json(value: dict[str, Any]) -> LogEntry:
    known: dict[str, Any] = {"status": status_of(value["settled"]), **value}
    return LogEntry(**known)


class LineFile:
    """A file of lines that belongs to one run. `sources` notes which file has which small blob."""

    noun: str

    def __init__(self, disk: Disk, path: Path, sources: dict[str, Path]) -> None:
        self.path = path
        self._disk = disk
        self._sources = sources

    def drop(self) -> None:
        """Remove the file, damaged or not."""
        if self._disk.stamp(self.path):
            self._disk.remove(self.path)

    def is_void(self, run: LogLine) -> bool:
        """Ask whether the run needs no line of the file. Raises CheckpointDamagedError."""
        return not self._needed(run)

    def roots(self, run: LogLine) -> set[str]:
        """Return the blobs that needed lines, and the small blobs in them, refer to. Raises CheckpointDamagedError."""
        return {ref for value in self._needed(run) for each in (value, *value["parts"]) for ref in each["refs"]}

    def _needed(self, run: LogLine) -> list[dict[str, Any]]:
        """Return the lines that the run needs."""
        raise NotImplementedError

    def _read(self, run: LogLine) -> list[dict[str, Any]]:
        """Return the values of all lines. Raises CheckpointDamagedError, which names the head of the run."""
        with self._damage_of(run):
            values = lines.read(self._disk, self.path)
        self._sources.update((blob["hash"], self.path) for value in values for blob in value["parts"])
        return values

    def _append(self, run: LogLine, values: Iterable[object]) -> None:
        with self._damage_of(run):
            lines.append(self._disk, self.path, values)

    def _rewrite(self, values: Iterable[object]) -> None:
        """Replace the content of the file, durably."""
        self._disk.replace(self.path, b"".join(map(lines.encode, values)))

    @contextlib.contextmanager
    def _damage_of(self, run: LogLine) -> Generator[None]:
        try:
            yield
        except WorkflowCheckpointException as error:
            run_id = run.record.run_id
            reason = f"the {self.noun} of its run {run_id!r} is not what was written"
            raise CheckpointDamagedError(run.record.head or f"{run_id}@0", reason) from error


class Journal(LineFile):
    """The records since the head of a run. One line holds what one call has recorded.

    A line belongs to a head and to the nonce that the run had there. It is void once the head moves, and stays so if
    the head is moved back, because a rewind changes the nonce.
    """

    noun = "journal"

    def records(self, run: LogLine) -> Sequence[JournalRecord]:
        """Return the records since the head of the run. Raises CheckpointDamagedError."""
        # A key that exists keeps its place.
        newest = {each["key"]: each for value in self._needed(run) for each in value["records"]}
        return [JournalRecord(key, lines.decode_bytes(each), tuple(each["refs"])) for key, each in newest.items()]

    @override
    def roots(self, run: LogLine) -> set[str]:
        blobs = lines.decode_blobs(self._needed(run)).values()
        return {ref for each in chain(self.records(run), blobs) for ref in each.refs}

    def append(self, run: LogLine, calls: Sequence[tuple[Sequence[JournalRecord], Sequence[Blob]]]) -> None:
        """Append the records of several calls with their small blobs. Raises CheckpointDamagedError."""
        with self._damage_of(run):
            before = len(lines.read_sound(self._disk, self.path))
            new = [journal_line(run.record, *call) for call in calls]
            end = lines.append(self._disk, self.path, new, end=before)
        # At each doubling of the size, so that a journal that can't be shortened costs little.
        if end >= _JOURNAL_SIZE_BEFORE_COMPACTION and before.bit_length() < end.bit_length():
            # The records are written. If this fails, a later append tries again.
            with contextlib.suppress(OSError):
                self._compact(run)

    @override
    def _needed(self, run: LogLine) -> list[dict[str, Any]]:
        at = run.record.head, run.record.nonce
        return [value for value in self._read(run) if (value["head"], value["nonce"]) == at]

    def _compact(self, run: LogLine) -> None:
        """Remove records that were replaced, and the blobs that only they needed."""
        records, blobs = self.records(run), lines.decode_blobs(self._read(run))
        kept = closure(chain.from_iterable(record.refs for record in records), blobs.get)
        self._rewrite([journal_line(run.record, records, tuple(kept.values()))])


def journal_line(run: RunRecord, records: Sequence[JournalRecord], blobs: Sequence[Blob]) -> dict[str, Any]:
    """Return the line of a journal for the records of one call."""
    return {
        "head": run.head,
        "nonce": run.nonce,
        "records": [{"key": each.key, "refs": each.refs, **lines.encode_bytes(each.data)} for each in records],
        "parts": lines.encode_blobs(blobs),
    }


class Inbox(LineFile):
    """The commands that wait for a run, one per line.

    A commit lists the commands that it consumes, so they leave the inbox together with the commit. Their lines are
    removed later.
    """

    noun = "inbox"

    def waiting(self, run: LogLine) -> list[Command]:
        """Return the commands that wait, in order. Raises CheckpointDamagedError."""
        return [
            Command(
                id=value["id"],
                kind=value["kind"],
                data=lines.decode_bytes(value),
                refs=tuple(value["refs"]),
                expects=(value["expects"][0], value["expects"][1]) if value["expects"] else None,
                number=value["number"],
            )
            for value in self._needed(run)
        ]

    def expecting(self, run: LogLine) -> tuple[int, ...]:
        """Return the numbers of the commands that expect something of the head and are dropped when it moves."""
        return tuple(command.number for command in self.waiting(run) if command.expects is not None)

    def highest_number(self, run: LogLine) -> int:
        """Return the highest number of any command in the file. Raises CheckpointDamagedError."""
        return max((value["number"] for value in self._read(run)), default=0)

    def append(self, run: LogLine, command: Command, blobs: Sequence[Blob]) -> None:
        """Append a command durably. Raises CheckpointDamagedError."""
        self._append(run, [inbox_line(run.life, command, blobs)])

    def sync(self, run: LogLine) -> None:
        """Fsync the file. The process that wrote it may have died before its fsync."""
        self._append(run, [])

    def shorten(self, run: LogLine) -> None:
        """Remove the commands that no longer wait from the file, durably."""
        waiting = self._needed(run)
        if waiting:
            self._rewrite(waiting)
        else:
            self.drop()
            self._disk.sync_directory(self.path.parent)

    @override
    def _needed(self, run: LogLine) -> list[dict[str, Any]]:
        return [each for each in self._read(run) if each["life"] == run.life and each["number"] not in run.consumed]


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


class EventFile(LineFile):
    """The events of removed checkpoints and of failures, one batch per line. Others are in the files of checkpoints."""

    noun = "event file"

    def moments(self, run: LogLine) -> Mapping[int, float | None]:
        """Return the times of the commits, by the last number of each batch. Raises CheckpointDamagedError."""
        return {value["first"] + value["count"] - 1: value["moment"] for value in self._needed(run)}

    def batches(self, run: LogLine) -> list[EventBatch]:
        """Return the batches in the file. Raises CheckpointDamagedError."""
        return [
            EventBatch(
                run_id=run.record.run_id,
                checkpoint_id=value["checkpoint_id"],
                first=value["first"],
                count=value["count"],
                data=lines.decode_bytes(value),
                refs=tuple(value["refs"]),
                moment=value["moment"],
            )
            for value in self._needed(run)
        ]

    def drop_unnumbered(self, run: LogLine) -> None:
        """Remove the events of a release that was not completed. Raises CheckpointDamagedError."""
        if self._disk.stamp(self.path) is not None:
            values = self._read(run)
            numbered = [each for each in values if each["first"] <= run.record.events or each["life"] != run.life]
            if len(numbered) < len(values):
                self._rewrite(numbered)

    def append(self, run: LogLine, event_lines: Sequence[dict[str, Any]]) -> None:
        """Append lines durably. A batch that is there already does no harm. Raises CheckpointDamagedError."""
        self._append(run, event_lines)

    def shorten(self, run: LogLine) -> None:
        """Remove what the run has forgotten, if that is most of the file. Raises CheckpointDamagedError."""
        kept = self._needed(run)
        size, stamp = sum(len(lines.encode(value)) for value in kept), self._disk.stamp(self.path)
        if not kept:
            self.drop()
        elif stamp and stamp.size - size >= max(size, _EVENTS_SIZE_BEFORE_COMPACTION):
            self._rewrite(kept)

    @override
    def _needed(self, run: LogLine) -> list[dict[str, Any]]:
        own = [each for each in self._read(run) if each["life"] == run.life]
        kept = (each for each in own if each["first"] + each["count"] - 1 > run.forgotten)
        kept = (each for each in kept if each["first"] <= run.record.events)
        # A batch may be there twice.
        return list({each["first"]: each for each in kept}.values())


def event_line(life: int, batch: EventBatch, moment: float | None, blobs: Iterable[Blob]) -> dict[str, Any]:
    """Return the line of an event file for a batch of the run that began with that token."""
    return {
        "life": life,
        "checkpoint_id": batch.checkpoint_id,
        "first": batch.first,
        "count": batch.count,
        "moment": moment,
        "refs": batch.refs,
        **lines.encode_bytes(batch.data),
        "parts": lines.encode_blobs(blobs),
    }


class RunFiles:
    """The files of one run."""

    def __init__(
        self, disk: Disk, directory: Path, name: str, checkpoints: Checkpoints, sources: dict[str, Path]
    ) -> None:
        self.name = name
        self.log = RunLog(disk, directory / "runs" / name, checkpoints)
        self.journal = Journal(disk, directory / "journal" / name, sources)
        self.inbox = Inbox(disk, directory / "inbox" / name, sources)
        self.events = EventFile(disk, directory / "events" / name, sources)
        self.current = self.log.current
