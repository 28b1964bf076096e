"""The page on testing names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"
PROMISES = 12


def exists(path: Path, name: str) -> bool:
    return path.is_file() and re.search(rf"\bdef {name}\(", path.read_text(encoding="utf-8")) is not None


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    assert named
    assert [f"{path}::{name}" for path, name in named if not exists(ROOT / path, name)] == []


def test_every_promise_has_a_test() -> None:
    rows = re.findall(r"^\| (\d+)\. .*::test_\w+` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [str(number) for number in range(1, PROMISES + 1)]


def test_every_folder_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+)`", PAGE.read_text(encoding="utf-8"))
    assert [each for each in named if not (ROOT / each).is_dir()] == []
