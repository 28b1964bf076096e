"""Conversations of executions: the threads of nodes, what they know of them, and what is added to them.

They are stored apart from checkpoints. Each addition has its own key and is a step, so a crash adds nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from perdure import Message
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.messages import NodeResult, ThreadPosition
from perdure.agent_workflows.outputs import json_text
from perdure.threads import SessionStore, Thread, ThreadExistsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from perdure import WorkflowContext
    from perdure.agent_workflows.conductor.state import ExecutionState
    from perdure.agent_workflows.definition.values import Conversation

# The tag of an event that names the execution which added it.
_EXECUTION: Final = "execution_id"


@dataclass(frozen=True, slots=True)
class Lineage:
    """An execution and those that it is a fork of, the first one first.

    A fork has its own threads, in the session of the first execution.
    """

    execution_id: str
    forked_from: tuple[str, ...] = ()

    def thread(self, thread_id: str) -> str:
        """Return the stored id of a thread."""
        return f"{thread_id}@{self.execution_id}" if self.forked_from else thread_id

    @property
    def parent(self) -> Lineage:
        """Return the execution that this one is a fork of."""
        return Lineage(self.forked_from[-1], self.forked_from[:-1])


@dataclass(frozen=True, slots=True)
class RootRequest:
    """The request in the root thread: its event number, and the key for adding it to a thread that lacks it."""

    sequence: int
    request: str
    key: str


class Conversations:
    """The threads of a workflow, by its conversation policy."""

    def __init__(self, store: SessionStore, policy: Conversation, *, workflow_name: str) -> None:
        self._store = store
        self.policy = policy
        self._workflow_name = workflow_name

    def session_id(self, lineage: Lineage) -> str:
        """Return the session of an execution."""
        first = (*lineage.forked_from, lineage.execution_id)[0]
        return self.policy.session_id or f"workflow-{self._workflow_name}-{first}"

    @property
    def root_id(self) -> str:
        """Return the root thread, which exists."""
        assert self.policy.root_id is not None, "the policy has a root"
        return self.policy.root_id

    async def add_request(self, lineage: Lineage, request: str, *, key: str) -> int:
        """Add the request to the root once, and return its event number."""
        if lineage.forked_from:
            await self._find_thread(lineage, self.root_id)
        return await self._store.append(
            self.session_id(lineage),
            lineage.thread(self.root_id),
            [Message("user", [request])],
            key=key,
            tags=self._tags(lineage),
        )

    async def join(self, lineage: Lineage, node_id: str, *, root: RootRequest | None = None) -> int:
        """Join a node's thread and return its last event number. With a root, the thread includes the request."""
        thread_id = self.policy.thread_of(node_id)
        found = await self._find_thread(lineage, thread_id)
        if root is None:
            return 0 if found is None else found.sequence
        root_thread, session_id = lineage.thread(self.root_id), self.session_id(lineage)
        if found is None:
            try:
                found = await self._store.fork(
                    session_id, root_thread, lineage.thread(thread_id), from_message=root.sequence
                )
            except ThreadExistsError:
                # Another execution made it meanwhile; join that one.
                return await self.join(lineage, node_id, root=root)
        point = found.forked_from
        if point is not None and point.thread_id == root_thread and point.sequence >= root.sequence:
            return found.sequence  # The fork includes the request.
        return await self.add(lineage, node_id, [Message("user", [root.request])], key=root.key, since=0)

    async def _find_thread(self, lineage: Lineage, thread_id: str) -> Thread | None:
        """Return a thread that has messages. That of a fork starts with the messages before its parents' own."""
        session_id = self.session_id(lineage)
        found = await self._store.thread(session_id, lineage.thread(thread_id))
        if found is not None or not lineage.forked_from:
            return found
        executions = {*lineage.forked_from, lineage.execution_id}
        until = 0
        for event in await self._store.read(session_id, thread_id):
            if event.tags.get(_EXECUTION) in executions:
                break
            until = event.sequence
        if not until:
            return None
        return await self._store.fork(session_id, thread_id, lineage.thread(thread_id), from_message=until)

    async def fork(self, lineage: Lineage, thread_id: str, *, at: int) -> None:
        """Fork a thread of the parent execution at an event. Forking it again changes nothing."""
        if at:
            parent = lineage.parent.thread(thread_id)
            await self._store.fork(self.session_id(lineage), parent, lineage.thread(thread_id), from_message=at)

    def position(self, lineage: Lineage, node_id: str, *, until: int) -> ThreadPosition | None:
        """Return a position in a node's thread; None if there is nothing before it."""
        if not until:
            return None
        return ThreadPosition(self.session_id(lineage), lineage.thread(self.policy.thread_of(node_id)), until)

    async def messages(self, position: ThreadPosition) -> tuple[Message, ...]:
        """Return the messages up to a position. Raises AgentWorkflowError if some are gone."""
        messages = await self._store.messages(position.session_id, position.thread_id, until=position.until)
        if len(messages) != position.until:
            raise AgentWorkflowError(
                f"thread {position.thread_id!r} of session {position.session_id!r} had {position.until} events when a "
                f"node was given its task, and {len(messages)} of them are there: give the workflow the session store "
                "that it had, or begin a new execution"
            )
        return tuple(messages)

    async def add(self, lineage: Lineage, node_id: str, messages: Sequence[Message], *, key: str, since: int) -> int:
        """Add messages to a node's thread once, and return the last event number."""
        return await self._store.append(
            self.session_id(lineage),
            lineage.thread(self.policy.thread_of(node_id)),
            list(messages),
            key=key,
            since=since,
            tags={**self._tags(lineage), "node_id": node_id},
        )

    def _tags(self, lineage: Lineage) -> dict[str, str]:
        return {"workflow_name": self._workflow_name, _EXECUTION: lineage.execution_id}


