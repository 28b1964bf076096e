"""One call on a run: find it, take its lease, apply the call's input, run it until idle, release it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import event_batch, request_event, trace_of
from perdure.clock import Clock, now
from perdure.codec import Codec, Kept, LiveValues, Trust
from perdure.engine import recovery
from perdure.engine.call import Call, CallInput, apply_input, check_input, require_handled
from perdure.engine.commit import (
    FRAMEWORK,
    StoreCommitter,
    output_events,
    pending_event,
    status_of,
    take_over_events,
    warning_event,
)
from perdure.engine.inbox import Inbox, answered_event, waiting_answers
from perdure.engine.lifecycle import run_closed, run_opened
from perdure.engine.local_lock import LocalLock, entry_of, with_initial_states
from perdure.engine.loop import Closing, Events, RunLoop
from perdure.engine.recovery import Blueprint, LoadedRun, convert_values
from perdure.engine.state import ChangeDetector, load, with_states
from perdure.engine.tasks import is_final
from perdure.errors import (
    CheckpointWriteError,
    CommandWaitsError,
    EncodeError,
    IncompatibleGraphError,
    IncompatibleTypeError,
    RunError,
    RunExistsError,
    RunFailedError,
    RunNotFoundError,
    RunParkedError,
    RunUnfinishedError,
    StaleHeadError,
    UnknownRequestError,
    UntrustedTypeError,
    WorkflowCheckpointException,
)
from perdure.events import UndeliveredMessage, WorkflowEvent, WorkflowRunState
from perdure.failures import Failure
from perdure.graph import ABSENT, require_no_exit
from perdure.kernel import PendingEvent, Snapshot
from perdure.records import Halt, Lease, RunRecord, digest
from perdure.tracing import NO_SPAN, Span, begin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.storage import Binding


_IN_MEMORY = "memory"
"""The place of runs without a storage."""


@dataclass(eq=False)
class Session:
    """One call, from acquiring the lease to releasing it. Afterwards the workflow instance holds `run`.

    Attributes:
        before: The run that the workflow instance had before the call.
        _message: The message of the call; ABSENT if it is the one that began the run, given again.
    """

    blueprint: Blueprint
    call: Call
    before: LoadedRun | None
    changes: ChangeDetector
    run: LoadedRun | None = field(default=None, init=False)
    lock: LocalLock = field(init=False)
    _message: Any = field(init=False)
    _input: CallInput | None = field(default=None, init=False)
    _span: Span = field(default=NO_SPAN, init=False)
    _has_run: bool = field(default=False, init=False)
    _is_in_superstep: bool = field(default=False, init=False)
    _committer: StoreCommitter | None = field(default=None, init=False)
    _opened_at: Snapshot | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.lock = LocalLock(tuple(self.blueprint.executors()))
        self._message = self.call.message

    async def open(self) -> None:
        """Find the run, take its lease, and restore the executors. If the run refuses the call, nothing changes."""
        call = self.call
        if call.storage is None:
            run = self.run = await self._open_in_memory()
        else:
            binding = self.blueprint.bound(call.storage)
            run = self.run = await self._open_stored(binding)
        halt = run.lease.halt if run.lease is not None else None
        if call.is_hosted and halt is not None:
            error = RunParkedError if halt.kind == "parked" else RunFailedError
            raise error(run.run_id, reason=halt.reason, at=halt.at)
        before = run.snapshot
        is_left = not before.is_idle and not (call.abandons and run.is_cut_off)
        if self._message is not ABSENT and (is_left or before.next_timer is not None):
            sleeps_until = before.next_timer if before.is_idle else None
            raise RunUnfinishedError(run.run_id, checkpoint_id=run.head_id, sleeps_until=sleeps_until)
        self._input = await self._check_input(run)
        if run.is_unstored_fork:
            await recovery.create_fork(run)
        await self._restore_executors(run)
        self._opened_at = run.snapshot
        run_opened(run)

    async def _check_input(self, run: LoadedRun) -> CallInput:
        call, own = self.call, self.before
        # The instance's own kwargs include those that are not stored.
        is_own = own is not None and own.run_id == run.run_id
        return check_input(
            self.blueprint.graph,
            call,
            run,
            is_turn=self._message is not ABSENT,
            live_kwargs=own.run_kwargs if own is not None and is_own else run.run_kwargs,
            later=await recovery.answered_since(run) if call.responses or call.cancels else None,
            waiting=await waiting_answers(run.binding, run.run_id) if call.responses or call.cancels else {},
        )

    async def _open_in_memory(self) -> LoadedRun:
        call, run = self.call, self.before
        if call.checkpoint_id is not None:
            raise ValueError(
                "checkpoint_id needs a storage to read from: give checkpoint_storage here or to WorkflowBuilder"
            )
        if run is None or call.run_id not in {None, run.run_id}:
            if call.message is ABSENT:
                raise _nothing_to_do(call)
            run_id = call.run_id or self.blueprint.clock.new_id()
            await self.lock.acquire(_IN_MEMORY, run_id)
            origin = recovery.new_run(self.blueprint, run_id)
            return LoadedRun(origin, Snapshot(), LiveValues(), first_input=call.message)
        await self.lock.acquire(_IN_MEMORY, run.run_id)
        if call.run_id is not None and call.message is not ABSENT:
            self._attach(same_input=call.attach_if_exists or run.first_input == call.message)
        if run.binding is None:
            return run
        live = LiveValues()
        snapshot = convert_values(run.snapshot, run.values, live)
        return replace(run, snapshot=snapshot, values=live, binding=None, lease=None, read_from=run.head_id)

    def _attach(self, *, same_input: bool) -> None:
        """Attach to an existing run: the message must be its first input given again. Raises RunExistsError."""
        if not same_input:
            raise RunExistsError(self.call.run_id or "")
        self._message = ABSENT

    async def _open_stored(self, binding: Binding) -> LoadedRun:
        call, own = self.call, self.before
        if call.checkpoint_id is not None:
            return await recovery.open_checkpoint(
                self.blueprint, binding, self.lock, call.checkpoint_id, takeover=call.takeover
            )
        if call.run_id is None and own is not None:
            if own.binding is None or own.binding.store.place != binding.store.place:
                return await self._adopt(binding, own)
            return await self._continue(binding, own)
        record = None if call.run_id is None else await binding.store.run(call.run_id)
        if record is not None:
            return await self._open_existing(binding, record)
        if call.message is ABSENT:
            raise _nothing_to_do(call) if call.run_id is None else RunNotFoundError(call.run_id)
        require_handled(self.blueprint.graph, call.message)
        return await recovery.start(
            self.blueprint,
            binding,
            self.lock,
            run_id=call.run_id or self.blueprint.clock.new_id(),
            input_digest=self._digest(binding),
            tags=call.tags,
            takeover=call.takeover,
        )

    async def _open_existing(self, binding: Binding, record: RunRecord) -> LoadedRun:
        """Open the run that the call names. A message must be its first input."""
        call = self.call
        if call.message is not ABSENT:
            is_other = record.workflow_name != self.blueprint.graph.name
            if call.attach_if_exists and is_other and record.status == "idle":
                # It has ended, so nothing in it would fail to fit later.
                raise RunExistsError(record.run_id, workflow_name=record.workflow_name)
            is_same = record.input_digest is not None and record.input_digest == self._digest(binding)
            self._attach(same_input=call.attach_if_exists or is_same)
        return await recovery.open_run(
            self.blueprint,
            binding,
            self.lock,
            record.run_id,
            takeover=call.takeover,
            token=call.token,
            lease=call.lease,
        )

    async def _adopt(self, binding: Binding, own: LoadedRun) -> LoadedRun:
        """Continue the instance's run in a storage that does not know it."""
        taken = await binding.store.run(own.run_id) is not None
        run_id = self.blueprint.clock.new_id() if taken else own.run_id
        run = await recovery.start(
            self.blueprint, binding, self.lock, run_id=run_id, input_digest=_first_digest(binding, own)
        )
        snapshot = convert_values(own.snapshot, own.values, binding.values)
        return replace(run, snapshot=snapshot, run_kwargs=own.run_kwargs, first_input=own.first_input, is_new=False)

    async def _continue(self, binding: Binding, own: LoadedRun) -> LoadedRun:
        """Continue the instance's run, without reading it again if no other process has advanced it."""
        store = binding.store
        await self.lock.acquire(store.place, own.run_id)
        try:
            lease = await store.acquire(own.run_id, takeover=self.call.takeover)
            record = lease.record or await store.run(own.run_id)
        except RunNotFoundError:
            record = None
        else:
            is_held = all(entry_of(executor).run is own for executor in self.lock.executors)
            if record is not None and not (is_held and record.head == own.head_id and record.nonce == own.origin.nonce):
                return await recovery.open_run(self.blueprint, binding, self.lock, own.run_id, lease=lease)
            own.lease, own.binding, own.values = lease, binding, binding.values
        # Without a record, none of its checkpoints could be written, or all were deleted.
        return own if record is not None else await self._adopt(binding, own)

    def _digest(self, binding: Binding) -> str | None:
        """Return the digest of the first message; None if it can't be stored."""
        try:
            return input_digest(binding, self.call.message)
        except EncodeError:
            if self._requires_checkpoints:
                raise
            return None

    @property
    def _requires_checkpoints(self) -> bool:
        """Return whether a failed write is an error. If nothing is run, writing the input is all there is to do."""
        return self.call.commit_input_only or self.blueprint.graph.rules.on_checkpoint_error == "stop"

    async def _restore_executors(self, run: LoadedRun) -> None:
        """Give the executors the states of this run, and at the start of a turn the run those of the executors."""
        graph, values, executors = self.blueprint.graph, run.values, self.lock.executors
        if run.is_new:
            run.snapshot = await with_initial_states(graph, executors, run.snapshot, values)
        elif run.binding is not None:
            if run is not self.before:
                await load(graph, run.snapshot, values)
            run.snapshot = await with_states(graph, run.snapshot, values, only_missing=self._message is ABSENT)
        for executor in executors:
            entry_of(executor).run = run

    async def events(self) -> AsyncGenerator[Events]:
        """Apply the input and run supersteps until idle. Yield the events between first and last status in batches."""
        run, call, blueprint = self.run, self.call, self.blueprint
        assert run is not None, "a session is opened before it is read"
        run_id, head, binding = run.origin.run_id, run.head, run.binding
        self._span = begin(
            "perdure.run",
            linked=None if head is None else trace_of(head),
            run_id=run_id,
            workflow=blueprint.graph.name,
            checkpoint_id=None if head is None else head.checkpoint_id,
        )
        committer = self._committer = None if binding is None else run.committer(blueprint, self._span)
        if applied := await self._apply_input(run, committer):
            yield applied
        # A call that begins a run or a turn has missed nothing.
        is_resumed = self._message is ABSENT and not call.skip_past_events and call.names_a_run
        if is_resumed and (missed := self._missed_outputs(run)):
            yield missed
        emits_requests = is_resumed or (call.emit_open_requests and not call.skip_past_events)
        describe = self._open_requests if emits_requests else None
        if call.commit_input_only:
            if describe is not None and (requests := describe(run.snapshot)):
                yield requests
            return
        self._has_run, run.is_cut_off = True, False
        has_inbox = binding is not None and binding.foreign is None
        loop = RunLoop(
            graph=blueprint.graph,
            snapshot=run.snapshot,
            values=run.values,
            committer=committer,
            root_id=run.origin.nonce,
            streaming=call.streaming,
            run_kwargs=run.run_kwargs,
            tools=call.tools,
            changes=self.changes,
            clock=blueprint.clock,
            inbox=Inbox(
                graph=blueprint.graph,
                values=run.values,
                clock=blueprint.clock,
                run_id=run_id,
                store=binding.store if binding is not None and has_inbox else None,
                waits=call.waits,
                is_streamed=call.streaming,
                is_stale=committer is None or committer.has_commands,
            ),
            run_id=run_id,
            only_applies_inbox=call.only_cancels,
            span=self._span,
            describe=describe,
        )
        try:
            async with Closing(loop.run()) as batches:
                async for events in batches:
                    self._follow(run, loop.snapshot, committer)
                    yield events
        except BaseException as error:
            self._is_in_superstep = loop.is_in_superstep
            run.is_cut_off = loop.is_in_superstep and self._may_be_abandoned(error)
            require_no_exit(error)
            raise
        finally:
            self._follow(run, loop.snapshot, committer)

    def _may_be_abandoned(self, error: BaseException) -> bool:
        """Return whether a new message may abandon the superstep that this error ended.

        A run that has lost its lease, its store or its budget continues when it has them again.
        """
        is_strict = self.blueprint.graph.rules.undelivered == "error"
        return not is_strict and (not is_final(error) or isinstance(error, EncodeError))

    @staticmethod
    def _follow(run: LoadedRun, snapshot: Snapshot, committer: StoreCommitter | None) -> None:
        """Let the loaded run have the position of the loop."""
        if committer is not None:
            if run.snapshot is not snapshot:
                run.is_ahead = run.head is committer.head
            run.head, run.position = committer.head, committer.position
        run.snapshot = snapshot

    def _missed_outputs(self, run: LoadedRun) -> Events:
        """Return outputs that a resuming caller has missed."""
        call = self.call
        is_attached = call.message is not ABSENT and not call.attach_if_exists
        # A caller who gives the first input again has seen nothing of the run.
        if not is_attached and not run.snapshot.is_settled:
            return []
        return list(output_events(run.snapshot.outputs, run.values, in_pieces=call.streaming))

    def _open_requests(self, snapshot: Snapshot) -> Events:
        """Return the open requests for a caller who resumes the run or answers some of them."""
        assert self.run is not None, "a session is opened before it is read"
        return [request_event(request, self.run.values) for request in snapshot.requests.values()]

    async def _apply_input(self, run: LoadedRun, committer: StoreCommitter | None) -> Events:
        """Apply the input of the call and commit it. If a command has come first, check the input again."""
        by = str(run.lease.owner) if run.lease is not None else None
        while True:
            given = self._input
            assert given is not None, "a session is opened before it is read"
            at = now(self.blueprint.clock)
            snapshot = apply_input(given, self.blueprint.graph, run, self._message, at=at, by=by)
            abandoned = _abandoned_messages(run) if given.kind == "entry" else []
            run.run_kwargs = given.kwargs
            if given.kind is None or committer is None:
                run.snapshot = snapshot
                run.is_new = run.is_new and given.kind is None
                return abandoned
            if given.kind != "entry":
                # The commit makes the journal void, so the checkpoint carries its records.
                recorded = (await committer.open()).records()
                snapshot = replace(snapshot, carried={**snapshot.carried, **recorded})
            events = [
                *(pending_event(each, run.values) for each in abandoned),
                *((PendingEvent("started"),) if given.kind == "entry" else ()),
                *(answered_event(each, run.values, by=by, what=given.shown.get(each.id)) for each in given.closed),
                PendingEvent("checkpoint"),
            ]
            try:
                info = await committer.commit(snapshot, given.kind, events=events, done=given.done)
            except CommandWaitsError:
                self._input = await self._check_input(run)
                continue
            except StaleHeadError:
                raise
            except WorkflowCheckpointException as error:
                if self._requires_checkpoints:
                    raise
                event = warning_event(f"no {given.kind} checkpoint: {error}")
            else:
                event = WorkflowEvent("checkpoint", info, origin=FRAMEWORK)
            run.snapshot, run.is_new, run.is_ahead = snapshot, False, event.type == "warning"
            run.head, run.position = committer.head, committer.position
            return [*abandoned, event]

    async def close(self) -> None:
        """Release the run and the executors. The store learns whether the run has failed."""
        error, run, span, halt = sys.exc_info()[1], self.run, self._span, None
        if span is not NO_SPAN:
            if run is not None:
                span.say(**{f"perdure.spent.{name}": amount for name, amount in run.snapshot.limits.spent.items()})
            span.end(error)
        try:
            if run is not None and run.binding is not None and run.lease is not None:
                if self._has_run:
                    halt = failure_of(
                        error,
                        self.blueprint.clock,
                        read_from=run.read_from,
                        superstep=run.snapshot.iteration + 1 if self._is_in_superstep else run.snapshot.iteration,
                        lease=run.lease if self._committer is None or not self._committer.has_committed else None,
                    )
                else:
                    # Nothing was run, so the run's earlier status holds.
                    halt = run.lease.halt if error is not None else None
                await run.binding.store.release(run.lease, halt=halt)
        finally:
            self.lock.release()
        if run is not None and self._has_run:
            run_closed(run, error, halt, has_changed=run.snapshot is not self._opened_at)


