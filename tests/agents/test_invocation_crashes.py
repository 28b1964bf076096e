"""A process that dies inside a tool: nothing that came back is asked for again, the call itself as the tool says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import warm
from tests.agents.invocation_program import live

from perdure.agents.messages.conversation import INTERRUPTED

ROOT = Path(__file__).parents[2]


def died(directory: Path, name: str) -> bool:
    """Let a life of its own begin the run, and die in the middle of a payment."""
    return warm.run("-m", "tests.agents.invocation_program", str(directory), name, cwd=ROOT).returncode == 9


def effects(directory: Path) -> list[str]:
    return (directory / "effects").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("name", "told", "payments"),
    [("tell", INTERRUPTED, 1), ("rerun", "paid", 2), ("find", "found to be paid", 1), ("not_done", "paid", 1)],
    ids=["told", "made again", "found out", "found not to be done"],
)
async def test_a_call_that_a_crash_cut_off_is_settled_as_its_tool_says(
    name: str, told: str, payments: int, tmp_path: Path
) -> None:
    assert died(tmp_path, name)
    assert await live(tmp_path, name, None) == [f"all is well; {told}"]
    made = effects(tmp_path)
    keys = [line for line in made if line.startswith("pay")]
    assert [line for line in made if line not in keys] == ["model 0", "look", "model 1", "model 2"]
    assert len(keys) == payments
    assert len(set(keys)) == 1, "the same key in every life"
    assert await live(tmp_path, name, None) == [f"all is well; {told}"]
    assert effects(tmp_path) == made, "nothing is done when it is told again"


async def test_somebody_may_be_asked_what_became_of_a_call(tmp_path: Path) -> None:
    assert died(tmp_path, "ask")
    assert await live(tmp_path, "ask", None) == ["tool pay"]
    assert await live(tmp_path, "ask", "paid by hand") == ["all is well; paid by hand"]
    assert [line.split()[0] for line in effects(tmp_path)] == ["model", "look", "model", "pay", "model"]
