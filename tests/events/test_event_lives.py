"""The log of a run over several lives of its program."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import warm
from tests.events.bakery import RUN_ID, Loaf, bakery, facts, opened
from tests.soak import IS_SOAK

from perdure import InMemoryCheckpointStorage

if TYPE_CHECKING:
    from subprocess import CompletedProcess


ROOT = Path(__file__).parents[2]


def life(kind: str, directory: Path, victim: str) -> CompletedProcess[str]:
    return warm.run("-m", "tests.events.bakery", kind, str(directory), victim, cwd=ROOT)


VICTIMS = ["counter", "baker-0", "baker-2", "packer", "label"]
KINDS = ["file", "sqlite"]
CASES = list(zip(VICTIMS, [*KINDS, *KINDS, "file"], strict=True))
"""Each victim on one store; the soak tries both."""


@pytest.mark.parametrize(("victim", "kind"), [*itertools.product(VICTIMS, KINDS)] if IS_SOAK else CASES)
async def test_the_log_of_a_run_that_was_killed_and_resumed_is_that_of_an_undisturbed_one(
    kind: str, victim: str, tmp_path: Path
) -> None:
    undisturbed = InMemoryCheckpointStorage(allowed_checkpoint_types=[Loaf])
    await bakery(undisturbed).run(2, run_id=RUN_ID)
    first, second = life(kind, tmp_path, victim), life(kind, tmp_path, victim)
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert second.returncode == 0, second.stderr
    async with opened(kind, tmp_path) as storage:
        log = await facts(storage.events(RUN_ID))
    assert [seq for seq, *_ in log] == list(range(1, len(log) + 1))
    assert [kind for _, kind, *_ in log].count("taken_over") == 1
    expected = [rest for _, *rest in await facts(undisturbed.events(RUN_ID))]
    assert [rest for _, *rest in log if rest[0] != "taken_over"] == expected
