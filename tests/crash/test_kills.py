"""Real processes, real SIGKILL, at random moments. A failing seed is in the assertion's message and repeats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 100
SEED = 20260
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_killed_process_is_resumed_at_once_and_the_outputs_are_those_of_an_undisturbed_run(
    kind: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.crash.killing", kind, str(tmp_path), str(KILLS), str(SEED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["wrong"] == [], f"seed {SEED}: {told}"
    assert told["killed"] >= KILLS
