"""A run as a log: each line is the whole run after a change, and the last one that holds is the run.

Most commits have no line: the next few checkpoints of a run are found by their numbers, and say what their lines would
have said. So a commit need not wait for the log. The next line, whatever it is about, names the commits since the one
before.

The line of a commit that could not be found so is written before its checkpoint appears, and holds once it is there. A
deletion is announced by a line before the checkpoint disappears, and has happened once it is gone. So a crash at any
instant leaves the run as it was before or as it is after, never between. And a checkpoint that comes after the log's
last line, but does not follow from it, tells that the log has lost its end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError
from perdure.storage import rules
from perdure.storage.file import lines
from perdure.storage.file.documents import usual_id
from perdure.storage.file.runline import RunLine, after_commit, encoded, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.storage.disk import Disk
    from perdure.storage.file.document import Document, LogEntry
    from perdure.storage.file.documents import Documents

_SPARE_LINES = 64
"""A log is rewritten when it has so many lines more than it needs, and as many again as it needs."""

_UNLOGGED_MAX = 16
"""So many commits have no line at most, and so many a reader looks for behind the last line."""


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
        self._tail = lines.Tail(disk, path)
        self._line: RunLine | None = None
        """The run as it was when it was looked at last."""
        self._unlogged: dict[str, LogEntry | None] = {}
        """The commits after the log's last line, in order; None for what was not read yet."""

    def current(self) -> RunLine | None:
        """The run as it is now; None if it does not exist. Raises CheckpointDamagedError."""
        if not self._tail.is_known() or not self._is_still_there():
            self._unlogged.clear()
            line = self._last_that_holds()
            self._line = self._with_unlogged(line) if line else None
            self._tail.remember()
        elif self._line and self._documents.exists(_next_id(self._line)):
            self._line = self._with_unlogged(self._line)
        return self._line

    def _is_still_there(self) -> bool:
        """Whether what was seen last holds, as far as that does not depend on the log."""
        line = self._line
        return line is not None and (
            line.change != "commit" or bool(line.newest and self._documents.holds(line.newest))
        )

    @property
    def has_room(self) -> bool:
        """Whether one more commit would be found without a line."""
        return len(self._unlogged) < _UNLOGGED_MAX

    def note(self, line: RunLine) -> None:
        """Take note of a commit that has happened and has no line."""
        assert line.newest is not None, "a commit has a checkpoint"
        self._line = line
        self._unlogged[line.newest.checkpoint_id] = line.newest

    def flush(self) -> None:
        """Let the log tell of every commit by itself, as it must before checkpoints are removed."""
        if self._unlogged and self._line:
            self.append(self._line, sync=True)

    def knows(self, checkpoint_id: str) -> bool:
        """Whether the checkpoint is one of the run's, as far as was looked."""
        self._refresh()
        return checkpoint_id in self._entries or checkpoint_id in self._unlogged

    def give_up(self, checkpoint_id: str) -> None:
        """Leave out a checkpoint that can't be read and that the log does not tell of."""
        if self._unlogged.get(checkpoint_id, self) is None:
            del self._unlogged[checkpoint_id]

    def _last_that_holds(self) -> RunLine | None:
        lost: list[RunLine] = []
        for value in lines.backward(self._disk, self.path):
            line = from_json(value)
            if line.change == "commit" and not (line.newest and self._documents.holds(line.newest)):
                lost.append(line)
                continue
            if line.change == "deletion announced":
                return self._with_deletion_settled(line)
            _require_history(line, lost)
            return line
        return None

    def _with_unlogged(self, line: RunLine) -> RunLine:
        """The run after the commits that follow, if there are any. Only the last of them is read."""
        record = line.state.record
        ids = [usual_id(record.run_id, record.position + 1 + number) for number in range(_UNLOGGED_MAX)]
        # The second one tells that the first is lost. Most runs have neither.
        if not any(map(self._documents.exists, ids[:2])):
            return line
        document = self._newest_of(line, ids)
        if document is None or document.run is None:
            return line
        following = ids[: document.manifest.position - record.position]
        missing = next((each for each in following if not self._documents.exists(each)), None)
        if missing is not None:
            raise CheckpointDamagedError(missing, "its file is gone")
        if document.run.after != (record.head if len(following) == 1 else following[-2]):
            raise _without_end(document)
        self._unlogged |= dict.fromkeys(following)
        self._unlogged[following[-1]] = document.entry
        return after_commit(line, document, document.run)

    def _newest_of(self, line: RunLine, ids: Sequence[str]) -> Document | None:
        """The last of these checkpoints that is one of the run's and has no line in the log."""
        for number in range(len(ids), 0, -1):
            if self._documents.exists(ids[number - 1]):
                document = self._documents.at(line.state.record.run_id, line.state.record.position + number)
                # One of an earlier run of this id is older than this run.
                if document and document.sequence > line.life:
                    if document.run is None:
                        raise _without_end(document)
                    return document
        return None

    def append(self, line: RunLine, *, sync: bool) -> None:
        """Write what the run is from now on."""
        stamp = self._disk.stamp(self.path)
        is_settled = stamp is None or stamp.size == self._settled_size
        own = line.newest if line.change == "commit" else None
        written = replace(line, since=tuple(entry for entry in self._unlogged_entries() if entry != own))
        _, size = lines.append(self._disk, self.path, to_json(written), sync=sync, settle=not is_settled)
        self._settled_size = size if sync else -1
        self._unlogged.clear()

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
        unlogged = (entry for entry in self._unlogged_entries() if entry.checkpoint_id not in self._entries)
        return [*self._entries.values(), *unlogged]

    def _unlogged_entries(self) -> list[LogEntry]:
        """The commits that have no line, in order. Raises CheckpointDamagedError."""
        for checkpoint_id, entry in list(self._unlogged.items()):
            document = self._documents.find(checkpoint_id) if entry is None else None
            if document:
                self._unlogged[checkpoint_id] = document.entry
        return [entry for entry in self._unlogged.values() if entry]

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
        return next((entry for entry in self.entries() if entry.checkpoint_id == checkpoint_id), None)

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
            for line in map(from_json, values):
                self._take(line)
        if is_another:
            # Old lines tell of checkpoints that were forgotten by others.
            gone = [checkpoint_id for checkpoint_id in self._entries if not self._documents.exists(checkpoint_id)]
            for checkpoint_id in gone:
                del self._entries[checkpoint_id]

    def _take(self, line: RunLine) -> None:
        own = (line.newest,) if line.change == "commit" and line.newest else ()
        for entry in (*line.since, *own):
            # What has this position already, or a later one, was tried and did not come about.
            while self._entries and next(reversed(self._entries.values())).position >= entry.position:
                self._entries.popitem()
            self._entries.pop(entry.checkpoint_id, None)
            self._entries[entry.checkpoint_id] = entry
        if line.change == "deletion":
            self._entries.pop(line.subject or "", None)


def _require_history(line: RunLine, lost: Sequence[RunLine]) -> None:
    """Refuse a run without a checkpoint of which later lines tell that it had some.

    The last one alone may be of a commit that did not come about, tried once or more often.
    """
    if line.state.record.position != rules.BEFORE_THE_FIRST:
        return
    if any(each.since or each.state.record.position != lost[0].state.record.position for each in lost):
        raise CheckpointDamagedError(lost[0].subject or "", "its file is gone, and so is every other one of its run")


def _next_id(line: RunLine) -> str:
    return usual_id(line.state.record.run_id, line.state.record.position + 1)


def _without_end(document: Document) -> CheckpointDamagedError:
    return CheckpointDamagedError(document.manifest.checkpoint_id, "the log of its run has lost its end")
