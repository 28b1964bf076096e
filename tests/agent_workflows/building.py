"""Scripted agents, and a workflow of two of them, for tests of agent workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure import Agent
from perdure.agent_workflows import AgentWorkflow
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from perdure.agent_workflows import AgentWorkflowBuilder
    from perdure.testing import Script


class Cast:
    """Agents by name, over one model that follows their scripts."""

    def __init__(self, **scripts: Script) -> None:
        self.client = ScriptedChatClient(dict(scripts))

    def __getitem__(self, name: str) -> Agent:
        return Agent(self.client, name=name)

    @property
    def asked(self) -> list[str]:
        """Return the names of the agents whose model was called, in order."""
        return [call.agent for call in self.client.calls]


def writers() -> Cast:
    """One who writes, and one who reviews what was written."""
    return Cast(
        drafter=lambda messages, _: f"A draft of {messages[-1].text}",
        reviewer=lambda messages, _: f"{messages[-1].text}, reviewed",
    )


def review(cast: Cast, name: str = "Review") -> AgentWorkflowBuilder:
    """A draft, then its review."""
    return (
        AgentWorkflow.create()
        .with_name(name)
        .add_agent("draft", cast["drafter"], output_key="draft")
        .add_agent("review", cast["reviewer"], input_key="draft")
        .from_("draft")
        .to("review")
    )
