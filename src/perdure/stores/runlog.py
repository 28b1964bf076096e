"""A run as a log: each line is the whole run after a change, and the last one that holds is the run.

A commit's line is written before its checkpoint appears, and holds once it is there. A deletion is announced
by a line before the checkpoint disappears, and has happened once it is gone. So a crash at any instant leaves
the run as it was before or as it is after, never between. And a checkpoint that the log does not know of, though it
would be the run's next, tells that the log has lost its end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perdure.errors import CheckpointDamagedError
from perdure.records import Halt, Owner, RunRecord
from perdure.stores import lineparts, lines, rules
from perdure.stores.document import LogEntry, status_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from perdure.stores.disk import Disk
    from perdure.stores.documents import Documents

Change: TypeAlias = Literal[
    "claim", "release", "commit", "rewind", "deletion announced", "deletion", "progress", "restore"
]

_RECORD_FIELDS = tuple(each.name for each in fields(RunRecord))
_SPARE_LINES = 64
"""A log is rewritten when it has so many lines more than it needs, and as many again as it needs."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run after a change. `subject` is the checkpoint that the change is about."""

    change: Change
    state: rules.RunState
    newest: LogEntry | None
    """The newest commit; it is the head unless the run was rewound."""
    subject: str | None = None
    life: int = 0
    """The token of the claim with which the run began. What was written for an earlier run of its id has another."""
    consumed: tuple[int, ...] = ()
    """The numbers of commands that have left the inbox, although they may still stand in its file."""
    dropped: tuple[int, ...] = ()
    """The numbers of those that go with the deletion which is announced."""
    forgotten: int = 0
    """The number of the last event that the retention has removed."""


class RunLog:
    """The log of one run, in the directory whose checkpoints are `documents`."""

    def __init__(self, disk: Disk, path: Path, documents: Documents) -> None:
        self.path = path
        self._disk = disk
        self._documents = documents
        self._mark: bytes = b""
        self._end = 0
        self._line_count = 0
        self._entries: dict[str, LogEntry] = {}
        self._settled_size = -1
        """The size of the file when this process synced it last, if it wrote nothing since."""

    def current(self) -> RunLine | None:
        """The run as it is now; None if it does not exist. Raises CheckpointDamagedError."""
        line = self._last_that_holds()
        if line:
            self._require_newest(line)
        return line

    def _last_that_holds(self) -> RunLine | None:
        for value in lines.backward(self._disk, self.path):
            line = _from_json(value)
            if line.change == "commit" and not (line.newest and self._documents.holds(line.newest)):
                continue
            if line.change == "deletion announced":
                return self._with_deletion_settled(line)
            return line
        return None

    def _require_newest(self, line: RunLine) -> None:
        record = line.state.record
        following = self._documents.at(record.run_id, record.position + 1)
        # One of an earlier run of this id is older than this run.
        if following and following.sequence > line.life:
            raise CheckpointDamagedError(following.manifest.checkpoint_id, "the log of its run has lost its end")

    def append(self, line: RunLine, *, sync: bool) -> None:
        """Write what the run is from now on."""
        stamp = self._disk.stamp(self.path)
        is_settled = stamp is None or stamp.size == self._settled_size
        _, size = lines.append(self._disk, self.path, _to_json(line), sync=sync, settle=not is_settled)
        self._settled_size = size if sync else -1

    def without(self, line: RunLine, checkpoint_id: str) -> RunLine | None:
        """The run after one of its checkpoints is deleted; None if it was the only one."""
        newest = self._newest_besides(checkpoint_id)
        if newest is None:
            return None
        state = line.state
        if state.record.head == checkpoint_id:
            state = rules.moved(
                state,
                head=newest.checkpoint_id,
                settled=newest.settled,
                status=newest.status,
                wake_at=newest.wake_at,
            )
        consumed = (*line.consumed, *line.dropped)
        return RunLine(
            "deletion", state, newest, checkpoint_id, life=line.life, consumed=consumed, forgotten=line.forgotten
        )

    def entries(self) -> list[LogEntry]:
        """The commits of the run in their order, those that are gone by now left out as far as is known."""
        self._refresh()
        return list(self._entries.values())

    def forget(self, checkpoint_id: str) -> None:
        """Take note that a checkpoint is gone."""
        self._entries.pop(checkpoint_id, None)

    def shorten(self) -> None:
        """Rewrite the log if most of it is about checkpoints that are gone."""
        self._refresh()
        current = self.current()
        if current is None or self._line_count <= 2 * len(self._entries) + _SPARE_LINES:
            return
        aside = self.path.with_suffix(".aside")
        self._disk.write_new(aside, encoded(replace(current, change="claim", subject=None), self._entries.values()))
        self._disk.rename(aside, self.path)
        self._disk.sync_directory(self.path.parent)

    def _with_deletion_settled(self, line: RunLine) -> RunLine | None:
        doomed = self._find(line.subject)
        if doomed and self._documents.holds(doomed):
            return replace(line, dropped=())
        return self.without(line, line.subject or "")

    def _find(self, checkpoint_id: str | None) -> LogEntry | None:
        self._refresh()
        return self._entries.get(checkpoint_id or "")

    def _newest_besides(self, checkpoint_id: str) -> LogEntry | None:
        remaining = (entry for entry in reversed(self.entries()) if entry.checkpoint_id != checkpoint_id)
        return next((entry for entry in remaining if self._documents.holds(entry)), None)

    def _refresh(self) -> None:
        """Read what was written since the last time; all of it if the file is another one."""
        stamp = self._disk.stamp(self.path)
        # A new file may have the old one's inode; the checksum of its first line it has not.
        mark = self._disk.read(self.path, end=lines.CHECKSUM_LENGTH) if stamp else b""
        is_another = mark != self._mark or stamp is None or stamp.size < self._end
        if is_another:
            self._mark = mark
            self._end = self._line_count = 0
            self._entries.clear()
        if stamp and stamp.size > self._end:
            values, self._end = lines.forward(self._disk, self.path, start=self._end)
            self._line_count += len(values)
            for line in map(_from_json, values):
                self._take(line)
        if is_another:
            # Old lines tell of checkpoints that were forgotten by others.
            gone = [checkpoint_id for checkpoint_id in self._entries if not self._documents.exists(checkpoint_id)]
            for checkpoint_id in gone:
                del self._entries[checkpoint_id]

    def _take(self, line: RunLine) -> None:
        if line.change == "commit" and line.newest:
            # What has this position already, or a later one, was tried and did not come about.
            while self._entries and next(reversed(self._entries.values())).position >= line.newest.position:
                self._entries.popitem()
            self._entries.pop(line.newest.checkpoint_id, None)
            self._entries[line.newest.checkpoint_id] = line.newest
        elif line.change == "deletion":
            self._entries.pop(line.subject or "", None)


