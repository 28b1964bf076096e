"""Functional workflows that are killed at any moment do no step again that has come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.testing.resume import run_suite

ROOT = Path(__file__).parents[2]
SEED = "7"


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_functional_workflow_is_the_one_that_nobody_disturbed(kind: str) -> None:
    few = ("--points", "1", "--kills", "4", "--rounds", "1", "--races", "1")
    report = run_suite("tests.crash.functions", "--stores", kind, "--seed", SEED, *few, cwd=ROOT)
    assert report.is_clean, report.table()
    assert report.kills[f"random/{kind}"] >= 4
    assert report.windows[f"after a step's effect, before its record/{kind}"], report.table()
    assert report.checks[f"effect once/{kind}"] >= 3
