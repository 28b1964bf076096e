"""The executor of a node: it runs an agent for each task, and sends the output to the conductor."""

from __future__ import annotations

import copy
import inspect
import json
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
    InvalidValueError,
    Message,
    WorkflowContext,
    WorkflowEvent,
    handler,
    resolve_agent_id,
)
from perdure.agent_workflows.answers import Answer, AnswerReader, call_ids, choices_of, configure_agent
from perdure.agent_workflows.definition.conditions import Condition
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.messages import NodeApprovalRequest, NodeApprovalResponse, NodeResult, NodeTask
from perdure.agent_workflows.outputs import require_output
from perdure.agent_workflows.validation import CONDUCTOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import SupportsAgentRun
    from perdure.agent_workflows.conductor.conversations import Conversations
    from perdure.agent_workflows.definition.values import Approval, Node

Context: TypeAlias = WorkflowContext[Any, AgentResponse | AgentResponseUpdate]

TIMED_OUT: Final = NodeApprovalResponse(approved=False, is_timed_out=True)
"""The default answer of an approval request with a deadline."""
# How often a model may answer in one attempt, until the answer can be used.
_ANSWERS_MAX: Final = 3
_TASK: Final = "task"
# The ids of tool calls before the task: choices are among those after it.
_CALLS_BEFORE: Final = "calls_before"
# The number of unusable answers in this task. The keys of this scope are stored.
_INVALID_ANSWERS: Final = "answers_in_vain"


class _NoMarkError(Exception):
    """Fails a step, so that it leaves no record."""


async def _read_mark() -> None:
    raise _NoMarkError


async def _leave_mark() -> None:
    """Leave a record."""


