"""Magentic teams in real processes: plans wait for reviews, and recorded answers are not requested again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "orchestrations"
MANAGER = "    the manager is asked\n"


def run_example(tmp_path: Path, *arguments: str, name: str = "magentic_plan_review.py") -> str:
    """Run the example in a process and return its output. It must emit no warnings."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_a_plan_that_another_process_approves_is_followed(tmp_path: Path) -> None:
    kind, place = "sqlite", str(tmp_path / "runs")
    planned = run_example(tmp_path, "plan", kind, place)
    assert planned == f"{MANAGER * 2}    the plan: - ResearcherAgent collects - WriterAgent writes\n"
    approved = run_example(tmp_path, "approve", kind, place)
    assert approved == f"{MANAGER * 4}    Brief: The beta has forty users. We launch on Monday.\n"


def test_a_plan_that_another_process_wants_changed_is_made_anew(tmp_path: Path) -> None:
    kind, place = "file", str(tmp_path / "runs")
    run_example(tmp_path, "plan", kind, place)
    revised = run_example(tmp_path, "revise", kind, place, "Be brief")
    new_plan = "    the new plan: - WriterAgent writes two lines\n"
    assert revised == f"{MANAGER * 2}{new_plan}{MANAGER * 3}    Brief: We launch on Monday.\n"


def test_both_happens_on_the_other_storage_too_and_nothing_is_left_behind(tmp_path: Path) -> None:
    told = run_example(tmp_path).splitlines()
    assert [line.strip() for line in told if "asked" not in line] == [
        "file, a process to plan",
        "the plan: - ResearcherAgent collects - WriterAgent writes",
        "file, a process to approve",
        "Brief: The beta has forty users. We launch on Monday.",
        "sqlite, a process to plan",
        "the plan: - ResearcherAgent collects - WriterAgent writes",
        "sqlite, a process to revise",
        "the new plan: - WriterAgent writes two lines",
        "Brief: We launch on Monday.",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_team_that_gets_stuck_tells_of_each_turn(tmp_path: Path) -> None:
    assert run_example(tmp_path, name="magentic_progress.py").splitlines() == [
        "plan_created: Ada digs.",
        "the manager is told: That answer can't be used: there is no JSON object in it, or one that is broken",
        "progress_ledger_updated: gets on: True",
        "  GroupChatRequestSentEvent: ada",
        "  GroupChatResponseReceivedEvent: ada",
        "progress_ledger_updated: gets on: False",
        "replanned: Digging leads nowhere. Bob asks.",
        "progress_ledger_updated: gets on: True",
        "  GroupChatRequestSentEvent: bob",
        "  GroupChatResponseReceivedEvent: bob",
        "progress_ledger_updated: gets on: True",
        "It is under the lighthouse.",
    ]


@pytest.mark.parametrize(("kind", "question"), [("file", "PLAN?"), ("sqlite", "PLAN?"), ("sqlite", "ANSWER?")])
def test_a_killed_process_asks_the_manager_again_only_what_it_did_not_answer(
    kind: str, question: str, tmp_path: Path
) -> None:
    (tmp_path / "die").write_text(question)
    command = [sys.executable, "-W", "error", "-m", "tests.orchestrations.magentic_program", kind, str(tmp_path)]
    killed = subprocess.run([*command, "tides"], cwd=ROOT, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    asked = (tmp_path / "asked").read_text().split()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "the answer")
    again = (tmp_path / "asked").read_text().split()[len(asked) :]
    assert again[0] == question
    assert asked.count("FACTS?") == 1
    assert "FACTS?" not in again
    assert question == "PLAN?" or "PLAN?" not in again
