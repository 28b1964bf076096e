"""A workflow as agent inside of another workflow: its run is part of the run around it, and survives with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.agent_errors import AgentException
from perdure.checkpoint import request_event
from perdure.engine import ChildLedger, Closing, Drift, Driver, accepted, fan_ins_of, load, output_events
from perdure.engine import kwargs as run_kwargs
from perdure.kernel import Snapshot, answer, begin_turn, scope_of, wake
from perdure.moments import now, seconds_until
from perdure.workflows.agent_requests import answers_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from perdure.engine import Journal
    from perdure.events import WorkflowEvent
    from perdure.kernel import PendingEvent
    from perdure.workflows.agent_given import Given
    from perdure.workflows.agent_seats import Seat
    from perdure.workflows.workflow import Workflow

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
        self._drift = Drift()
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
            async with Closing(driver.supersteps()) as batches:
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

    def _driver(self, snapshot: Snapshot, journal: Journal) -> Driver:
        around = self._parent.around
        # The limits of the run hold inside as well: what is left to the parent is what there is.
        limits = replace(snapshot.limits, budget=self._parent.left)
        return Driver(
            graph=self._workflow.graph,
            snapshot=replace(snapshot, limits=limits, scope=scope_of(self._parent.home)),
            values=around.values,
            ledger=ChildLedger(journal, _untold),
            scope_id=self._seat.scope_id,
            is_checkpointed=around.is_checkpointed,
            streaming=self._streaming,
            run_kwargs=self._kwargs,
            drift=self._drift,
            clock=around.clock,
            span=around.span,
            run_id=f"{self._parent.executor_id} (a workflow as agent)",
            inside_of=f"{around.run_id}/{self._parent.executor_id}",
            carried=self._carried,
            purse=around.purse.of(self._parent.home),
        )


def _untold(told: PendingEvent) -> None:
    """What it tells is the answer of the agent, or its own affair."""
