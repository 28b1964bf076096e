"""The conductor at work: what a request, a result or a failure leads to, until all who can act have their tasks."""

from __future__ import annotations

import copy
import inspect
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.agent_workflows import scheduling
from perdure.agent_workflows.conductor_dispatch import Dispatch
from perdure.agent_workflows.conductor_result import result_of
from perdure.agent_workflows.conductor_state import Acting, Book, Record, Said
from perdure.agent_workflows.conductor_telling import Telling
from perdure.agent_workflows.conductor_threads import Threads
from perdure.agent_workflows.definition import ERROR, INPUT, START, EdgeContext, TextOutput
from perdure.agent_workflows.errors import AgentWorkflowError, IterationLimitError, MissingInputError
from perdure.agent_workflows.reasons import way_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import Clock, WorkflowContext
    from perdure.agent_workflows.conversations import Conversations
    from perdure.agent_workflows.definition import Edge
    from perdure.agent_workflows.messages import NodeResult
    from perdure.agent_workflows.plan import Plan
    from perdure.agent_workflows.result import AgentWorkflowResult
    from perdure.agent_workflows.scheduling import Move, Outcome


@dataclass(frozen=True, slots=True)
class Score:
    """What a conductor leads by: the same in every handler call. `digest` is that of the edges of the plan."""

    plan: Plan
    conversations: Conversations | None
    clock: Clock
    name: str
    digest: str


