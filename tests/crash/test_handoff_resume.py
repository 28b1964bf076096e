"""Agents that hand over to each other and are killed at any moment end as those that nobody disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.testing.resume import run_suite

ROOT = Path(__file__).parents[2]
SEED = "12"


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_handoff_with_a_tool_and_an_approval_is_the_one_that_nobody_disturbed(kind: str) -> None:
    few = ("--points", "1", "--kills", "3", "--rounds", "1", "--races", "1")
    report = run_suite("tests.crash.switchboard", "--stores", kind, "--seed", SEED, *few, cwd=ROOT)
    assert report.is_clean, report.table()
    assert report.kills[f"random/{kind}"] >= 3
    assert report.checks[f"effect once/{kind}"] >= 3
