"""Conversations of executions: the threads of nodes, what they know of them, and what is added to them.

They are stored apart from checkpoints. Each addition has its own key and is a step, so a crash adds nothing twice.
"""

from __future__ import annotations

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


class Conversations:
    """The threads of a workflow: where they are stored, and its conversation policy."""

    def __init__(self, store: SessionStore, policy: Conversation, *, workflow_name: str) -> None:
        self.store = store
        self.policy = policy
        self.workflow_name = workflow_name

    async def messages(self, position: ThreadPosition) -> tuple[Message, ...]:
        """Return the messages up to a position. Raises AgentWorkflowError if some are gone."""
        messages = await self.store.messages(position.session_id, position.thread_id, until=position.until)
        if len(messages) != position.until:
            raise AgentWorkflowError(
                f"thread {position.thread_id!r} of session {position.session_id!r} had {position.until} events when a "
                f"node was given its task, and {len(messages)} of them are there: give the workflow the session store "
                "that it had, or begin a new execution"
            )
        return tuple(messages)


class ExecutionThreads:
    """The threads of an execution during a handler call; without conversations it does nothing.

    A fork of an execution has its own threads, in the session of the first execution. A handler may be re-entered from
    the top. It finds its additions by the record of the step, or by their key if the process died between the addition
    and the record.
    """

    def __init__(
        self, conversations: Conversations | None, state: ExecutionState, ctx: WorkflowContext[Any, Any]
    ) -> None:
        self._conversations = conversations
        self._state = state
        self._ctx = ctx
        self._messages: dict[ThreadPosition, tuple[Message, ...]] = {}

    @property
    def _active(self) -> Conversations:
        assert self._conversations is not None, "callers check it"
        return self._conversations

    @property
    def _root_id(self) -> str | None:
        """Return the thread that has the request, if the other threads are forks of one."""
        return None if self._conversations is None else self._conversations.policy.root_id

    @property
    def _executions(self) -> tuple[str, ...]:
        """Return the executions that this one is a fork of, the first one first, and this one."""
        return (*self._state.record.forked_from, self._state.record.execution_id)

    @property
    def _session_id(self) -> str:
        return self._active.policy.session_id or f"workflow-{self._active.workflow_name}-{self._executions[0]}"

    def is_request(self, text: str) -> bool:
        """Return True if threads start with the request, and this is it."""
        return self._root_id is not None and text == request_text(self._state.request)

    async def adopt_fork(self) -> None:
        """In a fork of an execution, switch to threads of its own."""
        parent = self._executions
        if parent[-1] == self._ctx.run_id:
            return
        self._state.update(execution_id=self._ctx.run_id, forked_from=parent)
        for thread_id, sequence in self._state.threads.items() if self._conversations is not None else ():
            if sequence:
                # No step: forking again changes nothing.
                await self._fork(_stored_id(thread_id, parent), thread_id, at=sequence)

    async def begin(self) -> None:
        """Put the request into the root thread, if the policy has one."""
        if self._root_id is not None:
            await self._root(self._root_id)

    async def history(self, actor: str) -> tuple[Message, ...]:
        """Return the messages of an actor's thread that this execution knows."""
        position = await self.position(actor)
        if position is None:
            return ()
        if position not in self._messages:
            # Nodes that start together may share a thread, which is read once for all of them.
            self._messages[position] = await self._active.messages(position)
        return self._messages[position]

    async def position(self, actor: str, *, without_last: int = 0) -> ThreadPosition | None:
        """Return the position after the known messages of an actor's thread, without the last; None if it has none."""
        until = 0 if self._conversations is None else await self._joined(actor) - without_last
        if until <= 0:
            return None
        thread_id = _stored_id(self._active.policy.thread_of(actor), self._executions)
        return ThreadPosition(self._session_id, thread_id, until)

    async def add(self, result: NodeResult) -> None:
        """Add the task, unless its thread has it, and the messages of a node to its thread."""
        if self._conversations is None:
            return
        actor, name, messages = result.node_id, f"{result.node_id}/{result.visit}", [*result.said]
        thread_id, task = self._conversations.policy.thread_of(actor), self._state.tasks.get(actor)
        # A node that got its task before there were conversations joins now, and its thread starts with the request.
        has_joined = thread_id in self._state.threads
        since = await self._joined(actor)
        if task is not None and not (task.is_in_thread if has_joined else self.is_request(task.text)):
            messages.insert(0, Message("user", [task.text]))

        async def add() -> int:
            return await self._append(thread_id, messages, key=self._key(name), since=since, node_id=actor)

        if messages:
            await self._step(name, thread_id, add)

    async def _root(self, root_id: str) -> int:
        """Return the number of the request in the root. It is added if the execution began before there was a root."""
        sequence = self._state.threads.get(root_id)
        if sequence is None:

            async def add() -> int:
                if self._state.record.forked_from:
                    await self._find(root_id)
                request = Message("user", [request_text(self._state.request)])
                return await self._append(root_id, [request], key=self._key("request"))

            sequence = await self._step("request", root_id, add)
        return sequence

    async def _joined(self, actor: str) -> int:
        """Return the last event number of an actor's thread that this execution knows."""
        thread_id = self._active.policy.thread_of(actor)
        sequence = self._state.threads.get(thread_id)
        if sequence is None:
            root = None if self._root_id is None else await self._root(self._root_id)
            key = self._key(f"request/{thread_id}")

            async def join() -> int:
                return await self._join(actor, thread_id, root, key)

            sequence = await self._step(f"join/{thread_id}", thread_id, join)
        return sequence

    async def _join(self, actor: str, thread_id: str, root: int | None, key: str) -> int:
        """Return the last event number of a thread. With a root, it includes the request, event `root`."""
        found = await self._find(thread_id)
        if root is None or self._root_id is None:
            return 0 if found is None else found.sequence
        root_thread = _stored_id(self._root_id, self._executions)
        if found is None:
            try:
                found = await self._fork(root_thread, thread_id, at=root)
            except ThreadExistsError:
                # Another execution made it meanwhile; join that one.
                return await self._join(actor, thread_id, root, key)
        point = found.forked_from
        if point is not None and point.thread_id == root_thread and point.sequence >= root:
            return found.sequence  # The fork includes the request.
        request = Message("user", [request_text(self._state.request)])
        return await self._append(thread_id, [request], key=key, node_id=actor)

    async def _find(self, thread_id: str) -> Thread | None:
        """Return a thread that has messages. That of a fork starts with the messages before its parents' own."""
        store, session_id, executions = self._active.store, self._session_id, self._executions
        found = await store.thread(session_id, _stored_id(thread_id, executions))
        if found is not None or len(executions) == 1:
            return found
        until = 0
        for event in await store.read(session_id, thread_id):
            if event.tags.get(_EXECUTION) in executions:
                break
            until = event.sequence
        return await self._fork(thread_id, thread_id, at=until) if until else None

    async def _fork(self, stored_id: str, thread_id: str, *, at: int) -> Thread:
        """Start a thread of this execution with another one's messages up to an event."""
        own = _stored_id(thread_id, self._executions)
        return await self._active.store.fork(self._session_id, stored_id, own, from_message=at)

    async def _append(self, thread_id: str, messages: list[Message], *, key: str, since: int = 0, **tags: str) -> int:
        """Add messages to a thread once, and return its last event number."""
        own = {"workflow_name": self._active.workflow_name, _EXECUTION: self._executions[-1]}
        stored_id = _stored_id(thread_id, self._executions)
        return await self._active.store.append(
            self._session_id, stored_id, messages, key=key, since=since, tags={**own, **tags}
        )

    async def _step(self, key: str, thread_id: str, work: Callable[[], Awaitable[int]]) -> int:
        """Change a thread in a step. Record and return its last event number.

        `work` takes no arguments, not even bound ones: the step's record has a digest of them.
        """
        sequence = await self._ctx.step("conversation", work, key=key)
        self._state.threads.set(thread_id, sequence)
        return sequence

    def _key(self, name: str) -> str:
        return f"{self._executions[-1]}/{name}/{self._ctx.idempotency_key}"


def _stored_id(thread_id: str, executions: Sequence[str]) -> str:
    """Return the stored id of the last execution's thread, which is a fork of the executions before it."""
    return f"{thread_id}@{executions[-1]}" if len(executions) > 1 else thread_id


def request_text(request: Any) -> str:
    """Return a request as a text; a dict as JSON."""
    return request if isinstance(request, str) else json_text(request)