class ExecutionThreads:
    """The threads of an execution during a handler call; without conversations it does nothing.

    A handler may be re-entered from the top. It finds its additions by the record of the step, or by their key if the
    process died between the addition and the record.
    """

    def __init__(
        self, conversations: Conversations | None, state: ExecutionState, ctx: WorkflowContext[Any, Any]
    ) -> None:
        self._conversations = conversations
        self._state = state
        self._ctx = ctx
        self._messages: dict[ThreadPosition, tuple[Message, ...]] = {}

    def is_request(self, text: str) -> bool:
        """Return True if threads start with the request, and this is it."""
        has_root = self._conversations is not None and self._conversations.policy.root_id is not None
        return has_root and text == request_text(self._state.request)

    async def adopt_fork(self) -> None:
        """In a fork of an execution, switch to threads of its own."""
        conversations, record = self._conversations, self._state.record
        if record.execution_id == self._ctx.run_id:
            return
        self._state.update(execution_id=self._ctx.run_id, forked_from=(*record.forked_from, record.execution_id))
        if conversations is not None:
            for thread_id, sequence in self._state.threads.items():
                # No step: forking again changes nothing.
                await conversations.fork(self._lineage, thread_id, at=sequence)

    async def begin(self) -> None:
        """Put the request into the root thread, if the policy has one."""
        if self._conversations is not None and self._conversations.policy.root_id is not None:
            await self._root(self._conversations)

    async def history(self, actor: str) -> tuple[Message, ...]:
        """Return the messages of an actor's thread that this execution knows."""
        position = await self.position(actor)
        if self._conversations is None or position is None:
            return ()
        if position not in self._messages:
            # Nodes that start together may share a thread, which is read once for all of them.
            self._messages[position] = await self._conversations.messages(position)
        return self._messages[position]

    async def position(self, actor: str, *, without_last: int = 0) -> ThreadPosition | None:
        """Return the position after the known messages of an actor's thread, without the last ones."""
        if self._conversations is None:
            return None
        until = await self._joined(self._conversations, actor)
        return self._conversations.position(self._lineage, actor, until=max(until - without_last, 0))

    async def add(self, result: NodeResult) -> None:
        """Add the task and the messages of a node to its thread."""
        conversations = self._conversations
        if conversations is None:
            return
        actor, lineage, thread_id = result.node_id, self._lineage, conversations.policy.thread_of(result.node_id)
        has_joined = thread_id in self._state.threads
        since = await self._joined(conversations, actor)
        name = f"{actor}/{result.visit}"
        messages = [*self._task_messages(actor, has_joined=has_joined), *result.said]

        async def add() -> int:
            return await conversations.add(lineage, actor, messages, key=self._key(name), since=since)

        if messages:
            await self._step(name, thread_id, add)

    def _task_messages(self, actor: str, *, has_joined: bool) -> list[Message]:
        """Return the task of a node as a message, unless its thread has it.

        A node that got its task before there were conversations joins now, and its thread starts with the request.
        """
        task = self._state.tasks.get(actor)
        if task is None:
            return []
        is_in_thread = task.is_in_thread if has_joined else self.is_request(task.text)
        return [] if is_in_thread else [Message("user", [task.text])]

    async def _root(self, conversations: Conversations) -> RootRequest:
        """Return the request in the root. It is added if the execution began before there was a root."""
        lineage, request = self._lineage, request_text(self._state.request)
        sequence = self._state.threads.get(conversations.root_id)
        if sequence is None:

            async def add() -> int:
                return await conversations.add_request(lineage, request, key=self._key("request"))

            sequence = await self._step("request", conversations.root_id, add)
        return RootRequest(sequence, request, "")

    async def _joined(self, conversations: Conversations, actor: str) -> int:
        """Return the last event number of an actor's thread that this execution knows."""
        lineage, thread_id = self._lineage, conversations.policy.thread_of(actor)
        sequence = self._state.threads.get(thread_id)
        if sequence is None:
            root = await self._root(conversations) if conversations.policy.root_id is not None else None
            root = None if root is None else replace(root, key=self._key(f"request/{thread_id}"))

            async def join() -> int:
                return await conversations.join(lineage, actor, root=root)

            sequence = await self._step(f"join/{thread_id}", thread_id, join)
        return sequence

    async def _step(self, key: str, thread_id: str, work: Callable[[], Awaitable[int]]) -> int:
        """Change a thread in a step. Record and return its last event number.

        `work` takes no arguments, not even bound ones: the step's record has a digest of them.
        """
        sequence = await self._ctx.step("conversation", work, key=key)
        self._state.threads.set(thread_id, sequence)
        return sequence

    @property
    def _lineage(self) -> Lineage:
        return Lineage(self._state.record.execution_id, self._state.record.forked_from)

    def _key(self, name: str) -> str:
        return f"{self._state.record.execution_id}/{name}/{self._ctx.idempotency_key}"


def request_text(request: Any) -> str:
    """Return a request as a text; a dict as JSON."""
    return request if isinstance(request, str) else json_text(request)
