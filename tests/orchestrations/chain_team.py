"""Scripted agents for tests of sequential and concurrent orchestrations, and helpers to read their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from perdure import Agent, AgentExecutorResponse, AgentResponse, Executor, Message, WorkflowContext, handler
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure import WorkflowEvent, WorkflowRunResult


@dataclass
class Team:
    """Agents with one model, under their names."""

    agents: list[Agent[Any]]
    model: ScriptedChatClient

    def told(self, name: str) -> list[list[str]]:
        """Return the messages of each model call of an agent, without the instructions."""
        calls = (call for call in self.model.calls if call.agent == name)
        return [[message.text for message in call.messages if message.role != "system"] for call in calls]


def team(tools: Iterable[Any] = (), /, **scripts: Any) -> Team:
    """Agents, each with its script; the tools are for all of them."""
    model = ScriptedChatClient(scripts)
    return Team([Agent(model, f"You are {name}.", name=name, tools=list(tools)) for name in scripts], model)


def told(result: WorkflowRunResult, kind: str = "output") -> list[tuple[str | None, str]]:
    """Return the executor and text of each output of a kind."""
    return [(event.executor_id, _text(event)) for event in result if event.type == kind]


def _text(event: WorkflowEvent[Any]) -> str:
    said: Any = event.data
    assert isinstance(said, AgentResponse)
    return cast("AgentResponse[Any]", said).text


class Shouter(Executor):
    """A participant that is no agent: it says louder what was said last."""

    @handler
    async def shout(
        self, said: AgentExecutorResponse, ctx: WorkflowContext[AgentExecutorResponse, AgentResponse]
    ) -> None:
        louder = AgentResponse(messages=[Message("assistant", [said.agent_response.text.upper()], author_name=self.id)])
        await ctx.yield_output(louder)
        await ctx.send_message(AgentExecutorResponse(self.id, louder, [*said.full_conversation, *louder.messages]))
