"""How the file store forgets a checkpoint because somebody says so. Its caller holds the directory's lock."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perdure.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from perdure.storage.file.layout import Layout
    from perdure.storage.file.runline import RunLine
    from perdure.storage.file.runlog import RunLog
    from perdure.storage.file.telling import Telling


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleting:
    """Removes single checkpoints. What they told stays, as long as their runs do."""

    layout: Layout
    telling: Telling

    def delete(self, checkpoint_id: str) -> None:
        """Forget a checkpoint that there is, whole or damaged."""
        files = self.layout
        for fork in files.forks.resting_on(checkpoint_id):
            files.drop_journal(files.logs.of(fork).path.name)
        log = self._log_with(checkpoint_id)
        line = log.current() if log else None
        if log and line:
            self._delete_of(log, line, checkpoint_id)
        else:
            files.documents.remove(checkpoint_id)
            files.documents.sync()
        files.count_pruned(1)

    def _delete_of(self, log: RunLog, line: RunLine, checkpoint_id: str) -> None:
        files, name = self.layout, log.path.name
        is_head = line.state.record.head == checkpoint_id
        dropped = files.inboxes.named(name).expecting(line) if is_head else ()
        announced = replace(line, change="deletion announced", subject=checkpoint_id, dropped=dropped)
        after = log.without(announced, checkpoint_id)
        if is_head:
            # A journal of the head to be, dropped when the run left it, must not be back after a power cut.
            files.journals.sync()
        if after:
            self._outlive(log, line, checkpoint_id)
        log.append(announced, sync=True)
        files.documents.remove(checkpoint_id)
        files.documents.sync()
        if is_head:
            files.drop_journal(name)
        if after:
            log.append(after, sync=False)
        else:
            files.logs.erase(log)
            files.inboxes.named(name).drop()
            files.events.named(name).drop()

    def _outlive(self, log: RunLog, line: RunLine, checkpoint_id: str) -> None:
        """Keep what the checkpoint told. What a damaged one told goes with it."""
        try:
            document = self.layout.documents.find(checkpoint_id)
        except CheckpointDamagedError:
            return
        if document:
            self.telling.outlive(log, line, [document])

    def _log_with(self, checkpoint_id: str) -> RunLog | None:
        """The log of the run that a checkpoint is of, although the checkpoint may be damaged."""
        logs = self.layout.logs
        try:
            document = self.layout.documents.find(checkpoint_id)
        except CheckpointDamagedError:
            return self._log_with_damaged(checkpoint_id)
        return logs.of(document.manifest.run_id) if document else None

    def _log_with_damaged(self, checkpoint_id: str) -> RunLog | None:
        logs = self.layout.logs
        run_id, _, _ = checkpoint_id.rpartition("@")
        if run_id:
            # If it is the newest, its run can't be read, and removing the file undoes the commit.
            with contextlib.suppress(CheckpointDamagedError):
                logs.of(run_id).current()
        found = next((log for log in map(logs.named, logs.names()) if log.knows(checkpoint_id)), None)
        if found:
            found.give_up(checkpoint_id)
        return found
