"""Handles on hosted runs: state, result and events, read from the store whichever process advances the run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from perdure.checkpoint import Reader, is_settled, known_paths, naming, only, request_event
from perdure.clock import now
from perdure.codec import CodedValues, DamagedPartError, as_kept, loads
from perdure.engine import FRAMEWORK
from perdure.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    IncompatibleTypeError,
    RunExportedError,
    RunFailedError,
    RunNotFoundError,
    RunParkedError,
    UntrustedTypeError,
)
from perdure.events import Undecoded, WorkflowEvent, WorkflowRunState
from perdure.records import Halt, Mark
from perdure.storage import committed_events
from perdure.workflows import WorkflowRunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from perdure.checkpoint import WorkflowCheckpoint
    from perdure.codec import Codec
    from perdure.hosting.host import Host
    from perdure.kernel import Output, Snapshot
    from perdure.records import HeadStatus, Manifest, RunRecord, RunStatus
    from perdure.storage import PendingRequest, StoreStorage
    from perdure.workflows import Edit


class HostedRun:
    """A handle on one run. It works from any process, also while another one advances the run."""

    def __init__(self, host: Host, reader: RunReader, run_id: str) -> None:
        self._host = host
        self._reader = reader
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"<HostedRun {self.run_id!r}>"

    async def info(self) -> RunInfo:
        """Return the state of the run. Raises RunNotFoundError."""
        return await self._host.info(self.run_id)

    async def result(self) -> WorkflowRunResult:
        """Wait until the run is idle, asks for an answer, or was cancelled. A sleeping run is waited for.

        The result has the outputs of the current turn, the open requests and the final state. Some host must serve
        meanwhile.

        Raises RunFailedError, RunQuarantinedError, RunExportedError, RunNotFoundError.
        """
        return await self._reader.result(self.run_id)

    async def outputs(self) -> list[Any]:
        """Return the committed outputs of the current turn, without waiting.

        An output this program can't decode is `Undecoded`. Raises RunNotFoundError, CheckpointDamagedError.
        """
        return await self._reader.outputs(self.run_id)

    def events(
        self,
        from_seq: int = 1,
        *,
        follow: bool = True,
        until_idle: bool = False,
        until_end: bool = False,
        until_rest: bool = False,
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Yield committed events from number `from_seq` on, each with its `seq`.

        With `follow`, wait for further events. With `until_idle` (formerly `until_rest`), stop when `result` would
        return or raise. With `until_end`, stop when the run is idle, cancelled, failed or quarantined; a run that asks
        or sleeps has not ended.

        Raises RunNotFoundError, EventsForgottenError, CheckpointDamagedError.
        """
        ends_at = "idle" if until_idle or until_rest else "end" if until_end else None
        return self._reader.events(self.run_id, from_seq=from_seq, follow=follow, ends_at=ends_at)

    async def requests(self) -> list[PendingRequest]:
        """List the open requests."""
        return await self._host.requests(self.run_id)

    async def respond(
        self, responses: Mapping[str, Any], *, by: str | None = None, approves: Mapping[str, str] | None = None
    ) -> None:
        """Answer requests by id. The answers are durable when this returns."""
        await self._host.respond(self.run_id, responses, by=by, approves=approves)

    async def send(
        self, message: Any, target: str | None = None, *, by: str | None = None, message_id: str | None = None
    ) -> str:
        """Send a message: to one of the run's executors, or as its next turn. Return the message id."""
        return await self._host.send(self.run_id, message, target, by=by, message_id=message_id)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Stop the run. It ends in a checkpoint from which `host.recover` continues."""
        await self._host.cancel(self.run_id, reason, by=by)

    async def fork(self, checkpoint_id: str | None = None, *, edit: Edit | None = None) -> HostedRun:
        """Start a new run at a checkpoint of this one, its newest by default."""
        return await self._host.fork(self.run_id, checkpoint_id, edit=edit)

    async def checkpoints(self) -> list[WorkflowCheckpoint]:
        """List the checkpoints of the run in commit order."""
        return await self._reader.checkpoints(self.run_id)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The state of a run."""

    run_id: str
    workflow_name: str
    status: RunStatus
    """running: there is work to do; waiting: for an answer; sleeping: until a time; idle: nothing left to do; failed,
    quarantined, cancelled, exported: the run does not continue by itself.
    """
    error: str | None
    """The reason, if the run has failed or was quarantined."""
    owner: str | None
    """The process that holds the lease. A dead process stays here until another one takes the run."""
    attempts: int
    """The number of processes that tried to advance the run from its head without progress."""
    wake_at: datetime | None
    """The next time at which the run continues by itself."""
    created_at: datetime
    checkpoint_id: str | None
    """The newest checkpoint."""
    parent_checkpoint_id: str | None
    """The checkpoint from which the run was forked."""
    events: int
    """The number of the newest event."""

    @classmethod
    def of(cls, record: RunRecord) -> RunInfo:
        """Make it from a store's record."""
        return cls(
            run_id=record.run_id,
            workflow_name=record.workflow_name,
            status="quarantined" if record.run_status == "parked" else record.run_status,
            error=None if record.halt is None else record.halt.reason,
            owner=None if record.owner is None else str(record.owner),
            attempts=record.attempts,
            wake_at=None if record.wake_at is None else datetime.fromisoformat(record.wake_at),
            created_at=datetime.fromisoformat(record.created_at),
            checkpoint_id=record.head,
            parent_checkpoint_id=record.parent_checkpoint_id,
            events=record.events,
        )


