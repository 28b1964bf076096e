"""Sequences and boards with people in them, killed at any moment, are those that nobody disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.testing.resume import run_suite

ROOT = Path(__file__).parents[2]
SEED = "7"


@pytest.mark.parametrize("program", ["press", "board"])
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_participants_with_people_between_them_are_those_that_nobody_disturbed(program: str, kind: str) -> None:
    few = ("--points", "1", "--kills", "2", "--rounds", "1", "--races", "1")
    report = run_suite(f"tests.crash.{program}", "--stores", kind, "--seed", SEED, *few, cwd=ROOT)
    assert report.is_clean, report.table()
    assert report.kills[f"random/{kind}"] >= 2
    assert report.checks[f"effect once/{kind}"] >= 3
