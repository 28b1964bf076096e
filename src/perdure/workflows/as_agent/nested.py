"""Where a run is that is kept by the run around it: in an executor that has the workflow inside, or in any handler."""

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
from perdure.workflows.as_agent.translation import answers_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from perdure.agents import Turn
    from perdure.engine import Journal
    from perdure.events import WorkflowEvent
    from perdure.kernel import PendingEvent
    from perdure.workflows.as_agent.runs import Bookmark, Memory
    from perdure.workflows.as_agent.translation import Given
    from perdure.workflows.workflow import Workflow

logger = logging.getLogger(__name__)


def host() -> ActivationRecorder | None:
    """The handler call that is in progress here, if the engine makes it."""
    found = activation_at_work()
    return found if isinstance(found, ActivationRecorder) else None


class Seat(Protocol):
    """Where a run is, for one call."""

    parent: ActivationRecorder
    """The handler call whose run keeps this one."""
    prefix: str
    """What the records of the call begin with."""
    scope_id: str
    """What ids inside are derived from."""

    async def before(self) -> Snapshot:
        """The run before the call, with the executors in its states."""
        ...

    def leave(self, snapshot: Snapshot) -> None:
        """Keep the run as the call has left it."""
        ...


class NodeSeat:
    """In an executor that has the workflow inside: the run is its child."""

    def __init__(self, workflow: Workflow, parent: ActivationRecorder) -> None:
        self.parent = parent
        self.prefix = f"{parent.home}/agent/{parent.number(f'agent {workflow.name}')}/"
        self.scope_id = f"{parent.around.root_id}/{parent.executor_id}"

    async def before(self) -> Snapshot:
        """The child as the executor has left it."""
        parent, name = self.parent, self.parent.executor_id
        return (
            parent.child or parent.around.children.get(name) or parent.around.snapshot.children.get(name) or Snapshot()
        )

    def leave(self, snapshot: Snapshot) -> None:
        """Let the executor have it."""
        self.parent.child = at_rest(snapshot)
        self.parent.asked_inside = dict(snapshot.requests)


class HandlerSeat:
    """In a handler that knows nothing of the run: what the call does is recorded, and the process has what is left.

    Whoever wants the run to outlive the handler call gives the workflow a storage, and it has a run of its own.
    """

    def __init__(
        self, workflow: Workflow, parent: ActivationRecorder, *, turn: Turn, mark: Bookmark, memory: Memory
    ) -> None:
        parent.around.values.trust_more(workflow.blueprint.trust)
        inside = parent.running_step
        place = parent.home if inside is None else inside.place
        self.parent = parent
        self.prefix = f"{place}/agent/{quote(turn.key, safe='')}.{turn.number}/"
        self.scope_id = f"{parent.around.root_id}/{self.prefix}"
        self._workflow = workflow
        self._mark = mark
        self._memory = memory

    async def before(self) -> Snapshot:
        """The run as the call before has left it, or as this call has found it in an earlier life."""
        graph, values = self._workflow.graph, self.parent.around.values
        found = self._part("origin/").child() or self._known()
        if found is None:
            return await self._fresh()
        await load(graph, found, values)
        # Before anything is recorded inside: which turn it is, is part of the names of the records.
        origin = self._part("origin/")
        origin.keep_child(found, ())
        await origin.settle()
        return found

    def _known(self) -> Snapshot | None:
        mark = self._mark
        found = None if mark.run_id is None else self._memory.rested(mark.run_id)
        if found is not None or mark.run_id is None or self._part("").child() is not None:
            return found
        if mark.is_open:
            raise AgentException(
                f"the run of this session waits for answers, and it is not in this process: a workflow that is talked "
                f"to in a handler, here of executor {self.parent.executor_id!r}, needs a storage of its own to outlive "
                "the handler call"
            )
        logger.warning("run %r of this session is not in this process; a new run gets the conversation", mark.run_id)
        return None

    async def _fresh(self) -> Snapshot:
        """A new run begins with the states that the executors had before any run used them."""
        around, graph = self.parent.around, self._workflow.graph
        if not around.is_checkpointed:
            return Snapshot()
        for executor in self._workflow.blueprint.executors():
            pristine = LOCAL_LEASES.initial_state(executor)
            if pristine is not None:
                await restore_state(executor, pristine())
        begun = await with_states(graph, Snapshot(), around.values)
        for executor, state in states_of(graph, begun):
            LOCAL_LEASES.set_initial_state(executor, lambda state=state: around.values.give(state))
        return begun

    def leave(self, snapshot: Snapshot) -> None:
        """Let the session know it."""
        run_id = self._mark.run_id or hashlib.blake2b(self.scope_id.encode(), digest_size=16).hexdigest()
        self._memory.rest(run_id, at_rest(snapshot))
        self._mark.move(run_id, None, snapshot)

    def recall(self) -> None:
        """The call was made in an earlier life: what it has left is on record."""
        run_id, left = self._mark.run_id, self._part("").child()
        if run_id is not None and left is not None:
            self._memory.rest(run_id, at_rest(left))

    def _part(self, name: str) -> Journal:
        journal, prefix = self.parent.around.journal, f"{self.prefix}{name}"
        found = journal.records(self.parent.home)
        carried = {key.removeprefix(prefix): kept for key, kept in found.items() if key.startswith(prefix)}
        return journal.under(prefix, carried)


