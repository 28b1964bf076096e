"""Agents without a name as nodes: what they are called stays, whichever process goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure import Content, FunctionTool, SqliteCheckpointStorage, Workflow, WorkflowBuilder, resolve_agent_id
from perdure.agents import Agent
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from pathlib import Path


def unnamed() -> Agent:
    where = FunctionTool(name="where", description="Where the user is.")
    return Agent(ScriptedChatClient([ToolCall("where"), "Cold there."]), "Be brief.", tools=[where])


def workflow(path: Path) -> Workflow:
    return WorkflowBuilder(
        name="weather", start_executor=unnamed(), checkpoint_storage=SqliteCheckpointStorage(path)
    ).build()


async def test_a_run_of_an_agent_without_a_name_is_gone_on_with_by_another(tmp_path: Path) -> None:
    (request,) = (await workflow(tmp_path / "r.db").run("Weather?", run_id="r")).get_request_info_events()
    answer = Content.from_function_result(request.data.call_id, result="Oslo")
    resumed = await workflow(tmp_path / "r.db").run(run_id="r", responses={request.request_id: answer})
    assert resumed.get_outputs()[-1].text == "Cold there."


def test_an_agent_is_called_by_its_name_or_by_the_id_that_it_was_given() -> None:
    client = ScriptedChatClient(["hi"])
    assert resolve_agent_id(Agent(client, name="a", id="b")) == "a"
    assert resolve_agent_id(Agent(client, id="b")) == "b"
    agent = Agent(client)
    assert resolve_agent_id(agent) == "agent"
    assert agent.id != Agent(client).id


def test_two_agents_without_names_in_one_graph_are_refused() -> None:
    first, second = unnamed(), unnamed()
    with pytest.raises(ValueError, match="two agents are called 'agent'; rename one of them"):
        WorkflowBuilder(start_executor=first).add_edge(first, second).build()
