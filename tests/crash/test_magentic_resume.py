"""A Magentic team that is killed at any moment asks no model again what it has answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.testing.resume import run_suite

ROOT = Path(__file__).parents[2]
SEED = "11"


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_team_with_a_plan_review_and_a_reset_is_the_one_that_nobody_disturbed(kind: str) -> None:
    few = ("--points", "1", "--kills", "3", "--rounds", "1", "--races", "1")
    report = run_suite("tests.crash.crew", "--stores", kind, "--seed", SEED, *few, cwd=ROOT)
    assert report.is_clean, report.table()
    assert report.kills[f"random/{kind}"] >= 3
    assert report.checks[f"effect once/{kind}"] >= 3
