"""A workflow as an agent that can be a tool: part of the run around it, or a run of its own where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, overload

from perdure import AgentResponse, BaseAgent, Content, Message, ResponseStream, WorkflowAgent, normalize_messages
from perdure.agent_workflows.approvals import NodeApprovalRequest
from perdure.agent_workflows.errors import AgentWorkflowError
from perdure.agent_workflows.workflow_held import Held
from perdure.agent_workflows.workflow_inside import OutsideError, PartOfRun

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from perdure import AgentResponseUpdate, AgentRunInputs, AgentSession

_APPROVAL: Final = "approve_output_of_node"
"""What a node asks is told as the question whether this may be called: that is what agents can be asked."""


class CallableWorkflow(BaseAgent):
    """A workflow as an agent, made anew for each call.

    Inside of a run, what it does is part of that run, and what it asks that run asks. Where there is no run around it,
    it has one of its own. One that waits for an answer is in its workflow store, if it `is_kept` there, and any process
    can go on; else it is held here until the same session brings the answer.
    """

    records_itself = True

    def __init__(
        self,
        make: Callable[[], WorkflowAgent],
        make_inside: Callable[[], WorkflowAgent],
        *,
        name: str,
        description: str | None,
        is_kept: bool,
    ) -> None:
        """Take what makes the agent: with the workflow's own store, and without one for the inside of a run."""
        super().__init__(name=name, description=description)
        self._make = make
        self._inside = PartOfRun(make_inside, name=name)
        self._is_kept = is_kept
        self._waiting = Held[WorkflowAgent](f"what workflow {name!r} asks in session")

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Awaitable[AgentResponse[Any]]: ...
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse[Any]] | Awaitable[AgentResponse[Any]]:
        """Give the workflow a task; its final answer, or what it asks. A stream tells it when it is there."""
        told = normalize_messages(messages)
        kwargs = {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs}
        answer: Awaitable[AgentResponse[Any]]
        try:
            answer = self._inside.answer(told, function_invocation_kwargs or {})
        except OutsideError:
            answer = self._answer([_inward(message) for message in told], session, kwargs)
        return ResponseStream(_pieces(answer), finalizer=AgentResponse[Any].from_updates) if stream else answer

    async def _answer(
        self, messages: list[Message], session: AgentSession | None, kwargs: Mapping[str, Any]
    ) -> AgentResponse[Any]:
        waiting = None if session is None else self._waiting.release(session.session_id)
        agent = waiting or self._make()
        answer: Awaitable[AgentResponse[Any]] = agent.run(messages, stream=False, session=session, **kwargs)
        response = await answer
        for message in response.messages:
            message.contents = [_outward(content) for content in message.contents]
        if session is not None and response.user_input_requests and not self._is_kept:
            self._waiting.hold(session.session_id, agent)
        return response


async def _pieces(answer: Awaitable[AgentResponse[Any]]) -> AsyncGenerator[AgentResponseUpdate]:
    for update in (await answer).to_updates():
        yield update


def _outward(content: Content) -> Content:
    """What the workflow asks, as agents can be asked. Raises AgentWorkflowError for what nobody could answer here."""
    if content.type != "function_call" or content.name != WorkflowAgent.REQUEST_INFO_FUNCTION_NAME:
        return content
    asked = WorkflowAgent.RequestInfoFunctionArgs.from_dict(content.parse_arguments() or {})
    request: object = asked.request_event.data
    if not isinstance(request, NodeApprovalRequest):
        raise AgentWorkflowError(
            f"a workflow that is a tool can ask for approvals alone, and this one asks {type(request).__name__!r}: run "
            "it by itself, where every request can be answered"
        )
    arguments = {"node": request.node_id, "message": request.message, "outputs": dict(request.outputs)}
    call = Content.from_function_call(asked.request_id, _APPROVAL, arguments=arguments)
    return Content.from_function_approval_request(asked.request_id, call)


def _inward(message: Message) -> Message:
    """The answers to what `_outward` has asked, as the workflow takes them."""
    return Message(message.role, [_answer_of(content) for content in message.contents], author_name=message.author_name)


def _answer_of(content: Content) -> Content:
    about = content.function_call
    is_answer = content.type == "function_approval_response" and about is not None and about.name == _APPROVAL
    if not is_answer or content.id is None:
        return content
    answer = NodeApprovalRequest.approve() if content.approved is True else NodeApprovalRequest.deny()
    return Content.from_function_result(content.id, result=answer)
