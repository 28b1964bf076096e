"""Participants side by side for the resume suite: an approval in a turn, a person after it, a function that sums up.

The function runs in a thread. Run as a script.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.crash.counted_models import counted

from perdure import Agent, AgentExecutorResponse, Message, Workflow, tool
from perdure.orchestrations import AgentRequestInfoResponse, ConcurrentBuilder
from perdure.testing import ToolCall
from perdure.testing.resume import Subject, effect, main

if TYPE_CHECKING:
    from perdure import PendingRequest

SURE = "sure?"


@dataclass
class Verdict:
    """The board's conclusion."""

    words: list[str]


@tool(approval_mode="always_require", if_interrupted="rerun")
def survey(subject: str) -> str:
    """Ask people what they would pay."""
    effect(f"survey {subject}")
    return f"seven for {subject}"


def inquiry(messages: list[Message]) -> Any:
    """Return the opinion of an expert that asks people first."""
    is_asked = any(message.role == "tool" for message in messages)
    return opinion(messages) if is_asked else ["Let us ask.", ToolCall("survey", subject=messages[0].text)]


def opinion(messages: list[Message]) -> str:
    """Return an expert's opinion on the last question."""
    is_sure = messages[-1].text == SURE
    return f"{'surely' if is_sure else 'perhaps'}, after {len(messages)}"


def sum_up(results: list[AgentExecutorResponse]) -> Verdict:
    """All opinions. It runs in a thread, and is done once."""
    words = [f"{result.executor_id}: {result.agent_response.text}" for result in results]
    effect(f"sum up {'; '.join(words)}")
    return Verdict(words)


def build() -> Workflow:
    """New agents, side by side."""
    law = Agent(counted("law", inquiry), "Say what you think.", name="law", tools=[survey])
    cost = Agent(counted("cost", opinion), "Say what it costs.", name="cost")
    builder = ConcurrentBuilder(name="board", participants=[law, cost]).with_aggregator(sum_up)
    return builder.with_request_info(agents=["law"]).build()


def answer(request: PendingRequest) -> Any:
    """Yes to every survey. A turn passes when the expert is sure."""
    if not hasattr(request.data, "agent_response"):
        return True
    is_sure = "surely" in request.data.agent_response.text
    return AgentRequestInfoResponse.approve() if is_sure else AgentRequestInfoResponse.from_strings([SURE])


def others_answer(request: PendingRequest, number: int) -> Any:
    """Return the answer of the n-th rival."""
    if not hasattr(request.data, "agent_response"):
        return number % 2 == 0
    return AgentRequestInfoResponse.from_strings([SURE] if number % 2 else [])


if __name__ == "__main__":
    main(Subject(build=build, message="lamps?", answer=answer, rival=others_answer))
