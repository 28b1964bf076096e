"""Workflows that are talked to as agents, for tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.workflow.nodes import node

from perdure import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler
from perdure.agents import AgentSession, Content, Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.workflow.nodes import Context

    from perdure.agents import AgentResponse
    from perdure.workflows import WorkflowAgent


@dataclass
class Question:
    text: str


class Asker(Executor):
    """Asks about each thing that it is told, and says what was answered."""

    @handler
    async def take(self, messages: list[Message], ctx: WorkflowContext[str, str]) -> None:
        for word in messages[-1].text.split():
            await ctx.request_info(Question(word), bool)

    @response_handler
    async def answered(self, question: Question, is_good: bool, ctx: WorkflowContext[str, str]) -> None:  # noqa: FBT001 - its type is what is asked for
        await ctx.yield_output(f"{question.text}: {is_good}")


def desk(*nodes: Any, storage: Any = None, name: str = "desk", **more: Any) -> WorkflowAgent:
    """An agent over a chain of executors."""
    builder = WorkflowBuilder(name=name, start_executor=nodes[0], checkpoint_storage=storage, **more)
    return (builder.add_chain(nodes) if nodes[1:] else builder).build().as_agent()


def echo(name: str = "echo") -> Any:
    """Says all that it is told, and in which of its turns."""

    async def say(messages: list[Message], ctx: Context) -> None:
        turn = ctx.get_state("turn", 0) + 1
        ctx.set_state("turn", turn)
        await ctx.yield_output(f"{turn}: {' '.join(message.text for message in messages)}")

    return talking(name, say)


def talking(name: str, do: Callable[[list[Message], Context], Awaitable[None]]) -> Any:
    """An executor that an agent can begin with."""
    return node(name, do, takes=list[Message])


def saved(session: AgentSession) -> AgentSession:
    """The session as another process reads it."""
    return AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))


def calls(response: AgentResponse[Any]) -> list[Content]:
    """The requests in a response."""
    return [each for message in response.messages for each in message.contents if each.type == "function_call"]


def answer(call: Content, result: Any) -> Message:
    assert call.call_id is not None
    return Message("tool", [Content.from_function_result(call.call_id, result=result)])
