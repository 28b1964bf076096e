"""The conversations of an execution, as the conductor takes part in them: each addition is a step of its handler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure import Message
from perdure.agent_workflows.conductor_request import request_as_text
from perdure.agent_workflows.conversations import Asked, Course

if TYPE_CHECKING:
    from perdure import WorkflowContext
    from perdure.agent_workflows.conductor_state import Book
    from perdure.agent_workflows.conversations import Conversations
    from perdure.agent_workflows.messages import NodeResult, Past


class Threads:
    """What is read of and added to threads in one handler call; without conversations, nothing.

    A handler may be entered again from the top: what it has added it finds again, by the record of the step, or by the
    key of the addition if the process died between the two. The key of a fork is another one.
    """

    def __init__(self, conversations: Conversations | None, book: Book, ctx: WorkflowContext[Any, Any]) -> None:
        self._conversations = conversations
        self._book = book
        self._ctx = ctx
        self._read: dict[Past, tuple[Message, ...]] = {}

    def is_request(self, text: str) -> bool:
        """Whether threads begin with the request, and this is it."""
        has_root = self._conversations is not None and self._conversations.has_root
        return has_root and text == request_as_text(self._book.request)

    async def move(self) -> None:
        """In a fork of an execution, go on in threads of its own: nobody hears what the other one says from here on."""
        conversations, record = self._conversations, self._book.record
        if record.execution_id == self._ctx.run_id:
            return
        self._book.note(execution_id=self._ctx.run_id, forked_from=(*record.forked_from, record.execution_id))
        if conversations is not None:
            course = self._course
            for thread_id in self._book.threads():
                # To fork the same again changes nothing, so it needs no record.
                await conversations.fork(course, thread_id, at=self._book.sequence(thread_id) or 0)

    async def begin(self) -> None:
        """Put the request where all can see it, if there is such a place."""
        if self._conversations is not None and self._conversations.has_root:
            await self._root(self._conversations)

    async def history(self, actor: str) -> tuple[Message, ...]:
        """What was said in the thread of a node, as far as this execution knows."""
        past = await self.past(actor)
        if self._conversations is None or past is None:
            return ()
        if past not in self._read:
            # Nodes that begin together may speak in one thread, which is read once for all of them.
            self._read[past] = await self._conversations.said(past)
        return self._read[past]

    async def past(self, actor: str, *, but: int = 0) -> Past | None:
        """Where that stands, `but` for the last so many messages. Nothing is read for it."""
        if self._conversations is None:
            return None
        until = await self._joined(self._conversations, actor)
        return self._conversations.past(self._course, actor, until=max(until - but, 0))

    async def add(self, result: NodeResult) -> None:
        """Add what a node was given, and what it said."""
        conversations = self._conversations
        if conversations is None:
            return
        actor, course, thread_id = result.node_id, self._course, conversations.thread_id(result.node_id)
        has_joined = self._book.sequence(thread_id) is not None
        since = await self._joined(conversations, actor)
        name = f"{actor}/{result.visit}"
        messages = [*self._asked(actor, has_joined=has_joined), *result.said]

        async def append() -> int:
            return await conversations.add(course, actor, messages, key=self._key(name), since=since)

        if messages:
            self._book.know(thread_id, await self._ctx.step("conversation", append, key=name))

    def _asked(self, actor: str, *, has_joined: bool) -> list[Message]:
        """The task of a node, if its thread does not have it.

        One that was given its task when there were no conversations joins now, and so the request is told already.
        """
        task = self._book.task(actor)
        if task is None:
            return []
        is_told = task.is_in_thread if has_joined else self.is_request(task.text)
        return [] if is_told else [Message("user", [task.text])]

    async def _root(self, conversations: Conversations) -> Asked:
        """Where the request is in the root. It is added if an execution began before there was one."""
        course, request = self._course, request_as_text(self._book.request)
        sequence = self._book.sequence(conversations.root_id)
        if sequence is None:

            async def put() -> int:
                return await conversations.begin(course, request, key=self._key("request"))

            sequence = await self._ctx.step("conversation", put, key="request")
            self._book.know(conversations.root_id, sequence)
        return Asked(sequence, request, "")

    async def _joined(self, conversations: Conversations, actor: str) -> int:
        """The number of the last event in the thread of a node that this execution knows."""
        course, thread_id = self._course, conversations.thread_id(actor)
        sequence = self._book.sequence(thread_id)
        if sequence is None:
            root = await self._root(conversations) if conversations.has_root else None
            asked = None if root is None else replace(root, key=self._key(f"request/{thread_id}"))

            async def join() -> int:
                return await conversations.joined(course, actor, asked=asked)

            sequence = await self._ctx.step("conversation", join, key=f"join/{thread_id}")
            self._book.know(thread_id, sequence)
        return sequence

    @property
    def _course(self) -> Course:
        return Course(self._book.record.execution_id, self._book.record.forked_from)

    def _key(self, name: str) -> str:
        return f"{self._book.record.execution_id}/{name}/{self._ctx.idempotency_key}"
