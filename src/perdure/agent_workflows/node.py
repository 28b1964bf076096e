"""`AgentNode`: an agent as a node of an agent workflow. It is given tasks, and tells the conductor what it puts out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from typing_extensions import override

from perdure import (
    AgentExecutor,
    AgentExecutorRequest,
    AgentExecutorResponse,
    AgentInvalidResponseException,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    Message,
    WorkflowContext,
    handler,
    resolve_agent_id,
)
from perdure.agent_workflows.choices import call_ids, choices_of
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.messages import NodeResult, NodeTask
from perdure.agent_workflows.node_agent import agent_of
from perdure.agent_workflows.node_approval import Decision, decided
from perdure.agent_workflows.node_reading import Reading
from perdure.agent_workflows.outputs import NoValueError, require_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import SupportsAgentRun
    from perdure.agent_workflows.conversations import Conversations
    from perdure.agent_workflows.definition import Node
    from perdure.agent_workflows.node_reading import Spoken

Context: TypeAlias = WorkflowContext[Any, AgentResponse | AgentResponseUpdate]

_ANSWERS_MAX: Final = 3
"""How often a model may answer in one attempt, until what it says can be used."""
_TASK: Final = "task"
"""What the node is doing."""
_CALLS: Final = "calls_before"
"""The calls that were made before the task: what is chosen is among those after it."""
_ANSWERS: Final = "answers_in_vain"
"""How often the model has answered in this task what can't be used."""


class _NotGivenUpError(Exception):
    """A step that leaves no record."""


async def _not_given_up() -> None:
    raise _NotGivenUpError


async def _given_up() -> None:
    """Leave a record."""


class AgentNode(AgentExecutor):
    """A node of an agent workflow.

    For each task it begins a new session, so that what the agent knows is what it is told: the history of its
    conversation and the task. What it answers is read as the node's output says. A model whose answer is none is told
    so, twice at most in each attempt. If the node needs approval, somebody is asked before the output is used.

    An agent that is a workflow itself has a run that lasts: it remembers the tasks before.

    Raises TypeError or ValueError if the agent can't do what the node says.
    """

    def __init__(
        self,
        node: Node,
        agent: SupportsAgentRun,
        *,
        conductor_id: str = "conductor",
        conversations: Conversations | None = None,
    ) -> None:
        require_output(node.output)
        choices = choices_of(node.output)
        super().__init__(
            agent_of(node, agent, choices),
            id=node.id,
            retry=node.retry,
            timeout=node.timeout,
            # A failure that stops the execution is the run's, which a resume tries again.
            on_error=None if node.on_error.mode == "stop" else conductor_id,
        )
        self._node = node
        self._conductor_id = conductor_id
        self._conversations = conversations
        self._reading = Reading(node.output, choices, resolve_agent_id(agent))

    @property
    def node(self) -> Node:
        """What the definition says of it."""
        return self._node

    @handler
    async def take_task(self, task: NodeTask, ctx: Context) -> None:
        """Do a task."""
        self.renew_session()
        if not isinstance(self.session, AgentSession):
            # It is none of ours, and would go on with what was said in the task before.
            self._session = self.agent.create_session()
        history = await self._history(task)
        ctx.scope().set(_TASK, task)
        ctx.scope().set(_CALLS, sorted(call_ids(history)))
        await super().run(AgentExecutorRequest([*history, *_told(task)]), ctx)

    @override
    async def on_answer(self, answer: AgentExecutorResponse, ctx: WorkflowContext[Any, Any]) -> Sequence[Message]:
        """Tell the conductor what comes of an answer, or the model why nothing does."""
        task: NodeTask | None = ctx.scope().get(_TASK)
        assert task is not None, f"node {self.id!r} answers, and has no task: only a conductor gives it some"
        try:
            spoken = self._reading.read(answer, before=ctx.scope().get(_CALLS, ()))
        except NoValueError as fault:
            more = await self._corrected(fault, answer, ctx)
            if more:
                return more
            spoken = self._after_all(fault, answer)
        decision = await decided(self._node, self._reading, spoken, ctx)
        await ctx.send_message(_result(task, decision), self._conductor_id)
        # The next task begins a new session: what this one knows of its conversation need not be kept until then.
        ctx.scope().clear()
        return ()

    async def _history(self, task: NodeTask) -> tuple[Message, ...]:
        """What was said before a task. Raises AgentWorkflowError if that can't be found."""
        if task.past is None:
            return task.history
        if self._conversations is None:
            raise AgentWorkflowError(
                f"node {self.id!r} was given its task in thread {task.past.thread_id!r} of session "
                f"{task.past.session_id!r}, and the workflow has no session store any more: build it with the one "
                "that it had"
            )
        return (*await self._conversations.said(task.past), *task.history)

    async def _corrected(
        self, fault: NoValueError, answer: AgentExecutorResponse, ctx: WorkflowContext[Any, Any]
    ) -> list[Message]:
        """What the model is told whose answer can't be used; nothing, if it was told often enough."""
        answers = ctx.scope().get(_ANSWERS, 0) + 1
        if answers % _ANSWERS_MAX == 0 and not await self._is_another_attempt(answers, ctx):
            return []
        ctx.scope().set(_ANSWERS, answers)
        return [*self._unshown(answer), Message("user", [str(fault)])]

    async def _is_another_attempt(self, answers: int, ctx: WorkflowContext[Any, Any]) -> bool:
        """Whether the node has failed here before, and is tried again.

        What its model has said is recorded, and comes back in each attempt: without a mark that it was not enough,
        each would fail like the first.
        """
        if self._reading.has_default:
            return False
        place = f"given-up-{answers}"
        try:
            await ctx.step("give up", _not_given_up, key=place)
        except _NotGivenUpError:
            await ctx.step("give up", _given_up, key=place)
            return False
        return True

    def _unshown(self, answer: AgentExecutorResponse) -> list[Message]:
        """Results that the model has not been shown, if its provider keeps the conversation: it waits for them."""
        if getattr(self.session, "service_session_id", None) is None:
            return []
        return [message for message in answer.agent_response.messages[-1:] if message.role == "tool"]

    def _after_all(self, fault: NoValueError, answer: AgentExecutorResponse) -> Spoken:
        spoken = self._reading.defaulted(answer)
        if spoken is None:
            raise AgentInvalidResponseException(
                f"node {self.id!r} has no answer that can be used, and its model was told so {_ANSWERS_MAX - 1} times; "
                f"the last time it would have been told: {fault} Say in its instructions what is wanted, or take "
                "another model"
            ) from fault
        return spoken


def _result(task: NodeTask, decision: Decision) -> NodeResult:
    kept = decision.kept
    if kept is None:
        # What may not be used is not told to others either.
        return NodeResult(task.node_id, task.visit, denied=decision.denied, is_timed_out=decision.is_timed_out)
    return NodeResult(task.node_id, task.visit, dict(kept.outputs), kept.text, kept.said)


def _told(task: NodeTask) -> list[Message]:
    told = [Message("user", [task.text])]
    if task.error is not None:
        told.append(Message("user", [f"Another agent was given this task before you and has failed: {task.error}"]))
    return told
