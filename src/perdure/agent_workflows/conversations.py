"""Conversations of an execution: which thread a node speaks in, what it knows of it, and what is added to it.

They are apart from checkpoints. Each addition has a key of its own, so a crash adds nothing twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perdure import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agent_workflows.definition import Conversation
    from perdure.threads import SessionStore

_SHARED: Final = "main"
_ROOT: Final = "root"
_PREFIX: Final = "agent-"


class Conversations:
    """The threads of a workflow, as its policy has them."""

    def __init__(self, store: SessionStore, policy: Conversation, *, workflow_name: str) -> None:
        self._store = store
        self._policy = policy
        self._workflow_name = workflow_name

    def session_id(self, execution_id: str) -> str:
        """The session of an execution."""
        return self._policy.session_id or f"workflow-{self._workflow_name}-{execution_id}"

    def thread_id(self, node_id: str) -> str:
        """The thread that a node speaks in."""
        if self._policy.kind == "shared":
            return self._policy.thread_id or _SHARED
        return f"{_PREFIX if self._policy.thread_prefix is None else self._policy.thread_prefix}{node_id}"

    @property
    def has_root(self) -> bool:
        """Whether there is a thread with the request, of which the others are forks."""
        return self._policy.kind == "fork_per_agent"

    @property
    def root_id(self) -> str:
        """That thread."""
        return self._policy.thread_id or _ROOT

    async def begin(self, execution_id: str, request: str, *, key: str, since: int) -> int:
        """Add the request to the root, unless that was done; the number of the event."""
        return await self._store.append(
            self.session_id(execution_id),
            self.root_id,
            [Message("user", [request])],
            key=key,
            since=since,
            tags=self._tags(execution_id),
        )

    async def joined(self, execution_id: str, node_id: str, *, root: int | None) -> int:
        """The number of the last event of the thread that a node joins. With a root, it may have to be forked there."""
        session_id, thread_id = self.session_id(execution_id), self.thread_id(node_id)
        found = await self._store.thread(session_id, thread_id)
        if found is None and self.has_root:
            found = await self._store.fork(session_id, self.root_id, thread_id, from_message=root)
        return 0 if found is None else found.sequence

    async def history(self, execution_id: str, node_id: str, *, until: int) -> tuple[Message, ...]:
        """What was said in the thread of a node, up to this event."""
        if not until:
            return ()
        return tuple(await self._store.messages(self.session_id(execution_id), self.thread_id(node_id), until=until))

    async def add(self, execution_id: str, node_id: str, messages: Sequence[Message], *, key: str, since: int) -> int:
        """Add to the thread of a node, unless that was done; the number of the last event then."""
        return await self._store.append(
            self.session_id(execution_id),
            self.thread_id(node_id),
            list(messages),
            key=key,
            since=since,
            tags={**self._tags(execution_id), "node_id": node_id},
        )

    def _tags(self, execution_id: str) -> dict[str, str]:
        return {"workflow_name": self._workflow_name, "execution_id": execution_id}