class Work:
    """One handler call of the conductor. All that it keeps is in its `Book`, and closed when it returns."""

    def __init__(self, score: Score, ctx: WorkflowContext[Any, Any]) -> None:
        self._score = score
        self._plan = score.plan
        self._book = Book(ctx.scope())
        self._telling = Telling(score.plan, self._book, score.clock, ctx)
        self._threads = Threads(score.conversations, self._book, ctx)
        self._dispatch = Dispatch(
            score.plan, self._book, telling=self._telling, threads=self._threads, clock=score.clock, ctx=ctx
        )

    async def begin(self, request: Any, execution_id: str) -> AgentWorkflowResult | None:
        """Begin an execution; what it has come to, if nobody has to act. Raises RuntimeError if one is under way."""
        if self._book.is_busy:
            raise RuntimeError(
                f"execution {self._book.record.execution_id!r} is under way: answer what it asks, or let it go on "
                "without a message; give another request to a new execution"
            )
        begun_at = self._score.clock.now().isoformat()
        record = Record(self._book.execution_id or execution_id, begun_at, self._score.digest)
        self._book.open(record, request, self._plan.ways)
        await self._telling.started(self._score.name)
        await self._threads.begin()
        holding = await self._holding(START, {INPUT: request})
        return await self._carried_out(scheduling.begin(self._plan, holding))

    async def hear(self, result: NodeResult) -> AgentWorkflowResult | None:
        """Take what a node has put out; what the execution has come to, if that was the last."""
        self._require_same_plan()
        acting = self._book.acting(result.node_id)
        if acting is None or acting.visit != result.visit:
            return await self._not_awaited(result.node_id)
        if result.denied is not None:
            return await self._carried_out(await self._failed(acting, result.denied, is_denied=True))
        await self._threads.add(result)
        await self._telling.agent_completed(acting, outputs=result.outputs)
        self._forget_failure(acting.actor)
        said = Said(self._outputs(acting.node_id, result), result.text)
        return await self._carried_out(await self._ended(acting, "completed", said))

    async def hear_failure(self, actor: str, error: str) -> AgentWorkflowResult | None:
        """Take that a node has failed for good; what the execution has come to, if that was the last."""
        self._require_same_plan()
        acting = self._book.acting(actor)
        if acting is None:
            return await self._not_awaited(actor)
        return await self._carried_out(await self._failed(acting, error))

    def _require_same_plan(self) -> None:
        """Raise AgentWorkflowError if the edges are others than those that the execution has begun with."""
        if self._book.is_busy and self._book.record.digest != self._score.digest:
            changed = ", ".join(sorted(set(self._book.ways).symmetric_difference(self._plan.ways)))
            raise AgentWorkflowError(
                f"the edges of workflow {self._score.name!r} have changed since execution "
                f"{self._book.execution_id!r} has begun: {changed}; resume it with those that it has begun with, or "
                "begin anew"
            )

    async def _carried_out(self, move: Move | None) -> AgentWorkflowResult | None:
        """Carry out a move, and those that follow from it at once, until others have to act or nobody can."""
        tasks = deque[str]()
        while True:
            if move is not None:
                await self._take(move)
                tasks.extend(move.acts)
            if tasks:
                move = await self._given(tasks.popleft())
            elif self._book.progress.acting:
                self._book.close()
                return None
            else:
                move = await self._next_pass()
                if move is None:
                    return await self._finished()

    async def _take(self, move: Move) -> None:
        before = self._book.progress.iteration
        if move.progress.iteration != before:
            await self._telling.layers_completed(all_of_them=True)
        self._book.progress = move.progress
        for edge in move.taken:
            await self._telling.edge_traversed(edge, iteration=before)
        for node_id in move.skips:
            self._book.hear(node_id, None)
            self._forget_failure(node_id)
            await self._telling.agent_skipped(node_id, move.progress.skipped[node_id])
        await self._telling.layers_completed()

    async def _given(self, node_id: str) -> Move | None:
        """Give a node its task. The move if that is all: it can't be given one, or has done it before."""
        acting = Acting(node_id, node_id, since=self._score.clock.now().isoformat())
        try:
            is_given = await self._dispatch.first(node_id)
        except MissingInputError as error:
            if self._plan.node(node_id).on_error.mode == "stop":
                raise
            return await self._failed(acting, str(error))
        if is_given:
            return None
        await self._telling.agent_skipped(node_id, "its task is the same as in the pass before")
        return await self._ended(acting, "completed", self._book.said(node_id))

    async def _failed(self, acting: Acting, error: str, *, is_denied: bool = False) -> Move | None:
        """What a failure of whoever acts for a node leads to."""
        await self._telling.agent_completed(acting, error=error)
        self._book.note(failed={**self._book.record.failed, acting.actor: error})
        on_error = self._plan.node(acting.actor).on_error
        if on_error.mode == "stop":
            assert is_denied, "a node that stops all at a failure hands none on"
            return await self._halted(acting, f"{acting.actor!r} was denied: {error}")
        if on_error.mode == "isolate":
            return await self._ended(acting, "isolated", Said({ERROR: error}))
        if on_error.mode == "fallback" and self._book.progress.halted is None:
            assert on_error.fallback is not None, "it was checked"
            await self._dispatch.stand_in(acting, on_error.fallback, error)
            return None
        return await self._ended(acting, "failed", None)

    async def _ended(self, acting: Acting, outcome: Outcome, said: Said | None) -> Move:
        """Keep what a node has put out, and decide its edges."""
        node_id = acting.node_id
        before = self._book.said(node_id)
        if self._is_changed(before, said):
            self._book.note(has_changed=True)
        if before != said:
            self._book.hear(node_id, said)
        await self._dispatch.release(acting.actor)
        holding = set[str]() if said is None else await self._holding(node_id, said.outputs)
        return scheduling.ended(self._plan, self._book.progress, node_id, outcome, holding)

    async def _halted(self, acting: Acting, reason: str) -> Move:
        self._book.hear(acting.node_id, None)
        failed = (acting.node_id, *self._dispatch.give_up_waiting())
        await self._dispatch.release(acting.actor)
        return scheduling.halt(self._plan, self._book.progress, failed, reason)

    async def _next_pass(self) -> Move | None:
        """A further pass if something leads back, or what follows if the loop is left; None if all is over."""
        progress, iterations = self._book.progress, self._plan.definition.iterations
        if not progress.held:
            return None
        passes = progress.iteration + 1
        ways = ", ".join(f"{source!r} -> {target!r}" for source, target in progress.held)
        if iterations.converges and progress.iteration and not self._book.record.has_changed:
            await self._telling.diagnostic(f"the loop {ways} is left: pass {passes} has changed nothing")
            return scheduling.leave(self._plan, progress)
        if passes < iterations.limit:
            self._book.note(has_changed=False)
            return scheduling.follow(self._plan, progress)
        if iterations.then == "fail":
            raise IterationLimitError(
                f"the loop {ways} would go on after {passes} passes, and its limit is {iterations.limit}: resume the "
                "execution with a larger limit, and it goes on from here; or let the loop be left then, with "
                "with_max_iterations(..., then='leave')"
            )
        await self._telling.diagnostic(f"the loop {ways} is left: it has had {passes} passes", level="warning")
        return scheduling.leave(self._plan, progress)

    async def _finished(self) -> AgentWorkflowResult:
        result = result_of(self._plan, self._book, self._score.clock)
        if result.error is not None and self._book.progress.halted is None:
            await self._telling.diagnostic(result.error, level="warning")
        await self._telling.completed(result)
        self._book.note(is_finished=True)
        self._book.close()
        return result

    async def _holding(self, source: str, outputs: Mapping[str, Any]) -> set[str]:
        """The targets of those edges of a node whose conditions hold, asked in the order of their declaration."""
        edges = [edge for edge in self._plan.outgoing(source) if edge.is_conditional]
        return {edge.target for edge in edges if await self._holds(edge, outputs)}

    async def _holds(self, edge: Edge, outputs: Mapping[str, Any]) -> bool:
        if edge.condition is not None and not edge.condition.holds(outputs):
            return False
        if edge.predicate is None:
            return True
        # It is users' code, and might change what it is shown.
        shown = EdgeContext(edge.source, edge.target, copy.deepcopy(dict(outputs)), copy.deepcopy(self._book.request))
        try:
            answer = edge.predicate(shown)
            return bool(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            raise AgentWorkflowError(
                f"the predicate of edge {way_in_words(edge)} raised {type(error).__name__}: {error}"
            ) from error

    def _outputs(self, node_id: str, result: NodeResult) -> dict[str, Any]:
        """What a node puts out, or what who stands in for it does: with its text where the node would have its own."""
        output = self._plan.node(node_id).output
        stands_in = result.node_id != node_id
        more = {output.key: result.text} if stands_in and isinstance(output, TextOutput) else {}
        return {**result.outputs, **more}

    def _is_changed(self, before: Said | None, after: Said | None) -> bool:
        ignored = self._plan.definition.iterations.ignored_keys
        kept = [
            None if said is None else {key: value for key, value in said.outputs.items() if key not in ignored}
            for said in (before, after)
        ]
        return kept[0] != kept[1]

    def _forget_failure(self, actor: str) -> None:
        """Who has failed in an earlier pass and succeeds now has not failed. A node that another stands in for has."""
        failed = self._book.record.failed
        if actor in failed:
            self._book.note(failed={each: error for each, error in failed.items() if each != actor})

    async def _not_awaited(self, actor: str) -> None:
        """Say that something came which nobody waits for, and do nothing about it."""
        message = f"{actor!r} has put out something that it was not asked for; it is ignored"
        await self._telling.diagnostic(message, level="warning", node_id=actor)
