"""A Magentic team takes one task after the other: in one run, in a session, and inside a group chat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.magentic_team import DONE, CountingManager, Model, heard, ledger, members, team, told

from perdure import Agent, InMemoryCheckpointStorage, Message, SqliteCheckpointStorage
from perdure.orchestrations import GroupChatBuilder, MaxMessages
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure import CheckpointStorage

ROOT = Path(__file__).parents[2]
Storages = pytest.mark.parametrize("make_storage", [lambda: None, InMemoryCheckpointStorage], ids=["none", "memory"])


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of messages."""
    return [message.text for message in messages]


@Storages
async def test_a_message_after_the_end_of_a_task_is_a_new_task(
    make_storage: Callable[[], CheckpointStorage | None],
) -> None:
    model = Model(ledger(), DONE, ledger("bob", "look up"), DONE, answer=["high at noon", "full on Monday"])
    workflow = team(model, checkpoint_storage=make_storage(), max_round_count=2)
    assert texts((await workflow.run("tides")).get_outputs()) == ["high at noon"]
    result = await workflow.run("moons")
    assert texts(result.get_outputs()) == ["full on Monday"]
    assert told(result) == ["plan_created", *["progress_ledger_updated"] * 2]
    assert [event.data.round_index for event in result if event.type == "group_chat"] == [1, 1]
    assert texts(model.seen[5]) == ["tides", "high at noon", "moons", "FACTS? moons"]


async def test_limits_and_conditions_count_the_messages_of_one_task() -> None:
    workflow = team(Model(ledger(), DONE, ledger(), DONE), termination_condition=MaxMessages(3))
    for task in ("tides", "moons"):
        assert texts((await workflow.run(task)).get_outputs()) == ["the answer"]


async def test_a_manager_begins_the_next_task_as_it_was_made() -> None:
    workflow = team(manager=CountingManager())
    for task in ("tides", "moons"):
        assert texts((await workflow.run(task)).get_outputs()) == ["after 3"]


async def test_a_new_task_is_reviewed_and_resumed_in_another_process(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")

    def built() -> Any:
        return team(manager=CountingManager(), checkpoint_storage=storage, enable_plan_review=True)

    async def approve(result: Any) -> Any:
        [request] = result.get_request_info_events()
        return await built().run(run_id="r", responses={request.request_id: request.data.approve()})

    assert texts((await approve(await built().run("tides", run_id="r"))).get_outputs()) == ["after 3"]
    workflow = built()
    await workflow.run(run_id="r")
    assert texts((await approve(await workflow.run("moons"))).get_outputs()) == ["after 3"]


@Storages
async def test_a_task_that_comes_during_another_waits_for_its_end(
    make_storage: Callable[[], CheckpointStorage | None],
) -> None:
    model = Model(DONE, DONE, answer=["of tides", "of moons"])
    workflow = team(model, enable_plan_review=True, checkpoint_storage=make_storage())
    [first] = (await workflow.run("tides")).get_request_info_events()
    for task in ("moons", "  "):
        result = await workflow.run(task)
    assert [event.data for event in result if event.type == "warning"]
    result = await workflow.run(responses={first.request_id: first.data.approve()})
    assert texts(result.get_outputs()) == ["of tides"]
    [second] = result.get_request_info_events()
    assert second.data.plan.text.startswith("moons")
    result = await workflow.run(responses={second.request_id: second.data.approve()})
    assert texts(result.get_outputs())[-1] == "of moons"


async def test_a_session_has_one_task_after_the_other() -> None:
    model = Model(DONE, DONE, answer=["high at noon", "full on Monday"])
    agent = team(model).as_agent(name="crew")
    session = agent.create_session()
    assert (await agent.run("tides", session=session)).text == "high at noon"
    assert (await agent.run("moons", session=session)).text == "full on Monday"
    assert texts(model.seen[4]) == ["tides", "high at noon", "moons", "FACTS? moons"]


async def test_a_team_in_a_group_chat_takes_a_turn_after_others_and_another_one() -> None:
    model = Model(ledger(), DONE, answer=["first", "second"])
    crew = team(model).as_agent(name="crew")
    others = [Agent(ScriptedChatClient(heard), name=name) for name in ("cleo", "dan")]
    chat = GroupChatBuilder(
        participants=[others[0], crew, others[1]],
        selection_func="round_robin",
        max_rounds=5,
        intermediate_output_from=["crew"],
    ).build()
    result = await chat.run("hi")
    assert texts(result.get_intermediate_outputs()) == ["first", "second"]
    facts = [seen[-1].text for seen in model.seen if seen[-1].text.startswith("FACTS?")]
    assert facts == ["FACTS? hi", "FACTS? hi|hi|first\n\nhi|hi|first|hi|hi|first"]


async def test_a_team_that_is_asked_again_without_a_message_works_on_its_task_again() -> None:
    model = Model(DONE, DONE, answer=["first", "second"])
    crew = team(model).as_agent(name="crew")
    chat = GroupChatBuilder(
        participants=[crew], selection_func="round_robin", max_rounds=2, intermediate_output_from="all"
    ).build()
    assert texts((await chat.run("hi")).get_intermediate_outputs()) == ["first", "second"]
    assert model.seen[4][-1].text == "FACTS? hi"


@pytest.mark.parametrize("question", ["FACTS?", "PLAN?", "PROGRESS?", "ANSWER?"])
def test_a_second_task_survives_a_kill(question: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.orchestrations.magentic_program", "sqlite", str(tmp_path)]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        return subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    assert run("tides").stdout == "the answer"
    (tmp_path / "asked").unlink()
    (tmp_path / "die").write_text(question)
    assert run("", "moons").returncode == -signal.SIGKILL
    asked = (tmp_path / "asked").read_text().split()
    ended = run()
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "the answer")
    again = (tmp_path / "asked").read_text().split()[len(asked) :]
    assert again[0] == question
    assert not {"FACTS?", "PLAN?"} & set(asked) & set(again) - {question}


async def test_members_remember_the_task_before() -> None:
    spoken: list[str] = []

    def speak(messages: Sequence[Message], options: Any) -> str:
        spoken.append(heard(messages, options))
        return "hm"

    workflow = team(Model(ledger("ada", "dig"), DONE, ledger("ada", "look up"), DONE), participants=members(speak))
    await workflow.run("tides")
    await workflow.run("moons")
    assert spoken == ["dig", "dig|hm|look up"]
