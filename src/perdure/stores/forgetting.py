"""What the file store forgets after a commit: old checkpoints of the run, and old runs that have finished."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.records import FullHistory
from perdure.stores import retention as keep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.clock import Clock
    from perdure.records import Retention
    from perdure.stores.documents import Documents
    from perdure.stores.owners import Owners
    from perdure.stores.runjournals import RunJournals
    from perdure.stores.runlog import RunLog
    from perdure.stores.runlogs import ForkIndex, RunLogs

_EXAMINED_RUNS_PER_COMMIT_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """Removes what the retention lets go, a little at a time, and says how much that was."""

    retention: Retention
    clock: Clock
    documents: Documents
    logs: RunLogs
    journals: RunJournals
    forks: ForkIndex
    owners: Owners
    _unexamined: deque[str] = field(default_factory=deque[str], init=False)

    def prune(self, log: RunLog, *, head: str) -> int:
        """Remove checkpoints of a run; never its head, nor what a fork rests on."""
        if isinstance(self.retention.checkpoints, FullHistory):
            return 0
        # Before anything is removed: what was removed earlier lasts by now, and its lines are not needed.
        log.shorten()
        prunable = keep.prunable(self.retention, log.entries(), self.clock.now())
        spared = (entry for entry in prunable if entry.checkpoint_id != head)
        doomed = (entry for entry in spared if not self.forks.is_rested_on(entry.checkpoint_id))
        pruned = 0
        for entry in itertools.islice(doomed, keep.PRUNED_PER_COMMIT_MAX):
            if self.documents.holds(entry):
                self.documents.remove(entry.checkpoint_id)
                pruned += 1
            log.forget(entry.checkpoint_id)
        return pruned

    def remove_finished(self, *, besides: RunLog) -> int:
        """Remove runs; not the one that commits, nor one that a fork rests on."""
        cutoff = keep.finished_cutoff(self.retention, self.clock.now())
        if cutoff is None:
            return 0
        removed = pruned = 0
        for log in self._some_logs():
            if removed < keep.REMOVED_RUNS_PER_COMMIT_MAX and log is not besides and self._is_finished(log, cutoff):
                pruned += self.logs.remove(log) + self.journals.named(log.path.name).drop()
                removed += 1
        return pruned

    def _is_finished(self, log: RunLog, cutoff: float) -> bool:
        line = log.current()
        return (
            line is not None
            and line.state.record.settled
            and (line.state.record.owner is None or self.owners.is_dead(line.state.record.owner))
            and keep.is_older(line.state.moment, cutoff)
            and not self.forks.is_any_rested_on(log.entries())
        )

    def _some_logs(self) -> Sequence[RunLog]:
        """The next few logs of all, round and round."""
        names: list[str] = []
        if not self._unexamined:
            self.logs.finish_removals()
            self._unexamined.extend(self.logs.names())
        while self._unexamined and len(names) < _EXAMINED_RUNS_PER_COMMIT_MAX:
            names.append(self._unexamined.popleft())
        return [self.logs.named(name) for name in names]
