"""Sweeps over all store calls in one process. The resume suite covers real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.crash.program import live

from perdure import InMemoryCheckpointStorage
from perdure.testing.crash import sweep

if TYPE_CHECKING:
    from perdure.storage import StoreStorage


async def test_a_run_that_crashes_at_any_store_call_ends_as_if_nothing_had_happened() -> None:
    known: dict[str, StoreStorage] = {}

    def storage(name: str) -> StoreStorage:
        return known.setdefault(name, InMemoryCheckpointStorage())

    expected = await live(InMemoryCheckpointStorage())
    swept = await sweep(live, storage=storage, expected=expected)
    assert "commit" in swept.calls
    assert "acquire" in swept.calls
    assert swept.points > len(swept.calls)


async def test_the_undisturbed_run_does_what_the_program_says() -> None:
    ended = await live(InMemoryCheckpointStorage())
    assert ended["outputs"] == [
        *(f"{side} round {n}" for n in (1, 2, 3) for side in ("left", "right")),
        "2 jobs approved: True; begun left1 left2 left3; begun right1 right2 right3",
        "ended with 96 from 7",
    ]
