"""Commits: each superstep's snapshot becomes a checkpoint of the run, or a record in the journal of its parent.

Events are emitted live at once, and encoded here for the commit that numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter  # noqa: TID251 - durations for operators; no run depends on them
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.checkpoint import CheckpointWriter, event_batch, plain_data
from perdure.codec import Values, document, dumps, loads
from perdure.engine.journal import TRACE, Journal, JournalLog
from perdure.errors import (
    AgentFrameworkException,
    CheckpointWriteError,
    EncodeError,
    IncompatibleTypeError,
    UntrustedTypeError,
)
from perdure.events import CheckpointInfo, SuperstepInfo, TakenOver, WorkflowEvent, WorkflowEventSource
from perdure.kernel import Output, PendingEvent, Request, Snapshot
from perdure.metrics import measure
from perdure.records import Command, Commit, HeadStatus, Lease, Manifest, RunFacts
from perdure.storage import reads_at_once
from perdure.streams import pieces_of
from perdure.tracing import NO_SPAN, Span, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from perdure.clock import Clock


FRAMEWORK = WorkflowEventSource.FRAMEWORK


@dataclass(kw_only=True, slots=True, eq=False)
class StoreCommitter:
    """Commit checkpoints to a store under a lease.

    Attributes:
        newest_command: After a commit: the number of the newest command in the inbox, 0 if there is none.
        commands: The inbox as it was read together with the journal; None if it was not.
    """

    log: JournalLog
    clock: Clock
    writer: CheckpointWriter
    position: int
    head: Manifest | None
    span: Span
    newest_command: int = 0
    commands: Sequence[Command] | None = None
    has_committed: bool = False
    bytes_written: int | None = None
    commit_duration: float | None = None

    @property
    def has_commands(self) -> bool:
        """False if the last commit has found the inbox empty."""
        return not self.has_committed or self.newest_command > 0

    async def open(self) -> Journal:
        """Return the journal since the head. Right after a commit it is empty and need not be read."""
        if self.head is None:
            return Journal()
        if not self.has_committed:
            records = None
            store = self.log.store
            if reads_at_once(store):
                since = await store.since_head(self.log.lease.run_id)
                self.commands, records = since.inbox, since.journal
            await self.log.open(self.head.checkpoint_id, self.writer.head.snapshot, records=records)
            self._link_spans()
        return Journal(self.log)

    def _link_spans(self) -> None:
        """Link to the span that has recorded since the head, and let the next attempt link to this one."""
        found = self.log.records.get(TRACE)
        if found is not None:
            self.span.link(str(loads(found.require_encoded().text)))
        traceparent = self.span.traceparent
        if traceparent is not None:
            self.log.record_soon({TRACE: lambda: document(traceparent)})

    async def commit(
        self,
        snapshot: Snapshot,
        kind: str,
        *,
        events: Sequence[PendingEvent] = (),
        consumed: tuple[str, ...] = (),
        done: tuple[str, ...] = (),
        superstep: SuperstepInfo | None = None,
    ) -> CheckpointInfo:
        """Write the checkpoint and move the head, or raise and change nothing.

        `consumed` are the commands that it has applied, `done` ids of commands that must not be waiting: their work
        is part of the snapshot. Raises CommandWaitsError if one of these is in the inbox.
        """
        # Queued records belong to the head that this moves.
        log = self.log
        if not self.has_committed and log.lease.previous is not None:
            events = [*take_over_events(log.lease), *events]
        if log.writing is not None:
            await log.settle()
        timestamp = self.clock.now().isoformat()
        manifest, blobs = self.writer.write(
            snapshot,
            position=self.position + 1,
            previous_id=self.head.checkpoint_id if self.head else None,
            # Never before the predecessor: a clock that was set back must not reorder a run.
            timestamp=max(timestamp, self.head.timestamp) if self.head else timestamp,
            kind=kind,
            trace=self.span.traceparent,
        )
        self.bytes_written = len(manifest.header) + len(manifest.pieces) + sum([len(blob.data) for blob in blobs])
        if superstep is not None:
            events = [*events, completed_event(snapshot, self.describe(superstep))]
        info = CheckpointInfo(
            manifest.checkpoint_id,
            manifest.previous_id,
            manifest.run_id,
            manifest.workflow_name,
            manifest.iteration_count,
            manifest.timestamp,
        )
        commit = Commit(
            manifest,
            blobs,
            manifest.previous_id,
            snapshot.is_settled,
            status_of(snapshot),
            snapshot.wake_at,
            consumed,
            done,
            event_batch(events, self.log.codec, requests=snapshot.requests, checkpoint=info),
            RunFacts(
                self.writer.author.definition_version,
                supersteps=int(kind == "superstep"),
                requests=len(snapshot.requests),
                spent=dumps(dict(snapshot.limits.spent)).decode() if snapshot.limits.spent else None,
            ),
        )
        run_id, begun = manifest.run_id, perf_counter()
        try:
            if self.span is NO_SPAN:
                self.newest_command = await log.store.commit(log.lease, commit)
            else:
                with traced(self.span.child("perdure.commit", run_id=run_id, checkpoint_id=info.checkpoint_id)):
                    self.newest_command = await log.store.commit(log.lease, commit)
                self.span.set_checkpoint(info.checkpoint_id)
                measure("perdure.commit.size", self.bytes_written, workflow=manifest.workflow_name)
        except AgentFrameworkException:
            raise
        except Exception as error:
            raise CheckpointWriteError(run_id=run_id, reason=f"{type(error).__name__}: {error}") from error
        self.commit_duration = round(perf_counter() - begun, 6)
        self.writer.commit(manifest)
        log.restart_at(manifest.checkpoint_id, snapshot)
        self.head, self.position = manifest, manifest.position
        self.has_committed, self.commands = True, None
        return info

    def describe(self, superstep: SuperstepInfo) -> SuperstepInfo:
        """Add the process, and the size and duration of the newest commit."""
        process = str(self.log.lease.owner)
        return SuperstepInfo(superstep.spent, superstep.duration, self.commit_duration, self.bytes_written, process)


@dataclass(slots=True)
class ChildCommitter:
    """Record each superstep of a sub-workflow in the journal of its parent, whose commit includes it."""

    journal: Journal
    emit: Callable[[PendingEvent], None]
    newest_command: int = 0
    commands: Sequence[Command] | None = None

    async def open(self) -> Journal:
        """Return the sub-workflow's part of the journal, and emit what an earlier attempt emitted."""
        for event in self.journal.child_events():
            self.emit(event)
        return self.journal

    async def commit(
        self,
        snapshot: Snapshot,
        _: str,
        *,
        events: Sequence[PendingEvent],
        superstep: SuperstepInfo | None = None,
        **__: object,
    ) -> None:
        """Record the snapshot. Only the parent has checkpoints and commands, so `checkpoint` events are dropped."""
        events = [event for event in events if event.type != "checkpoint"]
        if superstep is not None:
            events.append(completed_event(snapshot, superstep))
        # A sub-workflow must not run ahead of what is recorded of it.
        await self.journal.settle()
        self.journal.record_child_soon(snapshot, events)
        for event in events:
            self.emit(event)

    def describe(self, superstep: SuperstepInfo) -> SuperstepInfo:
        """Return the superstep as it is: the parent commits it."""
        return superstep