_OUTPUTS = "outputs"
_REQUEST = "request/"


@dataclass(frozen=True, slots=True)
class Head:
    """A checkpoint with the blobs of its outputs and requests."""

    manifest: Manifest
    codec: Codec
    blobs: Mapping[str, bytes]

    @classmethod
    async def read(cls, storage: StoreStorage, checkpoint_id: str) -> Head:
        """Read a checkpoint. Raises CheckpointNotFoundError, CheckpointDamagedError."""
        manifest = await storage.store.manifest(checkpoint_id)
        with naming(checkpoint_id):
            blobs = await storage.store.blobs(_only(manifest, (_OUTPUTS, _REQUEST)).roots)
        return cls(manifest, storage.codec(), blobs)

    @property
    def status(self) -> HeadStatus:
        """The status that follows from the checkpoint."""
        paths = known_paths(self.manifest)
        if "cancelled" in paths:
            return "cancelled"
        if "deliveries" in paths:
            return "running"
        if any(path.startswith(_REQUEST) for path in paths):
            return "waiting"
        return "idle" if is_settled(self.manifest) else "sleeping"

    def outputs(self) -> list[WorkflowEvent[Any]]:
        """Return the outputs of the current turn in order."""
        values = CodedValues(self.codec)
        return [_output_event(output, values) for output in self._snapshot(_OUTPUTS).outputs]

    def requests(self, pending: Iterable[PendingRequest]) -> list[WorkflowEvent[Any]]:
        """Return the open requests; from `pending`, as plain data, if this program does not know their types."""
        try:
            values = CodedValues(self.codec)
            return [request_event(request, values) for request in self._snapshot(_REQUEST).requests.values()]
        except (UntrustedTypeError, IncompatibleTypeError):
            return [
                WorkflowEvent.request_info(request.request_id, request.executor_id, request.data, None)
                for request in pending
            ]

    def _snapshot(self, path: str) -> Snapshot:
        return Reader(_only(self.manifest, (path,)), self.blobs, self.codec).snapshot()


def _only(manifest: Manifest, beginnings: tuple[str, ...]) -> Manifest:
    try:
        return only(manifest, beginnings)
    except DamagedPartError as error:
        raise CheckpointDamagedError(manifest.checkpoint_id, str(error)) from error


def _output_event(output: Output, values: CodedValues) -> WorkflowEvent[Any]:
    """Return the event of a committed output. Data that this program can't decode is `Undecoded`."""
    try:
        data = values.give(output.data)
    except (UntrustedTypeError, IncompatibleTypeError) as error:
        data = Undecoded(str(error), loads(as_kept(output.data).require_encoded().text))
    return WorkflowEvent(output.kind, data, executor_id=output.executor_id, origin=FRAMEWORK)


