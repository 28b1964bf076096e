"""Conversations of an execution: which thread a node speaks in, what it knows of it, and what is added to it.

They are apart from checkpoints. Each addition has a key of its own, so a crash adds nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perdure import Message
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.messages import Past
from perdure.threads import ThreadExistsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.agent_workflows.definition import Conversation
    from perdure.threads import SessionStore, Thread

_EXECUTION: Final = "execution_id"
"""The tag that says of an event in which execution it was added."""


@dataclass(frozen=True, slots=True)
class Course:
    """Whose conversations they are: those of an execution.

    A fork has threads of its own, in the session of the executions that it comes from, the first of them first.
    """

    execution_id: str
    forked_from: tuple[str, ...] = ()

    def own(self, thread_id: str) -> str:
        """The name of a thread in this course."""
        return f"{thread_id}@{self.execution_id}" if self.forked_from else thread_id

    @property
    def before(self) -> Course:
        """The course that this is a fork of."""
        return Course(self.forked_from[-1], self.forked_from[:-1])


@dataclass(frozen=True, slots=True)
class Asked:
    """The request in the root: the number of its event there, and under which key it is added where it is missing."""

    sequence: int
    request: str
    key: str


class Conversations:
    """The threads of a workflow, as its policy has them."""

    def __init__(self, store: SessionStore, policy: Conversation, *, workflow_name: str) -> None:
        self._store = store
        self._policy = policy
        self._workflow_name = workflow_name

    def session_id(self, course: Course) -> str:
        """The session of an execution."""
        first = (*course.forked_from, course.execution_id)[0]
        return self._policy.session_id or f"workflow-{self._workflow_name}-{first}"

    def thread_id(self, node_id: str) -> str:
        """The thread that a node speaks in."""
        return self._policy.thread_of(node_id)

    @property
    def has_root(self) -> bool:
        """Whether there is a thread with the request, of which the others are forks."""
        return self._policy.root_id is not None

    @property
    def root_id(self) -> str:
        """That thread."""
        assert self._policy.root_id is not None, "whoever asks for it has asked whether there is one"
        return self._policy.root_id

    async def begin(self, course: Course, request: str, *, key: str) -> int:
        """Add the request to the root, unless that was done; the number of the event."""
        session_id, root_id = self.session_id(course), self.root_id
        if course.forked_from:
            await self._begun(course, root_id)
        return await self._store.append(
            session_id,
            course.own(root_id),
            [Message("user", [request])],
            key=key,
            tags=self._tags(course),
        )

    async def joined(self, course: Course, node_id: str, *, asked: Asked | None = None) -> int:
        """The number of the last event of the thread that a node joins. With a root, what is asked is part of it."""
        while True:
            try:
                found = await self._found(course, node_id, asked)
            except ThreadExistsError:
                # Another execution has made it since we looked: we join that.
                continue
            if found is None or asked is None or self._has(found, course, asked):
                return 0 if found is None else found.sequence
            said = [Message("user", [asked.request])]
            return await self.add(course, node_id, said, key=asked.key, since=0)

    async def _found(self, course: Course, node_id: str, asked: Asked | None) -> Thread | None:
        """The thread of a node, forked if it has to be. Raises ThreadExistsError if another was quicker."""
        session_id, thread_id = self.session_id(course), self.thread_id(node_id)
        found = await self._begun(course, thread_id)
        if found is None and asked is not None:
            root_id, sequence = course.own(self.root_id), asked.sequence
            found = await self._store.fork(session_id, root_id, course.own(thread_id), from_message=sequence)
        return found

    async def _begun(self, course: Course, thread_id: str) -> Thread | None:
        """A thread of this course, if there is something in it; that of a fork begins with what was said earlier."""
        found = await self._store.thread(self.session_id(course), course.own(thread_id))
        return await self._earlier(course, thread_id) if found is None and course.forked_from else found

    async def _earlier(self, course: Course, thread_id: str) -> Thread | None:
        """A fork of what was said in a thread before the executions spoke there that this is a fork of."""
        session_id, line = self.session_id(course), {*course.forked_from, course.execution_id}
        until = 0
        for event in await self._store.read(session_id, thread_id):
            if event.tags.get(_EXECUTION) in line:
                break
            until = event.sequence
        if not until:
            return None
        return await self._store.fork(session_id, thread_id, course.own(thread_id), from_message=until)

    def _has(self, found: Thread, course: Course, asked: Asked) -> bool:
        """Whether a thread was forked from the root when that had the request."""
        point = found.forked_from
        return point is not None and point.thread_id == course.own(self.root_id) and point.sequence >= asked.sequence

    async def fork(self, course: Course, thread_id: str, *, at: int) -> None:
        """Begin a thread of this course with what the course before knew of it, unless that was done."""
        if at:
            before = course.before.own(thread_id)
            await self._store.fork(self.session_id(course), before, course.own(thread_id), from_message=at)

    def past(self, course: Course, node_id: str, *, until: int) -> Past | None:
        """What was said in the thread of a node up to this event, by where it stands; None if nothing was."""
        return Past(self.session_id(course), course.own(self.thread_id(node_id)), until) if until else None

    async def said(self, past: Past) -> tuple[Message, ...]:
        """What was said. Raises AgentWorkflowError if it is not there any more."""
        messages = await self._store.messages(past.session_id, past.thread_id, until=past.until)
        if len(messages) != past.until:
            raise AgentWorkflowError(
                f"thread {past.thread_id!r} of session {past.session_id!r} had {past.until} events when a node was "
                f"given its task, and {len(messages)} of them are there: give the workflow the session store that it "
                "had, or begin a new execution"
            )
        return tuple(messages)

    async def add(self, course: Course, node_id: str, messages: Sequence[Message], *, key: str, since: int) -> int:
        """Add to the thread of a node, unless that was done; the number of the last event then."""
        return await self._store.append(
            self.session_id(course),
            course.own(self.thread_id(node_id)),
            list(messages),
            key=key,
            since=since,
            tags={**self._tags(course), "node_id": node_id},
        )

    def _tags(self, course: Course) -> dict[str, str]:
        return {"workflow_name": self._workflow_name, _EXECUTION: course.execution_id}
