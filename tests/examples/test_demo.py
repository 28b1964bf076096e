"""The demo shows what it says: one process is killed, a person approves, others end the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_kills_agents_in_their_turns_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(DEMO)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("│")[1:5] for line in done.stdout.splitlines() if line.count("│") == 5]
    made = {call.strip(): tuple(cell.strip() for cell in cells) for call, *cells in rows}
    before, killed, later, last = ("made", "", ""), ("killed here", "made", ""), ("", "made", ""), ("", "", "made")
    assert made == {
        "history, model, 1st call": before,
        "history, tool library": before,
        "history, model, 2nd call": before,
        "physics, model, 1st call": before,
        "physics, tool library": before,
        "physics, model, 2nd call": killed,
        "economy, model, 1st call": before,
        "economy, tool library": killed,
        "economy, model, 2nd call": later,
        "editor, model, 1st call": later,
        "editor, tool publish": last,
        "editor, model, 2nd call": last,
    }
    assert "alice, approves the call: 'publish(report)'" in " ".join(done.stdout.split())
    assert "the same as without a kill" in done.stdout
    assert list(tmp_path.iterdir()) == []
