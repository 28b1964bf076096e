"""Which runs there are in a file store, and which of them can go on. Its caller holds the directory's lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import WorkflowCheckpointException
from perdure.records import Due
from perdure.storage import rules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from perdure.records import RunRecord, RunStatus
    from perdure.storage.file.layout import Layout
    from perdure.storage.file.runline import RunLine
    from perdure.storage.owners import Owners


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Looks through the logs of all runs."""

    layout: Layout
    owners: Owners

    def runs(self, *, workflow_name: str | None, status: RunStatus | None) -> Sequence[RunRecord]:
        """The runs that began, all or some, in that order. Raises CheckpointDamagedError."""
        logs = self.layout.logs
        known = (line for name in logs.names() if (line := logs.named(name).current()) and line.state.is_known)
        records = (line.state.record for line in sorted(known, key=lambda line: line.life))
        return [
            record
            for record in records
            if workflow_name in {None, record.workflow_name} and status in {None, record.standing}
        ]

    def due(self, *, at: str, workflow_names: Collection[str], limit: int) -> Sequence[Due]:
        """The runs of these workflows that can go on and that nobody advances, first the one that waits for longest."""
        found = [
            (line.state.moment, Due(line.state.record, commands))
            for name, line in self._sound(workflow_names)
            if self._is_free(line.state.record)
            and (commands := self._waiting(name, line)) is not None
            and rules.is_due(line.state.record, commands=commands, at=at)
        ]
        found.sort(key=lambda each: (each[0] is not None, each[0] or 0.0))
        return [due for _, due in found[: max(0, limit)]]

    def next_wake(self, *, after: str, workflow_names: Collection[str]) -> str | None:
        """When the next timer is due of the runs of these workflows that are neither halted nor cancelled."""
        records = (line.state.record for _, line in self._sound(workflow_names))
        wakes = (record.wake_at for record in records if rules.may_wake(record))
        return min((wake_at for wake_at in wakes if wake_at is not None and wake_at > after), default=None)

    def _sound(self, workflow_names: Collection[str]) -> Iterator[tuple[str, RunLine]]:
        """The runs of these workflows whose logs can be read. Of the others is told whoever asks for them."""
        for name in self.layout.logs.names():
            try:
                line = self.layout.logs.named(name).current()
            except WorkflowCheckpointException:
                continue
            if line and line.state.is_known and line.state.record.workflow_name in workflow_names:
                yield name, line

    def _waiting(self, name: str, line: RunLine) -> int | None:
        """The number of the newest command that waits, 0 if none does; None if that can't be read."""
        try:
            return self.layout.inboxes.named(name).newest(line)
        except WorkflowCheckpointException:
            return None

    def _is_free(self, record: RunRecord) -> bool:
        # What this process advances itself has an owner that it could replace, and is not due all the same.
        return record.owner is None or self.owners.is_gone(record.owner)
