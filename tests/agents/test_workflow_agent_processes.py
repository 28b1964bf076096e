"""A process that talks to a workflow as an agent is killed: the next one asks no model again that has answered."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import warm

if TYPE_CHECKING:
    from subprocess import CompletedProcess


PROGRAM = Path(__file__).parent / "desk_program.py"
TWO = "1:a2:1:a"


def life(kind: str, place: Path, form: str, words: str) -> CompletedProcess[str]:
    return warm.run(str(PROGRAM), kind, str(place), form, words)


@pytest.mark.parametrize("form", ["session", "nested"])
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_what_had_been_answered_is_not_asked_for_again_after_a_kill(kind: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "die").touch()
    assert life(kind, tmp_path, form, "a").returncode == -signal.SIGKILL
    second = life(kind, tmp_path, form, "a")
    assert (second.stdout, second.returncode) == (TWO, 0), second.stderr
    assert (tmp_path / "asked").read_text().split() == ["first", "second", "second"]


def test_a_later_turn_that_was_killed_goes_on_with_the_session_of_the_turn_before(tmp_path: Path) -> None:
    assert life("sqlite", tmp_path, "session", "a").stdout == TWO
    (tmp_path / "die").touch()
    assert life("sqlite", tmp_path, "session", "b").returncode == -signal.SIGKILL
    assert life("sqlite", tmp_path, "session", "b").stdout == "4:b5:4:b"
    assert (tmp_path / "asked").read_text().split() == ["first", "second", "first", "second", "second"]
