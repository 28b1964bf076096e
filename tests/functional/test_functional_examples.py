"""The examples of functional workflows run as scripts, print what they promise, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "functional"

EXPECTED = {
    "parallel_steps.py": """\
        a process
          asking the library
          asking a friend
          the process dies
        a process
          summing up, in a thread
          what the library knows, what a friend knows
        a process
          what the library knows, what a friend knows
        """,
    "human_in_the_loop.py": """\
        the program
          the run is IDLE_WITH_PENDING_REQUESTS, the model was asked 1 times
        a person
          {'review': 'Owls see in the dark.'} -> too long
        the program
          a verdict on 'Owls see in the dark.': too long
          the run is IDLE_WITH_PENDING_REQUESTS, the model was asked 2 times
        a person
          {'review': 'Owls see.'} -> good
        the program
          a verdict on 'Owls see.': good
          the run is IDLE, the model was asked 2 times
          published: Owls see.
        """,
    "as_agent.py": """\
        shopper: Buys things.
          function_approval_request: {'item': 'lamp', 'euros': 40}
          a lamp for 40 euros
        the steps, as they happen
          executor_invoked
          executor_completed
        """,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_of_a_function_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    here, scratch = tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=here,
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == dedent(EXPECTED[name])
    assert list(here.iterdir()) == list(scratch.iterdir()) == []


def test_every_example_of_a_function_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == EXPECTED.keys()
