"""Branches that grow by chance, killed at any moment: what was seen is seen again, not done again, and counted once."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests import warm
from tests.soak import IS_SOAK

PROGRAM = Path(__file__).with_name("forest.py")
SEEDS = range(120) if IS_SOAK else range(0, 120, 60)
"""Two trees on each store; the soak tries 120."""
LIVES_MAX = 6
NOTES_MAX = 40


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_branch_has_seen_it_sees_again_and_does_not_do_again(seed: int, kind: str, tmp_path: Path) -> None:
    chance = random.Random(seed)
    deaths = [chance.randint(1, NOTES_MAX) for _ in range(chance.randint(1, LIVES_MAX))]
    for death in [*deaths, 0]:
        ended = warm.run(str(PROGRAM), str(tmp_path), kind, str(seed), str(death), timeout=600)
        assert ended.returncode in {0, -9}, ended.stderr
    diary = [json.loads(line) for line in (tmp_path / "diary").read_text("utf-8").splitlines()]
    seen: dict[str, str] = {}
    for what, path, words in diary:
        if what == "did":
            # The tickets of a bundle have its path and a number.
            assert path.partition("-")[0] not in seen, f"{path} was done again: {words}"
        else:
            assert seen.setdefault(path, words) == words, f"{path} has seen another thing before"
    assert "" in seen, "the run has ended"
