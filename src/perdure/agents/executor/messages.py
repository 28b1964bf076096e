"""What is sent to agents in a workflow, and what they send on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.agents.agent import lasting_name
from perdure.agents.messages.message import Message
from perdure.agents.messages.responses import AgentResponse
from perdure.codec import register_type

if TYPE_CHECKING:
    from perdure.agents.agent import SupportsAgentRun


@dataclass
class AgentExecutorRequest:
    """Messages for an agent. With `should_respond=False` it only takes them in, until it is asked."""

    messages: list[Message]
    should_respond: bool = True


@dataclass
class AgentExecutorResponse:
    """What an agent has answered, and the conversation that led there, the answer included."""

    executor_id: str
    agent_response: AgentResponse[Any]
    full_conversation: list[Message]

    def with_text(self, text: str) -> AgentExecutorResponse:
        """The same turn with another answer. Who changes what an agent said sends this on, and no context is lost."""
        said = Message("assistant", [text])
        return AgentExecutorResponse(self.executor_id, AgentResponse(messages=[said]), [*self._unsaid(), said])

    def _unsaid(self) -> list[Message]:
        """The conversation without the answer, whose parts may stand apart: others speak while an agent waits."""
        left, kept = list(self.agent_response.messages), list[Message]()
        for message in reversed(self.full_conversation):
            if left and message == left[-1]:
                left.pop()
            else:
                kept.append(message)
        return kept[::-1]


register_type(AgentExecutorRequest, name="perdure:AgentExecutorRequest")
register_type(AgentExecutorResponse, name="perdure:AgentExecutorResponse")


def resolve_agent_id(agent: SupportsAgentRun) -> str:
    """What an agent is called in a workflow: its name, or the id that it was given; "agent" if it has neither.

    An id that was drawn would be another one in the process that goes on with a run.
    """
    return lasting_name(agent)
