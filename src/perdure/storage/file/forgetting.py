"""What the file store forgets after a commit: old checkpoints of the run, and old runs that have finished."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import FullHistory
from perdure.storage import retention as keep
from perdure.storage.file.collecting import needs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perdure.clock import Clock
    from perdure.records import Retention
    from perdure.storage.backend import PendingCommit
    from perdure.storage.file.document import Document, LogEntry
    from perdure.storage.file.layout import Layout
    from perdure.storage.file.runline import RunLine
    from perdure.storage.file.runlog import RunLog
    from perdure.storage.file.telling import Telling
    from perdure.storage.owners import Owners

_EXAMINED_RUNS_PER_COMMIT_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """Removes what the retention lets go, a little at a time."""

    retention: Retention
    clock: Clock
    layout: Layout
    telling: Telling
    owners: Owners
    _unexamined: deque[str] = field(default_factory=deque[str], init=False)

    def prune(self, log: RunLog, run: RunLine) -> None:
        """Remove checkpoints of a run; never its head, nor what a fork rests on. What they told stays."""
        if isinstance(self.retention.checkpoints, FullHistory):
            return
        doomed = list(itertools.islice(self._doomed(log, run), keep.PRUNED_PER_COMMIT_MAX))
        if not doomed:
            return
        # Nobody could find his way over a checkpoint that is gone.
        log.flush()
        # Before anything is removed: what was removed earlier lasts by now, and its lines are not needed.
        log.shorten()
        self.telling.outlive(log, run, [document for _, document in doomed if document])
        self.settle(log, run)
        pruned = 0
        for entry, _ in doomed:
            if self.layout.documents.holds(entry):
                self.layout.documents.remove(entry.checkpoint_id)
                pruned += 1
            log.forget(entry.checkpoint_id)
        self.layout.count_pruned(pruned)

    def settle(self, log: RunLog, run: RunLine) -> None:
        """Let the run as it is last, where nobody waits for that: what it has come from is about to go."""
        if not self.layout.is_lazy:
            return
        files, head = self.layout, run.state.record.head
        document = files.documents.find(head) if head else None
        if document:
            files.besides.settle(needs(document))
            files.documents.settle(document.manifest.checkpoint_id)
        files.events.named(log.path.name).settle()
        log.flush()
        files.logs.settle(log)

    def _doomed(self, log: RunLog, run: RunLine) -> Iterator[tuple[LogEntry, Document | None]]:
        """What the retention lets go; a damaged checkpoint only if it told nothing."""
        entries = log.entries()
        prunable = {entry.checkpoint_id for entry in keep.prunable(self.retention, entries, self.clock.now())}
        for entry in entries:
            if entry.checkpoint_id not in prunable or entry.checkpoint_id == run.state.record.head:
                continue
            try:
                document = self.layout.documents.find(entry.checkpoint_id)
            except CheckpointDamagedError:
                document = None
                if entry.told:
                    continue
            if not self.layout.forks.is_rested_on(entry.checkpoint_id):
                yield entry, document if document and document.sequence == entry.sequence else None

    def remove_finished(self, pending: PendingCommit) -> None:
        """Remove runs, and note which; not the one that commits, nor one that a fork rests on."""
        cutoff = keep.finished_cutoff(self.retention, self.clock.now())
        if cutoff is None:
            return
        for log in self._some_logs():
            line = self._finished(log, cutoff)
            if line is not None and line.state.record.run_id != pending.claim.run_id:
                pending.removed += (line.state.record.run_id,)
                self._remove(log)
                if len(pending.removed) == keep.REMOVED_RUNS_PER_COMMIT_MAX:
                    break

    def _remove(self, log: RunLog) -> None:
        name = log.path.name
        self.layout.count_pruned(self.layout.logs.remove(log))
        self.layout.drop_journal(name)
        self.layout.inboxes.named(name).drop()
        self.layout.events.named(name).drop()

    def _finished(self, log: RunLog, cutoff: float) -> RunLine | None:
        """The run, if it is old and has nothing left to do. One that can't be read is left alone."""
        try:
            line = log.current()
            return line if line and self._is_finished(log, line, cutoff) else None
        except WorkflowCheckpointException:
            return None

    def _is_finished(self, log: RunLog, line: RunLine, cutoff: float) -> bool:
        """Whether a run is old and has nothing left to do, not even a command that waits."""
        return (
            line.state.record.settled
            and (line.state.record.owner is None or self.owners.is_dead(line.state.record.owner))
            and keep.is_older(line.state.moment, cutoff)
            and not self.layout.inboxes.named(log.path.name).waiting(line)
            and not self.layout.forks.is_any_rested_on(log.entries())
        )

    def _some_logs(self) -> Sequence[RunLog]:
        """The next few logs of all, round and round."""
        names: list[str] = []
        if not self._unexamined:
            self.layout.logs.finish_removals()
            self._unexamined.extend(self.layout.logs.names())
        while self._unexamined and len(names) < _EXAMINED_RUNS_PER_COMMIT_MAX:
            names.append(self._unexamined.popleft())
        return [self.layout.logs.named(name) for name in names]
