"""Retention in the file store: events, old checkpoints, finished runs, unreferenced blobs.

Callers hold the lock of the directory, except for `collect`.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import FullHistory
from perdure.storage import retention as keep
from perdure.storage.file.blobs import closure
from perdure.storage.file.run_files import OldBatch, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.clock import Clock
    from perdure.records import EventBatch, Retention
    from perdure.storage.disk import Stamp
    from perdure.storage.file.checkpoint_file import CheckpointFile, LogEntry
    from perdure.storage.file.directory import Directory
    from perdure.storage.file.run_log import LogLine, RunLog
    from perdure.storage.group_commit import PendingCommit
    from perdure.storage.owners import Owners

_EXAMINED_RUNS_PER_COMMIT_MAX = 20


def read_events(directory: Directory, log: RunLog, run: LogLine, *, after: int, limit: int) -> list[EventBatch]:
    """Return the first batches with events behind a number. Raises CheckpointDamagedError."""
    after = max(after, run.forgotten)
    found: dict[int, EventBatch] = {}
    for entry in log.entries():
        if len(found) >= limit:
            break
        file = directory.checkpoints.find_entry(entry) if entry.told and entry.events > after else None
        if file and file.batch:
            found[file.batch.first] = file.batch
    end = found[max(found)].last if 0 < len(found) == limit else run.record.events
    if not _cover(((batch.first, batch.last) for batch in found.values()), after=after, end=end):
        found |= directory.events.named(log.path.name).batches(run, after=after, end=end, limit=limit)
    return [found[first] for first in sorted(found)[:limit]]


def old_batches(run: LogLine, files: Iterable[CheckpointFile]) -> list[OldBatch]:
    """Return the events of checkpoints that are to be removed, as far as the run has not forgotten them."""
    return [
        OldBatch(file.batch, file.entry.moment, tuple(closure(file.batch.refs, file.blobs.get).values()))
        for file in files
        if file.batch and file.batch.last > run.forgotten
    ]


class History:
    """Applies the retention of a store to its runs."""

    def __init__(self, directory: Directory, retention: Retention, clock: Clock, owners: Owners) -> None:
        self._directory = directory
        self._retention = retention
        self._clock = clock
        self._owners = owners
        self._unexamined: deque[str] = deque()

    def forgotten_events(self, log: RunLog, run: LogLine, newest: LogEntry) -> int:
        """Return the number of the last event that the retention removes with a commit."""
        if isinstance(self._retention.events, FullHistory):
            return run.forgotten
        spans = self._spans(log, run)
        if newest.told:
            spans.append(_span(newest))
        prunable = keep.prunable_batches(self._retention, [span.moment for span in spans], self._clock.now())
        number = min(prunable, keep.PRUNED_PER_COMMIT_MAX)
        return spans[number - 1].last if number else run.forgotten

    def _spans(self, log: RunLog, run: LogLine) -> list[Span]:
        """Return the spans of all batches of a run, in order."""
        emitted = (entry for entry in log.entries() if entry.told and run.forgotten < entry.events)
        # The last line may be of a commit that did not happen.
        spans = {span.first: span for span in map(_span, emitted) if span.last <= run.record.events}
        ranges = ((span.first, span.last) for span in spans.values())
        if not _cover(ranges, after=run.forgotten, end=run.record.events):
            spans = {**self._directory.events.named(log.path.name).spans(run), **spans}
        return [spans[first] for first in sorted(spans)]

    def prune(self, log: RunLog, run: LogLine) -> None:
        """Remove old checkpoints of a run, but not its head or what a fork needs. Their events are kept."""
        if isinstance(self._retention.checkpoints, FullHistory):
            return
        doomed = list(itertools.islice(self._doomed(log, run), keep.PRUNED_PER_COMMIT_MAX))
        if not doomed:
            return
        log.log_commits()
        # Before anything is removed: earlier removals are durable by now, so their lines are not needed.
        log.shorten()
        batches = old_batches(run, (file for _, file in doomed if file))
        if batches:
            self._directory.events.named(log.path.name).append(run, batches)
        self.flush(log, run)
        for entry, _ in doomed:
            if self._directory.checkpoints.holds(entry):
                self._directory.checkpoints.remove(entry.checkpoint_id)
                self._directory.counter.add_pruned(1)
            log.forget(entry.checkpoint_id)

    def _doomed(self, log: RunLog, run: LogLine) -> Iterator[tuple[LogEntry, CheckpointFile | None]]:
        """Return what the retention removes. A damaged checkpoint stays if it has events: they would be lost."""
        entries = log.entries()
        prunable = {entry.checkpoint_id for entry in keep.prunable(self._retention, entries, self._clock.now())}
        for entry in entries:
            if entry.checkpoint_id not in prunable or entry.checkpoint_id == run.record.head:
                continue
            try:
                file = self._directory.checkpoints.find_entry(entry)
            except CheckpointDamagedError:
                file = None
                if entry.told:
                    continue
            if not self._directory.forks.of(entry.checkpoint_id):
                yield entry, file

    def flush(self, log: RunLog, run: LogLine) -> None:
        """Fsync the run as it is, before files are removed that it would need without its newest ones."""
        directory, head = self._directory, run.record.head
        if not directory.disk.is_lazy:
            return
        file = directory.checkpoints.find(head) if head else None
        if file:
            directory.blobs.flush(needed_blobs(file))
            directory.disk.flush(directory.checkpoints.path(file.manifest.checkpoint_id))
        directory.events.named(log.path.name).flush()
        log.log_commits()
        directory.disk.flush(log.path)

    def remove_finished(self, pending: PendingCommit) -> None:
        """Remove some old finished runs, and note which. One that a fork needs stays, and the one that commits."""
        cutoff = keep.finished_cutoff(self._retention, self._clock.now())
        if cutoff is None:
            return
        if not self._unexamined:
            self._unexamined.extend(self._directory.logs.names())
        for _ in range(min(len(self._unexamined), _EXAMINED_RUNS_PER_COMMIT_MAX)):
            log = self._directory.logs.named(self._unexamined.popleft())
            run = self._finished(log, cutoff)
            if run is None or run.record.run_id == pending.lease.run_id:
                continue
            self.remove(log)
            pending.removed += (run.record.run_id,)
            if len(pending.removed) == keep.REMOVED_RUNS_PER_COMMIT_MAX:
                break

    def _finished(self, log: RunLog, cutoff: float) -> LogLine | None:
        """Return the run if it is old and has nothing to do. A run that can't be read stays."""
        try:
            run = log.current()
            if (
                run is not None
                and run.record.settled
                and (run.record.owner is None or self._owners.is_dead(run.record.owner))
                and keep.is_older(run.state.moment, cutoff)
                and not self._directory.inboxes.named(log.path.name).waiting(run)
                and not any(self._directory.forks.of(entry.checkpoint_id) for entry in log.entries())
            ):
                return run
        except WorkflowCheckpointException:
            pass
        return None

    def remove(self, log: RunLog) -> None:
        """Remove a run with all that belongs to it. Blobs stay until a collection."""
        self._directory.change_run(log, [], removed=self._directory.all_of(log, log.path.name))


