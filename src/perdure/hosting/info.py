"""`RunInfo`: what a host knows of a run at a glance."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from perdure.data import frozen

if TYPE_CHECKING:
    from perdure.records import RunRecord, RunStatus


@frozen
class RunInfo:
    """Where a run stands."""

    run_id: str
    workflow_name: str
    status: RunStatus
    """running: there is work to do; waiting: for an answer; sleeping: until a time; idle: nothing is left to do;
    failed, parked, cancelled, exported: nobody goes on with it unasked."""
    error: str | None
    """Why it has failed or was parked."""
    owner: str | None
    """The process that has claimed it to advance it. If that process has died, it stands here until another one has
    taken the run."""
    attempts: int
    """How many processes have tried to go on from where it stands, without getting on so far."""
    wake_at: datetime | None
    """When it goes on, though nobody sends anything."""
    created_at: datetime
    checkpoint_id: str | None
    """Its newest checkpoint."""
    parent_checkpoint_id: str | None
    """The checkpoint that it was forked from."""
    events: int
    """The number of its newest event."""

    @classmethod
    def of(cls, record: RunRecord) -> RunInfo:
        """The same as a store has it."""
        return cls(
            run_id=record.run_id,
            workflow_name=record.workflow_name,
            status=record.standing,
            error=None if record.halt is None else record.halt.reason,
            owner=None if record.owner is None else str(record.owner),
            attempts=record.attempts,
            wake_at=None if record.wake_at is None else datetime.fromisoformat(record.wake_at),
            created_at=datetime.fromisoformat(record.created_at),
            checkpoint_id=record.head,
            parent_checkpoint_id=record.parent_checkpoint_id,
            events=record.events,
        )
