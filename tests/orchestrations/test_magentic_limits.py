"""A Magentic team ends at its limits; a stuck team without limits fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.magentic_team import DONE, STUCK, CountingManager, Model, ledger, members, team, told

from perdure import InMemoryCheckpointStorage, WorkflowConvergenceException
from perdure.orchestrations import MagenticAnswerError, MaxMessages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure import Message


def briefly(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
    """Say little, however much was said."""
    return f"heard {len(messages)}"


def has_enough(conversation: list[Message]) -> bool:
    """Return True for a long conversation."""
    return len(conversation) > 60


@pytest.mark.parametrize(
    ("limits", "last_word"),
    [
        ({"max_round_count": 60}, "Workflow terminated due to reaching maximum round count."),
        ({"termination_condition": MaxMessages(60)}, "Workflow terminated due to reaching its termination condition."),
        ({"max_iterations": 130, "termination_condition": has_enough}, "termination condition."),
    ],
    ids=["rounds", "messages", "iterations"],
)
async def test_a_limit_is_reached_however_far_it_is(limits: dict[str, Any], last_word: str) -> None:
    result = await team(Model(ledger()), participants=members(briefly), **limits).run("tides")
    assert result.get_outputs()[0].text.endswith(last_word)


async def test_the_limit_of_a_manager_of_ones_own_counts_too() -> None:
    assert team(manager=CountingManager(max_round_count=200)).max_iterations == 402
    assert team(max_round_count=200, max_iterations=7).max_iterations == 7
    with pytest.raises(ValueError, match="max_iterations must be 1 or more"):
        team(max_iterations=0)
    with pytest.raises(WorkflowConvergenceException):
        await team(Model(ledger()), max_iterations=7).run("tides")


async def test_a_manager_that_lets_nobody_act_fails_the_run() -> None:
    model = Model(STUCK)
    with pytest.raises(MagenticAnswerError, match="stuck 11 times in a row") as caught:
        await team(model, participants=members(briefly), max_stall_count=0).run("tides")
    assert "max_reset_count" in str(caught.value)
    assert model.asked.count("PROGRESS?") == 11
    assert model.asked.count("NEW PLAN?") == 10


async def test_a_run_that_was_stuck_goes_on_with_more_patience() -> None:
    model = Model(*[STUCK] * 11, DONE)
    storage = InMemoryCheckpointStorage()
    with pytest.raises(MagenticAnswerError, match="in a row"):
        await team(model, max_stall_count=0, checkpoint_storage=storage, name="crew").run("tides", run_id="r")
    result = await team(model, max_stall_count=1, checkpoint_storage=storage, name="crew").run(run_id="r")
    assert result.get_outputs()[0].text == "the answer"


async def test_resets_between_which_somebody_acts_are_no_circle() -> None:
    model = Model(*[ledger(), STUCK] * 12, DONE)
    result = await team(model, participants=members(briefly), max_stall_count=0).run("tides")
    assert result.get_outputs()[0].text == "the answer"
    assert told(result).count("replanned") == 12


async def test_a_limit_of_resets_is_reached_even_if_nobody_acts() -> None:
    result = await team(Model(STUCK), max_stall_count=0, max_reset_count=15).run("tides")
    assert result.get_outputs()[0].text == "Workflow terminated due to reaching maximum reset count."
    assert told(result).count("replanned") == 15