class AgentNode(AgentExecutor):
    """A node of an agent workflow.

    Each task starts a new session: the agent knows the history of its conversation and the task. An answer that cannot
    be used goes back to the model with the reason, at most twice per attempt. If the node needs approval, a person is
    asked before its output is used. An agent that is itself a workflow has a run that remembers earlier tasks.

    Raises TypeError or ValueError if the agent cannot do what the node needs.
    """

    def __init__(self, node: Node, agent: SupportsAgentRun, conversations: Conversations | None = None) -> None:
        require_output(node.output)
        choices = choices_of(node.output)
        super().__init__(
            configure_agent(node, agent, choices),
            id=node.id,
            retry=node.retry,
            timeout=node.timeout,
            # With "stop" the run itself fails, and a resume tries the node again.
            on_error=None if node.on_error.mode == "stop" else CONDUCTOR,
        )
        self._node = node
        self._conversations = conversations
        self._reader = AnswerReader(node.output, choices, resolve_agent_id(agent))

    @handler
    async def on_task(self, task: NodeTask, ctx: Context) -> None:
        """Run the agent for a task."""
        self.renew_session()
        if not isinstance(self.session, AgentSession):
            # A session of another class would continue with the messages of the task before.
            self._session = self.agent.create_session()
        history = await self._history(task)
        ctx.scope().set(_TASK, task)
        ctx.scope().set(_CALLS_BEFORE, sorted(call_ids(history)))
        messages = [Message("user", [task.text])]
        if task.error is not None:
            text = f"Another agent was given this task before you and has failed: {task.error}"
            messages.append(Message("user", [text]))
        await super().run(AgentExecutorRequest([*history, *messages]), ctx)

    @override
    async def on_answer(self, answer: AgentExecutorResponse, ctx: WorkflowContext[Any, Any]) -> Sequence[Message]:
        """Send the output to the conductor, or return the messages that tell the model why its answer is unusable."""
        task: NodeTask | None = ctx.scope().get(_TASK)
        assert task is not None, f"node {self.id!r} answers, and has no task: only a conductor gives it some"
        try:
            read = self._reader.read(answer, before=ctx.scope().get(_CALLS_BEFORE, ()))
        except InvalidValueError as fault:
            more = await self._ask_again(fault, answer, ctx)
            if more:
                return more
            read = self._reader.default(answer)
            if read is None:
                raise AgentInvalidResponseException(
                    f"node {self.id!r} has no answer that can be used, and its model was told so {_ANSWERS_MAX - 1} "
                    f"times; the last time it would have been told: {fault} Say in its instructions what is wanted, or "
                    "take another model"
                ) from fault
        await ctx.send_message(await self._approve(task, read, ctx), CONDUCTOR)
        # The next task starts a new session, so this one need not be stored.
        ctx.scope().clear()
        return ()

    async def _history(self, task: NodeTask) -> tuple[Message, ...]:
        """Return the messages before a task. Raises AgentWorkflowError if they cannot be found."""
        if task.past is None:
            return task.history
        if self._conversations is None:
            raise AgentWorkflowError(
                f"node {self.id!r} was given its task in thread {task.past.thread_id!r} of session "
                f"{task.past.session_id!r}, and the workflow has no session store any more: build it with the one "
                "that it had"
            )
        return (*await self._conversations.messages(task.past), *task.history)

    async def _ask_again(
        self, fault: InvalidValueError, answer: AgentExecutorResponse, ctx: WorkflowContext[Any, Any]
    ) -> list[Message]:
        """Return the messages for a model whose answer is unusable; none if it was asked often enough."""
        answers = ctx.scope().get(_INVALID_ANSWERS, 0) + 1
        if answers % _ANSWERS_MAX == 0:
            has_default = self._reader.default(answer) is not None
            if has_default or not await self._is_another_attempt(answers, ctx):
                return []
        ctx.scope().set(_INVALID_ANSWERS, answers)
        return [*self.unsent_results(answer), Message("user", [str(fault)])]

    async def _is_another_attempt(self, answers: int, ctx: WorkflowContext[Any, Any]) -> bool:
        """Return True if the node has failed here before, and is tried again.

        The answers of the model are recorded and come back in each attempt. Without a mark each attempt would fail like
        the first.
        """
        key = f"given-up-{answers}"
        try:
            await ctx.step("give up", _read_mark, key=key)
        except _NoMarkError:
            await ctx.step("give up", _leave_mark, key=key)
            return False
        return True

    async def _approve(self, task: NodeTask, answer: Answer, ctx: WorkflowContext[Any, Any]) -> NodeResult:
        """Ask a person for approval if the node needs it. A correction that cannot be used is asked for again."""
        approval, outputs = self._node.approval, answer.outputs
        if approval is None or not await _is_needed(approval, outputs, ctx):
            return _result(task, answer)
        message = approval.message or f"May what {self.id!r} has put out be used?"
        limit: dict[str, Any] = {} if approval.timeout is None else {"deadline": approval.timeout, "default": TIMED_OUT}
        question = message
        while True:
            request = NodeApprovalRequest(self.id, self._reader.author, question, dict(outputs), approval.timeout)
            response: NodeApprovalResponse = await ctx.ask(
                request, NodeApprovalResponse, approves=dict(outputs), **limit
            )
            if not response.approved:
                late = "nobody has approved it in time" if response.is_timed_out else "it was denied"
                reason = response.reason or late
                return NodeResult(task.node_id, task.visit, denied=reason, is_timed_out=response.is_timed_out)
            # Outputs are JSON: what JSON does not have becomes text.
            changes = json.loads(json.dumps(dict(response.resume_data), default=str))
            try:
                return _result(task, self._reader.correct(answer, changes))
            except InvalidValueError as fault:
                await ctx.add_event(WorkflowEvent.warning(f"the approval of node {self.id!r} is asked again: {fault}"))
                question = f"{message}\nThe correction before can't be used: {fault}"


def _result(task: NodeTask, answer: Answer) -> NodeResult:
    return NodeResult(task.node_id, task.visit, dict(answer.outputs), answer.text, answer.messages)


async def _is_needed(approval: Approval, outputs: Mapping[str, Any], ctx: WorkflowContext[Any, Any]) -> bool:
    when = approval.when
    if when is None:
        return True
    if isinstance(when, Condition):
        return when.holds(outputs)

    async def ask() -> bool:
        answer = when(copy.deepcopy(dict(outputs)))
        return bool(await answer if inspect.isawaitable(answer) else answer)

    # A step, because the handler is re-entered after the answer, and the function may decide differently then.
    return await ctx.step("whether to ask", ask)
