"""A group chat that is killed at any moment asks no model again that has answered, and nobody speaks twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.testing.resume import run_suite

ROOT = Path(__file__).parents[2]
SEED = "7"


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_chat_that_an_agent_leads_is_the_one_that_nobody_disturbed(kind: str) -> None:
    few = ("--points", "1", "--kills", "2", "--rounds", "1", "--races", "0")
    report = run_suite("tests.crash.chat", "--stores", kind, "--seed", SEED, *few, cwd=ROOT)
    assert report.is_clean, report.table()
    assert report.kills[f"random/{kind}"] >= 2
    assert report.checks[f"effect once/{kind}"] >= 2
