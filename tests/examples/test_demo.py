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
    rows = [line.split("│")[1:4] for line in done.stdout.splitlines() if line.count("│") == 4 and "chapter" not in line]
    written = {chapter.strip(): (first.strip(), second.strip()) for chapter, first, second in rows}
    assert [first for first, _ in written.values()] == ["written"] * 3 + ["killed here"] * 3
    assert [second for _, second in written.values()] == [""] * 3 + ["written"] * 3
    assert "the same as of a run that nobody disturbed" in done.stdout
    assert list(tmp_path.iterdir()) == []
