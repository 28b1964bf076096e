"""A workflow as agent inside of another workflow: its run is part of the run around it, and survives with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.agent_errors import AgentException
from perdure.checkpoint.record import request_event
from perdure.graph.current import current_activation
from perdure.kernel.moves import answer, begin_turn, wake
from perdure.kernel.snapshot import Limits, Snapshot
from perdure.kernel.superstep import scope_of
from perdure.moments import now, seconds_until
from perdure.runtime import kwargs as run_kwargs
from perdure.runtime.activation import ActivationRecorder
from perdure.runtime.answers import accepted
from perdure.runtime.closing import Closing
from perdure.runtime.driver import Driver
from perdure.runtime.instances import Drift, load
from perdure.runtime.journal import ChildLedger
from perdure.runtime.narration import output_events
from perdure.runtime.outside import fan_ins_of
from perdure.workflows.agent_requests import answers_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from perdure.agents.messages import Message
    from perdure.events import WorkflowEvent
    from perdure.kernel.effects import Told
    from perdure.runtime.journal import Journal
    from perdure.workflows.workflow import Workflow

_LIVE = frozenset({"output", "intermediate", "data", "request_info"})


def parent_of(workflow: Workflow) -> ActivationRecorder | None:
    """The handler call whose run keeps that of a workflow: the call of an executor that has the workflow inside."""
    found = current_activation()
    if not isinstance(found, ActivationRecorder) or found.executor.child_graph() is not workflow.graph:
        return None
    return found


class NestedRun:
    """One call on a run that is kept by the run around it."""

    def __init__(
        self,
        workflow: Workflow,
        parent: ActivationRecorder,
        *,
        kwargs: Mapping[str, Mapping[str, Any] | None],
        streaming: bool,
    ) -> None:
        self._workflow = workflow
        self._parent = parent
        self._kwargs = run_kwargs.resolved(kwargs, workflow.executors)
        self._streaming = streaming
        self._drift = Drift()
        prefix = f"{parent.home}/agent/{parent.number(f'agent {workflow.name}')}/"
        self._prefix = prefix
        found = parent.around.journal.records(parent.home)
        self._carried = {key.removeprefix(prefix): kept for key, kept in found.items() if key.startswith(prefix)}

    async def events(self, said: Sequence[Message], given: list[Message]) -> AsyncGenerator[WorkflowEvent[Any]]:
        """What the run tells until it rests: first what an earlier life has got of it."""
        around, graph = self._parent.around, self._workflow.graph
        begun = self._begun(said, given)
        journal = around.journal.under(self._prefix, self._carried)
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
        self._parent.child = _at_rest(snapshot)

    def _begun(self, said: Sequence[Message], given: list[Message]) -> Snapshot:
        around, before = self._parent.around, self._before()
        if not before.requests:
            value = around.values.fix(given, f"message of workflow {self._workflow.name!r}")
            return begin_turn(before, target_id=self._workflow.start_executor_id, value=value)
        if not said:
            raise AgentException(f"workflow {self._workflow.name!r} waits for answers, and it was given nothing")
        pending = {key: request_event(each, around.values) for key, each in before.requests.items()}
        answers = accepted(
            answers_in(said, pending),
            graph=self._workflow.graph,
            snapshot=before,
            values=around.values,
            run_id=f"{self._parent.executor_id} (a workflow as agent)",
        )
        return answer(before, answers, at=around.clock.now().isoformat())

    def _before(self) -> Snapshot:
        parent, name = self._parent, self._parent.executor_id
        return (
            parent.child or parent.around.children.get(name) or parent.around.snapshot.children.get(name) or Snapshot()
        )

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
        limits = replace(snapshot.limits, budget=around.snapshot.left)
        return Driver(
            graph=self._workflow.graph,
            snapshot=replace(snapshot, limits=limits, scope=scope_of(self._parent.home)),
            values=around.values,
            ledger=ChildLedger(journal, _untold),
            scope_id=f"{around.root_id}/{self._parent.executor_id}",
            is_checkpointed=around.is_checkpointed,
            streaming=self._streaming,
            run_kwargs=self._kwargs,
            drift=self._drift,
            clock=around.clock,
            span=around.span,
            run_id=f"{self._parent.executor_id} (a workflow as agent)",
            carried=self._carried,
            purse=around.purse.of(self._parent.home),
        )


def _untold(told: Told) -> None:
    """What it tells is the answer of the agent, or its own affair."""


def _at_rest(snapshot: Snapshot) -> Snapshot:
    """What the parent keeps. Nobody looks at deadlines inside of an agent: its requests wait for their answers."""
    requests = {key: replace(request, deadline=None) for key, request in snapshot.requests.items()}
    return replace(snapshot, limits=Limits(), scope="", requests=requests)
