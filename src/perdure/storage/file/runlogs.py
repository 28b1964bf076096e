"""The logs of all runs in a directory, and the two indexes on them: by workflow, and by the checkpoint forked from."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.storage.file import lines
from perdure.storage.file.runlog import RunLog
from perdure.storage.file.settling import settle
from perdure.storage.ids import file_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from perdure.storage.disk import Disk
    from perdure.storage.file.documents import Documents
    from perdure.storage.file.runline import RunLine
    from perdure.storage.retention import Entry

_SUFFIX = ".log"
_REMOVED_SUFFIX = ".removed"
_REMEMBERED_MAX = 64
_INDEX_SIZE_BEFORE_COMPACTION = 64 * 1024


class RunLogs:
    """The logs of runs, by run id or by file name."""

    def __init__(self, disk: Disk, directory: Path, documents: Documents) -> None:
        self._disk = disk
        self._directory = directory
        self._documents = documents
        self._remembered: OrderedDict[str, RunLog] = OrderedDict()

    def of(self, run_id: str) -> RunLog:
        """The log of a run, which need not exist."""
        return self.named(file_name(run_id) + _SUFFIX)

    def named(self, name: str) -> RunLog:
        """The log of that file name."""
        log = self._remembered.pop(name, None) or RunLog(self._disk, self._directory / name, self._documents)
        self._remembered[name] = log
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return log

    def names(self) -> list[str]:
        """The file names of all logs."""
        return [name for name in self._disk.names(self._directory) if name.endswith(_SUFFIX)]

    def sync(self) -> None:
        """Let new logs last."""
        self._disk.sync_directory(self._directory)

    def secure(self, log: RunLog) -> None:
        """Let a log last, also where nothing is synced otherwise."""
        self._disk.secure(log.path)

    def settle(self, log: RunLog) -> None:
        """Let a log last that was not waited for when it was written."""
        settle(self._disk, log.path)

    def erase(self, log: RunLog) -> None:
        """Remove a log that says nothing worth keeping."""
        self._disk.remove(log.path)

    def remove(self, log: RunLog) -> int:
        """Remove a run with all its checkpoints; how many there were.

        The log gets another name first. From then on the run is gone, whatever happens before the rest is.
        """
        log.flush()
        removed = log.path.with_suffix(_REMOVED_SUFFIX)
        self._disk.rename(log.path, removed)
        self.sync()
        return self._finish_removal(removed)

    def finish_removals(self, run_id: str | None = None) -> None:
        """Complete what a crash interrupted: of one run, or of all."""
        if run_id is not None:
            removed = self._directory / (file_name(run_id) + _REMOVED_SUFFIX)
            if self._disk.stamp(removed):
                self._finish_removal(removed)
            return
        for name in self._disk.names(self._directory):
            if name.endswith(_REMOVED_SUFFIX):
                self._finish_removal(self._directory / name)

    def _finish_removal(self, removed: Path) -> int:
        log = RunLog(self._disk, removed, self._documents)
        doomed = [entry for entry in log.entries() if self._documents.holds(entry)]
        for entry in doomed:
            self._documents.remove(entry.checkpoint_id)
        self._documents.sync()
        self._disk.remove(removed)
        return len(doomed)


@dataclass(slots=True)
class _LastNote:
    """The end of a list of runs, and what it says."""

    tail: lines.Tail
    run_id: str | None = None


class WorkflowIndex:
    """For each workflow a list of runs, each noted when it was committed to after another one."""

    def __init__(self, disk: Disk, directory: Path, logs: RunLogs) -> None:
        self._disk = disk
        self._directory = directory
        self._logs = logs
        self._last: OrderedDict[Path, _LastNote] = OrderedDict()

    def note(self, workflow_name: str, run_id: str, position: int) -> None:
        """Tell, before a commit, that the run is the workflow's latest from this position on."""
        path = self._path(workflow_name)
        last = self._last_run(path)
        if last == run_id:
            return
        before, after = lines.append(self._disk, path, {"run_id": run_id, "position": position}, sync=True)
        if last is None:
            self._disk.sync_directory(self._directory)
        elif after >= _INDEX_SIZE_BEFORE_COMPACTION and before.bit_length() < after.bit_length():
            # At each doubling, so that a list that can't be shortened costs little to try.
            self._compact(path)

    def _last_run(self, path: Path) -> str | None:
        """The run that was noted last."""
        last = self._last.pop(path, None) or _LastNote(lines.Tail(self._disk, path))
        self._last[path] = last
        if len(self._last) > _REMEMBERED_MAX:
            self._last.popitem(last=False)
        if not last.tail.is_known():
            note = next(lines.backward(self._disk, path), None)
            last.run_id = note and note["run_id"]
            last.tail.remember()
        return last.run_id

    def latest(self, workflow_name: str) -> Entry | None:
        """The newest commit of the workflow.

        A note may be of a commit that did not happen or is gone. The runs noted after the first one that stands
        are the only ones that can have newer commits.
        """
        best: Entry | None = None
        seen: dict[str, Entry | None] = {}
        for note in lines.backward(self._disk, self._path(workflow_name)):
            run_id = note["run_id"]
            if run_id not in seen:
                line = self._logs.of(run_id).current()
                seen[run_id] = line.newest if line else None
            newest = seen[run_id]
            if newest and (best is None or newest.sequence > best.sequence):
                best = newest
            if newest and newest.position >= note["position"]:
                break
        return best

    def _path(self, workflow_name: str) -> Path:
        return self._directory / (file_name(workflow_name) + _SUFFIX)

    def _compact(self, path: Path) -> None:
        """Keep the last note of each run that still exists."""
        notes, _ = lines.forward(self._disk, path)
        kept: dict[str, Any] = {}
        for note in notes:
            kept.pop(note["run_id"], None)
            kept[note["run_id"]] = note
        lasting = [note for run_id, note in kept.items() if self._disk.stamp(self._logs.of(run_id).path)]
        aside = path.with_suffix(".aside")
        self._disk.write_new(aside, b"".join(map(lines.encoded, lasting)))
        self._disk.rename(aside, path)
        self._disk.sync_directory(self._directory)