_NO_MARK = Mark(head="", events=-1, commands=-1)
"""A mark that no run has, so that a watch returns at once."""

_STATES: Mapping[HeadStatus, WorkflowRunState] = {
    "running": WorkflowRunState.IN_PROGRESS,
    "waiting": WorkflowRunState.IDLE_WITH_PENDING_REQUESTS,
    "sleeping": WorkflowRunState.SLEEPING,
    "idle": WorkflowRunState.IDLE,
    "cancelled": WorkflowRunState.CANCELLED,
}


class RunReader:
    """Read runs of a storage. It never takes a lease."""

    def __init__(self, storage: StoreStorage) -> None:
        self._storage = storage
        self._store = storage.store

    async def mark(self, run_id: str, *, seen: Mark = _NO_MARK) -> Mark:
        """Wait until a run's mark differs from `seen`, and return it."""
        return await self._store.watch(run_id, seen=seen)

    async def record(self, run_id: str) -> RunRecord:
        """Return the store's record of a run. Raises RunNotFoundError."""
        record = await self._store.run(run_id)
        if record is None:
            raise RunNotFoundError(run_id)
        return record

    async def result(self, run_id: str) -> WorkflowRunResult:
        """Wait until a run is idle, waits or was cancelled; return its outputs, open requests and state.

        Raises RunFailedError, RunQuarantinedError, RunExportedError, RunNotFoundError.
        """
        while True:
            mark = await self.mark(run_id)
            record = await self.record(run_id)
            _require_not_halted(record)
            if await self._is_at_rest(record):
                found = await self._result(record)
                if found is not None:
                    return found
            await self.mark(run_id, seen=mark)

    async def outputs(self, run_id: str) -> list[Any]:
        """Return the committed outputs of a run's current turn."""
        while True:
            head = await self._head(await self.record(run_id))
            if head is not None:
                return [event.data for event in head.outputs() if event.type == "output"]

    async def _is_at_rest(self, record: RunRecord) -> bool:
        """Return True if no process has work to do for the run."""
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
        # A command that has left the inbox may have moved the head since it was read.
        return rests and (await self.record(record.run_id)).head == record.head

    async def _status(self, record: RunRecord) -> HeadStatus:
        """Return a run's status. A fork without a checkpoint of its own has its parent's."""
        if record.position >= 0:
            return record.status
        head = await self._head(record)
        return record.status if head is None else head.status

    async def _result(self, record: RunRecord) -> WorkflowRunResult | None:
        """Return the result at the head, or None if the head has moved."""
        head = await self._head(record)
        if head is None:
            return None
        pending = await self._storage.requests(record.run_id) if head.status == "waiting" else []
        status: WorkflowEvent[Any] = WorkflowEvent("status", state=_STATES[head.status], origin=FRAMEWORK)
        return WorkflowRunResult.of([*head.outputs(), *head.requests(pending), status])

    async def _head(self, record: RunRecord) -> Head | None:
        """Read the head, or return None if it was replaced, and perhaps removed, meanwhile."""
        assert record.head is not None, "a run that is known has a head"
        try:
            return await Head.read(self._storage, record.head)
        except (CheckpointNotFoundError, CheckpointDamagedError):
            if (await self.record(record.run_id)).head == record.head:
                raise
            return None

    async def events(
        self, run_id: str, *, from_seq: int, follow: bool, ends_at: Literal["idle", "end"] | None
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Yield committed events from a number on, and follow if asked."""
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

    async def _has_ended(self, record: RunRecord, ends_at: Literal["idle", "end"]) -> bool:
        if record.halt is not None:
            return True
        return await self._is_at_rest(record) and (ends_at == "idle" or await self._status(record) != "waiting")

    async def checkpoints(self, run_id: str) -> list[WorkflowCheckpoint]:
        """List the checkpoints of a run in commit order."""
        await self.record(run_id)
        return await self._storage.list_checkpoints(run_id=run_id)


def _require_not_halted(record: RunRecord) -> None:
    """Raise the reason if the run is halted."""
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
