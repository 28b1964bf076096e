"""`HandoffBuilder`: valid and invalid options. It does not change the given agents."""

from __future__ import annotations

import copy
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.talkers import Stranger
from tests.orchestrations.handoffs import NAMES, agents, desk, handed, said

from perdure import Agent, SqliteCheckpointStorage, WorkflowConvergenceException, tool
from perdure.orchestrations import HandoffAgentExecutor, HandoffBuilder, HandoffConfiguration, MaxMessages
from perdure.orchestrations.handoff_tools import get_handoff_tool_name
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from pathlib import Path


def builder(**more: Any) -> HandoffBuilder:
    return HandoffBuilder(participants=agents({})[1], **more)


def settings(agent: Agent[Any]) -> list[Any]:
    """Return a copy of an agent's settings."""
    given: list[Any] = [agent.default_options, agent.middleware, agent.context_providers, agent.additional_properties]
    return copy.deepcopy(given)


async def test_agents_that_are_given_are_not_changed() -> None:
    client, made = agents({"triage": [ToolCall("handoff_to_tech")]}, default_options={"metadata": {"a": "b"}})
    before = [settings(agent) for agent in made]
    await HandoffBuilder(participants=made).with_start_agent("triage").build().run("Help.")
    assert [settings(agent) for agent in made] == before
    assert "allow_multiple_tool_calls" not in made[0].default_options
    assert client.calls[0].options["allow_multiple_tool_calls"] is False
    assert client.calls[0].options["metadata"] == {"a": "b"}


async def test_an_agent_of_a_class_of_its_own_keeps_it() -> None:
    class Loud(Agent[Any]):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            ran.append(self.name)
            return super().run(*args, **kwargs)

    ran: list[str | None] = []
    client, made = agents({"triage": ["Hello."]})
    made[0] = Loud(client, name="triage")
    await HandoffBuilder(participants=made).with_start_agent("triage").build().run("Help.")
    assert ran == ["triage"]


def test_each_agent_is_a_node_of_its_name_that_is_joined_with_all_others() -> None:
    _, workflow = desk({})
    assert [node.id for node in workflow.get_executors_list()] == list(NAMES)
    assert all(isinstance(node, HandoffAgentExecutor) for node in workflow.get_executors_list())
    assert workflow.get_start_executor().id == "triage"
    assert [node.id for node in workflow.get_output_executors()] == list(NAMES)


def test_a_workflow_without_a_name_is_called_the_same_in_each_process() -> None:
    names = {desk({})[1].name for _ in range(2)}
    assert len(names) == 1
    assert builder(name="desk").with_start_agent("triage").build().name == "desk"


async def test_two_agents_are_enough_and_one_will_do() -> None:
    _, made = agents({"triage": [ToolCall("handoff_to_billing")], "billing": ["Yes?"]})
    result = await HandoffBuilder(participants=made[:2]).with_start_agent("triage").build().run("Help.")
    assert handed(result) == [("triage", "billing")]
    _, made = agents({"triage": ["Yes?"]})
    result = await HandoffBuilder(participants=made[:1]).with_start_agent("triage").build().run("Help.")
    assert said(result) == ["triage: Yes?"]


async def test_outputs_are_those_of_whom_the_program_names() -> None:
    script = {"triage": [["I fetch tech.", ToolCall("handoff_to_tech")]], "tech": ["Yes?"]}
    _, workflow = desk(script, output_from=["tech"], intermediate_output_from="all_other")
    result = await workflow.run("Help.")
    assert said(result) == ["tech: Yes?"]
    assert [event.executor_id for event in result if event.type == "intermediate"] == ["triage"]


def test_models_are_told_what_a_handoff_is_for() -> None:
    client = ScriptedChatClient([])
    triage, tech = Agent(client, name="triage"), Agent(client, name="tech", description="Knows machines.")
    other = Agent(client, name="other")
    made = HandoffBuilder(participants=[triage, tech, other]).with_start_agent(triage)
    made.add_handoff(triage, [other], description="When nothing else helps.").add_handoff(triage, [tech])
    made.add_handoff("tech", ["other"])
    nodes: list[Any] = made.build().get_executors_list()
    tools = {node.id: {each.name: each.description for each in node.agent.default_options["tools"]} for node in nodes}
    assert tools == {
        "triage": {"handoff_to_other": "When nothing else helps.", "handoff_to_tech": "Knows machines."},
        "tech": {"handoff_to_other": "Hand the conversation over to other."},
        "other": {},
    }


def test_who_can_hand_over_to_nobody_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        builder().add_handoff("triage", ["tech"]).with_start_agent("triage").build()
    assert [record.args for record in caplog.records] == [("billing",), ("tech",)]


