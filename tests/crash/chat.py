"""A group chat for the resume suite: an agent leads two others, one of which needs an approval. Run as a script.

Each call of a model and of a tool is an effect, counted outside. One has come back when somebody else sees its result:
a middleware around the record of the model call, or the model itself, which is shown what its tool has done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.crash.servers import with_postgres

from perdure import Agent, ChatContext, Message, Workflow, chat_middleware, tool
from perdure.orchestrations import GroupChatBuilder
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.testing.resume import SHIPPED, Subject, effect, main, returned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure import PendingRequest


@tool(approval_mode="always_require", if_interrupted="rerun")
def pay(amount: int) -> str:
    """Pay so much."""
    effect(f"pay {amount}")
    return f"paid {amount}"


def _name(messages: Sequence[Message], agent: str) -> str:
    """Return a name for a model call, the same in every process: it depends on the number of messages."""
    return f"{agent} thinks after {sum(message.role != 'system' for message in messages)}"


def _noting(agent: str) -> Any:
    @chat_middleware
    async def note_answers(context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Around the record: what comes out here is on disk."""
        name = _name(context.messages, agent)
        context.stream_result_hooks.append(lambda _: returned(name))
        await call_next()
        if not context.stream:
            returned(name)

    return note_answers


def lead(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
    """Let both speak once, at first with an answer that is none, and end."""
    del options
    effect(_name(messages, "boss"))
    decisions = sum(message.role == "assistant" and message.author_name == "boss" for message in messages) % 4
    if decisions == 0:
        return "Let me see: the buyer."
    if decisions == 3:
        said = [message.text for message in messages if message.author_name == "clerk"]
        return {"terminate": True, "reason": "all is said", "final_message": said[-1]}
    return {"terminate": False, "reason": "it is their turn", "next_speaker": ("buyer", "clerk")[decisions - 1]}


def buy(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
    """Pay for it, and say so."""
    del options
    effect(_name(messages, "buyer"))
    if messages[-1].role != "tool":
        return ToolCall("pay", amount=len(messages))
    [result] = messages[-1].contents
    returned(f"pay {str(result.result).split()[-1]}")
    return f"I have {result.result}."


def count(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """Say how much was said."""
    del options
    effect(_name(messages, "clerk"))
    return f"filed after {len(messages)} messages: {messages[-1].text}"


def _agent(name: str, script: Any, **more: Any) -> Agent[Any]:
    return Agent(ScriptedChatClient(script, middleware=[_noting(name)]), name=name, **more)


def build() -> Workflow:
    """Three agents, new ones."""
    return GroupChatBuilder(
        name="chat",
        participants=[_agent("buyer", buy, tools=[pay]), _agent("clerk", count)],
        orchestrator_agent=_agent("boss", lead),
        max_rounds=5,
    ).build()


def approve(request: PendingRequest) -> Any:
    """Yes to every payment."""
    return request.data.to_function_approval_response(approved=True)


if __name__ == "__main__":
    storages = with_postgres(SHIPPED)
    main(Subject(build=build, message="a lamp", answer=approve, storages=storages))
