"""A workflow agent inside another run: the enclosing run's journal keeps its run."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from perdure.checkpoint import request_event
from perdure.clock import now, seconds_until
from perdure.engine import (
    LOCAL_LEASES,
    ActivationRecorder,
    ChangeDetector,
    ChildCommitter,
    Closing,
    RunLoop,
    accepted,
    fan_ins_of,
    load,
    output_events,
    restore_state,
    run_kwargs,
    states_of,
    with_states,
)
from perdure.errors import AgentException
from perdure.graph import activation_at_work
from perdure.kernel import Limits, Snapshot, answer, begin_turn, scope_of, wake
from perdure.workflows.as_agent.translation import find_answers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from perdure.agents import Turn
    from perdure.engine import Journal
    from perdure.events import WorkflowEvent
    from perdure.kernel import PendingEvent
    from perdure.workflows.as_agent.runs import RunMemory, RunPosition
    from perdure.workflows.as_agent.translation import TurnInput
    from perdure.workflows.workflow import Workflow

logger = logging.getLogger(__name__)


def current_host() -> ActivationRecorder | None:
    """Return the current handler call, if the engine runs it."""
    found = activation_at_work()
    return found if isinstance(found, ActivationRecorder) else None


class RunHolder(Protocol):
    """The place of a run for one call."""

    parent: ActivationRecorder
    """The handler call whose run keeps this run."""
    prefix: str
    """The prefix of the call's records."""
    scope_id: str
    """Ids inside are derived from this."""

    async def load(self) -> Snapshot:
        """Return the run before the call, with the executors' states loaded."""
        ...

    def store(self, snapshot: Snapshot) -> None:
        """Store the run after the call."""
        ...


class ChildRunHolder:
    """The run is the child of an executor that contains the workflow."""

    def __init__(self, workflow: Workflow, parent: ActivationRecorder) -> None:
        self.parent = parent
        self.prefix = f"{parent.activation_id}/agent/{parent.number(f'agent {workflow.name}')}/"
        self.scope_id = f"{parent.context.root_id}/{parent.executor_id}"

    async def load(self) -> Snapshot:
        """Return the executor's child run."""
        parent, name = self.parent, self.parent.executor_id
        return (
            parent.child
            or parent.context.children.get(name)
            or parent.context.snapshot.children.get(name)
            or Snapshot()
        )

    def store(self, snapshot: Snapshot) -> None:
        """Give the run to the executor."""
        self.parent.child = without_limits(snapshot)
        self.parent.asked_inside = dict(snapshot.requests)


class HandlerRunHolder:
    """The run belongs to a handler that knows nothing of it: the call is recorded, the process keeps the run.

    A workflow with its own storage has a run that outlives the handler call.
    """

    def __init__(
        self, workflow: Workflow, parent: ActivationRecorder, *, turn: Turn, mark: RunPosition, memory: RunMemory
    ) -> None:
        parent.context.values.trust_more(workflow.blueprint.trust)
        inside = parent.running_step
        place = parent.activation_id if inside is None else inside.place
        self.parent = parent
        self.prefix = f"{place}/agent/{quote(turn.key, safe='')}.{turn.number}/"
        self.scope_id = f"{parent.context.root_id}/{self.prefix}"
        self._workflow = workflow
        self._mark = mark
        self._memory = memory

    async def load(self) -> Snapshot:
        """Return the run as the previous call left it, or as an earlier attempt of this call found it."""
        graph, values = self._workflow.graph, self.parent.context.values
        found = self._journal_part("origin/").child() or self._kept_run()
        if found is None:
            return await self._new_run()
        await load(graph, found, values)
        # Recorded first, because the turn's number is part of the names of the inner records.
        origin = self._journal_part("origin/")
        origin.keep_child(found, ())
        await origin.settle()
        return found

    def _kept_run(self) -> Snapshot | None:
        mark = self._mark
        found = None if mark.run_id is None else self._memory.left_run(mark.run_id)
        if found is not None or mark.run_id is None or self._journal_part("").child() is not None:
            return found
        if mark.is_open:
            raise AgentException(
                f"the run of this session waits for answers, but it is not in this process; a workflow agent that is "
                f"called in a handler, here of executor {self.parent.executor_id!r}, needs its own storage to outlive "
                "the handler call"
            )
        logger.warning("run %r of this session is not in this process; a new run gets the conversation", mark.run_id)
        return None

    async def _new_run(self) -> Snapshot:
        """Start a run with the states that the executors had before any run."""
        context, graph = self.parent.context, self._workflow.graph
        if not context.is_checkpointed:
            return Snapshot()
        for executor in self._workflow.blueprint.executors():
            pristine = LOCAL_LEASES.initial_state(executor)
            if pristine is not None:
                await restore_state(executor, pristine())
        begun = await with_states(graph, Snapshot(), context.values)
        for executor, state in states_of(graph, begun):
            LOCAL_LEASES.set_initial_state(executor, lambda state=state: context.values.give(state))
        return begun

    def store(self, snapshot: Snapshot) -> None:
        """Store the run's position in the session."""
        run_id = self._mark.run_id or hashlib.blake2b(self.scope_id.encode(), digest_size=16).hexdigest()
        self._memory.keep_left_run(run_id, without_limits(snapshot))
        self._mark.advance(run_id, None, snapshot)

    def restore(self) -> None:
        """Restore the run from the record of an earlier attempt."""
        run_id, left = self._mark.run_id, self._journal_part("").child()
        if run_id is not None and left is not None:
            self._memory.keep_left_run(run_id, without_limits(left))

    def _journal_part(self, name: str) -> Journal:
        journal, prefix = self.parent.context.journal, f"{self.prefix}{name}"
        found = journal.records(self.parent.activation_id)
        carried = {key.removeprefix(prefix): kept for key, kept in found.items() if key.startswith(prefix)}
        return journal.under(prefix, carried)