def encoded(line: RunLine, kept: Iterable[LogEntry]) -> bytes:
    """A whole log that says of the run what the line does, and which checkpoints it has."""
    commits = (replace(line, change="commit", newest=entry, subject=entry.checkpoint_id) for entry in kept)
    return b"".join(lines.encoded(_to_json(each)) for each in (*commits, line))


def _to_json(line: RunLine) -> dict[str, Any]:
    record = line.state.record
    return {
        "change": line.change,
        "subject": line.subject,
        # Field by field, since asdict would copy each value.
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


def _from_json(value: dict[str, Any]) -> RunLine:
    known: dict[str, Any] = {"status": status_of(value["settled"]), **value}
    change, subject, newest = known.pop("change"), known.pop("subject"), known.pop("newest")
    token, moment, owner = known.pop("token"), known.pop("moment"), known.pop("owner")
    # Lines that were written before there were inboxes, events and halts have nothing to say of them.
    life, forgotten = known.pop("life", 0), known.pop("forgotten", 0)
    consumed, dropped = known.pop("consumed", ()), known.pop("dropped", ())
    halt = known.pop("halt", None)
    record = RunRecord(**known, owner=Owner(**owner) if owner else None, halt=_halt_from_json(halt) if halt else None)
    return RunLine(
        change=change,
        state=rules.RunState(record, token=token, moment=moment),
        newest=_entry(newest) if newest else None,
        subject=subject,
        life=life,
        consumed=tuple(consumed),
        dropped=tuple(dropped),
        forgotten=forgotten,
    )


def _halt_to_json(halt: Halt) -> dict[str, str]:
    return {"kind": halt.kind, "at": halt.at, "reason": halt.reason, **lineparts.coded(halt.data)}


def _halt_from_json(value: dict[str, Any]) -> Halt:
    return Halt(kind=value["kind"], at=value["at"], reason=value["reason"], data=lineparts.decoded(value))


def _entry(value: dict[str, Any]) -> LogEntry:
    known: dict[str, Any] = {"status": status_of(value["settled"]), **value}
    return LogEntry(**known)
