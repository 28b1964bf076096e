"""Runs that several processes did not outlive: how many of them are tried at once."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.hosting.flows import Gate, row
from tests.hosting.places import opened
from tests.hosting.wrapped import wrapped

from perdure import Host
from perdure.hosting.embedded import Suspects
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.records import Due, RunRecord


def test_the_limit_of_suspects_starts_at_one_and_doubles_over_time() -> None:
    clock = ManualClock()
    suspects, numbers = Suspects(clock), itertools.count()
    allowed: list[int] = []
    for _ in range(4):
        while suspects.has_room:
            suspects.admit(f"r{next(numbers)}")
        allowed.append(len(suspects))
        clock.advance(timedelta(seconds=5) - timedelta(milliseconds=1))
        assert not suspects.has_room
        clock.advance(timedelta(milliseconds=1))
    assert allowed == [1, 2, 4, 8]


def test_a_suspect_that_survives_its_probation_makes_room_for_another() -> None:
    clock = ManualClock()
    suspects = Suspects(clock)
    suspects.admit("r")
    clock.advance(timedelta(seconds=10))
    assert list(suspects) == []


def test_a_suspect_that_made_progress_makes_room_for_another() -> None:
    suspects = Suspects(ManualClock())
    suspects.admit("r")
    assert not suspects.has_room
    suspects.clear("r")
    assert suspects.has_room


class NoticingClock(ManualClock):
    """A clock that notices when somebody begins to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self._sleeps = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self._sleeps.set()
        await super().sleep(seconds)

    async def pass_second(self) -> None:
        """Let a second pass, and wait until the host has seen it and sleeps again."""
        await asyncio.wait_for(self._sleeps.wait(), 30)
        self._sleeps.clear()
        self.advance(timedelta(seconds=1))
        await asyncio.wait_for(self._sleeps.wait(), 30)


async def test_slow_suspects_do_not_run_one_at_a_time_for_ever(kind: str, tmp_path: Path) -> None:
    async def suspected(due: Any, **options: Any) -> list[Due]:
        return [replace(found, record=replace(found.record, attempts=2)) for found in await due(**options)]

    async def not_got_on(run: Any, run_id: str) -> RunRecord | None:
        record = await run(run_id)
        return record and replace(record, attempts=2)

    gate, clock = Gate(), NoticingClock()
    async with opened(kind, tmp_path, clock=clock) as storage:
        host = Host(wrapped(storage, due=suspected, run=not_got_on))
        host.register(row("w", gate))
        async with host:
            for number in range(40):
                await host.start("w", number)
            inside = [0]
            while gate.inside < 10:
                await clock.pass_second()
                inside.append(gate.inside)
            gate.open()
    assert max(inside[:6]) <= 1
    assert len(inside) < 40
