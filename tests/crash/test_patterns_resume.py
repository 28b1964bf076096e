"""Agents, orchestrations, functions and agent workflows, killed at any moment, end as those that nobody disturbed.

No model or tool call that has returned is made again. Each program runs on one store with one random kill and one in
each window; two programs are also forked, exported and damaged. The soak kills more often, does all of it to every
program, and uses the other stores too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.postgres_server import binaries
from tests.soak import IS_SOAK

from perdure.testing.resume import run_suite

ROOT = Path(__file__).parents[2]
SEED = "11"

ONE_EACH = [
    ("agency", "sqlite"),  # an agent with three tools and an approval
    ("press", "file"),  # a sequence with a person in it
    ("board", "sqlite"),  # agents side by side, with a person and an approval
    ("chat", "file"),  # a group chat that an agent leads
    ("panel", "sqlite"),  # one that a function leads, with one in turn as an agent in it
    ("switchboard", "sqlite"),  # agents that hand over to each other
    ("crew", "file"),  # a Magentic team with a plan review, a reset and an approval
    ("functions", "sqlite"),  # workflows that are functions
]
RETAINED = [  # an agent workflow with a router, a loop, a fallback and an approval, for each retention
    ("bureau", "sqlite-latest"),
    ("bureau", "file-full"),
]
OTHERS = [
    *[(program, "file" if kind == "sqlite" else "sqlite") for program, kind in ONE_EACH],
    *([("agency", "postgres")] if binaries() else []),
    *[("bureau", kind) for kind in ("sqlite-full", "sqlite-last-3", "file-latest", "file-last-3")],
]
KILLS = 3 if IS_SOAK else 1
CASES = [*ONE_EACH, *RETAINED, *(OTHERS if IS_SOAK else ())]
FORKED = [("agency", "sqlite"), ("bureau", "file-full"), *(CASES if IS_SOAK else ())]


@pytest.mark.parametrize(("program", "kind"), CASES)
def test_a_program_that_is_killed_again_and_again_is_the_one_that_nobody_disturbed(program: str, kind: str) -> None:
    # Racing answers test the request, not the program that asks: one program is enough.
    races = "1" if program == "agency" else "0"
    rounds = "1" if (program, kind) in FORKED else "0"
    few = ("--points", "1", "--kills", str(KILLS), "--rounds", rounds, "--races", races)
    report = run_suite(f"tests.crash.{program}", "--stores", kind, "--seed", SEED, *few, cwd=ROOT)
    assert report.is_clean, report.table()
    assert report.kills[f"random/{kind}"] >= KILLS
    assert report.checks[f"effect once/{kind}"] >= KILLS
