"""Agents that are killed at any moment ask no model and call no tool again that has come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.kinds import KINDS

from perdure.testing.resume import run_suite

ROOT = Path(__file__).parents[2]
SEED = "11"


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_with_three_tools_and_an_approval_is_the_one_that_nobody_disturbed(kind: str) -> None:
    few = ("--points", "1", "--kills", "5", "--rounds", "1", "--races", "1")
    report = run_suite("tests.crash.agency", "--stores", kind, "--seed", SEED, *few, cwd=ROOT)
    assert report.is_clean, report.table()
    assert report.kills[f"random/{kind}"] >= 5
    assert report.windows[f"after a step's effect, before its record/{kind}"], report.table()
    assert report.checks[f"effect once/{kind}"] >= 3