def at_rest(snapshot: Snapshot) -> Snapshot:
    """What is kept. Nobody looks at deadlines inside of an agent: whoever asks its questions outside sees to them."""
    requests = {key: replace(request, deadline=None) for key, request in snapshot.requests.items()}
    return replace(snapshot, limits=Limits(), scope="", requests=requests)


_LIVE = frozenset({"output", "intermediate", "data", "request_info"})


class NestedRun:
    """One call on a run that is kept by the run around it."""

    def __init__(
        self,
        workflow: Workflow,
        seat: Seat,
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
        found = seat.parent.around.journal.records(seat.parent.home)
        self._carried = {key.removeprefix(prefix): kept for key, kept in found.items() if key.startswith(prefix)}

    async def events(self, given: Given, heard: Mapping[str, int]) -> AsyncGenerator[WorkflowEvent[Any]]:
        """What the run tells until it rests: first what an earlier life has got of it."""
        around, graph = self._parent.around, self._workflow.graph
        begun = self._begun(await self._seat.before(), given, heard)
        journal = around.journal.under(self._seat.prefix, self._carried)
        reached = journal.child()
        if reached is not None:
            await load(graph, reached, around.values)
            for event in self._news(begun, reached):
                yield event
        snapshot = reached or begun
        while True:
            driver = self._driver(snapshot, journal)
            async with Closing(driver.run()) as batches:
                async for events in batches:
                    for event in events:
                        if event.type in _LIVE:
                            yield event
            snapshot = driver.snapshot
            if snapshot.next_timer is None:
                break
            # It is an answer that is waited for, and it is not there before its time.
            await around.clock.sleep(seconds_until(around.clock, snapshot.next_timer))
            snapshot = wake(snapshot, now=now(around.clock), fan_ins=fan_ins_of(graph))
        self._parent.spend(snapshot.limits.spent)
        self._left = snapshot
        self._seat.leave(snapshot)

    def pending(self) -> list[WorkflowEvent[Any]]:
        """What the run waits for when it rests."""
        return [request_event(each, self._parent.around.values) for each in self._left.requests.values()]

    def _begun(self, before: Snapshot, given: Given, heard: Mapping[str, int]) -> Snapshot:
        around = self._parent.around
        self.has_begun_turn = not before.requests
        if self.has_begun_turn:
            told = given.since(heard) if before.turn else given.whole()
            value = around.values.fix(told, f"message of workflow {self._workflow.name!r}")
            return begin_turn(before, target_id=self._workflow.start_executor_id, value=value)
        if not given.said:
            raise AgentException(f"workflow {self._workflow.name!r} waits for answers, and it was given nothing")
        pending = {key: request_event(each, around.values) for key, each in before.requests.items()}
        answers = accepted(
            answers_in(given.said, pending),
            graph=self._workflow.graph,
            snapshot=before,
            values=around.values,
            run_id=f"{self._parent.executor_id} (a workflow as agent)",
        )
        return answer(before, answers, at=around.clock.now().isoformat())

    def _news(self, begun: Snapshot, reached: Snapshot) -> list[WorkflowEvent[Any]]:
        values = self._parent.around.values
        asked = [request for key, request in reached.requests.items() if key not in begun.requests]
        return [
            *output_events(list(reached.outputs)[len(begun.outputs) :], values, in_pieces=self._streaming),
            *(request_event(request, values) for request in asked),
        ]

    def _driver(self, snapshot: Snapshot, journal: Journal) -> RunLoop:
        around = self._parent.around
        # The limits of the run hold inside as well: what is left to the parent is what there is.
        limits = replace(snapshot.limits, budget=self._parent.left)
        return RunLoop(
            graph=self._workflow.graph,
            snapshot=replace(snapshot, limits=limits, scope=scope_of(self._parent.home)),
            values=around.values,
            committer=ChildCommitter(journal, _untold) if around.is_checkpointed else None,
            scope_id=self._seat.scope_id,
            streaming=self._streaming,
            run_kwargs=self._kwargs,
            changes=self._changes,
            clock=around.clock,
            span=around.span,
            run_id=f"{self._parent.executor_id} (a workflow as agent)",
            inside_of=f"{around.run_id}/{self._parent.executor_id}",
            carried=self._carried,
            budget=around.budget.child(self._parent.home),
        )


def _untold(told: PendingEvent) -> None:
    """What it tells is the answer of the agent, or its own affair."""