def _abandoned_messages(run: LoadedRun) -> Events:
    """Return an event for each message of the superstep that was cut off. A new message abandons them."""
    give, iteration = run.values.give, run.snapshot.iteration + 1
    reason = f"superstep {iteration} did not end, and a new message abandons it"
    return [
        WorkflowEvent(
            "undelivered",
            UndeliveredMessage(
                [*map(give, each.values)] if len(each.values) != 1 else give(each.values[0]),
                ", ".join(each.sources),
                each.target_id,
                reason,
            ),
            executor_id=each.target_id,
            origin=FRAMEWORK,
        )
        for each in run.snapshot.deliveries
    ]


def final_state(snapshot: Snapshot) -> WorkflowRunState:
    """Return the state of a run that is not being advanced."""
    match status_of(snapshot):
        case "cancelled":
            return WorkflowRunState.CANCELLED
        case "waiting":
            return WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
        case "sleeping":
            return WorkflowRunState.SLEEPING
        case "idle" | "running":
            return WorkflowRunState.IDLE


def _nothing_to_do(call: Call) -> Exception:
    if call.responses:
        return UnknownRequestError(next(iter(call.responses)), pending=())
    return RunNotFoundError(call.run_id, has_storage=call.storage is not None)


def input_digest(binding: Binding, message: object) -> str:
    """Return the digest of a first message. Raises EncodeError."""
    return digest(binding.codec.encode(message, path="the first message", is_canonical=True).text)


