"""One call on a run: found, claimed, given what came from outside, driven until idle, and released."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.checkpoint import request_event, trace_of
from perdure.clock import now
from perdure.codec import LiveValues
from perdure.engine import intake, opening
from perdure.engine.activation import FRAMEWORK
from perdure.engine.call import ABSENT, Call
from perdure.engine.closing import Closing
from perdure.engine.driver import Driver
from perdure.engine.failing import failure_of
from perdure.engine.instances import Drift, load, restore_state, states_of, with_states
from perdure.engine.ledger import Ledger, NoLedger, StoreLedger, status_of
from perdure.engine.narration import output_events
from perdure.engine.opening import Tenure
from perdure.engine.outside import RunOutside, waiting_answers
from perdure.engine.presence import PRESENCE, Occupant
from perdure.engine.rekeep import rekept
from perdure.errors import (
    CommandWaitsError,
    EncodeError,
    MissingRunKwargsError,
    RunExistsError,
    RunFailedError,
    RunNotFoundError,
    RunParkedError,
    RunUnfinishedError,
    StaleHeadError,
    UnknownRequestError,
    WorkflowCheckpointException,
)
from perdure.events import WorkflowEvent, WorkflowRunState
from perdure.graph import no_exit
from perdure.kernel import Snapshot
from perdure.records import digest
from perdure.tracing import NO_SPAN, begin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from perdure.engine.blueprint import Blueprint
    from perdure.engine.driver import Events
    from perdure.engine.intake import Intake
    from perdure.records import Claim, Halt, RunRecord
    from perdure.storage import Binding
    from perdure.tracing import Span


class Session:
    """From claim to release. `tenure` is what the instance holds afterwards."""

    def __init__(self, blueprint: Blueprint, call: Call, *, tenure: Tenure | None, drift: Drift) -> None:
        self._blueprint = blueprint
        self._call = call
        self._before = tenure
        self._drift = drift
        self._occupant = Occupant()
        self._message = call.message
        self._intake: Intake | None = None
        self._span: Span = NO_SPAN
        self._place = "memory"
        self._is_driven = False
        self.tenure: Tenure | None = None

    @property
    def occupant(self) -> Occupant:
        """This session, as others in the process see it."""
        return self._occupant

    async def open(self) -> None:
        """Find and claim the run, and put the executors to its states. What the run refuses has changed nothing."""
        call = self._call
        if call.storage is None:
            self.tenure = await self._in_memory()
        else:
            binding = self._blueprint.bound(call.storage)
            self._place = binding.store.place
            self.tenure = await self._stored(binding)
        self._require_wanted(self.tenure)
        before = self.tenure.snapshot
        if self._is_turn and (before.is_asleep or not before.is_idle):
            sleeps_until = before.next_timer if before.is_idle else None
            raise RunUnfinishedError(self.tenure.run_id, checkpoint_id=self.tenure.head_id, sleeps_until=sleeps_until)
        self._intake = await self._checked(self.tenure)
        await opening.begin(self.tenure)
        await self._settle(self.tenure)

    def _require_wanted(self, tenure: Tenure) -> None:
        """Refuse to go on with a run that was halted before it was claimed, if nobody has asked for just that."""
        halt = tenure.claim.halt if tenure.claim is not None else None
        if self._call.is_unasked and halt is not None:
            error = RunParkedError if halt.kind == "parked" else RunFailedError
            raise error(tenure.run_id, reason=halt.reason, at=halt.at)

    async def _checked(self, tenure: Tenure) -> Intake:
        call = self._call
        return intake.checked(
            self._blueprint.graph,
            call,
            tenure,
            is_turn=self._is_turn,
            live_kwargs=self._live_kwargs(tenure),
            later=await opening.later(tenure) if call.responses else None,
            waiting=await waiting_answers(tenure.binding, tenure.run_id) if call.responses else {},
        )

    @property
    def _is_turn(self) -> bool:
        return self._message is not ABSENT

    def _live_kwargs(self, tenure: Tenure) -> dict[str, Any]:
        """The kwargs that this instance was given for the same run, those that are not stored included."""
        own = self._before
        return own.run_kwargs if own is not None and own.run_id == tenure.run_id else tenure.run_kwargs

    async def _in_memory(self) -> Tenure:
        call, tenure = self._call, self._before
        if call.checkpoint_id is not None:
            raise ValueError(
                "checkpoint_id needs a storage to read from: give checkpoint_storage here or to WorkflowBuilder"
            )
        is_meant = tenure is not None and call.run_id in {None, tenure.run_id}
        if tenure is None or not is_meant:
            if not call.has_message:
                raise _nothing_to_do(call)
            run_id = call.run_id or self._blueprint.clock.new_id()
            await self._arrive(run_id)
            origin = opening.begun(self._blueprint, run_id)
            return Tenure(origin, Snapshot(), LiveValues(), first_input=call.message)
        await self._arrive(tenure.run_id)
        if call.run_id is not None and call.has_message:
            self._attach(same_input=call.only_begins or tenure.first_input == call.message)
        if tenure.binding is None:
            return tenure
        live = LiveValues()
        return replace(
            tenure, snapshot=rekept(tenure.snapshot, tenure.values, live), values=live, binding=None, claim=None
        )

    def _attach(self, *, same_input: bool) -> None:
        """The run exists: the message is its first input, told again, or a mistake."""
        if not same_input:
            raise RunExistsError(self._call.run_id or "")
        self._message = ABSENT

    async def _stored(self, binding: Binding) -> Tenure:
        call, blueprint = self._call, self._blueprint
        if call.checkpoint_id is not None:
            return await opening.by_checkpoint(
                blueprint, binding, self._arrive, call.checkpoint_id, takeover=call.takeover
            )
        if call.run_id is not None:
            return await self._named(binding, call.run_id)
        own = self._before
        if own is None:
            if not call.has_message:
                raise _nothing_to_do(call)
            return await self._fresh(binding, blueprint.clock.new_id())
        if own.binding is None or own.binding.store.place != binding.store.place:
            return await self._adopted(binding, own)
        return await self._continued(binding, own)

    async def _named(self, binding: Binding, run_id: str) -> Tenure:
        record = await binding.store.run(run_id)
        if self._call.has_message:
            if record is None:
                return await self._fresh(binding, run_id)
            self._require_no_other(record)
            is_same = record.input_digest is not None and record.input_digest == self._digest(binding)
            self._attach(same_input=self._call.only_begins or is_same)
        elif record is None:
            raise RunNotFoundError(run_id)
        call = self._call
        return await opening.by_run_id(
            self._blueprint,
            binding,
            self._arrive,
            run_id,
            takeover=call.takeover,
            token=call.token,
            claim=call.claim,
        )

    def _require_no_other(self, record: RunRecord) -> None:
        """Refuse an ended run of another workflow, which has nothing left in it that would not fit."""
        is_other = record.workflow_name != self._blueprint.graph.name
        if self._call.only_begins and is_other and record.status == "idle":
            raise RunExistsError(record.run_id, workflow_name=record.workflow_name)

    async def _fresh(self, binding: Binding, run_id: str) -> Tenure:
        intake.handled(self._blueprint.graph, self._call.message)
        return await opening.start(
            self._blueprint,
            binding,
            self._arrive,
            run_id=run_id,
            input_digest=self._digest(binding),
            takeover=self._call.takeover,
        )

    async def _adopted(self, binding: Binding, own: Tenure) -> Tenure:
        """The instance's run goes on in a storage that does not know it."""
        taken = await binding.store.run(own.run_id) is not None
        run_id = self._blueprint.clock.new_id() if taken else own.run_id
        tenure = await opening.start(
            self._blueprint, binding, self._arrive, run_id=run_id, input_digest=_first_digest(binding, own)
        )
        moved = rekept(own.snapshot, own.values, binding.values)
        return replace(tenure, snapshot=moved, run_kwargs=own.run_kwargs, first_input=own.first_input, is_new=False)

    async def _continued(self, binding: Binding, own: Tenure) -> Tenure:
        """The next turn of the instance's own run, or its answers."""
        record = await binding.store.run(own.run_id)
        if record is None:
            # None of its checkpoints could be written, or somebody has deleted them all.
            return await self._adopted(binding, own)
        is_current = record.head == own.head_id and PRESENCE.are_settled(self._blueprint.executors(), own)
        if not is_current:
            return await opening.by_run_id(
                self._blueprint, binding, self._arrive, own.run_id, takeover=self._call.takeover
            )
        await self._arrive(own.run_id)
        claim = await binding.store.claim(own.run_id, takeover=self._call.takeover)
        own.claim, own.binding, own.values = claim, binding, binding.values
        return own

    async def _arrive(self, run_id: str) -> None:
        executors = self._blueprint.executors()
        await PRESENCE.enter(self._occupant, executors=executors, place=self._place, run_id=run_id)

    def _digest(self, binding: Binding) -> str | None:
        """What tells one first message from another; None for one that can't be stored."""
        try:
            return input_digest(binding, self._call.message)
        except EncodeError:
            if self._requires_checkpoints:
                raise
            return None

    @property
    def _requires_checkpoints(self) -> bool:
        """Whether what could not be written is an error. Where nothing is run, to write it is all there is to do."""
        return self._call.only_enters or self._blueprint.graph.rules.on_checkpoint_error == "stop"

    async def _settle(self, tenure: Tenure) -> None:
        """Let the executors carry the states of this run, and at the entry of a turn the run those of the executors."""
        graph, executors = self._blueprint.graph, list(self._blueprint.executors())
        if tenure.binding is not None:
            if tenure.is_new:
                await self._reset()
            elif tenure is not self._before:
                await load(graph, tenure.snapshot, tenure.values)
            tenure.snapshot = await with_states(graph, tenure.snapshot, tenure.values, only_missing=not self._is_turn)
            if tenure.is_new:
                _remember_pristine(self._blueprint, tenure)
        PRESENCE.settle(executors, tenure)

    async def _reset(self) -> None:
        """A new run begins with the states that the executors had before any run used them."""
        for executor in self._blueprint.executors():
            pristine = PRESENCE.pristine(executor)
            if pristine is not None:
                await restore_state(executor, pristine())

    async def events(self) -> AsyncGenerator[Events]:
        """Everything between the first and the last status, in batches."""
        tenure = self._require_tenure()
        self._span = self._begun_span(tenure)
        ledger = self._ledger(tenure)
        async for event in self._entered(tenure, ledger):
            yield [event]
        if self._call.only_enters:
            if asked := self._asked(tenure.snapshot):
                yield asked
            return
        self._is_driven = True
        driver = Driver(
            graph=self._blueprint.graph,
            snapshot=tenure.snapshot,
            values=tenure.values,
            ledger=ledger,
            scope_id=tenure.origin.nonce,
            is_checkpointed=tenure.binding is not None,
            streaming=self._call.streaming,
            run_kwargs=tenure.run_kwargs,
            drift=self._drift,
            clock=self._blueprint.clock,
            outside=self._outside(tenure),
            run_id=tenure.run_id,
            only_takes_in=self._call.only_cancels,
            span=self._span,
            is_watched=tenure.binding is not None and tenure.binding.has_inbox,
            standing=self._asked,
        )
        try:
            with no_exit():
                async with Closing(driver.supersteps()) as batches:
                    async for events in batches:
                        if tenure.snapshot is not driver.snapshot:
                            self._follow(tenure, driver, ledger)
                        yield events
        finally:
            self._follow(tenure, driver, ledger)

    def _outside(self, tenure: Tenure) -> RunOutside:
        binding = tenure.binding
        return RunOutside(
            graph=self._blueprint.graph,
            values=tenure.values,
            clock=self._blueprint.clock,
            run_id=tenure.run_id,
            store=binding.store if binding is not None and binding.has_inbox else None,
            waits=self._call.waits,
            is_streamed=self._call.streaming,
        )

    @staticmethod
    def _follow(tenure: Tenure, driver: Driver, ledger: Ledger) -> None:
        has_moved = tenure.snapshot is not driver.snapshot
        tenure.snapshot = driver.snapshot
        if isinstance(ledger, StoreLedger):
            if has_moved:
                tenure.is_ahead = tenure.head is ledger.head
            tenure.head, tenure.position = ledger.head, ledger.position

    def _ledger(self, tenure: Tenure) -> Ledger:
        if tenure.binding is None:
            return NoLedger()
        return StoreLedger.of(self._blueprint, tenure.binding, tenure, span=self._span)

    def _begun_span(self, tenure: Tenure) -> Span:
        """The span of this call, linked to that of the life which wrote the head."""
        linked = None if tenure.head is None else trace_of(tenure.head)
        head = tenure.head_id
        return begin(
            "perdure.run", linked=linked, run_id=tenure.run_id, workflow=self._blueprint.graph.name, checkpoint_id=head
        )

    async def _entered(self, tenure: Tenure, ledger: Ledger) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Take in what came from outside, durably, and tell what a resuming caller has to know."""
        async for event in self._taken_in(tenure, ledger):
            yield event
        if not self._call.names_a_run or self._call.only_goes_on:
            return
        is_attached = self._call.has_message and not self._is_turn and not self._call.only_begins
        if is_attached or tenure.snapshot.is_settled:
            # Who gives the first input again stands at the beginning: all that was committed since is news.
            outputs = tenure.snapshot.outputs
            for event in output_events(outputs, tenure.values, in_pieces=self._call.streaming):
                yield event

    def _asked(self, snapshot: Snapshot) -> Events:
        """The requests that are open, for a caller who goes on with the run or answers some of them."""
        call = self._call
        if call.only_goes_on or not (call.names_a_run or call.tells_what_is_open):
            return []
        return [request_event(request, self._require_tenure().values) for request in snapshot.requests.values()]

    async def _taken_in(self, tenure: Tenure, ledger: Ledger) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Take in what the call brings, unless somebody else has brought it meanwhile."""
        while True:
            brought = self._intake
            assert brought is not None, "a session is opened before it is read"
            at = now(self._blueprint.clock)
            by = str(tenure.claim.owner) if tenure.claim is not None else None
            snapshot = intake.taken_in(brought, self._blueprint.graph, tenure, self._message, at=at, by=by)
            if brought.kind is not None and not self._is_turn:
                # The commit makes the journal void. What an earlier life has finished of the superstep goes with it.
                recorded = (await ledger.open()).records()
                snapshot = replace(snapshot, carried={**snapshot.carried, **recorded})
            tenure.run_kwargs = brought.kwargs
            if brought.kind is None:
                tenure.snapshot = snapshot
                return
            try:
                async for event in self._committed(tenure, ledger, snapshot, brought):
                    yield event
            except CommandWaitsError:
                self._intake = await self._checked(tenure)
            else:
                return

    async def _committed(
        self, tenure: Tenure, ledger: Ledger, snapshot: Snapshot, brought: Intake
    ) -> AsyncGenerator[WorkflowEvent[Any]]:
        kind = brought.kind or ""
        by = str(tenure.claim.owner) if tenure.claim is not None else None
        try:
            info = await ledger.commit(snapshot, kind, told=brought.told(tenure.values, by=by), done=brought.done)
        except (StaleHeadError, CommandWaitsError):
            raise
        except WorkflowCheckpointException as error:
            if self._requires_checkpoints:
                raise
            info = None
            tenure.is_ahead = True
            yield WorkflowEvent("warning", f"no {kind} checkpoint: {error}", origin=FRAMEWORK)
        tenure.snapshot = snapshot
        tenure.is_new = False
        if isinstance(ledger, StoreLedger):
            tenure.head, tenure.position = ledger.head, ledger.position
        if info is not None:
            tenure.is_ahead = False
            yield WorkflowEvent("checkpoint", info, origin=FRAMEWORK)

    def _require_tenure(self) -> Tenure:
        assert self.tenure is not None, "a session is opened before it is read"
        return self.tenure

    async def close(self) -> None:
        """Release the run and the executors. A run that has failed is said to have."""
        error = sys.exc_info()[1]
        if self.tenure is not None and self._span is not NO_SPAN:
            spent = self.tenure.snapshot.limits.spent
            self._span.say(**{f"perdure.spent.{name}": amount for name, amount in spent.items()})
        self._span.end(error)
        try:
            tenure = self.tenure
            if tenure is not None and tenure.binding is not None and tenure.claim is not None:
                await tenure.binding.store.release(tenure.claim, halt=self._halt(tenure.claim, error))
        finally:
            PRESENCE.leave(self._occupant)

    def _halt(self, claim: Claim, error: BaseException | None) -> Halt | None:
        """Why nobody is to go on with the run unasked. Where nothing was run, what held before holds on."""
        lacks_kwargs = self._call.only_goes_on and isinstance(error, MissingRunKwargsError)
        if self._is_driven or lacks_kwargs:
            return failure_of(error, self._blueprint.clock, read_from=self._require_tenure().read_from)
        return claim.halt if error is not None else None


def final_state(snapshot: Snapshot) -> WorkflowRunState:
    """Where a run that is not driven stands."""
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
    """What tells one first message from another. Raises EncodeError."""
    return digest(binding.codec.encode(message, path="the first message", sorts_mappings=True).text)


def _first_digest(binding: Binding, own: Tenure) -> str | None:
    """What tells the first message of a run that moves into a storage; None if that is not known or can't be stored."""
    if own.origin.input_digest is not None or own.first_input is ABSENT:
        return own.origin.input_digest
    try:
        return input_digest(binding, own.first_input)
    except EncodeError:
        return None


def _remember_pristine(blueprint: Blueprint, tenure: Tenure) -> None:
    values = tenure.values
    for executor, state in states_of(blueprint.graph, tenure.snapshot):
        PRESENCE.remember_pristine(executor, lambda state=state: values.give(state))
