"""How the conductor gives nodes their tasks: what they read, what they know of their conversation, who stands in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.agent_workflows.conductor_state import Acting, Heard, Task
from perdure.agent_workflows.definition import START
from perdure.agent_workflows.inputs import Known, task_text
from perdure.agent_workflows.messages import NodeTask

if TYPE_CHECKING:
    from perdure import Clock, WorkflowContext
    from perdure.agent_workflows.conductor_state import Book
    from perdure.agent_workflows.conductor_telling import Telling
    from perdure.agent_workflows.conductor_threads import Threads
    from perdure.agent_workflows.plan import Plan


class Dispatch:
    """Gives tasks, in one handler call."""

    def __init__(
        self,
        plan: Plan,
        book: Book,
        *,
        telling: Telling,
        threads: Threads,
        clock: Clock,
        ctx: WorkflowContext[Any, Any],
    ) -> None:
        self._plan = plan
        self._book = book
        self._telling = telling
        self._threads = threads
        self._clock = clock
        self._ctx = ctx

    async def first(self, node_id: str) -> bool:
        """Give a node its task; False if it has done that very task before and need not. Raises MissingInputError."""
        task = await self._task(task_text(self._plan, node_id, self._known(node_id)), node_id)
        if self._is_done(node_id, task):
            return False
        await self._send(Acting(node_id, node_id), task)
        return True

    async def again(self, acting: Acting) -> None:
        """Give whoever acts for a node the same task once more."""
        self._book.dismiss(acting.actor)
        await self._send_again(acting)

    async def stand_in(self, failed: Acting, fallback: str, error: str) -> None:
        """Give the task of a node that has failed to its fallback; or let it wait, if that acts for another node."""
        await self.release(failed.actor)
        acting = Acting(failed.node_id, fallback, error=error)
        if self._book.acting(fallback) is None:
            await self._send_again(acting)
        else:
            self._book.note(waiting=(*self._book.record.waiting, acting))

    async def end(self, acting: Acting) -> None:
        """A node has ended: nobody asks for its task any more, but who compares it with that of the next pass."""
        await self.release(acting.actor)
        for each in dict.fromkeys((acting.node_id, acting.actor)):
            task = self._book.task(each)
            if task is not None and task.digest is None and self._book.acting(each) is None:
                self._book.take_back(each)

    async def release(self, actor: str) -> None:
        """An actor has ended: it may act for the next node that waits for it."""
        self._book.dismiss(actor)
        for waiting in self._book.record.waiting:
            if waiting.actor == actor:
                self._book.note(waiting=tuple(each for each in self._book.record.waiting if each is not waiting))
                await self._send_again(waiting)
                return

    def give_up_waiting(self) -> list[str]:
        """Let no node wait for its fallback any more: those that did."""
        waiting = [each.node_id for each in self._book.record.waiting]
        self._book.note(waiting=())
        return waiting

    async def _send_again(self, acting: Acting) -> None:
        given = self._book.task(acting.node_id)
        assert given is not None, f"node {acting.node_id!r} has failed in its task, so it was given one"
        await self._send(acting, await self._task(given.text, acting.actor))

    async def _send(self, acting: Acting, task: Task) -> None:
        past = await self._threads.past(acting.actor, but=int(task.is_in_thread))
        # It is kept whatever the policies say: they may be others when the node has ended.
        self._book.give(acting.actor, task)
        acting = replace(acting, visit=self._book.visits(acting.actor), since=self._clock.now().isoformat())
        self._book.employ(acting)
        await self._telling.agent_started(acting, task.text)
        given = NodeTask(acting.actor, acting.visit, task.text, error=acting.error, past=past)
        await self._ctx.send_message(given, target_id=acting.actor)

    def _known(self, node_id: str) -> Known:
        progress, record = self._book.progress, self._book.record
        before = {edge.source for edge in self._plan.forward_to(node_id)} - {START}
        led = {source for source in before if progress.decision(source, node_id) in {"taken", "spent"}}
        forward = self._plan.in_order(led)
        back = (source for source, target in progress.followed if target == node_id)
        # Who has failed and yet has outputs is one that another stands in for.
        failed = {each: why for each, why in record.failed.items() if self._has_nothing_to_say(each)}
        return Known(
            request=self._book.request,
            outputs=Heard(self._book, lambda said: said.outputs),
            texts=Heard(self._book, lambda said: said.text),
            taken=tuple(dict.fromkeys((*forward, *back))),
            skipped=progress.skipped,
            failed=failed,
        )

    def _has_nothing_to_say(self, node_id: str) -> bool:
        return self._book.progress.nodes.get(node_id) == "isolated" or self._book.said(node_id) is None

    async def _task(self, text: str, actor: str) -> Task:
        """A task as it is kept. Where a thread begins with the request, nobody is told that twice."""
        is_request, is_compared = self._threads.is_request(text), self._plan.definition.iterations.change_aware
        history = await self._threads.history(actor) if is_request or is_compared else ()
        last = history[-1] if history else None
        is_in_thread = is_request and last is not None and last.role == "user" and last.text == text
        if not is_compared:
            return Task(text, is_in_thread)
        said = [message.to_dict() for message in history]
        return Task(text, is_in_thread, self._ctx.approval_digest([text, said]))

    def _is_done(self, node_id: str, task: Task) -> bool:
        before = self._book.task(node_id)
        return (
            task.digest is not None
            and before is not None
            and before.digest == task.digest
            and self._book.said(node_id) is not None
            and node_id not in self._book.record.failures
        )
