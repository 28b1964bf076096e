"""Handles on hosted runs: state, result and events, read from the store whichever process advances the run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import Reader, WorkflowCheckpoint, is_settled, known_paths, naming, only, request_event
from perdure.clock import now
from perdure.codec import Codec, CodedValues, as_kept, loads
from perdure.engine import FRAMEWORK
from perdure.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    IncompatibleTypeError,
    RunBlockedError,
    RunExportedError,
    RunFailedError,
    RunNotFoundError,
    RunParkedError,
    UntrustedTypeError,
)
from perdure.events import Undecoded, WorkflowEvent, WorkflowRunState
from perdure.failures import Failure
from perdure.hosting.embedded import first_of
from perdure.records import Halt, HeadStatus, Manifest, Mark, RunRecord
from perdure.storage import PendingRequest, RunInfo, Store, StoreStorage, committed_events
from perdure.workflows import Edit, WorkflowRunResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from perdure.hosting.host import Host
    from perdure.kernel import Output, Snapshot


# A mark that no run has, so that a watch returns at once.
NO_MARK = Mark(head="", events=-1, commands=-1)

_STATES: Mapping[HeadStatus, WorkflowRunState] = {
    "running": WorkflowRunState.IN_PROGRESS,
    "waiting": WorkflowRunState.IDLE_WITH_PENDING_REQUESTS,
    "sleeping": WorkflowRunState.SLEEPING,
    "idle": WorkflowRunState.IDLE,
    "cancelled": WorkflowRunState.CANCELLED,
}


async def record_of(store: Store, run_id: str) -> RunRecord:
    """Return the store's record of a run. Raises RunNotFoundError."""
    record = await store.run(run_id)
    if record is None:
        raise RunNotFoundError(run_id)
    return record


class HostedRun:
    """A handle on one run. It works from any process, also while another one advances the run."""

    def __init__(self, host: Host, run_id: str) -> None:
        self._host = host
        self._storage = host.storage
        self._store = host.storage.store
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

        Raises RunFailedError, RunQuarantinedError, RunExportedError, RunNotFoundError, and RunBlockedError if the run
        has been blocked for the `blocked_seconds` of the host.
        """
        clock, deadline = self._storage.clock, None
        while True:
            mark = await self._store.watch(self.run_id, seen=NO_MARK)
            record = await record_of(self._store, self.run_id)
            _require_not_halted(record)
            head = await self._head(record) if await self._is_idle(record) else None
            if head is not None:
                pending = await self.requests() if head.status == "waiting" else []
                status: WorkflowEvent[Any] = WorkflowEvent("status", state=_STATES[head.status], origin=FRAMEWORK)
                return WorkflowRunResult.of([*head.outputs(), *head.requests(pending), status])
            change, patience = self._store.watch(self.run_id, seen=mark), self._host.blocked_seconds
            if not mark.is_blocked or patience is None:
                deadline = None
                await change
                continue
            deadline = deadline or clock.now() + timedelta(seconds=patience)
            await first_of(change, clock.sleep((deadline - clock.now()).total_seconds()))
            info = await self.info()
            if info.blocked is not None and clock.now() >= deadline:
                raise RunBlockedError(self.run_id, reason=info.error or "", reasons=info.blocked)

    async def outputs(self) -> list[Any]:
        """Return the committed outputs of the current turn, without waiting.

        An output this program can't decode is `Undecoded`. Raises RunNotFoundError, CheckpointDamagedError.
        """
        while True:
            head = await self._head(await record_of(self._store, self.run_id))
            if head is not None:
                return [event.data for event in head.outputs() if event.type == "output"]

    async def events(
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
        return or raise; a blocked run is waited for. With `until_end`, stop when the run is idle, cancelled, failed or
        quarantined; a run that asks or sleeps has not ended.

        Raises RunNotFoundError, EventsForgottenError, CheckpointDamagedError.
        """
        until_idle = until_idle or until_rest
        due = from_seq
        while True:
            mark = await self._store.watch(self.run_id, seen=NO_MARK)
            record = await record_of(self._store, self.run_id)
            ends = not follow or ((until_idle or until_end) and await self._has_ended(record, or_waits=until_idle))
            async for event in committed_events(self._store, self._storage.codec, self.run_id, from_seq=due):
                yield event
                due = due if event.seq is None else event.seq + 1
            if ends:
                return
            await self._store.watch(self.run_id, seen=mark)

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

    async def fork(
        self, checkpoint_id: str | None = None, *, edit: Edit | None = None, budget: Mapping[str, float] | None = None
    ) -> HostedRun:
        """Start a new run at a checkpoint of this one, its newest by default."""
        return await self._host.fork(self.run_id, checkpoint_id, edit=edit, budget=budget)

    async def checkpoints(self) -> list[WorkflowCheckpoint]:
        """List the checkpoints of the run in commit order."""
        await record_of(self._store, self.run_id)
        return await self._storage.list_checkpoints(run_id=self.run_id)

    async def _has_ended(self, record: RunRecord, *, or_waits: bool) -> bool:
        if record.halt is not None:
            return True
        return await self._is_idle(record) and (or_waits or await self._status(record) != "waiting")

    async def _is_idle(self, record: RunRecord) -> bool:
        """Return True if no process has work to do for the run."""
        status = await self._status(record)
        is_due = status == "waiting" and record.wake_at is not None and record.wake_at <= now(self._storage.clock)
        if status == "cancelled":
            return True
        if status in {"running", "sleeping"} or is_due or await self._store.inbox(self.run_id):
            return False
        # A command that has left the inbox may have moved the head since it was read.
        return (await record_of(self._store, self.run_id)).head == record.head

    async def _status(self, record: RunRecord) -> HeadStatus:
        """Return a run's status. A fork without a checkpoint of its own has its parent's."""
        head = await self._head(record) if record.position < 0 else None
        return record.status if head is None else head.status

    async def _head(self, record: RunRecord) -> _Head | None:
        """Read the head, or return None if it was replaced, and perhaps removed, meanwhile."""
        assert record.head is not None, "a run that is known has a head"
        try:
            return await _Head.read(self._storage, record.head)
        except (CheckpointNotFoundError, CheckpointDamagedError):
            if (await record_of(self._store, self.run_id)).head == record.head:
                raise
            return None


