"""Agents that are created from data when a workflow is built."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import tool
from perdure.agent_workflows import AgentConfig, AgentWorkflowBuildError
from perdure.agent_workflows.builder import create_agent
from perdure.testing import ScriptedChatClient, ToolCall


@tool
def search(query: str) -> str:
    """Search."""
    return f"found {query}"


async def test_an_agent_has_all_that_its_config_says() -> None:
    client = ScriptedChatClient([ToolCall("search", query="x"), "done"])
    config = AgentConfig(
        name="writer",
        instructions="Write.",
        description="writes",
        model="m-2",
        tools=("search",),
        options={"temperature": 0.5, "model": "m-1"},
    )
    agent = create_agent(config, name="draft", client=client, tools={"search": search, "other": search})
    assert (agent.name, agent.description) == ("writer", "writes")
    response = await agent.run("hello")
    assert response.text.endswith("done")
    options: Any = agent.default_options
    assert (options["model"], options["temperature"], options["instructions"]) == ("m-2", 0.5, "Write.")
    assert [each.name for each in options["tools"]] == ["search"]


def test_an_agent_without_a_name_is_called_like_its_node() -> None:
    agents = [create_agent(AgentConfig(), name="draft", client=ScriptedChatClient([]), tools={}) for _ in range(2)]
    assert [(agent.name, agent.id) for agent in agents] == [("draft", "draft")] * 2


def test_what_is_missing_for_an_agent_is_told_at_once() -> None:
    config = AgentConfig(tools=("search", "fetch"))
    with pytest.raises(AgentWorkflowBuildError) as caught:
        create_agent(config, name="draft", client=None, tools={"other": search})
    client, first, second = caught.value.problems
    assert "needs a chat client" in client
    assert "the tool 'search', and the builder was given 'other'" in first
    assert "'fetch'" in second


def test_options_that_make_no_sense_are_told_with_the_agent() -> None:
    config = AgentConfig(options={"response_format": 5})
    with pytest.raises(AgentWorkflowBuildError, match="agent 'draft' can't be created"):
        create_agent(config, name="draft", client=ScriptedChatClient([]), tools={})
