"""A workflow agent inside another run: the enclosing run's journal keeps its run."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perdure import engine
from perdure.checkpoint import request_event
from perdure.clock import now, seconds_until
from perdure.errors import AgentException
from perdure.kernel import Limits, Snapshot, answer, begin_turn, wake
from perdure.workflows.as_agent.translation import RESPONSE_EVENTS, TurnInput, find_answers
from perdure.workflows.sub import ChildRun, records_under

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from perdure.events import WorkflowEvent
    from perdure.workflows.as_agent.agent import AgentCall

logger = logging.getLogger(__name__)


class NestedRun:
    """One call on the run of an executor that contains the workflow: its child run, which a checkpoint includes."""

    def __init__(self, call: AgentCall, parent: engine.ActivationRecorder) -> None:
        self._call = call
        self._parent = parent
        self._workflow = call.workflow
        self._name = f"{parent.executor_id} (a workflow as agent)"
        self._prefix, self._root_id = self._identify()
        self._left = Snapshot()

    def _identify(self) -> tuple[str, str]:
        """Return the prefix of the call's records, and the scope from which ids inside are derived."""
        parent = self._parent
        number = parent.number(f"agent {self._workflow.name}")
        return f"{parent.activation_id}/agent/{number}/", f"{parent.context.root_id}/{parent.executor_id}"

    async def load(self) -> Snapshot:
        """Return the run before the call, with the executors' states loaded."""
        name, context = self._parent.executor_id, self._parent.context
        return self._parent.child or context.children.get(name) or context.snapshot.children.get(name) or Snapshot()

    def store(self, snapshot: Snapshot) -> None:
        """Store the run after the call."""
        self._parent.child = _without_limits(snapshot)
        self._parent.asked_inside = dict(snapshot.requests)

    async def events(self, given: TurnInput) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Yield the run's events until it is idle, starting with those of an earlier attempt."""
        call, context, graph = self._call, self._parent.context, self._workflow.graph
        child = ChildRun(
            graph,
            self._parent,
            prefix=self._prefix,
            root_id=self._root_id,
            name=self._name,
            run_kwargs=engine.resolve_kwargs(call.kwargs, self._workflow.executors),
            tools=call.tools,
            streaming=call.streaming,
            emit=lambda _: None,  # the response has what counts
            changes=engine.ChangeDetector(),
        )
        before = await self.load()
        begun = self._begin(before, given, call.position.heard)
        snapshot = await child.resume() or begun
        values, new = context.values, list(snapshot.outputs)[len(begun.outputs) :]
        for event in engine.output_events(new, values, in_pieces=call.streaming):
            yield event
        for key, request in snapshot.requests.items():
            if key not in begun.requests:
                yield request_event(request, values)
        while True:
            loop = child.loop(snapshot)
            async with engine.Closing(loop.run()) as batches:
                async for events in batches:
                    for event in events:
                        if event.type in RESPONSE_EVENTS:
                            yield event
            snapshot = loop.snapshot
            if snapshot.next_timer is None:
                break
            # The caller waits for the response, and it is not complete before this timer.
            await context.clock.sleep(seconds_until(context.clock, snapshot.next_timer))
            snapshot = wake(snapshot, now=now(context.clock), fan_ins=engine.fan_ins_of(graph))
        self._parent.spend(snapshot.limits.spent)
        self._left = snapshot
        self.store(snapshot)
        if not before.requests:
            call.position.heard = dict(given.counts)
            call.position.store(call.state)

    def pending(self) -> list[WorkflowEvent[Any]]:
        """Return the open requests."""
        return [request_event(each, self._parent.context.values) for each in self._left.requests.values()]

    def _begin(self, before: Snapshot, given: TurnInput, heard: Mapping[str, int]) -> Snapshot:
        context, name = self._parent.context, self._workflow.name
        if not before.requests:
            messages = given.since(heard if before.turn else {})
            value = context.values.fix(messages, f"message of workflow {name!r}")
            return begin_turn(before, target_id=self._workflow.start_executor_id, value=value)
        if not given.said:
            raise AgentException(f"workflow {name!r} waits for answers, but got no message")
        pending = {key: request_event(each, context.values) for key, each in before.requests.items()}
        answers = engine.accepted(
            find_answers(given.said, pending, seen=self._call.position.asked),
            graph=self._workflow.graph,
            snapshot=before,
            values=context.values,
            run_id=self._name,
        )
        return answer(before, answers, at=context.clock.now().isoformat())


class HandlerRun(NestedRun):
    """One call on a run of a handler that knows nothing of it: the call is recorded, the process keeps the run.

    A workflow with its own storage has a run that outlives the handler call.
    """

    def __init__(self, call: AgentCall, parent: engine.ActivationRecorder) -> None:
        super().__init__(call, parent)
        parent.context.values.trust_more(self._workflow.blueprint.trust)

    def _identify(self) -> tuple[str, str]:
        parent, turn, step = self._parent, self._call.turn, self._parent.running_step
        path = parent.activation_id if step is None else step.place
        prefix = f"{path}/agent/{quote(turn.key, safe='')}.{turn.number}/"
        return prefix, f"{parent.context.root_id}/{prefix}"

    async def load(self) -> Snapshot:
        """Return the run as the previous call left it, or as an earlier attempt of this call found it."""
        origin = self._journal("origin/")
        found = origin.child() or self._kept_run()
        if found is None:
            context, blueprint = self._parent.context, self._workflow.blueprint
            if not context.is_checkpointed:
                return Snapshot()
            # The new run begins with the states that the executors had before any run.
            return await engine.with_initial_states(
                self._workflow.graph, blueprint.executors(), Snapshot(), context.values
            )
        await engine.load(self._workflow.graph, found, self._parent.context.values)
        # Recorded first, because the turn's number is part of the names of the inner records.
        origin.record_child_soon(found, ())
        await origin.settle()
        return found

    def _kept_run(self) -> Snapshot | None:
        run_id = self._call.position.run_id
        found = None if run_id is None else self._call.memory.left_runs.get(run_id)
        if found is not None or run_id is None or self._journal().child() is not None:
            return found
        if self._call.position.is_open:
            raise AgentException(
                f"the run of this session waits for answers, but it is not in this process; a workflow agent that is "
                f"called in a handler, here of executor {self._parent.executor_id!r}, needs its own storage to outlive "
                "the handler call"
            )
        logger.warning("run %r of this session is not in this process; a new run gets the conversation", run_id)
        return None

    def store(self, snapshot: Snapshot) -> None:
        """Store the run's position in the session."""
        run_id = self._call.position.run_id or hashlib.blake2b(self._root_id.encode(), digest_size=16).hexdigest()
        self._call.memory.left_runs[run_id] = _without_limits(snapshot)
        self._call.position.advance(run_id, None, snapshot)

    def restore(self) -> None:
        """Restore the run from the record of an earlier attempt."""
        run_id, left = self._call.position.run_id, self._journal().child()
        if run_id is not None and left is not None:
            self._call.memory.left_runs[run_id] = _without_limits(left)

    def _journal(self, name: str = "") -> engine.Journal:
        prefix = f"{self._prefix}{name}"
        return self._parent.context.journal.under(prefix, records_under(self._parent, prefix))


def _without_limits(snapshot: Snapshot) -> Snapshot:
    """Return the run as it is stored. Deadlines inside an agent are watched by whoever asks its questions outside."""
    requests = {key: replace(request, deadline=None) for key, request in snapshot.requests.items()}
    return replace(snapshot, limits=Limits(), scope="", requests=requests)