def collect(directory: Directory) -> int:
    """Remove the blobs that nothing needs, and the files of runs that are gone; return the number of blobs."""
    if not directory.exists:
        return 0
    collection = _Collection(directory)
    # Checkpoints and blobs never change. What is read now need not be read while others wait for the lock.
    collection.read_ahead()
    with directory.lock():
        directory.counter.reset_pruned()
        directory.remove_asides()
        needed = collection.reach(itertools.chain(collection.of_checkpoints(), collection.of_runs()))
        unneeded = [name for name in directory.blobs.names() if name not in needed]
        for name in unneeded:
            directory.blobs.remove(name)
    return len(unneeded)


@dataclass(frozen=True, slots=True)
class _Needs:
    """The blobs that a checkpoint needs, and those that it needs only for its events."""

    run_id: str
    own: frozenset[str]
    last_event: int
    of_events: frozenset[str]

    @classmethod
    def of(cls, file: CheckpointFile) -> _Needs:
        own = needed_blobs(file, with_events=False)
        last = file.batch.last if file.batch else 0
        return cls(file.manifest.run_id, frozenset(own), last, frozenset(needed_blobs(file) - own))


class _Collection:
    """Finds out which blobs are needed, and remembers what it has read."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._needs: dict[str, tuple[Stamp, _Needs]] = {}
        self._refs: dict[str, Sequence[str]] = {}

    def read_ahead(self) -> None:
        """Read what does not change. Raises CheckpointDamagedError."""
        needs = map(self._read, self._directory.checkpoints.names())
        self.reach(itertools.chain.from_iterable(each.own | each.of_events for each in needs if each))

    def reach(self, roots: Iterable[str]) -> set[str]:
        """Return these blobs and all that they refer to."""
        reached = set(roots)
        waiting = list(reached)
        for blob_hash in waiting:
            # The list grows during the loop. Every hash comes once.
            further = set(self._refs_of(blob_hash)) - reached
            waiting.extend(further)
            reached |= further
        return reached

    def _refs_of(self, blob_hash: str) -> Sequence[str]:
        refs = self._refs.get(blob_hash)
        if refs is None:
            refs = self._directory.blobs.refs_of(blob_hash)
            if refs is None:
                # It may get a file before the lock is taken.
                return ()
            self._refs[blob_hash] = refs
        return refs

    def of_checkpoints(self) -> Iterator[str]:
        """Return the blobs that checkpoints and their events need. Raises CheckpointDamagedError."""
        forgotten: dict[str, int] = {}
        for needs in map(self._read, self._directory.checkpoints.names()):
            if needs is None:
                continue
            if needs.run_id not in forgotten:
                run = self._directory.logs.of(needs.run_id).current()
                forgotten[needs.run_id] = run.forgotten if run else 0
            yield from needs.own
            if needs.last_event > forgotten[needs.run_id]:
                yield from needs.of_events

    def _read(self, name: str) -> _Needs | None:
        stamp = self._directory.checkpoints.stamp(name)
        known = self._needs.get(name)
        if stamp and known and known[0] == stamp:
            return known[1]
        file = self._directory.checkpoints.read(name)
        if stamp is None or file is None:
            return None
        self._needs[name] = stamp, _Needs.of(file)
        return self._needs[name][1]

    def of_runs(self) -> Iterator[str]:
        """Return the blobs that journals, inboxes and old events need, and remove such files of runs that are gone."""
        directory = self._directory
        for name in directory.journals.names():
            run, journal = directory.logs.named(name).current(), directory.journals.named(name)
            if run is None:
                journal.drop()
            else:
                journal.drop_if_void(run.record)
                yield from journal.roots(run.record)
        for name in directory.inboxes.names():
            run, inbox = directory.logs.named(name).current(), directory.inboxes.named(name)
            if run is None or not inbox.waiting(run):
                inbox.drop()
            else:
                yield from inbox.roots(run)
        for name in directory.events.names():
            run, events = directory.logs.named(name).current(), directory.events.named(name)
            if run is None or not events.spans(run):
                events.drop()
            else:
                yield from events.roots(run)


def needed_blobs(file: CheckpointFile, *, with_events: bool = True) -> set[str]:
    """Return the blobs that a checkpoint refers to, directly or by those in its file."""
    roots = set(file.manifest.roots)
    if file.batch and with_events:
        roots.update(file.batch.refs)
    inline = closure(roots, file.blobs.get)
    return roots.union(itertools.chain.from_iterable(blob.refs for blob in inline.values()))


def _span(entry: LogEntry) -> Span:
    return Span(entry.events - entry.told + 1, entry.events, entry.moment)


def _cover(ranges: Iterable[tuple[int, int]], *, after: int, end: int) -> bool:
    """Ask whether these disjoint ranges contain every number above `after` up to `end`."""
    return sum(last - max(first, after + 1) + 1 for first, last in ranges) >= end - after
