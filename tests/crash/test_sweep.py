"""Crash at the first store call, then at the second, until none is hit, on every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.crash.program import live

from perdure import FileCheckpointStorage, InMemoryCheckpointStorage, SqliteCheckpointStorage
from perdure.testing.crash import sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.storages.shipped import StoreStorage


def memory(_: Path) -> Callable[[str], StoreStorage]:
    known: dict[str, StoreStorage] = {}
    return lambda name: known.setdefault(name, InMemoryCheckpointStorage())


def file(directory: Path) -> Callable[[str], StoreStorage]:
    return lambda name: FileCheckpointStorage(directory / name)


def sqlite(directory: Path) -> Callable[[str], StoreStorage]:
    return lambda name: SqliteCheckpointStorage(directory / f"{name}.db")


@pytest.mark.parametrize("kind", [memory, file, sqlite])
async def test_a_run_that_crashes_at_any_store_call_ends_as_if_nothing_had_happened(
    kind: Callable[[Path], Callable[[str], StoreStorage]], tmp_path: Path
) -> None:
    expected = await live(InMemoryCheckpointStorage())
    swept = await sweep(live, storage=kind(tmp_path), expected=expected)
    assert "commit" in swept.calls
    assert "claim" in swept.calls
    assert swept.points == 2 * len(swept.calls)


async def test_the_undisturbed_run_does_what_the_program_says() -> None:
    ended = await live(InMemoryCheckpointStorage())
    assert ended["outputs"] == [
        *(f"{side} round {n}" for n in (1, 2, 3) for side in ("left", "right")),
        "2 jobs approved: True; begun left1 left2 left3; begun right1 right2 right3",
        "ended with 96 from 7",
    ]
