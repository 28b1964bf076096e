"""A workflow inside of a handler of another run: all that it does is part of that run, and so is what it asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NoReturn

from perdure import (
    AgentResponse,
    Content,
    FunctionalWorkflow,
    Message,
    RunContext,
    WorkflowAgent,
)
from perdure.agent_workflows.approvals import NodeApprovalRequest, NodeApprovalResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from perdure import WorkflowRunResult


_LATE: Final = NodeApprovalResponse(approved=False, is_timed_out=True)


class OutsideError(Exception):
    """There is no run around here that is kept."""


class PartOfRun(FunctionalWorkflow):
    """A workflow as a part of the run around it. It has no runs of its own: `run` raises OutsideError where it would.

    `make` gives the workflow as an agent without a store of its own.
    """

    def __init__(self, make: Callable[[], WorkflowAgent], *, name: str) -> None:
        async def act(told: list[Message], ctx: RunContext) -> AgentResponse[Any]:
            return await _answered(make(), told, ctx)

        super().__init__(act, name=f"agent workflow {name}")

    def answer(self, told: list[Message], kwargs: Mapping[str, Any]) -> Awaitable[AgentResponse[Any]]:
        """The answer of the workflow, as one that the run around it keeps. Raises OutsideError."""
        return _output_of(self.run(told, function_invocation_kwargs=kwargs))

    def stream(self, call: Any, *, include_status_events: bool = False) -> NoReturn:  # noqa: ARG002 - none begins
        """Where a run would begin."""
        raise OutsideError


async def _output_of(running: Awaitable[WorkflowRunResult]) -> AgentResponse[Any]:
    [response] = (await running).get_outputs()
    return response


async def _answered(agent: WorkflowAgent, told: list[Message], ctx: RunContext) -> AgentResponse[Any]:
    """What the workflow says in the end. What it asks until then the run around it asks."""
    kwargs = dict(ctx.kwargs)
    response: AgentResponse[Any] = await agent.run(told, stream=False, function_invocation_kwargs=kwargs)
    while asked := _asked_in(response):
        # The handler is left until all are answered, and comes here again with what was recorded.
        answers = await asyncio.gather(*[_answer(each, ctx) for each in asked])
        told = [Message("user", [_told(each, answer) for each, answer in zip(asked, answers, strict=True)])]
        response = await agent.run(told, stream=False, function_invocation_kwargs=kwargs)
    return response


def _asked_in(response: AgentResponse[Any]) -> list[Content]:
    contents = [content for message in response.messages for content in message.contents]
    return [content for content in contents if _is_question(content) or content.user_input_request is True]


def _is_question(content: Content) -> bool:
    return content.type == "function_call" and content.name == WorkflowAgent.REQUEST_INFO_FUNCTION_NAME


def _answer(asked: Content, ctx: RunContext) -> Coroutine[Any, Any, Any]:
    """The answer to what is asked inside, as one that the run around it asks."""
    if not _is_question(asked):
        return ctx.request_info(asked, Content | bool)
    event = WorkflowAgent.RequestInfoFunctionArgs.from_dict(asked.parse_arguments() or {}).request_event
    request: object = event.data
    if not isinstance(request, NodeApprovalRequest):
        return ctx.request_info(request, event.response_type)
    # Nobody looks at the deadlines of what waits inside: the question out here has its own.
    limit: dict[str, Any] = {} if request.timeout is None else {"deadline": request.timeout, "default": _LATE}
    return ctx.request_info(request, event.response_type, approves=dict(request.outputs), **limit)


def _told(asked: Content, answer: Any) -> Content:
    """An answer as the workflow is told it."""
    if isinstance(answer, bool) and asked.type == "function_approval_request":
        return asked.to_function_approval_response(approved=answer)
    if isinstance(answer, Content) and not _is_question(asked):
        return answer
    return Content.from_function_result(asked.call_id or "", result=answer)
