"""Participants side by side for the resume suite: a person after a turn, and a function that sums up in a thread.

Run as a script.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.crash.counted_models import counted

from perdure import Agent, AgentExecutorResponse, Message, Workflow
from perdure.orchestrations import AgentRequestInfoResponse, ConcurrentBuilder
from perdure.testing.resume import Subject, effect, main

if TYPE_CHECKING:
    from perdure import PendingRequest

SURE = "sure?"


@dataclass
class Verdict:
    """What the board has to say."""

    words: list[str]


def opinion(messages: list[Message]) -> str:
    """What an expert thinks, of what it was asked last."""
    is_sure = messages[-1].text == SURE
    return f"{'surely' if is_sure else 'perhaps'}, after {len(messages)}"


def sum_up(results: list[AgentExecutorResponse]) -> Verdict:
    """All opinions. It runs in a thread, and is done once."""
    words = [f"{result.executor_id}: {result.agent_response.text}" for result in results]
    effect(f"sum up {'; '.join(words)}")
    return Verdict(words)


def build() -> Workflow:
    """New agents, side by side."""
    experts = [Agent(counted(name, opinion), "Say what you think.", name=name) for name in ("law", "cost")]
    builder = ConcurrentBuilder(name="board", participants=experts).with_aggregator(sum_up)
    return builder.with_request_info(agents=["law"]).build()


def answer(request: PendingRequest) -> Any:
    """A turn passes when the expert is sure."""
    is_sure = request.data.agent_response.text.startswith("surely")
    return AgentRequestInfoResponse.approve() if is_sure else AgentRequestInfoResponse.from_strings([SURE])


def others_answer(request: PendingRequest, number: int) -> Any:
    """What the n-th of several would answer."""
    del request
    return AgentRequestInfoResponse.from_strings([SURE] if number % 2 else [])


if __name__ == "__main__":
    main(Subject(build=build, message="lamps?", answer=answer, rival=others_answer))
