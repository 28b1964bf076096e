"""Every Python block of the guide runs, and prints what the page says that it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.page import blocks_of

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
WALK = GUIDE / "operating.md"
"""Tests of the command line follow this one."""
PAGES = [
    *sorted({*GUIDE.glob("*.md")} - {WALK}),
    GUIDE.with_name("agent-workflows.md"),
    GUIDE.with_name("orchestrations.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_guide_does_what_it_says(page: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("page.py")), str(page)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_guide_has_python_that_prints_something(page: Path) -> None:
    assert any(block.printed for block in blocks_of(page))
