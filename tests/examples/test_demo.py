"""The demo shows what it says: one process is killed, another ends the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_kills_a_process_and_another_ends_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(DEMO)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("│")[1:4] for line in done.stdout.splitlines() if line.count("│") == 4]
    written = {chapter.strip(): (first.strip(), second.strip()) for chapter, first, second in rows}
    assert written["what is known"] == ("written", "")
    assert written["the method"] == ("killed here", "written")
    assert written["the summary"] == ("", "written")
    assert "the same as of a run that nobody disturbed" in done.stdout
    assert list(tmp_path.iterdir()) == []
