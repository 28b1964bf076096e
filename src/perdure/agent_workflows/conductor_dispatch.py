"""How the conductor gives nodes their tasks: what they read, what they know of their conversation, who stands in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.agent_workflows.conductor_request import request_as_text
from perdure.agent_workflows.conductor_state import Acting, Heard, Task
from perdure.agent_workflows.inputs import Known, task_text
from perdure.agent_workflows.messages import NodeTask

if TYPE_CHECKING:
    from perdure import Clock, Message, WorkflowContext
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
        text = task_text(self._plan, node_id, self._known(node_id))
        history = await self._threads.history(node_id)
        task = self._task(text, history)
        if self._is_done(node_id, task):
            return False
        await self._send(Acting(node_id, node_id), task, history)
        return True

    async def stand_in(self, failed: Acting, fallback: str, error: str) -> None:
        """Give the task of a node that has failed to its fallback; or let it wait, if that acts for another node."""
        await self.release(failed.actor)
        acting = Acting(failed.node_id, fallback, error=error)
        if self._book.acting(fallback) is None:
            await self._send_again(acting)
        else:
            self._book.note(waiting=(*self._book.record.waiting, acting))

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
        # Without a task the node has failed since there was nothing to read: the error is all that there is to tell.
        text = "" if given is None else given.text
        history = await self._threads.history(acting.actor)
        await self._send(acting, self._task(text, history), history)

    async def _send(self, acting: Acting, task: Task, history: tuple[Message, ...]) -> None:
        self._keep(acting.actor, task)
        acting = replace(acting, visit=self._book.visits(acting.actor), since=self._clock.now().isoformat())
        self._book.employ(acting)
        await self._telling.agent_started(acting, task.text)
        known = history[:-1] if task.is_in_thread else history
        given = NodeTask(acting.actor, acting.visit, task.text, known, acting.error)
        await self._ctx.send_message(given, target_id=acting.actor)

    def _known(self, node_id: str) -> Known:
        progress, record = self._book.progress, self._book.record
        before = (edge.source for edge in self._plan.forward_to(node_id))
        forward = (source for source in before if progress.decision(source, node_id) == "taken")
        back = (source for source, target in progress.followed if target == node_id)
        # Who has failed and yet has outputs is one that another stands in for.
        failed = {each: f"it has failed: {why}" for each, why in record.failed.items() if not self._book.said(each)}
        return Known(
            request=self._book.request,
            outputs=Heard(self._book, lambda said: said.outputs),
            texts=Heard(self._book, lambda said: said.text),
            taken=tuple(dict.fromkeys((*forward, *back))),
            skipped={**failed, **progress.skipped},
        )

    def _task(self, text: str, history: tuple[Message, ...]) -> Task:
        """A task as it is kept. Where a thread begins with the request, nobody is told that twice."""
        last = history[-1] if history else None
        is_in_thread = (
            self._threads.has_request
            and last is not None
            and last.role == "user"
            and last.text == text == request_as_text(self._book.request)
        )
        if not self._plan.definition.iterations.change_aware:
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
            and node_id not in self._book.record.failed
        )

    def _keep(self, actor: str, task: Task) -> None:
        """Keep a task for whoever needs it later: a fallback, the conversation, the next pass."""
        has_fallback = self._plan.node(actor).on_error.mode == "fallback"
        if has_fallback or self._threads.are_kept or task.digest is not None:
            self._book.give(actor, task)
