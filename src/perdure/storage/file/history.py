"""The history of runs: events, retention, collection of blobs, archives, and deleted checkpoints.

Callers hold the lock of the directory, except for `collect`.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perdure.errors import BlobDamagedError, CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import Archive, ArchivedCheckpoint, EventBatch, FullHistory, Retention
from perdure.storage import retention as retention_rules, rules
from perdure.storage.file import lines
from perdure.storage.file.checkpoints import CheckpointFile, LogEntry, closure, encode
from perdure.storage.file.directory import CHECKPOINTS, EVENTS, INBOX, JOURNAL, RUNS, Directory, Location, Target
from perdure.storage.file.run_files import LogLine, RunFiles, encode_log, event_line, inbox_line, journal_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.storage.disk import Stamp
    from perdure.storage.group_commit import PendingCommit
    from perdure.storage.owners import Owners

_EXAMINED_RUNS_PER_COMMIT_MAX = 20


def read_events(directory: Directory, run: RunFiles, line: LogLine, *, after: int, limit: int) -> list[EventBatch]:
    """Return the first batches with events behind a number. Raises CheckpointDamagedError."""
    after = max(after, line.forgotten)
    found: dict[int, EventBatch] = {}
    for entry in run.log.entries(after=after):
        if len(found) >= limit:
            break
        file = directory.checkpoints.find_entry(entry) if entry.told else None
        if file and file.batch:
            found[file.batch.first] = replace(file.batch, moment=entry.moment)
    end = found[max(found)].last if 0 < len(found) == limit else line.record.events
    if sum(batch.last - max(batch.first, after + 1) + 1 for batch in found.values()) < end - after:
        removed = run.events.batches(line)
        found |= {batch.first: batch for batch in removed if batch.last > after and batch.first <= end}
    return [found[first] for first in sorted(found)[:limit]]


def old_events(line: LogLine, files: Iterable[CheckpointFile]) -> list[dict[str, Any]]:
    """Return lines with the events of checkpoints that are to be removed, if the run has not forgotten them."""
    return [
        event_line(line.life, file.batch, file.entry.moment, closure(file.batch.refs, file.blobs.get).values())
        for file in files
        if file.batch and file.batch.last > line.forgotten
    ]


class History:
    """Applies the retention of a store to its runs."""

    def __init__(self, directory: Directory, retention: Retention, clock: Clock, owners: Owners) -> None:
        self._directory = directory
        self._retention = retention
        self._clock = clock
        self._owners = owners
        self._unexamined: deque[str] = deque()

    def forgotten_events(self, run: RunFiles, line: LogLine, newest: LogEntry) -> int:
        """Return the number of the last event that the retention removes with a commit."""
        if isinstance(self._retention.events, FullHistory):
            return line.forgotten
        # By the last number of each batch the time of its commit.
        moments = {
            entry.events: entry.moment for entry in (*run.log.entries(after=line.forgotten), newest) if entry.told
        }
        moments |= run.events.moments(line)
        batches = sorted(moments)
        prunable = retention_rules.prunable_batches(
            self._retention, [moments[last] for last in batches], self._clock.now()
        )
        number = min(prunable, retention_rules.PRUNED_PER_COMMIT_MAX)
        return batches[number - 1] if number else line.forgotten

    def prune(self, run: RunFiles, line: LogLine) -> None:
        """Remove old checkpoints of a run, but not its head or what a fork needs. Their events are kept."""
        if isinstance(self._retention.checkpoints, FullHistory):
            return
        entries = run.log.entries()
        doomed = list(itertools.islice(self._doomed(entries, line), retention_rules.PRUNED_PER_COMMIT_MAX))
        if not doomed:
            return
        # Before anything is removed: earlier removals are durable by now, so their lines are not needed.
        run.log.shorten(line, entries)
        events = old_events(line, (file for _, file in doomed if file))
        if events:
            run.events.append(line, events)
        self.flush(run, line)
        for entry, file in doomed:
            if file or self._directory.checkpoints.holds(entry):
                self._directory.disk.remove(self._directory.checkpoints.path(entry.checkpoint_id))

    def _doomed(self, entries: Sequence[LogEntry], line: LogLine) -> Iterator[tuple[LogEntry, CheckpointFile | None]]:
        """Return what the retention removes. A damaged checkpoint stays if it has events: they would be lost."""
        newest, cutoff = retention_rules.limits(self._retention.checkpoints, self._clock.now())
        for number, entry in enumerate(entries, start=1):
            is_among_newest = newest is not None and number > len(entries) - newest
            is_young = cutoff is not None and not retention_rules.is_older(entry.moment, cutoff)
            if is_among_newest or is_young or entry.checkpoint_id == line.record.head:
                continue
            try:
                file = self._directory.checkpoints.find_entry(entry)
            except CheckpointDamagedError:
                file = None
                if entry.told:
                    continue
            if not self._directory.forks.of(entry.checkpoint_id):
                yield entry, file

    def flush(self, run: RunFiles, line: LogLine) -> None:
        """Fsync the run as it is, before files are removed that it would need without its newest ones."""
        directory, head = self._directory, line.record.head
        if not directory.disk.is_lazy:
            return
        file = directory.checkpoints.find(head) if head else None
        paths = [run.log.path]
        if file:
            directory.blobs.flush(needed_blobs(file))
            paths.append(directory.checkpoints.path(file.manifest.checkpoint_id))
        if directory.disk.stamp(run.events.path):
            paths.append(run.events.path)
        directory.disk.flush(*paths)

    def remove_finished(self, pending: PendingCommit) -> None:
        """Remove some old finished runs, and note which. One that a fork needs stays, and the one that commits."""
        cutoff = retention_rules.finished_cutoff(self._retention, self._clock.now())
        if cutoff is None:
            return
        if not self._unexamined:
            self._unexamined.extend(self._directory.names(RUNS))
        for _ in range(min(len(self._unexamined), _EXAMINED_RUNS_PER_COMMIT_MAX)):
            run = self._directory.run_named(self._unexamined.popleft())
            line = self._finished(run, cutoff)
            if line is None or line.record.run_id == pending.lease.run_id:
                continue
            self.remove(run)
            pending.removed += (line.record.run_id,)
            if len(pending.removed) == retention_rules.REMOVED_RUNS_PER_COMMIT_MAX:
                break

    def expire(self) -> None:
        """Remove all old finished runs, one at a time. The caller does not hold the lock."""
        cutoff = retention_rules.finished_cutoff(self._retention, self._clock.now())
        for name in self._directory.names(RUNS) if cutoff is not None else ():
            with self._directory.lock():
                run = self._directory.run_named(name)
                if cutoff is not None and self._finished(run, cutoff):
                    self._directory.counter.take()
                    self.remove(run)

    def _finished(self, run: RunFiles, cutoff: float) -> LogLine | None:
        """Return the run if it is old and has nothing to do. A run that can't be read stays."""
        with contextlib.suppress(WorkflowCheckpointException):
            line = run.current()
            if (
                line is not None
                and line.record.settled
                and (line.record.owner is None or self._owners.is_dead(line.record.owner))
                and retention_rules.is_older(line.record.moment, cutoff)
                and not run.inbox.waiting(line)
                and not forks_of(self._directory, run)
            ):
                return line
        return None

    def remove(self, run: RunFiles) -> None:
        """Remove a run with all that belongs to it. Blobs stay until a collection."""
        self._directory.transactions.run([], removed=self._directory.files_of(run))

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        """Remove one checkpoint, damaged or not. Its events stay as long as its run does."""
        directory = self._directory
        # A journal that continues the checkpoint is void without it.
        forks = [directory.run(fork).name for fork in directory.forks.of(checkpoint_id)]
        removed: list[Target] = [(CHECKPOINTS, directory.checkpoints.path(checkpoint_id).name)]
        removed += [(JOURNAL, name) for name in forks]
        try:
            file = directory.checkpoints.find(checkpoint_id)
        except CheckpointDamagedError:
            # Its events are lost with it.
            file = None
        run = directory.run(file.manifest.run_id) if file else self._find_run(checkpoint_id)
        line = run.current() if run else None
        if run is None or line is None:
            directory.transactions.run([], removed=removed)
            return
        is_head = line.record.head == checkpoint_id
        if is_head:
            removed.append((JOURNAL, run.name))
            line = replace(line, consumed=(*line.consumed, *run.inbox.expecting(line)))
        left = run.log.without(line, checkpoint_id)
        if left is None:
            directory.transactions.run(
                [], removed=[*removed, *((each, run.name) for each in (RUNS, JOURNAL, INBOX, EVENTS))]
            )
            return
        after, entries = left
        files: list[tuple[Target, bytes]] = [((RUNS, run.name), encode_log(after, entries))]
        events = old_events(line, [file] if file else [])
        if events:
            content = lines.read_sound(directory.disk, run.events.path)
            files.append(((EVENTS, run.name), content + b"".join(map(lines.encode, events))))
        with contextlib.suppress(CheckpointDamagedError):
            self.flush(run, after)
        directory.transactions.run(files, removed=removed)

    def _find_run(self, checkpoint_id: str) -> RunFiles | None:
        """Return the run that lists a damaged checkpoint, None if no log does."""
        return next((run for run in self._directory.runs() if run.log.lists(checkpoint_id)), None)


