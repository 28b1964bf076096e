"""The log of a run: each line is the whole run after a change, and the last line that holds is the run.

Most commits have no line. The next checkpoints of a run are found by their numbers and contain what their lines would
say, so a commit does not wait for the log. The next line, whatever it is about, lists the commits since the one before.

A commit whose checkpoint could not be found that way has its line written first; the line holds once the checkpoint
exists. So a crash leaves the run as it was before or after the commit. A checkpoint that comes after the last line but
does not follow from it shows that the log has lost its end.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from perdure.errors import CheckpointDamagedError
from perdure.records import Halt, Owner, RunRecord
from perdure.storage import rules
from perdure.storage.file import lines
from perdure.storage.file.checkpoint_file import LogEntry, status_of, usual_id
from perdure.storage.ids import file_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from perdure.storage.disk import Disk
    from perdure.storage.file.checkpoint_file import CheckpointFile, CheckpointFiles, RunAfter

SUFFIX = ".log"

_CACHED_LOGS_MAX = 64
_SPARE_LINES = 64
"""A log is rewritten when it has this many lines more than twice the lines that it needs."""

_UNLOGGED_MAX = 16
"""The largest number of commits without a line. Readers look for this many checkpoints behind the last line."""

_RECORD_FIELDS = tuple(each.name for each in fields(RunRecord))


@dataclass(frozen=True, slots=True)
class LogLine:
    """A run after a change."""

    change: str
    """One of "claim", "release", "progress", "commit", "rewind", "deletion", "restore"; "deletion announced" in logs of
    earlier releases."""
    state: rules.RunState
    newest: LogEntry | None
    """The newest commit. It is the head unless the run was rewound."""
    subject: str | None = None
    """The checkpoint that was committed, restored or deleted."""
    life: int = 0
    """The token of the lease with which the run began. Files of an earlier run of the same id have another one."""
    consumed: tuple[int, ...] = ()
    """Numbers of commands that have left the inbox, although its file may still contain them."""
    dropped: tuple[int, ...] = ()
    """Numbers of commands that leave the inbox with an announced deletion."""
    forgotten: int = 0
    """The number of the last event that the retention has removed."""
    since: tuple[LogEntry, ...] = ()
    """The commits that no earlier line lists, without the one of this line."""

    @property
    def record(self) -> RunRecord:
        """Return the public record of the run."""
        return self.state.record


class RunLog:
    """The log of one run."""

    def __init__(self, disk: Disk, path: Path, checkpoints: CheckpointFiles) -> None:
        self.path = path
        self._disk = disk
        self._checkpoints = checkpoints
        self._identity: lines.Identity = None
        self._line: LogLine | None = None
        """The run as of `_identity` and `_unlogged`."""
        self._unlogged: dict[str, LogEntry | None] = {}
        """The commits behind the last line, in order; None if the checkpoint was not read yet."""
        self._synced_size = -1
        """The size of the file if this process has fsynced it and written nothing since."""
        self._entries: dict[str, LogEntry] = {}
        self._entries_mark: bytes = b""
        self._entries_end = 0
        self._line_count = 0

    def current(self) -> LogLine | None:
        """Return the run as it is now, None if it does not exist. Raises CheckpointDamagedError."""
        identity = lines.identify(self._disk, self.path)
        if identity is None or identity != self._identity or not self._still_holds():
            self._unlogged.clear()
            line = self._read_last()
            self._line = self._follow(line) if line else None
            self._identity = identity
        elif self._line and self._checkpoints.exists(_next_id(self._line)):
            self._line = self._follow(self._line)
        return self._line

    def entries(self) -> list[LogEntry]:
        """Return the commits of the run in order. Some may be gone already."""
        self._read_entries()
        unlogged = (entry for entry in self._read_unlogged() if entry.checkpoint_id not in self._entries)
        return [*self._entries.values(), *unlogged]

    def files(self) -> Iterator[CheckpointFile]:
        """Read the checkpoints of the run in order. Raises CheckpointDamagedError."""
        # Notices a log that has lost its end.
        self.current()
        return (file for entry in self.entries() if (file := self._checkpoints.find_entry(entry)))

    @property
    def has_room(self) -> bool:
        """Ask whether one more commit would be found without a line."""
        return len(self._unlogged) < _UNLOGGED_MAX

    def note_commit(self, line: LogLine) -> None:
        """Take note of a commit that has no line."""
        assert line.newest is not None, "a commit has a checkpoint"
        self._line = line
        self._unlogged[line.newest.checkpoint_id] = line.newest

    def append(self, line: LogLine, *, sync: bool) -> None:
        """Append a line, after fsyncing the lines before it."""
        stamp = self._disk.stamp(self.path)
        is_synced = stamp is None or stamp.size == self._synced_size
        own = line.newest if line.change == "commit" else None
        since = tuple(entry for entry in self._read_unlogged() if entry != own)
        # The next look reads the line, because the file has another identity.
        size = lines.append(
            self._disk, self.path, _to_json(replace(line, since=since)), sync=sync, sync_before=not is_synced
        )
        self._synced_size = size if sync else -1
        self._unlogged.clear()

    def log_commits(self) -> None:
        """Let the log list every commit. Required before checkpoints are removed, as nobody could follow them then."""
        if self._unlogged and self._line:
            self.append(self._line, sync=True)

    def forget(self, checkpoint_id: str) -> None:
        """Take note that a checkpoint was removed."""
        self._entries.pop(checkpoint_id, None)

    def forget_all(self) -> None:
        """Take note that the file was replaced or removed."""
        self._identity = None
        self._unlogged.clear()

    def forget_unreadable(self, checkpoint_id: str) -> None:
        """Leave out a damaged checkpoint that has no line."""
        if self._unlogged.get(checkpoint_id, self) is None:
            del self._unlogged[checkpoint_id]

    def lists(self, checkpoint_id: str) -> bool:
        """Ask whether a checkpoint belongs to the run."""
        self._read_entries()
        return checkpoint_id in self._entries or checkpoint_id in self._unlogged

    def shorten(self) -> None:
        """Rewrite the log if most of it is about checkpoints that are gone."""
        self._read_entries()
        current = self.current()
        if current and self._line_count > 2 * len(self._entries) + _SPARE_LINES:
            line = replace(current, change="claim", subject=None)
            self._disk.replace(self.path, encode_log(line, self._entries.values()))

    def without(self, line: LogLine, checkpoint_id: str) -> LogLine | None:
        """Return the run after one of its checkpoints is deleted, None if that was the only one."""
        remaining = (entry for entry in reversed(self.entries()) if entry.checkpoint_id != checkpoint_id)
        newest = next((entry for entry in remaining if self._checkpoints.holds(entry)), None)
        if newest is None:
            return None
        state = line.state
        if state.record.head == checkpoint_id:
            state = rules.move_head(
                state,
                head=newest.checkpoint_id,
                settled=newest.settled,
                status=newest.status,
                wake_at=newest.wake_at,
            )
        return replace(
            line,
            change="deletion",
            state=state,
            newest=newest,
            subject=checkpoint_id,
            consumed=(*line.consumed, *line.dropped),
            dropped=(),
            since=(),
        )

    def _still_holds(self) -> bool:
        """Ask whether the run is still what was read last, as far as that does not depend on the log."""
        line = self._line
        return line is not None and (
            line.change != "commit" or bool(line.newest and self._checkpoints.holds(line.newest))
        )

    def _read_last(self) -> LogLine | None:
        """Return the last line that holds."""
        lost: list[LogLine] = []
        for value in lines.read_backward(self._disk, self.path):
            line = _from_json(value)
            if line.change == "commit" and not (line.newest and self._checkpoints.holds(line.newest)):
                lost.append(line)
            elif line.change == "deletion announced":
                return self._finish_deletion(line)
            else:
                _require_history(line, lost)
                return line
        return None

    def _finish_deletion(self, line: LogLine) -> LogLine | None:
        """Return the run after a deletion that an earlier release has announced, and perhaps not carried out."""
        doomed = next((entry for entry in self.entries() if entry.checkpoint_id == line.subject), None)
        if doomed and self._checkpoints.holds(doomed):
            return replace(line, dropped=())
        return self.without(line, line.subject or "")

    def _follow(self, line: LogLine) -> LogLine:
        """Return the run after the commits that have no line. Only the last of them is read."""
        record = line.record
        ids = [usual_id(record.run_id, record.position + 1 + number) for number in range(_UNLOGGED_MAX)]
        # The second one shows that the first is lost. Most runs have neither.
        if not any(map(self._checkpoints.exists, ids[:2])):
            return line
        file = self._find_newest(line, ids)
        if file is None or file.run is None:
            return line
        following = ids[: file.manifest.position - record.position]
        missing = next((each for each in following if not self._checkpoints.exists(each)), None)
        if missing is not None:
            raise CheckpointDamagedError(missing, "its file is gone")
        if file.run.after != (record.head if len(following) == 1 else following[-2]):
            raise _lost_end(file)
        self._unlogged |= dict.fromkeys(following)
        self._unlogged[following[-1]] = file.entry
        return _after_commit(line, file, file.run)

    def _find_newest(self, line: LogLine, ids: Sequence[str]) -> CheckpointFile | None:
        """Return the last of these checkpoints that belongs to the run and has no line."""
        for number in range(len(ids), 0, -1):
            file = self._checkpoints.find(ids[number - 1])
            # A checkpoint of an earlier run of this id is older than this run.
            if (
                file
                and (file.manifest.run_id, file.manifest.position)
                == (line.record.run_id, line.record.position + number)
                and file.sequence > line.life
            ):
                if file.run is None:
                    raise _lost_end(file)
                return file
        return None

    def _read_unlogged(self) -> list[LogEntry]:
        """Return the commits that have no line, in order. Raises CheckpointDamagedError."""
        for checkpoint_id, entry in list(self._unlogged.items()):
            file = self._checkpoints.find(checkpoint_id) if entry is None else None
            if file:
                self._unlogged[checkpoint_id] = file.entry
        return [entry for entry in self._unlogged.values() if entry]

    def _read_entries(self) -> None:
        """Read the lines that were written since the last time, all of them if the file was replaced."""
        identity = lines.identify(self._disk, self.path)
        size, mark = (identity[0].size, identity[1]) if identity else (0, b"")
        is_new = mark != self._entries_mark or size < self._entries_end
        if is_new:
            self._entries_mark, self._entries_end, self._line_count = mark, 0, 0
            self._entries.clear()
        if size > self._entries_end:
            found, self._entries_end = lines.read(self._disk, self.path, start=self._entries_end)
            self._line_count += len(found)
            for each in found:
                self._take(_from_json(each.value))
        if is_new:
            # Old lines list checkpoints that other processes have removed.
            for checkpoint_id in [each for each in self._entries if not self._checkpoints.exists(each)]:
                del self._entries[checkpoint_id]

    def _take(self, line: LogLine) -> None:
        own = (line.newest,) if line.change == "commit" and line.newest else ()
        for entry in (*line.since, *own):
            # An entry at this position or a later one belongs to a commit that did not happen.
            while self._entries and next(reversed(self._entries.values())).position >= entry.position:
                self._entries.popitem()
            self._entries.pop(entry.checkpoint_id, None)
            self._entries[entry.checkpoint_id] = entry
        if line.change == "deletion":
            self._entries.pop(line.subject or "", None)


class RunLogs:
    """The logs of all runs, by run id or file name."""

    def __init__(self, disk: Disk, directory: Path, checkpoints: CheckpointFiles) -> None:
        self._disk = disk
        self._directory = directory
        self._checkpoints = checkpoints
        self._cache: OrderedDict[str, RunLog] = OrderedDict()

    def of(self, run_id: str) -> RunLog:
        """Return the log of a run, which need not exist."""
        return self.named(file_name(run_id) + SUFFIX)

    def named(self, name: str) -> RunLog:
        """Return the log of that file name."""
        log = self._cache.pop(name, None) or RunLog(self._disk, self._directory / name, self._checkpoints)
        self._cache[name] = log
        if len(self._cache) > _CACHED_LOGS_MAX:
            self._cache.popitem(last=False)
        return log

    def names(self) -> list[str]:
        """Return the names of all logs."""
        return [name for name in self._disk.names(self._directory) if name.endswith(SUFFIX)]

    def all(self) -> Iterator[RunLog]:
        """Return the logs of all runs."""
        return map(self.named, self.names())

    def sync(self) -> None:
        """Fsync the names of new logs."""
        self._disk.sync_directory(self._directory)


def encode_log(line: LogLine, kept: Iterable[LogEntry]) -> bytes:
    """Return a complete log that describes the run as the line does, and lists these checkpoints."""
    line = replace(line, since=())
    commits = (replace(line, change="commit", newest=entry, subject=entry.checkpoint_id) for entry in kept)
    return b"".join(lines.encode(_to_json(each)) for each in (*commits, line))


def _after_commit(line: LogLine, file: CheckpointFile, run: RunAfter) -> LogLine:
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
    )
    return LogLine(
        change="commit",
        state=replace(line.state, record=record, moment=entry.moment),
        newest=entry,
        subject=entry.checkpoint_id,
        life=line.life,
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


def _next_id(line: LogLine) -> str:
    return usual_id(line.record.run_id, line.record.position + 1)


def _lost_end(file: CheckpointFile) -> CheckpointDamagedError:
    return CheckpointDamagedError(file.manifest.checkpoint_id, "the log of its run has lost its end")


def _to_json(line: LogLine) -> dict[str, Any]:
    record = line.record
    return {
        "change": line.change,
        "subject": line.subject,
        "since": [asdict(entry) for entry in line.since],
        # Field by field: asdict would copy every value.
        **{name: getattr(record, name) for name in _RECORD_FIELDS},
        "owner": asdict(record.owner) if record.owner else None,
        "halt": _halt_to_json(record.halt) if record.halt else None,
        "token": line.state.token,
        "moment": line.state.moment,
        "newest": asdict(line.newest) if line.newest else None,
        "life": line.life,
        "consumed": line.consumed,
        "dropped": line.dropped,
        "forgotten": line.forgotten,
    }


def _from_json(value: dict[str, Any]) -> LogLine:
    """Read a line of this release or an earlier one, which may lack some of the fields."""
    known: dict[str, Any] = {"status": status_of(value["settled"]), **value}
    change, subject, newest = known.pop("change"), known.pop("subject"), known.pop("newest")
    token, moment, owner = known.pop("token"), known.pop("moment"), known.pop("owner")
    life, forgotten = known.pop("life", 0), known.pop("forgotten", 0)
    consumed, dropped = known.pop("consumed", ()), known.pop("dropped", ())
    halt, since = known.pop("halt", None), known.pop("since", ())
    record = RunRecord(**known, owner=Owner(**owner) if owner else None, halt=_halt_from_json(halt) if halt else None)
    return LogLine(
        change=change,
        state=rules.RunState(record, token=token, moment=moment),
        newest=_entry_from_json(newest) if newest else None,
        subject=subject,
        life=life,
        consumed=tuple(consumed),
        dropped=tuple(dropped),
        forgotten=forgotten,
        since=tuple(map(_entry_from_json, since)),
    )


def _halt_to_json(halt: Halt) -> dict[str, str]:
    return {"kind": halt.kind, "at": halt.at, "reason": halt.reason, **lines.encode_bytes(halt.data)}


def _halt_from_json(value: dict[str, Any]) -> Halt:
    return Halt(kind=value["kind"], at=value["at"], reason=value["reason"], data=lines.decode_bytes(value))


def _entry_from_json(value: dict[str, Any]) -> LogEntry:
    known: dict[str, Any] = {"status": status_of(value["settled"]), **value}
    return LogEntry(**known)
