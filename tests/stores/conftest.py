"""What the tests of stores share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from simulated import Machine

if TYPE_CHECKING:
    from collections.abc import Generator

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_path() -> Generator[Path]:
    """A directory in memory, for tests that sync thousands of times."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture
def machine(quick_path: Path) -> Machine:
    """One whose disk is simulated."""
    return Machine(quick_path)
