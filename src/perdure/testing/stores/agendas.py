"""Agendas: which runs can go on, and who hears of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.records import Due
from perdure.testing.stores.driver import RunDriver, command, finished, halted, new_run
from perdure.testing.stores.suite import UNWOKEN_SECONDS, HostStoreSuite, in_a_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.records import HaltKind, HeadStatus
    from perdure.storage import HostStore, Stir
    from perdure.testing.clock import ManualClock

_BEFORE, _NOW, _AFTER = (f"2024-05-01T10:00:0{second}+00:00" for second in range(3))
_RESTING: tuple[HeadStatus, ...] = ("waiting", "sleeping", "idle", "cancelled")


async def _resting(
    store: HostStore,
    clock: ManualClock,
    name: str,
    *,
    workflow_name: str = "flow",
    status: HeadStatus = "running",
    wake_at: str | None = None,
) -> RunDriver:
    """A run that nobody advances. It has waited longer than those that come after it."""
    run = await RunDriver.start(store, clock, name, workflow_name=workflow_name)
    await run.commit(status=status, wake_at=wake_at)
    await run.release()
    clock.advance(timedelta(seconds=1))
    return run


async def _due(store: HostStore, *, at: str = _NOW, of: Sequence[str] = ("flow",), limit: int = 100) -> Sequence[str]:
    return [each.record.run_id for each in await store.due(at=at, workflow_names=of, limit=limit)]


async def _stirred(stir: Stir) -> None:
    await asyncio.wait_for(stir.woken(), UNWOKEN_SECONDS)


class AgendaConformance(HostStoreSuite):
    """A run is due if it can go on and nobody advances it."""

    @in_a_loop
    async def test_a_run_whose_head_leaves_work_is_due(self, store: HostStore, clock: ManualClock) -> None:
        assert await _due(store) == []
        for status in ("running", *_RESTING):
            await _resting(store, clock, status, status=status)
        assert await _due(store) == ["running"]
        await store.close()
        assert await _due(store) == ["running"]

    @in_a_loop
    async def test_a_run_is_due_when_its_timer_is(self, store: HostStore, clock: ManualClock) -> None:
        await _resting(store, clock, "deadline", status="waiting", wake_at=_NOW)
        await _resting(store, clock, "timer", status="sleeping", wake_at=_AFTER)
        assert await _due(store, at=_BEFORE) == []
        assert await _due(store, at=_NOW) == ["deadline"]
        assert await _due(store, at=_AFTER) == ["deadline", "timer"]

    @pytest.mark.parametrize("status", ["waiting", "sleeping", "idle"])
    @in_a_loop
    async def test_a_run_is_due_while_a_command_waits(
        self, store: HostStore, clock: ManualClock, status: HeadStatus
    ) -> None:
        run = await _resting(store, clock, "r", status=status)
        numbers = await run.post(command("a"), command("b"))
        assert await store.due(at=_NOW, workflow_names=["flow"], limit=9) == [Due(await run.record(), numbers[-1])]
        await run.reclaim()
        await run.commit(status=status, consumed=("a",))
        await run.release()
        assert await _due(store) == ["r"]
        await run.reclaim()
        await run.commit(status=status, consumed=("b",))
        await run.release()
        assert await _due(store) == []

    @in_a_loop
    async def test_a_cancelled_run_is_not_due_whatever_comes(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="cancelled", wake_at=_BEFORE)
        await run.post(command("a"))
        assert await _due(store) == []
        await run.reclaim()
        await run.commit(status="waiting")
        await run.release()
        assert await _due(store) == ["r"]

    @in_a_loop
    async def test_what_is_due_is_told_with_its_record(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", workflow_name="flöw", status="sleeping", wake_at=_BEFORE)
        assert await store.due(at=_NOW, workflow_names=["flöw"], limit=1) == [Due(await run.record(), 0)]

    @pytest.mark.parametrize("kind", ["failed", "parked", "exported"])
    @in_a_loop
    async def test_a_halted_run_is_not_due(self, store: HostStore, clock: ManualClock, kind: HaltKind) -> None:
        runs = [await _resting(store, clock, name) for name in "ab"]
        await runs[0].post(command("a"))
        for run in runs:
            await run.reclaim()
            await run.release(halt=halted(kind))
        assert await _due(store) == []
        if kind != "exported":
            await runs[1].reclaim()
            await runs[1].release()
            assert await _due(store) == ["b"]

    @in_a_loop
    async def test_what_this_process_advances_is_not_due(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="sleeping", wake_at=_BEFORE)
        await run.post(command("a"))
        assert await _due(store) == ["r"]
        await run.reclaim()
        assert await _due(store) == []
        await run.note(finished("a"))
        await run.commit()
        assert await _due(store) == []
        await run.release()
        assert await _due(store) == ["r"]

    @in_a_loop
    async def test_only_runs_of_the_named_workflows_are_due(self, store: HostStore, clock: ManualClock) -> None:
        for number, workflow_name in enumerate(("one", "two", "three", "two")):
            await _resting(store, clock, f"r{number}", workflow_name=workflow_name)
        assert await _due(store, of=["two"]) == ["r1", "r3"]
        assert await _due(store, of=("three", "one")) == ["r0", "r2"]
        assert await _due(store, of=["four"]) == []
        assert await _due(store, of=[]) == []

    @in_a_loop
    async def test_those_that_waited_longest_come_first(self, store: HostStore, clock: ManualClock) -> None:
        runs = {name: await _resting(store, clock, name) for name in "zmak"}
        await _resting(store, clock, "timer", status="sleeping", wake_at=_BEFORE)
        message = await _resting(store, clock, "message", status="idle")
        await runs["m"].reclaim()
        await runs["m"].commit()
        await runs["m"].release()
        await message.post(command("a"))
        assert await _due(store) == ["z", "a", "k", "timer", "message", "m"]

    @in_a_loop
    async def test_no_more_are_told_than_were_asked_for(self, store: HostStore, clock: ManualClock) -> None:
        runs = [await _resting(store, clock, f"r{number}") for number in range(6)]
        for run in runs[:3]:
            await run.reclaim()
        await runs[3].reclaim()
        await runs[3].release(halt=halted())
        assert [await _due(store, limit=limit) for limit in (1, 2, 3)] == [["r4"], ["r4", "r5"], ["r4", "r5"]]

    @in_a_loop
    async def test_a_fork_is_due_before_its_first_commit(self, store: HostStore, clock: ManualClock) -> None:
        await _resting(store, clock, "old")
        await _resting(store, clock, "r", status="idle")
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert await _due(store) == ["old"]
        await fork.release()
        assert await _due(store) == ["f", "old"]

    @in_a_loop
    async def test_a_run_that_never_began_is_not_due(self, store: HostStore) -> None:
        claim = await store.claim("r", create=new_run("r"))
        assert await _due(store) == []
        await store.release(claim)
        assert await _due(store) == []

    @in_a_loop
    async def test_a_run_that_is_gone_is_not_due(self, store: HostStore, clock: ManualClock) -> None:
        for name in ("deleted", "removed"):
            run = await _resting(store, clock, name, wake_at=_AFTER)
            await run.post(command("a"))
        await store.delete("deleted@0")
        await store.remove("removed")
        assert await _due(store) == []
        assert await store.next_wake(after=_NOW, workflow_names=["flow"]) is None

    @in_a_loop
    async def test_the_next_wake_is_that_of_the_first_timer(self, store: HostStore, clock: ManualClock) -> None:
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) is None
        for number, wake_at in enumerate((_AFTER, None, _NOW, _BEFORE)):
            await _resting(store, clock, f"r{number}", status="sleeping", wake_at=wake_at)
        await _resting(store, clock, "other", workflow_name="other", status="waiting", wake_at=_BEFORE)
        wakes = [await store.next_wake(after=after, workflow_names=["flow"]) for after in ("", _BEFORE, _NOW, _AFTER)]
        assert wakes == [_BEFORE, _NOW, _AFTER, None]
        assert await store.next_wake(after="", workflow_names=["other"]) == _BEFORE
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow", "other"]) == _NOW
        assert await store.next_wake(after="", workflow_names=[]) is None

    @in_a_loop
    async def test_the_next_wake_is_that_of_the_head(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="sleeping", wake_at=_NOW)
        await run.reclaim()
        await run.commit(status="sleeping", wake_at=_AFTER)
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) == _AFTER
        await run.rewind("r@0")
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) == _NOW
        await run.release(halt=halted())
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) is None

    @in_a_loop
    async def test_the_timer_of_a_cancelled_run_wakes_nobody(self, store: HostStore, clock: ManualClock) -> None:
        await _resting(store, clock, "cancelled", status="cancelled", wake_at=_NOW)
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) is None
        await _resting(store, clock, "sleeping", status="sleeping", wake_at=_AFTER)
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) == _AFTER

    @in_a_loop
    async def test_who_looks_for_work_hears_of_it(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="idle")
        async with store.stirring() as stir:
            stir.rest()
            hears = asyncio.create_task(_stirred(stir))
            await asyncio.sleep(0)
            await run.post(command("a"))
            await hears
            await run.reclaim()
            stir.rest()
            hears = asyncio.create_task(_stirred(stir))
            await asyncio.sleep(0)
            await run.release()
            await hears
        await store.close()

    @in_a_loop
    async def test_what_comes_before_one_waits_is_not_missed(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="idle")
        async with store.stirring() as stir:
            for number in range(3):
                stir.rest()
                assert await _due(store) == (["r"] if number else [])
                await run.post(command(f"{number}"))
                await _stirred(stir)
            await run.reclaim()
            stir.rest()
            await run.release(halt=halted())
            await _stirred(stir)
        await store.close()

    @in_a_loop
    async def test_all_who_look_for_work_hear_of_it(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="idle")
        async with store.stirring() as one, store.stirring() as other:
            for stir in (one, other):
                stir.rest()
            await run.post(command("a"))
            for stir in (one, other):
                await _stirred(stir)
        await store.close()

    @in_a_loop
    async def test_who_stops_looking_for_work_leaves_nothing_behind(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="idle")
        async with store.stirring() as stir:
            hears = asyncio.create_task(_stirred(stir))
            await asyncio.sleep(0)
            hears.cancel()
            await asyncio.wait([hears])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await run.post(command("a"))
        assert await _due(store) == ["r"]
        await store.close()