def without_limits(snapshot: Snapshot) -> Snapshot:
    """Return the run as it is stored. Deadlines inside an agent are watched by whoever asks its questions outside."""
    requests = {key: replace(request, deadline=None) for key, request in snapshot.requests.items()}
    return replace(snapshot, limits=Limits(), scope="", requests=requests)


_EMITTED = frozenset({"output", "intermediate", "data", "request_info"})


class NestedRun:
    """One call on a run that the enclosing run keeps."""

    def __init__(
        self,
        workflow: Workflow,
        seat: RunHolder,
        *,
        kwargs: Mapping[str, Mapping[str, Any] | None],
        streaming: bool,
    ) -> None:
        self._workflow = workflow
        self._seat = seat
        self._parent = seat.parent
        self._kwargs = run_kwargs.resolved(kwargs, workflow.executors)
        self._streaming = streaming
        self._changes = ChangeDetector()
        self.has_begun_turn = False
        self._left = Snapshot()
        prefix = seat.prefix
        found = seat.parent.context.journal.records(seat.parent.activation_id)
        self._carried = {key.removeprefix(prefix): kept for key, kept in found.items() if key.startswith(prefix)}

    async def events(self, given: TurnInput, heard: Mapping[str, int]) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Yield the run's events until it is idle, starting with those of an earlier attempt."""
        context, graph = self._parent.context, self._workflow.graph
        begun = self._begin(await self._seat.load(), given, heard)
        journal = context.journal.under(self._seat.prefix, self._carried)
        reached = journal.child()
        if reached is not None:
            await load(graph, reached, context.values)
            for event in self._new_events(begun, reached):
                yield event
        snapshot = reached or begun
        while True:
            driver = self._driver(snapshot, journal)
            async with Closing(driver.run()) as batches:
                async for events in batches:
                    for event in events:
                        if event.type in _EMITTED:
                            yield event
            snapshot = driver.snapshot
            if snapshot.next_timer is None:
                break
            # The caller waits for the response, and it is not complete before this timer.
            await context.clock.sleep(seconds_until(context.clock, snapshot.next_timer))
            snapshot = wake(snapshot, now=now(context.clock), fan_ins=fan_ins_of(graph))
        self._parent.spend(snapshot.limits.spent)
        self._left = snapshot
        self._seat.store(snapshot)

    def pending(self) -> list[WorkflowEvent[Any]]:
        """Return the open requests."""
        return [request_event(each, self._parent.context.values) for each in self._left.requests.values()]

    def _begin(self, load: Snapshot, given: TurnInput, heard: Mapping[str, int]) -> Snapshot:
        context = self._parent.context
        self.has_begun_turn = not load.requests
        if self.has_begun_turn:
            told = given.since(heard) if load.turn else given.complete()
            value = context.values.fix(told, f"message of workflow {self._workflow.name!r}")
            return begin_turn(load, target_id=self._workflow.start_executor_id, value=value)
        if not given.said:
            raise AgentException(f"workflow {self._workflow.name!r} waits for answers, but got no message")
        pending = {key: request_event(each, context.values) for key, each in load.requests.items()}
        answers = accepted(
            find_answers(given.said, pending),
            graph=self._workflow.graph,
            snapshot=load,
            values=context.values,
            run_id=f"{self._parent.executor_id} (a workflow as agent)",
        )
        return answer(load, answers, at=context.clock.now().isoformat())

    def _new_events(self, begun: Snapshot, reached: Snapshot) -> list[WorkflowEvent[Any]]:
        values = self._parent.context.values
        asked = [request for key, request in reached.requests.items() if key not in begun.requests]
        return [
            *output_events(list(reached.outputs)[len(begun.outputs) :], values, in_pieces=self._streaming),
            *(request_event(request, values) for request in asked),
        ]

    def _driver(self, snapshot: Snapshot, journal: Journal) -> RunLoop:
        context = self._parent.context
        # The run's limits apply inside as well: the child gets what is left of the parent's budget.
        limits = replace(snapshot.limits, budget=self._parent.left)
        return RunLoop(
            graph=self._workflow.graph,
            snapshot=replace(snapshot, limits=limits, scope=scope_of(self._parent.activation_id)),
            values=context.values,
            committer=ChildCommitter(journal, _ignore) if context.is_checkpointed else None,
            scope_id=self._seat.scope_id,
            streaming=self._streaming,
            run_kwargs=self._kwargs,
            changes=self._changes,
            clock=context.clock,
            span=context.span,
            run_id=f"{self._parent.executor_id} (a workflow as agent)",
            inside_of=f"{context.run_id}/{self._parent.executor_id}",
            carried=self._carried,
            budget=context.budget.child(self._parent.activation_id),
        )


def _ignore(told: PendingEvent) -> None:
    """Ignore an event: the response contains it, or nobody outside needs it."""