Committer: TypeAlias = StoreCommitter | ChildCommitter
"""Keeps the snapshots of one run or sub-workflow. A run without a committer is not checkpointed."""


def status_of(snapshot: Snapshot) -> HeadStatus:
    """Return the status of a run with this head."""
    if snapshot.cancelled is not None:
        return "cancelled"
    if not snapshot.is_idle:
        return "running"
    if snapshot.requests:
        return "waiting"
    return "idle" if snapshot.next_timer is None else "sleeping"


def request_opened(request: Request) -> PendingEvent:
    """Return the event of a request that an activation opens."""
    return PendingEvent("request_info", request.data, request.executor_id, request_id=request.id)


def completed_event(snapshot: Snapshot, superstep: SuperstepInfo) -> PendingEvent:
    """Return the event of a superstep that has led to a snapshot."""
    return PendingEvent("superstep_completed", plain_data(superstep), iteration=snapshot.iteration)


def take_over_events(lease: Lease) -> list[PendingEvent]:
    """Return the event of a lease that has replaced another process; nothing for any other lease."""
    if lease.previous is None:
        return []
    data = plain_data(TakenOver(str(lease.previous), str(lease.owner)))
    return [PendingEvent("taken_over", data)]


def warning_event(text: str) -> WorkflowEvent[Any]:
    """Return a warning of the engine."""
    return WorkflowEvent("warning", text, origin=FRAMEWORK)


def pending_event(event: WorkflowEvent[Any], values: Values) -> PendingEvent:
    """Encode an event for the commit. Data that can't be encoded is left out, and the event says why."""
    data, lost = encode_data(event.data, f"data of a {event.type!r} event", values)
    details, _ = encode_data(event.details, f"details of a {event.type!r} event", values)
    return PendingEvent(
        event.type,
        data,
        event.executor_id,
        event.path,
        event.request_id if event.type in {"request_info", "answered"} else None,
        event.iteration,
        details,
        lost,
    )


def encode_data(data: object, path: str, values: Values) -> tuple[object | None, str | None]:
    """Encode the data of an event. Return it, or None and the reason why it can't be encoded."""
    if data is None:
        return None, None
    try:
        kept = values.fix(data, path)
    except EncodeError as error:
        return None, str(error)
    return (kept, None) if kept.refusal is None else (None, str(kept.refusal))


def output_events(outputs: Iterable[Output], values: Values, *, in_pieces: bool) -> Iterator[WorkflowEvent[Any]]:
    """Return recorded outputs as events. With `in_pieces`, those that were streamed come in pieces again."""
    for output in outputs:
        data = values.give(output.data)
        for piece in pieces_of(data) if in_pieces and not output.is_whole else (data,):
            yield WorkflowEvent(output.kind, piece, executor_id=output.executor_id, origin=FRAMEWORK)


def live_event(event: PendingEvent, values: Values) -> WorkflowEvent[Any]:
    """Return a pending event as it is emitted live."""
    try:
        data = None if event.data is None else values.give(event.data)
    except (UntrustedTypeError, IncompatibleTypeError):
        data = None  # a reader of the log sees it as plain data
    return WorkflowEvent(
        event.type, data, executor_id=event.executor_id, path=event.path, iteration=event.iteration, origin=FRAMEWORK
    )
