"""What can be told of a run with the store alone, whoever advances it: where it stands, its result, its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from perdure.engine import FRAMEWORK
from perdure.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    RunExportedError,
    RunFailedError,
    RunNotFoundError,
    RunParkedError,
)
from perdure.events import WorkflowEvent, WorkflowRunState
from perdure.hosting.heads import Head
from perdure.moments import now
from perdure.records import Halt, Mark
from perdure.storage import committed_events
from perdure.workflows import WorkflowRunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from perdure.checkpoint import WorkflowCheckpoint
    from perdure.records import HeadStatus, RunRecord
    from perdure.storage import StoreStorage

_NOWHERE = Mark(head="", events=-1, commands=-1)
"""The mark of no run at all: whoever has seen it is told at once how far a run is."""

_STATES: Mapping[HeadStatus, WorkflowRunState] = {
    "running": WorkflowRunState.IN_PROGRESS,
    "waiting": WorkflowRunState.IDLE_WITH_PENDING_REQUESTS,
    "sleeping": WorkflowRunState.SLEEPING,
    "idle": WorkflowRunState.IDLE,
    "cancelled": WorkflowRunState.CANCELLED,
}


class RunReader:
    """Looks at runs of a storage. It never claims one."""

    def __init__(self, storage: StoreStorage) -> None:
        self._storage = storage
        self._store = storage.store

    async def mark(self, run_id: str, *, seen: Mark = _NOWHERE) -> Mark:
        """How far a run is, as soon as that is not what was seen."""
        return await self._store.watch(run_id, seen=seen)

    async def record(self, run_id: str) -> RunRecord:
        """What the store knows of a run. Raises RunNotFoundError."""
        record = await self._store.run(run_id)
        if record is None:
            raise RunNotFoundError(run_id)
        return record

    async def result(self, run_id: str) -> WorkflowRunResult:
        """Wait until a run rests: what its present turn has given, what it asks, and where it stands.

        Raises RunFailedError, RunParkedError, RunExportedError, RunNotFoundError.
        """
        while True:
            mark = await self.mark(run_id)
            record = await self.record(run_id)
            _require_going(record)
            if await self._rests(record):
                found = await self._result(record)
                if found is not None:
                    return found
            await self.mark(run_id, seen=mark)

    async def outputs(self, run_id: str) -> list[Any]:
        """What the present turn of a run has given so far, as its head has it."""
        while True:
            head = await self._head(await self.record(run_id))
            if head is not None:
                return [event.data for event in head.outputs() if event.type == "output"]

    async def _rests(self, record: RunRecord) -> bool:
        """Whether nothing is left to do for anybody."""
        match await self._status(record):
            case "cancelled":
                return True
            case "idle":
                rests = not await self._store.inbox(record.run_id)
            case "waiting":
                is_due = record.wake_at is not None and record.wake_at <= now(self._storage.clock)
                rests = not is_due and not await self._store.inbox(record.run_id)
            case "running" | "sleeping":
                return False
        # A command that is not in the inbox any more may be what has moved the head since it was read.
        return rests and (await self.record(record.run_id)).head == record.head

    async def _status(self, record: RunRecord) -> HeadStatus:
        """Where a run stands. A fork that has no checkpoint yet stands where its parent does."""
        if record.position >= 0:
            return record.status
        head = await self._head(record)
        return record.status if head is None else head.status

    async def _result(self, record: RunRecord) -> WorkflowRunResult | None:
        """The result as the head has it; None if the head is another by now."""
        head = await self._head(record)
        if head is None:
            return None
        pending = await self._storage.requests(record.run_id) if head.status == "waiting" else []
        status: WorkflowEvent[Any] = WorkflowEvent("status", state=_STATES[head.status], origin=FRAMEWORK)
        return WorkflowRunResult.of([*head.outputs(), *head.requests(pending), status])

    async def _head(self, record: RunRecord) -> Head | None:
        """The newest checkpoint of a run; None if it was replaced, and perhaps removed, while it was read."""
        assert record.head is not None, "a run that is known has a head"
        try:
            return await Head.read(self._storage, record.head)
        except (CheckpointNotFoundError, CheckpointDamagedError):
            if (await self.record(record.run_id)).head == record.head:
                raise
            return None

    async def events(
        self, run_id: str, *, from_seq: int, follow: bool, ends_at: Literal["rest", "end"] | None
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        """The events that a run has committed, from a number on; those that follow as well, if wanted."""
        due = from_seq
        while True:
            mark = await self.mark(run_id)
            record = await self.record(run_id)
            ends = not follow or (ends_at is not None and await self._has_ended(record, ends_at))
            committed = committed_events(self._store, self._storage.codec, run_id, from_seq=due)
            async for event in committed:
                yield event
                due = due if event.seq is None else event.seq + 1
            if ends:
                return
            await self.mark(run_id, seen=mark)

    async def _has_ended(self, record: RunRecord, ends_at: Literal["rest", "end"]) -> bool:
        if record.halt is not None:
            return True
        is_at_rest = await self._rests(record)
        return is_at_rest and (ends_at == "rest" or await self._status(record) != "waiting")

    async def checkpoints(self, run_id: str) -> list[WorkflowCheckpoint]:
        """The checkpoints of a run, in commit order."""
        await self.record(run_id)
        return await self._storage.list_checkpoints(run_id=run_id)


def _require_going(record: RunRecord) -> None:
    """Raise why nobody goes on with a run."""
    halt = record.halt
    match halt:
        case None:
            return
        case Halt(kind="failed"):
            raise RunFailedError(record.run_id, reason=halt.reason, at=halt.at)
        case Halt(kind="parked"):
            raise RunParkedError(record.run_id, reason=halt.reason, at=halt.at)
        case Halt():
            raise RunExportedError(record.run_id, at=halt.at)