_OUTPUTS = "outputs"
_REQUEST = "request/"


@dataclass(frozen=True, slots=True)
class _Head:
    """A checkpoint with the blobs of its outputs and requests."""

    manifest: Manifest
    codec: Codec
    blobs: Mapping[str, bytes]

    @classmethod
    async def read(cls, storage: StoreStorage, checkpoint_id: str) -> _Head:
        """Read a checkpoint. Raises CheckpointNotFoundError, CheckpointDamagedError."""
        manifest = await storage.store.manifest(checkpoint_id)
        with naming(checkpoint_id):
            blobs = await storage.store.blobs(only(manifest, (_OUTPUTS, _REQUEST)).roots)
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
        return Reader(only(self.manifest, (path,)), self.blobs, self.codec).snapshot()


def _output_event(output: Output, values: CodedValues) -> WorkflowEvent[Any]:
    """Return the event of a committed output. Data that this program can't decode is `Undecoded`."""
    try:
        data = values.give(output.data)
    except (UntrustedTypeError, IncompatibleTypeError) as error:
        data = Undecoded(str(error), loads(as_kept(output.data).require_encoded().text))
    return WorkflowEvent(output.kind, data, executor_id=output.executor_id, origin=FRAMEWORK)


def _require_not_halted(record: RunRecord) -> None:
    """Raise the reason if the run is halted."""
    halt = record.halt
    match halt:
        case None:
            return
        case Halt(kind="failed"):
            failure = Failure.from_json(halt.data, at=halt.at)
            raise RunFailedError(record.run_id, reason=halt.reason, at=halt.at, failure=failure)
        case Halt(kind="parked"):
            raise RunParkedError(record.run_id, reason=halt.reason, at=halt.at)
        case Halt():
            raise RunExportedError(record.run_id, at=halt.at)