def collect(directory: Directory) -> int:
    """Remove the blobs that nothing needs, and the files of runs that are gone; return the number of blobs."""
    if not directory.exists:
        return 0
    collection = _Collection(directory)
    # Checkpoints and blobs never change. What is read now need not be read while others wait for the lock.
    collection.read_ahead()
    with directory.lock():
        directory.remove_asides()
        needed = collection.reach(itertools.chain(collection.of_checkpoints(), collection.of_runs()))
        names = directory.blobs.names()
        unneeded = [name for name in names if name not in needed]
        for name in unneeded:
            directory.blobs.remove(name)
        directory.counter.set_kept(len(names) - len(unneeded))
    return len(unneeded)


@dataclass(frozen=True, slots=True)
class _Needs:
    """The blobs that a checkpoint needs, and those that it needs only for its events."""

    stamp: Stamp
    run_id: str
    own: set[str]
    last_event: int
    of_events: set[str]


class _Collection:
    """Finds out which blobs are needed, and remembers what it has read."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._needs: dict[Path, _Needs] = {}
        self._refs: dict[str, Sequence[str]] = {}

    def read_ahead(self) -> None:
        """Read what does not change. Raises CheckpointDamagedError."""
        self.reach(itertools.chain.from_iterable(each.own | each.of_events for each in self._read_checkpoints()))

    def reach(self, roots: Iterable[str]) -> set[str]:
        """Return these blobs and all that they refer to."""
        return set(rules.reach(roots, self._refs_of))

    def _refs_of(self, blob_hash: str) -> Sequence[str]:
        if blob_hash not in self._refs:
            refs = self._directory.blobs.find_refs(blob_hash)
            if refs is None:
                # It may get a file before the lock is taken.
                return ()
            self._refs[blob_hash] = refs
        return self._refs[blob_hash]

    def _read_checkpoints(self) -> Iterator[_Needs]:
        for path in self._directory.checkpoints.paths():
            stamp, known = self._directory.disk.stamp(path), self._needs.get(path)
            if known and known.stamp == stamp:
                yield known
            elif stamp and (file := self._directory.checkpoints.read(path)):
                own, last = needed_blobs(file, with_events=False), file.batch.last if file.batch else 0
                self._needs[path] = _Needs(stamp, file.manifest.run_id, own, last, needed_blobs(file) - own)
                yield self._needs[path]

    def of_checkpoints(self) -> Iterator[str]:
        """Return the blobs that checkpoints and their events need. Raises CheckpointDamagedError."""
        forgotten: dict[str, int] = {}
        for needs in self._read_checkpoints():
            if needs.run_id not in forgotten:
                line = self._directory.run(needs.run_id).current()
                forgotten[needs.run_id] = line.forgotten if line else 0
            yield from needs.own
            if needs.last_event > forgotten[needs.run_id]:
                yield from needs.of_events

    def of_runs(self) -> Iterator[str]:
        """Return the blobs that journals, inboxes and old events need, and remove such files if they are void."""
        names = {name for location in (JOURNAL, INBOX, EVENTS) for name in self._directory.names(location)}
        for run in map(self._directory.run_named, names):
            line = run.current()
            for file in (run.journal, run.inbox, run.events):
                if line is None or file.is_void(line):
                    file.drop()
                else:
                    yield from file.roots(line)


def needed_blobs(file: CheckpointFile, *, with_events: bool = True) -> set[str]:
    """Return the blobs that a checkpoint refers to, directly or by those in its file."""
    roots = set(file.manifest.roots)
    if file.batch and with_events:
        roots.update(file.batch.refs)
    inline = closure(roots, file.blobs.get)
    return roots.union(itertools.chain.from_iterable(blob.refs for blob in inline.values()))


def forks_of(directory: Directory, run: RunFiles) -> Mapping[str, str]:
    """Return the forks that need a checkpoint of a run, each with that checkpoint."""
    ids = [entry.checkpoint_id for entry in run.log.entries()]
    return {fork: checkpoint_id for checkpoint_id in ids for fork in directory.forks.of(checkpoint_id)}


def archive(directory: Directory, run_id: str) -> Archive:
    """Return all that there is of a run. Raises CheckpointDamagedError."""
    run = directory.run(run_id)
    line = run.current()
    state = rules.require_own_history(line.state if line else None, run_id)
    assert line is not None, "a state comes from a line"
    files = list(run.log.files())
    without_blobs = Archive(
        record=rules.archive_record(state),
        checkpoints=tuple(ArchivedCheckpoint(file.manifest, file.settled, file.status, file.wake_at) for file in files),
        blobs=(),
        journal=tuple(run.journal.records(line)),
        inbox=tuple(run.inbox.waiting(line)),
        events=tuple(read_events(directory, run, line, after=0, limit=sys.maxsize)),
    )
    inline = {blob.hash: blob for file in files for blob in file.blobs.values()}
    try:
        blobs = directory.find_blobs(rules.archive_roots(without_blobs), known=inline)
    except BlobDamagedError as error:
        raise CheckpointDamagedError(state.record.head or run_id, error.reason) from error
    return rules.complete_archive(without_blobs, blobs.values())


def restore(directory: Directory, archived: Archive) -> None:
    """Write a run from another store, replacing one that was exported from here."""
    run = directory.run(archived.record.run_id)
    line = run.current()
    rules.require_restorable(line.state if line else None, archived, forks=forks_of(directory, run))
    removed = set(directory.files_of(run))
    for checkpoint in archived.checkpoints:
        path = directory.checkpoints.path(checkpoint.manifest.checkpoint_id)
        if (CHECKPOINTS, path.name) not in removed and directory.disk.stamp(path):
            raise rules.duplicate_checkpoint_error(checkpoint.manifest.checkpoint_id)
    with directory.disk.always_fsync():
        directory.blobs.add(archived.blobs)
        files = list(_restored_files(directory, archived, run.name))
    # Blobs that were here already may have been written without fsync.
    directory.blobs.flush(blob.hash for blob in archived.blobs)
    directory.transactions.run(files, removed=removed)


def _restored_files(directory: Directory, archived: Archive, name: str) -> Iterator[tuple[Target, bytes]]:
    """Return the files of a run. All of its blobs have files of their own."""
    take, forgotten = directory.counter.take, rules.last_removed_event(archived)
    # Smaller than the number of any commit that follows, like the token of a run that begins here.
    life = take()
    batches = {batch.checkpoint_id: batch for batch in archived.events}
    entries: list[LogEntry] = []
    events = forgotten
    for each in archived.checkpoints:
        batch = batches.get(each.manifest.checkpoint_id)
        events = batch.last if batch else events
        file = CheckpointFile(each.manifest, each.settled, take(), {}, each.status, each.wake_at, events, batch)
        entries.append(file.entry)
        yield (CHECKPOINTS, directory.checkpoints.path(each.manifest.checkpoint_id).name), encode(file)
    state = rules.restored_state(archived, token=life)
    line = LogLine("restore", state, newest=entries[-1], life=life, forgotten=forgotten)
    yield (RUNS, name), encode_log(line, entries)
    commands = [rules.number_command(command, number=take()) for command in archived.inbox]
    there = {entry.checkpoint_id for entry in entries}
    old = zip(archived.events, rules.event_times(archived), strict=True)
    values: dict[Location, list[dict[str, Any]]] = {
        JOURNAL: [journal_line(archived.record, archived.journal, ())] if archived.journal else [],
        INBOX: [inbox_line(life, command, ()) for command in commands],
        EVENTS: [event_line(life, batch, moment, ()) for batch, moment in old if batch.checkpoint_id not in there],
    }
    for location, of_file in values.items():
        if of_file:
            yield (location, name), b"".join(map(lines.encode, of_file))