def test_names_of_tools_are_such_as_providers_take() -> None:
    assert get_handoff_tool_name("Refund agent (EU)") == "handoff_to_Refund_agent__EU_"
    assert len(get_handoff_tool_name("x" * 99)) == 64
    assert HandoffConfiguration(target="a", description="x") == HandoffConfiguration(target="a")
    assert (
        len({HandoffConfiguration(target="a"), HandoffConfiguration(target=Agent(ScriptedChatClient([]), name="a"))})
        == 1
    )


async def test_agents_with_names_in_other_alphabets_hand_over_to_each_other() -> None:
    names = ("日本", "中国", "한국", "Ελλάδα", "🙂", "x" * 80 + "1", "x" * 80 + "2")
    tool_names = [get_handoff_tool_name(name) for name in names]
    assert len(set(tool_names)) == len(names)
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in tool_names)
    assert tool_names[0] == "handoff_to____ce47dfba", "the same in every process"
    client = ScriptedChatClient({"日本": [ToolCall(tool_names[1])], "中国": ["你好"]})
    made = [Agent(client, "Help.", name=name, description="Knows much.") for name in names]
    workflow = HandoffBuilder(participants=made).with_start_agent("日本").build()
    result = await workflow.run("Help.")
    assert handed(result) == [("日本", "中国")]
    tools = client.calls[0].options["tools"]
    assert tools[0].description == "Hand the conversation over to 中国. Knows much."


def test_a_tool_with_the_name_of_a_handoff_is_refused() -> None:
    @tool
    def handoff_to_tech() -> None:
        """Something else."""

    _, made = agents({}, tools={"triage": [handoff_to_tech]})
    with pytest.raises(ValueError, match="agent 'triage' has two tools named 'handoff_to_tech'"):
        HandoffBuilder(participants=made).with_start_agent("triage").build()
    client = ScriptedChatClient([])
    alike = [Agent(client, name=name) for name in ("one", "a b", "a_b")]
    with pytest.raises(ValueError, match="two tools named 'handoff_to_a_b'"):
        HandoffBuilder(participants=alike).with_start_agent("one").build()


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ValueError, match="there are no participants"):
        HandoffBuilder().build()
    with pytest.raises(ValueError, match="there is no start agent"):
        builder().build()
    with pytest.raises(ValueError, match="with_start_agent needs participants"):
        HandoffBuilder().with_start_agent("triage")
    with pytest.raises(ValueError, match="participants is empty"):
        HandoffBuilder().participants([])


def test_what_is_wrong_is_refused() -> None:
    stranger: Any = Stranger("stranger")
    with pytest.raises(TypeError, match="'stranger' is a Stranger"):
        HandoffBuilder(participants=[stranger])
    with pytest.raises(ValueError, match="participants are already set"):
        builder().participants(agents({})[1])
    with pytest.raises(ValueError, match="two participants are called 'triage'"):
        HandoffBuilder(participants=[agents({})[1][0], agents({})[1][0]])
    with pytest.raises(ValueError, match="add_handoff names 'nobody'"):
        builder().add_handoff("triage", ["nobody"])
    with pytest.raises(ValueError, match="'triage' can't hand off to itself"):
        builder().add_handoff("triage", ["triage"])
    with pytest.raises(ValueError, match="with_start_agent names 'nobody'"):
        builder().with_start_agent("nobody")
    with pytest.raises(TypeError, match="a termination condition must be a function"):
        builder(termination_condition="never")
    with pytest.raises(ValueError, match="output_from"):
        builder(output_from=["nobody"]).with_start_agent("triage").build()


async def test_a_storage_may_be_given_later(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    workflow = builder(name="desk").with_start_agent("triage").with_checkpointing(storage).build()
    await workflow.run("Help.")
    assert await storage.list_checkpoints(workflow_name="desk")


def to_and_fro(**more: Any) -> HandoffBuilder:
    """Two agents that hand over to each other for ever."""

    def model(name: str) -> ScriptedChatClient:
        return ScriptedChatClient(lambda _, __: ["You do it.", ToolCall(f"handoff_to_{name}")])

    pair = [Agent(model("bob"), name="ada"), Agent(model("ada"), name="bob")]
    return HandoffBuilder(participants=pair, **more).with_start_agent("ada")


async def test_handoffs_can_be_limited_and_limits_of_the_program_are_not_cut_short() -> None:
    with pytest.raises(WorkflowConvergenceException, match="within 5 supersteps"):
        await to_and_fro(max_iterations=5).build().run("Hello.")
    result = await to_and_fro(termination_condition=MaxMessages(121)).build().run("Hello.")
    assert len(said(result)) == 120