def _first_digest(binding: Binding, own: LoadedRun) -> str | None:
    """Return the digest of the first message of a run that moves into a storage; None if there is none."""
    if own.origin.input_digest is not None or own.first_input is ABSENT:
        return own.origin.input_digest
    try:
        return input_digest(binding, own.first_input)
    except EncodeError:
        return None


_REASON_LENGTH_MAX = 500
_NOT_FAILURES = (RunError, StaleHeadError, CommandWaitsError, CheckpointWriteError)
_MISFITS = (IncompatibleGraphError, IncompatibleTypeError, UntrustedTypeError)


def failure_of(
    error: BaseException | None,
    clock: Clock,
    *,
    read_from: str | None = None,
    superstep: int | None = None,
    lease: Lease | None = None,
) -> Halt | None:
    """Return the failure to store for a run that ended with this error; None if the run can simply be resumed.

    `read_from` is the checkpoint at which this program took the run over. `lease` is given if nothing was committed
    under it.
    """
    if not isinstance(error, Exception) or is_of_another_program(error, read_from):
        return None
    # A store that can't be reached raises the plain WorkflowCheckpointException.
    if isinstance(error, _NOT_FAILURES) or type(error) is WorkflowCheckpointException:
        return None
    failure = Failure.of(error, at=now(clock))
    text = " ".join(f"{failure.error_type}: {failure.message}".split())
    reason = text if len(text) <= _REASON_LENGTH_MAX else f"{text[:_REASON_LENGTH_MAX]}..."
    codec = Codec(Trust.of())
    failed = PendingEvent(
        "failed", Kept(path="a failure", encoded=codec.encode(failure, path="a failure")), iteration=superstep
    )
    events = event_batch([*(() if lease is None else take_over_events(lease)), failed], codec)
    return Halt("failed", failure.at, reason, failure.to_json(), events)


def is_of_another_program(error: Exception, read_from: str | None) -> bool:
    """Return whether this program can't read the run's checkpoint because another version wrote it.

    Other data that a handler can't read is its own failure.
    """
    return isinstance(error, _MISFITS) and error.checkpoint_id is not None and error.checkpoint_id == read_from
