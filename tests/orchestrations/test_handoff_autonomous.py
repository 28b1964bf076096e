"""Autonomous mode: turn limits, prompts, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.handoffs import agents, always, answering, asked, handed, said, shown

from perdure import Message, SqliteCheckpointStorage, tool
from perdure.orchestrations import HandoffBuilder, MaxMessages
from perdure.testing import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT = "Nobody has answered. Go on by yourself with what you know."


def alone(script: Mapping[str, Any], **more: Any) -> tuple[Any, HandoffBuilder]:
    client, made = agents(script, **more)
    return client, HandoffBuilder(participants=made).with_start_agent("triage")


async def test_an_agent_goes_on_until_it_hands_over() -> None:
    client, builder = alone({"triage": ["One.", "Two.", ToolCall("handoff_to_tech")], "tech": ["Here."]})
    result = await builder.with_autonomous_mode(agents=["triage"]).build().run("Research.")
    assert said(result) == ["triage: One.", "triage: Two.", "triage: ", "tech: Here."]
    assert (handed(result), asked(result).source_executor_id) == ([("triage", "tech")], "tech")
    assert shown(client.calls[1])[-2:] == ["triage: One.", f"user: {DEFAULT}"]
    assert shown(client.calls[3]) == ["user: Research.", "triage: One.", "triage: Two."]


async def test_an_agent_asks_the_user_after_its_last_turn_and_may_begin_again() -> None:
    client, builder = alone({"triage": [f"{number}." for number in range(9)]})
    builder.with_autonomous_mode(prompts={"triage": "Go on."}, turn_limits={"triage": 2})
    workflow = builder.build()
    first = await workflow.run("Research.")
    assert said(first) == ["triage: 0.", "triage: 1.", "triage: 2."]
    assert asked(first).data.agent_response.text == "2."
    result = await workflow.run(responses=answering(first, "More."))
    assert said(result) == ["triage: 3.", "triage: 4.", "triage: 5."]
    assert shown(client.calls[-1])[-1] == "user: Go on."


async def test_a_limit_of_no_turns_asks_at_once() -> None:
    _, builder = alone({"triage": ["One."]})
    result = await builder.with_autonomous_mode(turn_limits={"triage": 0}).build().run("Research.")
    assert (said(result), asked(result).source_executor_id) == (["triage: One."], "triage")


async def test_the_default_limit_is_fifty_turns() -> None:
    client, builder = alone({"triage": always("Again.")})
    result = await builder.with_autonomous_mode().build().run("Research.")
    assert (len(client.calls), len(result.get_request_info_events())) == (51, 1)


async def test_only_agents_that_are_named_go_on() -> None:
    _, builder = alone({"triage": ["One."]})
    result = await builder.with_autonomous_mode(agents=["tech"]).build().run("Research.")
    assert said(result) == ["triage: One."]


async def test_a_condition_ends_what_no_user_ends() -> None:
    _, builder = alone({"triage": always("Again.")})
    builder.with_autonomous_mode().with_termination_condition(MaxMessages(3, by="triage"))
    result = await builder.build().run("Research.")
    assert (len(said(result)), result.get_request_info_events()) == (3, [])


async def test_a_condition_may_end_it_at_the_prompt() -> None:
    def is_left_alone(conversation: list[Message]) -> bool:
        return conversation[-1].text == DEFAULT

    _, builder = alone({"triage": ["One."]})
    builder.with_autonomous_mode().with_termination_condition(is_left_alone)
    result = await builder.build().run("Research.")
    assert (said(result), result.get_request_info_events()) == (["triage: One."], [])


async def test_turns_are_counted_over_an_approval_and_another_process(tmp_path: Path) -> None:
    done: list[int] = []

    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        done.append(amount)
        return "paid"

    def build() -> Any:
        script = {"triage": ["One.", ToolCall("pay", amount=7), "Three.", "Four."]}
        client, builder = alone(script, tools={"triage": [pay]})
        builder.with_autonomous_mode(turn_limits={"triage": 2})
        builder.with_checkpointing(SqliteCheckpointStorage(tmp_path / "runs.db"))
        return client, builder.build()

    first = await build()[1].run("Research.", run_id="r")
    assert (said(first), asked(first).data.function_call.name) == (["triage: One."], "pay")
    client, workflow = build()
    result = await workflow.run(run_id="r", responses={asked(first).request_id: True})
    assert (done, len(client.calls)) == ([7], 2)
    assert said(result) == ["triage: Three.", "triage: Four."]
    assert asked(result).data.agent_response.text == "Four."


@pytest.mark.parametrize(
    "more", [{"agents": ["nobody"]}, {"prompts": {"nobody": "Go on."}}, {"turn_limits": {"nobody": 1}}]
)
def test_autonomous_mode_is_of_participants(more: dict[str, Any]) -> None:
    _, builder = alone({})
    with pytest.raises(ValueError, match="with_autonomous_mode names 'nobody', which is not a participant"):
        builder.with_autonomous_mode(**more).build()


def test_a_limit_is_not_negative() -> None:
    _, builder = alone({})
    with pytest.raises(ValueError, match="the turn limit of 'triage' must be 0 or more, not -1"):
        builder.with_autonomous_mode(turn_limits={"triage": -1}).build()
