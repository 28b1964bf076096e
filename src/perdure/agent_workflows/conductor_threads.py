"""The conversations of an execution, as the conductor takes part in them: each addition is a step of its handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Message
from perdure.agent_workflows.conductor_request import request_as_text

if TYPE_CHECKING:
    from perdure import WorkflowContext
    from perdure.agent_workflows.conductor_state import Book
    from perdure.agent_workflows.conversations import Conversations
    from perdure.agent_workflows.messages import NodeResult


class Threads:
    """What is read of and added to threads in one handler call; without conversations, nothing.

    A handler may be entered again from the top: what it has added it finds again, by the record of the step, or by the
    key of the addition if the process died between the two. The key of a fork is another one.
    """

    def __init__(self, conversations: Conversations | None, book: Book, ctx: WorkflowContext[Any, Any]) -> None:
        self._conversations = conversations
        self._book = book
        self._ctx = ctx

    @property
    def are_kept(self) -> bool:
        """Whether there are conversations."""
        return self._conversations is not None

    @property
    def has_request(self) -> bool:
        """Whether threads begin with the request."""
        return self._conversations is not None and self._conversations.has_root

    async def begin(self) -> None:
        """Put the request where all can see it, if there is such a place."""
        conversations, execution_id = self._conversations, self._book.record.execution_id
        if conversations is None or not conversations.has_root:
            return
        root_id, request = conversations.root_id, request_as_text(self._book.request)
        since = self._book.sequence(root_id) or 0

        async def put() -> int:
            return await conversations.begin(execution_id, request, key=self._key("request"), since=since)

        self._book.know(root_id, await self._ctx.step("conversation", put, key="request"))

    async def history(self, actor: str) -> tuple[Message, ...]:
        """What was said in the thread of a node, as far as this execution knows."""
        conversations, execution_id = self._conversations, self._book.record.execution_id
        if conversations is None:
            return ()
        thread_id = conversations.thread_id(actor)
        sequence = self._book.sequence(thread_id)
        if sequence is None:
            root = self._book.sequence(conversations.root_id) if conversations.has_root else None

            async def join() -> int:
                return await conversations.joined(execution_id, actor, root=root)

            sequence = await self._ctx.step("conversation", join, key=f"join/{thread_id}")
            self._book.know(thread_id, sequence)
        return await conversations.history(execution_id, actor, until=sequence)

    async def add(self, result: NodeResult) -> None:
        """Add what a node was given, and what it said."""
        conversations, execution_id = self._conversations, self._book.record.execution_id
        if conversations is None:
            return
        actor, task = result.node_id, self._book.task(result.node_id)
        assert task is not None, "a node in a conversation was given its task"
        asked = [] if task.is_in_thread else [Message("user", [task.text])]
        thread_id = conversations.thread_id(actor)
        since = self._book.sequence(thread_id) or 0
        name = f"{actor}/{result.visit}"

        async def append() -> int:
            messages = [*asked, *result.said]
            return await conversations.add(execution_id, actor, messages, key=self._key(name), since=since)

        if asked or result.said:
            self._book.know(thread_id, await self._ctx.step("conversation", append, key=name))

    def _key(self, name: str) -> str:
        return f"{self._book.record.execution_id}/{name}/{self._ctx.idempotency_key}"