class ForkIndex:
    """For checkpoints that were forked from, which forks there are."""

    def __init__(self, disk: Disk, directory: Path, logs: RunLogs) -> None:
        self._disk = disk
        self._directory = directory
        self._logs = logs

    def note(self, checkpoint_id: str, run_id: str) -> None:
        """Tell, before the run begins, that it will rest on the checkpoint."""
        lines.append(self._disk, self._path(checkpoint_id), {"run_id": run_id}, sync=True)
        self._disk.sync_directory(self._directory)

    def is_rested_on(self, checkpoint_id: str) -> bool:
        """Whether a fork has nothing of its own yet and needs the checkpoint."""
        path = self._path(checkpoint_id)
        if self._disk.stamp(path) is None:
            return False
        if self.resting_on(checkpoint_id):
            return True
        self._disk.remove(path)
        return False

    def resting_on(self, checkpoint_id: str) -> list[str]:
        """The forks that have nothing of their own yet and need the checkpoint."""
        notes, _ = lines.forward(self._disk, self._path(checkpoint_id))
        forks = dict.fromkeys(str(note["run_id"]) for note in notes)
        return [run_id for run_id in forks if _rests_on(self._logs.of(run_id).current(), checkpoint_id)]

    def is_any_rested_on(self, entries: Iterable[Entry]) -> bool:
        """Whether a fork needs one of these checkpoints."""
        return any(self.is_rested_on(entry.checkpoint_id) for entry in entries)

    def _path(self, checkpoint_id: str) -> Path:
        return self._directory / (file_name(checkpoint_id) + _SUFFIX)


def _rests_on(line: RunLine | None, checkpoint_id: str) -> bool:
    return line is not None and line.state.rests_on == checkpoint_id
