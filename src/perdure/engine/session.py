"""One call on a run: find it, take its lease, apply the call's input, run it until idle, release it."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from perdure.checkpoint import request_event, trace_of
from perdure.clock import now
from perdure.codec import LiveValues, dumps
from perdure.engine import recovery
from perdure.engine.call import ABSENT, Call, apply_input, check_input, require_handled
from perdure.engine.commit import status_of
from perdure.engine.events import FRAMEWORK, output_events, warning_event
from perdure.engine.executor_state import ChangeDetector, load, restore_state, states_of, with_states
from perdure.engine.inbox import Inbox, waiting_answers
from perdure.engine.lease import LOCAL_LEASES, LocalLease
from perdure.engine.loop import Closing, RunLoop
from perdure.engine.recovery import LoadedRun, convert_values
from perdure.errors import (
    CheckpointWriteError,
    CommandWaitsError,
    EncodeError,
    IncompatibleGraphError,
    IncompatibleTypeError,
    MissingRunKwargsError,
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
from perdure.events import WorkflowErrorDetails, WorkflowEvent, WorkflowRunState
from perdure.graph import no_exit
from perdure.kernel import Snapshot
from perdure.records import Halt, digest
from perdure.tracing import NO_SPAN, begin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.clock import Clock
    from perdure.engine.blueprint import Blueprint
    from perdure.engine.call import CallInput
    from perdure.engine.commit import StoreCommitter
    from perdure.engine.loop import Events
    from perdure.records import RunRecord
    from perdure.storage import Binding
    from perdure.tracing import Span


class Session:
    """One call, from acquiring the lease to releasing it. Afterwards the workflow instance holds `run`."""

    def __init__(self, blueprint: Blueprint, call: Call, *, run: LoadedRun | None, changes: ChangeDetector) -> None:
        self._blueprint = blueprint
        self._call = call
        self._before = run
        self._changes = changes
        self._message = call.message
        self._input: CallInput | None = None
        self._span: Span = NO_SPAN
        self._place = "memory"
        self._has_run = False
        self.lease = LocalLease()
        self.run: LoadedRun | None = None

    async def open(self) -> None:
        """Find the run, take its lease, and restore the executors. If the run refuses the call, nothing changes."""
        call = self._call
        if call.storage is None:
            run = self.run = await self._open_in_memory()
        else:
            binding = self._blueprint.bound(call.storage)
            self._place = binding.store.place
            run = self.run = await self._open_stored(binding)
        halt = run.lease.halt if run.lease is not None else None
        if call.is_hosted and halt is not None:
            error = RunParkedError if halt.kind == "parked" else RunFailedError
            raise error(run.run_id, reason=halt.reason, at=halt.at)
        before = run.snapshot
        if self._message is not ABSENT and (not before.is_idle or before.next_timer is not None):
            sleeps_until = before.next_timer if before.is_idle else None
            raise RunUnfinishedError(run.run_id, checkpoint_id=run.head_id, sleeps_until=sleeps_until)
        self._input = await self._check_input(run)
        if run.is_unstored_fork:
            await recovery.create_fork(run)
        await self._restore_executors(run)

    async def _check_input(self, run: LoadedRun) -> CallInput:
        call, own = self._call, self._before
        # The instance's own kwargs include those that are not stored.
        is_own = own is not None and own.run_id == run.run_id
        return check_input(
            self._blueprint.graph,
            call,
            run,
            is_turn=self._message is not ABSENT,
            live_kwargs=own.run_kwargs if own is not None and is_own else run.run_kwargs,
            later=await recovery.answered_since(run) if call.responses else None,
            waiting=await waiting_answers(run.binding, run.run_id) if call.responses else {},
        )

    async def _open_in_memory(self) -> LoadedRun:
        call, run = self._call, self._before
        if call.checkpoint_id is not None:
            raise ValueError(
                "checkpoint_id needs a storage to read from: give checkpoint_storage here or to WorkflowBuilder"
            )
        if run is None or call.run_id not in {None, run.run_id}:
            if call.message is ABSENT:
                raise _nothing_to_do(call)
            run_id = call.run_id or self._blueprint.clock.new_id()
            await self._acquire(run_id)
            origin = recovery.new_run(self._blueprint, run_id)
            return LoadedRun(origin, Snapshot(), LiveValues(), first_input=call.message)
        await self._acquire(run.run_id)
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
            raise RunExistsError(self._call.run_id or "")
        self._message = ABSENT

    async def _open_stored(self, binding: Binding) -> LoadedRun:
        call, own = self._call, self._before
        if call.checkpoint_id is not None:
            return await recovery.open_checkpoint(
                self._blueprint, binding, self._acquire, call.checkpoint_id, takeover=call.takeover
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
        require_handled(self._blueprint.graph, call.message)
        return await recovery.start(
            self._blueprint,
            binding,
            self._acquire,
            run_id=call.run_id or self._blueprint.clock.new_id(),
            input_digest=self._digest(binding),
            takeover=call.takeover,
        )

    async def _open_existing(self, binding: Binding, record: RunRecord) -> LoadedRun:
        """Open the run that the call names. A message must be its first input."""
        call = self._call
        if call.message is not ABSENT:
            is_other = record.workflow_name != self._blueprint.graph.name
            if call.attach_if_exists and is_other and record.status == "idle":
                # It has ended, so nothing in it would fail to fit later.
                raise RunExistsError(record.run_id, workflow_name=record.workflow_name)
            is_same = record.input_digest is not None and record.input_digest == self._digest(binding)
            self._attach(same_input=call.attach_if_exists or is_same)
        return await recovery.open_run(
            self._blueprint,
            binding,
            self._acquire,
            record.run_id,
            takeover=call.takeover,
            token=call.token,
            lease=call.lease,
        )

    async def _adopt(self, binding: Binding, own: LoadedRun) -> LoadedRun:
        """Continue the instance's run in a storage that does not know it."""
        taken = await binding.store.run(own.run_id) is not None
        run_id = self._blueprint.clock.new_id() if taken else own.run_id
        run = await recovery.start(
            self._blueprint, binding, self._acquire, run_id=run_id, input_digest=_first_digest(binding, own)
        )
        snapshot = convert_values(own.snapshot, own.values, binding.values)
        return replace(run, snapshot=snapshot, run_kwargs=own.run_kwargs, first_input=own.first_input, is_new=False)

    async def _continue(self, binding: Binding, own: LoadedRun) -> LoadedRun:
        """Continue the instance's run, without reading it again if no other process has advanced it."""
        record = await binding.store.run(own.run_id)
        if record is None:
            # None of its checkpoints could be written, or all were deleted.
            return await self._adopt(binding, own)
        if record.head != own.head_id or not LOCAL_LEASES.carry_run(self._blueprint.executors(), own):
            return await recovery.open_run(
                self._blueprint, binding, self._acquire, own.run_id, takeover=self._call.takeover
            )
        await self._acquire(own.run_id)
        lease = await binding.store.acquire(own.run_id, takeover=self._call.takeover)
        own.lease, own.binding, own.values = lease, binding, binding.values
        return own

    async def _acquire(self, run_id: str) -> None:
        await LOCAL_LEASES.acquire(self.lease, executors=self._blueprint.executors(), place=self._place, run_id=run_id)

    def _digest(self, binding: Binding) -> str | None:
        """Return the digest of the first message; None if it can't be stored."""
        try:
            return input_digest(binding, self._call.message)
        except EncodeError:
            if self._requires_checkpoints:
                raise
            return None

    @property
    def _requires_checkpoints(self) -> bool:
        """Return whether a failed write is an error. If nothing is run, writing the input is all there is to do."""
        return self._call.commit_input_only or self._blueprint.graph.rules.on_checkpoint_error == "stop"

    async def _restore_executors(self, run: LoadedRun) -> None:
        """Give the executors the states of this run, and at the start of a turn the run those of the executors."""
        graph, values = self._blueprint.graph, run.values
        executors = list(self._blueprint.executors())
        if run.binding is not None:
            if run.is_new:
                # A new run begins with the states that the executors had before any run used them.
                for executor in executors:
                    initial = LOCAL_LEASES.initial_state(executor)
                    if initial is not None:
                        await restore_state(executor, initial())
            elif run is not self._before:
                await load(graph, run.snapshot, values)
            only_missing = self._message is ABSENT
            run.snapshot = await with_states(graph, run.snapshot, values, only_missing=only_missing)
            if run.is_new and (run.snapshot.executors or run.snapshot.children):
                for executor, state in states_of(graph, run.snapshot):
                    LOCAL_LEASES.set_initial_state(executor, lambda state=state: values.give(state))
        LOCAL_LEASES.set_run(executors, run)

    async def events(self) -> AsyncGenerator[Events]:
        """Apply the input and run supersteps until idle. Yield the events between first and last status in batches."""
        run, call, blueprint = self.run, self._call, self._blueprint
        assert run is not None, "a session is opened before it is read"
        linked = None if run.head is None else trace_of(run.head)
        self._span = begin(
            "perdure.run",
            linked=linked,
            run_id=run.run_id,
            workflow=blueprint.graph.name,
            checkpoint_id=run.head_id,
        )
        binding = run.binding
        committer = None if binding is None else run.committer(blueprint, self._span)
        if applied := await self._apply_input(run, committer):
            yield applied
        if resumed := self._resumed_outputs(run):
            yield resumed
        if call.commit_input_only:
            if requests := self._open_requests(run.snapshot):
                yield requests
            return
        self._has_run = True
        has_inbox = binding is not None and binding.has_inbox
        loop = RunLoop(
            graph=blueprint.graph,
            snapshot=run.snapshot,
            values=run.values,
            committer=committer,
            scope_id=run.origin.nonce,
            streaming=call.streaming,
            run_kwargs=run.run_kwargs,
            changes=self._changes,
            clock=blueprint.clock,
            inbox=Inbox(
                graph=blueprint.graph,
                values=run.values,
                clock=blueprint.clock,
                run_id=run.run_id,
                store=binding.store if binding is not None and has_inbox else None,
                waits=call.waits,
                is_streamed=call.streaming,
            ),
            run_id=run.run_id,
            only_applies_inbox=call.only_cancels,
            span=self._span,
            watches_inbox=has_inbox,
            describe=self._open_requests,
        )
        try:
            with no_exit():
                async with Closing(loop.run()) as batches:
                    async for events in batches:
                        self._follow(run, loop.snapshot, committer)
                        yield events
        finally:
            self._follow(run, loop.snapshot, committer)

    @staticmethod
    def _follow(run: LoadedRun, snapshot: Snapshot, committer: StoreCommitter | None) -> None:
        """Let the loaded run have the position of the loop."""
        if committer is not None:
            if run.snapshot is not snapshot:
                run.is_ahead = run.head is committer.head
            run.head, run.position = committer.head, committer.position
        run.snapshot = snapshot

    def _resumed_outputs(self, run: LoadedRun) -> Events:
        """Return outputs that a resuming caller has missed."""
        call = self._call
        if call.skip_past_events or (call.run_id is None and call.checkpoint_id is None):
            return []
        is_attached = call.message is not ABSENT and self._message is ABSENT and not call.attach_if_exists
        # A caller who gives the first input again has seen nothing of the run.
        if not is_attached and not run.snapshot.is_settled:
            return []
        return list(output_events(run.snapshot.outputs, run.values, in_pieces=call.streaming))

    def _open_requests(self, snapshot: Snapshot) -> Events:
        """Return the open requests for a caller who resumes the run or answers some of them."""
        call, run = self._call, self.run
        is_named = call.run_id is not None or call.checkpoint_id is not None
        if run is None or call.skip_past_events or not (is_named or call.emit_open_requests):
            return []
        return [request_event(request, run.values) for request in snapshot.requests.values()]

    async def _apply_input(self, run: LoadedRun, committer: StoreCommitter | None) -> Events:
        """Apply the input of the call and commit it. If a command has come first, check the input again."""
        by = str(run.lease.owner) if run.lease is not None else None
        while True:
            given = self._input
            assert given is not None, "a session is opened before it is read"
            at = now(self._blueprint.clock)
            snapshot = apply_input(given, self._blueprint.graph, run, self._message, at=at, by=by)
            run.run_kwargs = given.kwargs
            if given.kind is None or committer is None:
                run.snapshot = snapshot
                run.is_new = run.is_new and given.kind is None
                return []
            if given.kind != "entry":
                # The commit makes the journal void, so the checkpoint carries its records.
                recorded = (await committer.open()).records()
                snapshot = replace(snapshot, carried={**snapshot.carried, **recorded})
            events = given.events(run.values, by=by)
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
            return [event]

    async def close(self) -> None:
        """Release the run and the executors. The store learns whether the run has failed."""
        error, run, span = sys.exc_info()[1], self.run, self._span
        if span is not NO_SPAN:
            if run is not None:
                span.say(**{f"perdure.spent.{name}": amount for name, amount in run.snapshot.limits.spent.items()})
            span.end(error)
        try:
            if run is not None and run.binding is not None and run.lease is not None:
                lacks_kwargs = self._call.skip_past_events and isinstance(error, MissingRunKwargsError)
                if self._has_run or lacks_kwargs:
                    clock, read_from = self._blueprint.clock, run.read_from
                    halt = None if error is None else failure_of(error, clock, read_from=read_from)
                else:
                    # Nothing was run, so the run's earlier status holds.
                    halt = run.lease.halt if error is not None else None
                await run.binding.store.release(run.lease, halt=halt)
        finally:
            LOCAL_LEASES.release(self.lease)


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
    return digest(binding.codec.encode(message, path="the first message", sorts_mappings=True).text)


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


def failure_of(error: BaseException | None, clock: Clock, *, read_from: str | None = None) -> Halt | None:
    """Return the failure to store for a run that ended with this error; None if the run can simply be resumed.

    `read_from` is the checkpoint at which this program took the run over.
    """
    if not isinstance(error, Exception) or is_of_another_program(error, read_from):
        return None
    # A store that can't be reached raises the plain WorkflowCheckpointException.
    is_of_store = isinstance(error, _NOT_FAILURES) or type(error) is WorkflowCheckpointException
    if is_of_store and not isinstance(error, MissingRunKwargsError):
        return None
    details = WorkflowErrorDetails.from_exception(error)
    text = " ".join(f"{details.error_type}: {details.message}".split())
    reason = text if len(text) <= _REASON_LENGTH_MAX else f"{text[:_REASON_LENGTH_MAX]}..."
    return Halt("failed", now(clock), reason, dumps({**dataclasses.asdict(details), "extra": None}))


def is_of_another_program(error: Exception, read_from: str | None) -> bool:
    """Return whether this program can't read the run's checkpoint because another version wrote it.

    Other data that a handler can't read is its own failure.
    """
    return isinstance(error, _MISFITS) and error.checkpoint_id is not None and error.checkpoint_id == read_from
