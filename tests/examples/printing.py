"""An example as its reader runs it: a script in an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def printed(example: Path, *arguments: str, under: Path) -> str:
    """What it prints. It must end well, warn of nothing and leave nothing behind."""
    here, scratch = under / "here", under / "scratch"
    here.mkdir()
    scratch.mkdir()
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(example), *arguments],
        cwd=here,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [*here.iterdir(), *scratch.iterdir()] == []
    return ended.stdout
