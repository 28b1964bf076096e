"""Eight processes answer one request at once, a hundred times: one effect each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import warm

ROOT = Path(__file__).parents[2]


def crowd(kind: str, directory: Path, rounds: int, *more: str) -> tuple[list[list[list[str]]], list[str]]:
    """How each of the processes fared in each round, and the effects that there were."""
    done = warm.run("-m", "tests.inbox.crowd", kind, str(directory), str(rounds), *more, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return told["outcomes"], told["effects"]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_of_eight_processes_that_answer_at_once_one_has_an_effect_and_seven_are_told_which(
    kind: str, tmp_path: Path
) -> None:
    outcomes, effects = crowd(kind, tmp_path, 100)
    expected: list[str] = []
    for number, outcome in enumerate(outcomes):
        ((_, winner),) = [each for each in outcome if each[0] == "accepted"]
        assert [each for each in outcome if each[0] != "accepted"] == [["answered", repr(winner)]] * 7
        expected.append(f"q{number} {winner}")
    assert effects == expected
    assert len(effects) == 100


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_it_is_the_same_where_some_of_them_drive_the_run_with_their_answer(kind: str, tmp_path: Path) -> None:
    """Who finds the run claimed by another learns that; nobody else is refused without being told the answer."""
    outcomes, effects = crowd(kind, tmp_path, 20, "runs")
    expected: set[str] = set()
    for number, outcome in enumerate(outcomes):
        ((_, winner),) = [each for each in outcome if each[0] == "accepted"]
        refused = [each for each in outcome if each[0] != "accepted"]
        assert {told for how, told in refused if how == "answered"} <= {repr(winner)}
        assert len(refused) == 7
        expected.add(f"q{number} {winner}")
    assert set(effects) == expected
    assert len(effects) == 20
