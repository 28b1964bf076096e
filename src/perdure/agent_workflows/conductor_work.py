"""The conductor at work: what a request, a result or a failure leads to, until all who can act have their tasks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from perdure.agent_workflows import scheduling
from perdure.agent_workflows.checking import CONDUCTOR
from perdure.agent_workflows.conductor_dispatch import Dispatch
from perdure.agent_workflows.conductor_edges import changes_in, holding
from perdure.agent_workflows.conductor_loops import Loops
from perdure.agent_workflows.conductor_result import result_of
from perdure.agent_workflows.conductor_state import Acting, Book, Record, Said
from perdure.agent_workflows.conductor_telling import Telling
from perdure.agent_workflows.conductor_threads import Threads
from perdure.agent_workflows.definition import ERROR, INPUT, START, TextOutput
from perdure.agent_workflows.errors import AgentWorkflowError, IterationLimitError, MissingInputError
from perdure.agent_workflows.events import UNCHANGED
from perdure.agent_workflows.messages import GoOn
from perdure.agent_workflows.reasons import denied_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure import WorkflowContext
    from perdure.agent_workflows.conductor_score import Score
    from perdure.agent_workflows.messages import NodeResult
    from perdure.agent_workflows.result import AgentWorkflowResult
    from perdure.agent_workflows.scheduling import Move, Outcome


class Work:
    """One handler call of the conductor. All that it keeps is in its `Book`, and closed when it returns."""

    def __init__(self, score: Score, ctx: WorkflowContext[Any, Any]) -> None:
        self._score = score
        self._plan = score.plan
        self._ctx = ctx
        self._book = Book(ctx.scope())
        self._telling = Telling(score.plan, self._book, score.clock, ctx)
        self._loops = Loops(score.plan, self._book, self._telling)
        self._threads = Threads(score.conversations, self._book, ctx)
        self._dispatch = Dispatch(
            score.plan, self._book, telling=self._telling, threads=self._threads, clock=score.clock, ctx=ctx
        )
        self._may_fail = False
        """Whether nothing has happened in this call yet that would be lost if it failed."""

    async def begin(self, request: Any) -> AgentWorkflowResult | None:
        """Begin an execution; what it has come to, if nobody has to act. Raises RuntimeError if one is under way."""
        if self._book.is_busy:
            raise RuntimeError(
                f"execution {self._book.record.execution_id!r} is under way: answer what it asks, or let it go on "
                "without a message; give another request to a new execution"
            )
        score, on_begin = self._score, self._score.on_begin
        version = None if on_begin is None else await self._ctx.step("definition", on_begin, key="definition")
        forked_from = await self._moved()
        record = Record(
            self._ctx.run_id, score.clock.now().isoformat(), score.digest, score.terms_digest, forked_from=forked_from
        )
        self._book.open(record, request, ways=self._plan.ways, terms=score.terms)
        await self._telling.started(score.name, version)
        await self._threads.begin()
        held = await holding(self._plan, START, {INPUT: request}, request)
        return await self._carried_out(scheduling.begin(self._plan, held))

    async def hear(self, result: NodeResult) -> AgentWorkflowResult | None:
        """Take what a node has put out; what the execution has come to, if that was the last."""
        acting = self._book.acting(result.node_id)
        if acting is None or acting.visit != result.visit:
            return await self._not_awaited(result.node_id)
        await self._resume()
        if result.denied is not None:
            return await self._carried_out(await self._failed(acting, result.denied, is_denied=True))
        await self._threads.add(result)
        await self._telling.agent_completed(acting, outputs=result.outputs)
        self._book.succeed(acting)
        said = Said(self._outputs(acting.node_id, result), result.text)
        return await self._carried_out(await self._ended(acting, "completed", said))

    async def hear_failure(self, actor: str, error: str) -> AgentWorkflowResult | None:
        """Take that a node has failed for good; what the execution has come to, if that was the last."""
        acting = self._book.acting(actor)
        if acting is None:
            return await self._not_awaited(actor)
        await self._resume()
        return await self._carried_out(await self._failed(acting, error))

    async def go_on(self) -> AgentWorkflowResult | None:
        """Do what may fail, now that all before it is kept. Raises MissingInputError, IterationLimitError."""
        await self._resume()
        unread = self._book.record.unread
        self._book.note(is_called=False, unread={})
        halted = self._book.progress.halted
        if halted is not None:
            for node_id, error in unread.items():
                self._book.fail(Acting(node_id, node_id), error)
            return await self._carried_out(scheduling.halt(self._plan, self._book.progress, unread, halted))
        self._may_fail = True
        return await self._carried_out(None, unread)

    async def _moved(self) -> tuple[str, ...]:
        """In a fork, be an execution of its own; those that it comes from."""
        if not self._book.has_begun:
            # Nobody but the store knows of a fork that was made before the execution has begun.
            origins = self._score.origins
            return () if origins is None else await origins(self._ctx.run_id)
        await self._threads.move()
        return self._book.record.forked_from

    async def _resume(self) -> None:
        """Go on in what may be another life, another program, a fork. Raises AgentWorkflowError if it can't."""
        await self._threads.move()
        record, score = self._book.record, self._score
        if record.digest != score.digest:
            changed = ", ".join(sorted(set(self._book.ways).symmetric_difference(self._plan.ways)))
            raise AgentWorkflowError(
                f"the edges of workflow {score.name!r} have changed since execution {record.execution_id!r} has begun: "
                f"{changed}; resume it with those that it has begun with, or begin anew"
            )
        if record.terms != score.terms_digest:
            changed = changes_in(self._book.terms, score.terms)
            message = f"conditions have changed since the execution was last at work: {changed}"
            await self._telling.diagnostic(f"{message}; what was decided before stays so", level="warning")
            self._book.agree(score.terms_digest, score.terms)

    async def _carried_out(self, move: Move | None, unread: Iterable[str] = ()) -> AgentWorkflowResult | None:
        """Carry out a move, and those that follow from it at once, until others have to act or nobody can."""
        tasks = deque(unread)
        while True:
            if move is not None:
                await self._take(move)
                tasks.extend(move.acts)
            if tasks:
                move = await self._given(tasks.popleft())
                continue
            move = await self._next_pass()
            if move is None:
                break
        if self._book.progress.acting or self._book.record.is_called:
            self._book.close()
            return None
        return await self._finished()

    async def _take(self, move: Move) -> None:
        self._may_fail = False
        before = self._book.progress
        if move.progress.passes != before.passes:
            await self._telling.layers_completed(is_pass_over=True)
        self._book.progress = move.progress
        for edge in move.taken:
            await self._telling.edge_traversed(edge, before=before)
        for node_id in move.skips:
            self._book.hear(node_id, None)
            self._book.forgive(node_id)
            await self._telling.agent_skipped(node_id, move.progress.skipped[node_id])
        await self._telling.layers_completed()

    async def _given(self, node_id: str) -> Move | None:
        """Give a node its task. The move if that is all: it can't be given one, or has done it before."""
        acting = Acting(node_id, node_id, since=self._score.clock.now().isoformat())
        try:
            is_given = await self._dispatch.first(node_id)
        except MissingInputError as error:
            if self._plan.node(node_id).on_error.mode in {"skip_dependents", "isolate"}:
                return await self._failed(acting, str(error))
            # There is no task that another could be given: it would have to make up what the node should have read.
            if self._may_fail:
                raise
            await self._telling.agent_completed(acting, error=str(error))
            self._book.note(unread={**self._book.record.unread, node_id: str(error)})
            return await self._call_oneself()
        self._may_fail = False
        if is_given:
            return None
        await self._telling.agent_skipped(node_id, UNCHANGED)
        return await self._ended(acting, "completed", self._book.said(node_id))

    async def _call_oneself(self) -> None:
        """Go on in a superstep of its own: what was heard before is kept then, and not lost in a failure."""
        if not self._book.record.is_called:
            self._book.note(is_called=True)
            await self._ctx.send_message(GoOn(), target_id=CONDUCTOR)

    async def _failed(self, acting: Acting, error: str, *, is_denied: bool = False) -> Move | None:
        """What a failure of whoever acts for a node leads to."""
        self._may_fail = False
        await self._telling.agent_completed(acting, error=error)
        on_error = self._plan.node(acting.actor).on_error
        if on_error.mode == "stop" and not is_denied:
            # It has failed under another policy, in another life. By this one, a resume tries it again.
            await self._dispatch.again(acting)
            return None
        self._book.fail(acting, error)
        denied = denied_in_words(acting.actor, error) if is_denied else None
        if on_error.mode == "stop":
            assert denied is not None, "what else stops an execution is tried again"
            return await self._halted(acting, denied)
        if on_error.mode == "isolate":
            return await self._ended(acting, "isolated", Said({ERROR: error}))
        if on_error.mode == "fallback" and self._book.progress.halted is None:
            assert on_error.fallback is not None, "it was checked"
            await self._dispatch.stand_in(acting, on_error.fallback, error)
            return None
        return await self._ended(acting, "failed", None, denied=denied)

    async def _ended(self, acting: Acting, outcome: Outcome, said: Said | None, *, denied: str | None = None) -> Move:
        """Keep what a node has put out, and decide its edges."""
        node_id = acting.node_id
        before = self._book.said(node_id)
        if self._is_changed(before, said):
            self._loops.note_change(node_id)
        if before != said:
            self._book.hear(node_id, said)
        await self._dispatch.end(acting)
        held = set[str]() if said is None else await self._holding(node_id, said)
        return scheduling.ended(self._plan, self._book.progress, node_id, outcome, held, denied=denied)

    async def _holding(self, node_id: str, said: Said) -> set[str]:
        return await holding(self._plan, node_id, said.outputs, self._book.request)

    async def _halted(self, acting: Acting, reason: str) -> Move:
        self._book.hear(acting.node_id, None)
        failed = (acting.node_id, *self._dispatch.give_up_waiting())
        await self._dispatch.end(acting)
        move = scheduling.halt(self._plan, self._book.progress, failed, reason)
        others = ", ".join(map(repr, self._plan.in_order(move.progress.acting)))
        if others:
            message = f"{reason}; nobody else begins, and the execution ends once {others} has: answer what is asked"
            await self._telling.diagnostic(message, level="warning", node_id=acting.node_id)
        return move

    async def _next_pass(self) -> Move | None:
        """A further pass of a loop if something leads back, or what follows if it is left; None if there is neither."""
        for loop, ways in scheduling.quiet_loops(self._plan, self._book.progress):
            try:
                return await self._loops.turned(loop, ways)
            except IterationLimitError:
                if self._may_fail:
                    raise
                await self._call_oneself()
        return None

    async def _finished(self) -> AgentWorkflowResult:
        result = result_of(self._plan, self._book, self._score.clock)
        if result.error is not None and self._book.progress.halted is None:
            await self._telling.diagnostic(result.error, level="warning")
        await self._telling.completed(result)
        self._book.note(is_finished=True)
        self._book.close()
        return result

    def _outputs(self, node_id: str, result: NodeResult) -> dict[str, Any]:
        """What a node puts out, or what who stands in for it does: with its text where the node would have its own."""
        output = self._plan.node(node_id).output
        stands_in = result.node_id != node_id
        more = {output.key: result.text} if stands_in and isinstance(output, TextOutput) else {}
        return {**result.outputs, **more}

    def _is_changed(self, before: Said | None, after: Said | None) -> bool:
        ignored = self._plan.definition.iterations.ignored_keys
        kept = [None if said is None else said.without(ignored) for said in (before, after)]
        return kept[0] != kept[1]

    async def _not_awaited(self, actor: str) -> None:
        """Say that something came which nobody waits for, and do nothing about it."""
        message = f"{actor!r} has put out something that it was not asked for; it is ignored"
        await self._telling.diagnostic(message, level="warning", node_id=actor)
