"""Runs of Magentic teams are independent, and a failed attempt changes nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.magentic_team import DONE, PROMPTS, STUCK, CountingManager, Model, ledger, members, team

from perdure import Agent, InMemoryCheckpointStorage, Message
from perdure.orchestrations import MagenticBuilder, MagenticContext, MagenticOrchestrator, StandardMagenticManager
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perdure import CheckpointStorage

Storages = pytest.mark.parametrize("make_storage", [lambda: None, InMemoryCheckpointStorage], ids=["none", "memory"])


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of messages."""
    return [message.text for message in messages]


@Storages
async def test_another_run_of_one_workflow_begins_with_nothing(
    make_storage: Callable[[], CheckpointStorage | None],
) -> None:
    model = Model(ledger(), DONE, STUCK, ledger(), DONE)
    workflow = team(model, checkpoint_storage=make_storage(), max_stall_count=0)
    await workflow.run("a secret", run_id="one")
    asked = len(model.seen)
    result = await workflow.run("tides", run_id="two")
    assert result.get_outputs()[0].text == "the answer"
    assert not any("secret" in text for seen in model.seen[asked:] for text in texts(seen))
    rounds = [event.data.round_index for event in result if event.type == "group_chat"]
    assert rounds == [2, 2], "the first round of this run has led to another plan"


async def test_two_who_talk_to_one_team_hear_nothing_of_each_other() -> None:
    model = Model(ledger(), DONE, ledger(), DONE)
    agent = team(model).as_agent(name="crew")
    await agent.run("the secret of Alice", session=agent.create_session())
    asked = len(model.seen)
    assert (await agent.run("tides", session=agent.create_session())).text == "the answer"
    assert not any("Alice" in text for seen in model.seen[asked:] for text in texts(seen))


@Storages
async def test_a_turn_that_failed_is_heard_and_counted_once(
    make_storage: Callable[[], CheckpointStorage | None],
) -> None:
    model = Model(ledger(), ConnectionError("the line broke"), ledger("bob", "write"), DONE)
    workflow = team(model, checkpoint_storage=make_storage(), max_round_count=3)
    with pytest.raises(ConnectionError):
        await workflow.run("tides", run_id="r")
    result = await workflow.run(run_id="r")
    assert result.get_outputs()[0].text == "the answer"
    assert texts(model.seen[-1]) == [
        "tides",
        "tides / the facts / the plan",
        "go on",
        "go on",
        "write",
        "go on|write",
        "ANSWER? tides",
    ]
    assert [
        (event.data.round_index, event.data.participant_name) for event in result if event.type == "group_chat"
    ] == [(1, "ada"), (2, "bob"), (2, "bob")]


async def test_a_task_whose_plan_failed_is_planned_when_the_run_goes_on() -> None:
    model = Model(facts=[ConnectionError("the line broke"), "the facts"])
    workflow = team(model)
    with pytest.raises(ConnectionError):
        await workflow.run("tides")
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs()[0].text == "the answer"


def task_led(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
    """A model that says whose facts are whose."""
    question = messages[-1].text
    if question.startswith("NEW FACTS?"):
        return question.replace("NEW FACTS?", "after")
    if question.startswith("FACTS?"):
        return question.replace("FACTS?", "facts of")
    return DONE if question.startswith("PROGRESS?") else "something"


@Storages
async def test_one_manager_of_two_teams_mixes_nothing(make_storage: Callable[[], CheckpointStorage | None]) -> None:
    manager = StandardMagenticManager(Agent(ScriptedChatClient(task_led), name="boss"), **PROMPTS)
    storage = make_storage()
    one, other = (
        team(manager=manager, enable_plan_review=True, checkpoint_storage=storage, name=name) for name in ("one", "two")
    )
    asked, _ = await asyncio.gather(one.run("moons", run_id="m"), other.run("tides", run_id="t"))
    [request] = asked.get_request_info_events()
    result = await one.run(responses={request.request_id: request.data.revise("shorter")})
    [request] = result.get_request_info_events()
    assert request.data.plan.text == "moons / after facts of moons / something"


@Storages
async def test_a_manager_begins_each_task_as_it_was_made(make_storage: Callable[[], CheckpointStorage | None]) -> None:
    manager = CountingManager()
    for number in range(2):
        workflow = team(manager=manager, checkpoint_storage=make_storage(), name=f"crew{number}")
        for run_id in ("one", "two"):
            result = await workflow.run("tides", run_id=run_id)
            assert result.get_outputs()[0].text == "after 3"


async def test_a_manager_has_no_plan_of_another_task() -> None:
    manager = StandardMagenticManager(Agent(ScriptedChatClient(task_led), name="boss"), **PROMPTS)
    await team(manager=manager).run("moons")
    assert manager.task_ledger is not None
    manager.on_checkpoint_restore({})
    with pytest.raises(RuntimeError, match="before replan"):
        await manager.replan(MagenticContext("tides"))


def test_the_orchestrator_says_what_it_is_called() -> None:
    boss = Agent(ScriptedChatClient(Model()), name="boss")
    workflow = MagenticBuilder(participants=members(), manager_agent=boss).build()
    assert MagenticOrchestrator.MANAGER_NAME == "magentic_orchestrator"
    assert isinstance(workflow.executors[MagenticOrchestrator.MANAGER_NAME], MagenticOrchestrator)
