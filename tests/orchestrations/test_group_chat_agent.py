"""Group chats led by an agent: its answers are checked, corrected and recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.chats import last_word, speakers, talker

from perdure import Agent, AgentInvalidResponseException, InMemoryCheckpointStorage, SqliteCheckpointStorage, tool
from perdure.orchestrations import AgentOrchestrationOutput, GroupChatBuilder, GroupChatDecisionError, MaxMessages
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def asks(name: str) -> AgentOrchestrationOutput:
    return AgentOrchestrationOutput(terminate=False, reason="it is their turn", next_speaker=name)


def ends(text: str | None = "All is said.") -> AgentOrchestrationOutput:
    return AgentOrchestrationOutput(terminate=True, reason="it is enough", final_message=text)


def led_by(replies: Sequence[Any], **more: Any) -> tuple[GroupChatBuilder, ScriptedChatClient]:
    client = ScriptedChatClient(list(replies))
    boss = Agent(client, "You lead.", name="boss")
    builder = GroupChatBuilder(
        participants=[talker("ada", description="She counts."), talker("bob")],
        orchestrator_agent=boss,
        intermediate_output_from="all",
        name="led",
        **more,
    )
    return builder, client


@pytest.mark.parametrize("kwargs", [{"customer": "Ada"}, {"boss": {"customer": "Ada"}, "ada": {"customer": "Eve"}}])
async def test_the_agent_gets_the_kwargs_of_the_run(kwargs: dict[str, Any]) -> None:
    seen: list[Any] = []

    @tool
    def look_up(**more: Any) -> str:
        """Look the customer up."""
        seen.append(more["customer"])
        return "known"

    boss = Agent(ScriptedChatClient([ToolCall("look_up"), ends()]), name="boss", tools=[look_up])
    chat = GroupChatBuilder(participants=[talker("ada")], orchestrator_agent=boss).build()
    await chat.run("Talk.", function_invocation_kwargs=kwargs)
    assert seen == ["Ada"]


def test_a_decision_error_is_a_value_error_too() -> None:
    assert issubclass(GroupChatDecisionError, ValueError)
    assert issubclass(GroupChatDecisionError, AgentInvalidResponseException)


async def test_an_agent_says_who_speaks_and_has_the_last_word() -> None:
    builder, client = led_by([asks("bob"), asks("ada"), ends()])
    result = await builder.build().run("Talk.")
    assert speakers(result) == ["bob", "ada"]
    [response] = result.get_outputs()
    assert (response.text, response.messages[0].author_name) == ("All is said.", "boss")
    assert [event.executor_id for event in result if event.type == "output"] == ["boss"]
    assert "- ada: She counts." in client.calls[0].text
    assert client.calls[0].options["response_format"] is AgentOrchestrationOutput
    # It is told each thing once: what it has asked and heard stands in its session.
    told = [message.text for message in client.calls[-1].messages]
    assert [told.count(text) for text in ("Talk.", "heard -", "heard - b")] == [1, 1, 1]


async def test_an_agent_without_a_last_word_is_given_one() -> None:
    builder, _ = led_by([ends(None)])
    assert last_word(await builder.build().run("Talk.")) == "The conversation has been terminated by the agent."


async def test_conditions_and_limits_end_a_chat_that_an_agent_leads() -> None:
    builder, client = led_by([asks("bob"), asks("ada")], max_rounds=2)
    assert "maximum number of rounds" in last_word(await builder.build().run("Talk."))
    assert len(client.calls) == 2
    builder, client = led_by([], termination_condition=MaxMessages(1))
    assert "termination condition" in last_word(await builder.build().run("Talk."))
    assert client.calls == []


ANSWER = asks("bob").model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{ANSWER}\n```",
        f"I choose:\n```\n{ANSWER}\n```\nGood luck.",
        ends().model_dump_json() + ANSWER,
        f" {ANSWER} \n",
        f"Sure! Here it is: {ANSWER}",
        f"```json {ANSWER}```",
        f"<think>It is {{bob}}.</think>{ANSWER} {ANSWER}",
        f"{ANSWER} As I said: {ANSWER}",
        json.dumps({**asks(" bob ").model_dump(), "terminate": "false"}),
    ],
)
async def test_a_decision_is_found_in_what_surrounds_it(text: str) -> None:
    builder, client = led_by([text, ends()])
    assert speakers(await builder.build().run("Talk.")) == ["bob"]
    assert len(client.calls) == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I think bob should speak.", "it is no JSON object"),
        ("[1, 2]", "it is no JSON object"),
        ('{"terminate": fals', "it is no JSON object"),
        ("  ", "it is empty"),
        ("{}", "terminate: Field required"),
        (json.dumps({"terminate": "perhaps", "reason": "?"}), "terminate: Input should be a valid boolean"),
        (f"Not {ends().model_dump_json()} but {ANSWER}", "several JSON objects with words between them"),
        (
            AgentOrchestrationOutput(terminate=True, reason="?", next_speaker="bob", final_message=" "),
            "it terminates without a final_message, and lets 'bob' speak next",
        ),
        ('{"terminate": {' * 9, "it is no JSON object"),
        (asks("eve"), "nobody is called 'eve'; next_speaker is one of 'ada', 'bob'"),
        (asks("BOB"), "nobody is called 'BOB'"),
        (asks(""), "names no next_speaker"),
        (AgentOrchestrationOutput(terminate=False, reason="?"), "names no next_speaker"),
    ],
)
async def test_what_is_wrong_with_an_answer_is_told_to_the_model(answer: Any, reason: str) -> None:
    builder, client = led_by([answer, asks("bob"), ends()])
    result = await builder.build().run("Talk.")
    assert speakers(result) == ["bob"]
    assert reason in client.calls[1].text
    assert last_word(result) == "All is said."


async def test_an_agent_that_never_decides_is_a_clear_failure_and_nobody_is_asked() -> None:
    builder, client = led_by(["bob", "ada", "well", asks("eve"), asks("bob")])
    with pytest.raises(AgentInvalidResponseException, match=r"no valid decision in 4 answers.*nobody is called 'eve'"):
        await builder.build().run("Talk.")
    assert len(client.calls) == 4
    builder, client = led_by(["bob"], retry_attempts=0)
    with pytest.raises(GroupChatDecisionError, match="no valid decision in 1 answers"):
        await builder.build().run("Talk.")
    with pytest.raises(ValueError, match="retry_attempts must be 0 or more, not -1"):
        led_by([], retry_attempts=-1)[0].build()


async def test_more_attempts_go_on_behind_the_answers_that_were_recorded(tmp_path: Path) -> None:
    replies = ["bob", "ada", asks("bob"), ends()]
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        builder, client = led_by(replies, retry_attempts=1, checkpoint_storage=storage)
        with pytest.raises(AgentInvalidResponseException):
            await builder.build().run("Talk.", run_id="r")
        assert len(client.calls) == 2
        builder, client = led_by(replies, retry_attempts=2, checkpoint_storage=storage)
        result = await builder.build().run(run_id="r")
    assert len(client.calls) == 2
    assert last_word(result) == "All is said."


async def test_a_model_that_fails_is_asked_again_and_only_what_it_has_not_answered(tmp_path: Path) -> None:
    replies: list[Any] = [asks("bob"), "ada", ConnectionError("the line broke"), asks("ada"), ends()]
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        builder, client = led_by(replies, checkpoint_storage=storage)
        workflow = builder.build()
        with pytest.raises(ConnectionError):
            await workflow.run("Talk.", run_id="r")
        result = await workflow.run(run_id="r")
    assert [each.text for each in result.get_intermediate_outputs()] == ["heard - b"]
    assert last_word(result) == "All is said."
    assert len(client.calls) == 5
    told = [message.text for message in client.calls[-1].messages]
    assert [told.count(text) for text in ("Talk.", "heard -", "heard - b")] == [1, 1, 1]


async def test_the_leader_goes_on_in_another_process_where_it_was(tmp_path: Path) -> None:
    replies = [asks("bob"), asks("ada"), ends("One."), asks("bob"), ends("Two.")]
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        builder, _ = led_by(replies, checkpoint_storage=storage)
        assert last_word(await builder.build().run("Talk.", run_id="r")) == "One."
        await storage.send("r", "Once more.")
        builder, client = led_by(replies, checkpoint_storage=storage)
        result = await builder.build().run(run_id="r")
    assert last_word(result) == "Two."
    assert len(client.calls) == 2
    assert "Once more." in [message.text for message in client.calls[0].messages]


async def test_one_leader_serves_several_runs() -> None:
    builder, client = led_by([asks("bob"), ends()], checkpoint_storage=InMemoryCheckpointStorage())
    workflow = builder.build()
    for run_id in ("one", "two"):
        assert speakers(await workflow.run("Talk.", run_id=run_id)) == ["bob"]
    assert [len(call.messages) for call in client.calls] == [3, 6, 3, 6]


async def test_a_leader_may_have_tools_but_none_that_ask() -> None:
    @tool
    def look() -> str:
        """Look around."""
        return "bob is there"

    def chat(used: Any) -> Any:
        boss = Agent(ScriptedChatClient([ToolCall("look"), asks("bob"), ends()]), name="boss", tools=[used])
        return GroupChatBuilder(participants=[talker("ada"), talker("bob")], orchestrator_agent=lambda: boss).build()

    assert speakers(await chat(look).run("Talk.")) == ["bob"]
    asking = tool(lambda: "", name="look", approval_mode="always_require")
    with pytest.raises(AgentInvalidResponseException, match="asked for an approval"):
        await chat(asking).run("Talk.")


def test_a_leader_without_a_name_has_the_same_id_in_every_process() -> None:
    builder = GroupChatBuilder(participants=[talker("ada")], orchestrator_agent=Agent(ScriptedChatClient([])))
    assert builder.build().start_executor_id == "group_chat_orchestrator"
