"""A run that is damaged hides nothing of the others: its requests are left out of the list, and a warning names it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.golden import waiting_program

from perdure import CheckpointDamagedError, FileCheckpointStorage
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path


async def asking(storage: FileCheckpointStorage, *names: str) -> None:
    clock = ManualClock()
    for name in names:
        await waiting_program.build(storage, clock).run(name, run_id=name, wait_for_timers=False)


async def cut_head(storage: FileCheckpointStorage, directory: Path, run_id: str) -> None:
    record = await storage.store.run(run_id)
    assert record is not None
    path = directory / f"{record.head}.json"
    path.write_bytes(path.read_bytes()[:-10])


async def test_a_damaged_run_is_left_out_and_named_and_the_others_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        await asking(storage, "ada", "bob", "eve")
        await cut_head(storage, tmp_path, "bob")
        with caplog.at_level(logging.WARNING):
            listed = await storage.requests()
    assert [request.run_id for request in listed] == ["ada", "eve"]
    (warning,) = caplog.messages
    assert "'bob'" in warning
    assert "is damaged" in warning


async def test_a_damaged_run_that_is_asked_for_says_so(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path) as storage:
        await asking(storage, "ada", "bob")
        await cut_head(storage, tmp_path, "bob")
        with pytest.raises(CheckpointDamagedError, match="bob@"):
            await storage.requests("bob")
