"""A handoff for the resume suite: a tool, an approval, a review, a turn without the user. Run as a script.

Each call of a model and of a tool is an effect, counted outside. A call of a tool has come back when a model is shown
its result, one of a model when a middleware around its record sees it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import Agent, AgentExecutorResponse, ChatContext, Message, Workflow, chat_middleware, tool
from perdure.orchestrations import AgentRequestInfoResponse, HandoffAgentUserRequest, HandoffBuilder
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.testing.resume import SHIPPED, Subject, effect, main, returned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure import PendingRequest

NAMES = ("triage", "billing", "tech")
SCRIPT: Mapping[str, Sequence[Any]] = {
    "triage": [["I look.", ToolCall("look_up", item="lamp")], ["Billing knows.", ToolCall("handoff_to_billing")]],
    "billing": [["It costs 7.", ToolCall("refund", euros=7), ToolCall("handoff_to_tech")], "You have your money."],
    "tech": ["I test the lamp.", ["It works.", ToolCall("handoff_to_billing")]],
}


@tool(if_interrupted="rerun")
def look_up(item: str) -> str:
    """What is known of an item."""
    effect(f"look up {item}")
    return f"{item} costs 7"


@tool(approval_mode="always_require", if_interrupted="rerun")
def refund(euros: int) -> str:
    """Give money back."""
    effect(f"refund {euros}")
    return f"refunded {euros}"


def _note_what_is_shown(messages: Sequence[Message]) -> None:
    for content in (content for message in messages for content in message.contents):
        if content.type == "function_result" and content.exception is None:
            for name, result in (("look up lamp", "lamp costs 7"), ("refund 7", "refunded 7")):
                if content.result == result:
                    returned(name)


def _name(agent: str, messages: Sequence[Message]) -> str:
    return f"{agent} thinks after {len(messages)}"


def _noting(agent: str) -> Any:
    @chat_middleware
    async def note(context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Around the record: what comes out here is on disk."""
        name = _name(agent, context.messages)
        context.stream_result_hooks.append(lambda _: returned(name))
        await call_next()
        if not context.stream:
            returned(name)

    return note


def _script(agent: str) -> Any:
    """Speaks as the script says: which line is next stands in the conversation."""

    def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        del options
        _note_what_is_shown(messages)
        effect(_name(agent, messages))
        place = sum(message.role == "assistant" and message.author_name in (agent, None) for message in messages)
        return SCRIPT[agent][place]

    return reply


def build() -> Workflow:
    """New agents."""
    tools: Mapping[str, list[Any]] = {"triage": [look_up], "billing": [refund]}
    made: list[Agent[Any]] = [
        Agent(ScriptedChatClient(_script(name), middleware=[_noting(name)]), name=name, tools=tools.get(name))
        for name in NAMES
    ]
    builder = HandoffBuilder(name="switchboard", participants=made).with_start_agent("triage")
    return builder.with_autonomous_mode(agents=["tech"]).with_request_info(agents=["triage"]).build()


def answer(request: PendingRequest) -> Any:
    """Yes to a refund and to each turn; a user who wants nothing more."""
    if isinstance(request.data, AgentExecutorResponse):
        return AgentRequestInfoResponse.approve()
    if isinstance(request.data, HandoffAgentUserRequest):
        return request.data.terminate()
    return request.data.to_function_approval_response(approved=True)


def others_answer(request: PendingRequest, number: int) -> Any:
    """Return the answer of the n-th rival."""
    if isinstance(request.data, HandoffAgentUserRequest | AgentExecutorResponse):
        return answer(request)
    return request.data.to_function_approval_response(approved=number % 2 == 0)


if __name__ == "__main__":
    main(Subject(build=build, message="My lamp is dark.", answer=answer, rival=others_answer, storages=SHIPPED))
