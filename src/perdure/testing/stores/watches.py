"""Watching: whoever waits for a run to change is woken by the change."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.records import KeepFor, Mark, Retention
from perdure.testing.clock import ManualClock
from perdure.testing.stores.driver import RunDriver, command, events
from perdure.testing.stores.suite import UNWOKEN_SECONDS, StoreSuite, in_a_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from perdure.storage import Store


async def watcher(store: Store, run_id: str, *, seen: Mark, commands_only: bool = False) -> asyncio.Task[Mark]:
    """One who waits by now."""
    task = asyncio.create_task(store.watch(run_id, seen=seen, commands_only=commands_only))
    # Whoever asks the store after it has asked is answered after it.
    await asyncio.sleep(0)
    await store.run(run_id)
    assert not task.done()
    return task


@contextlib.asynccontextmanager
async def watching(store: Store, run_id: str, *, seen: Mark) -> AsyncGenerator[asyncio.Task[Mark]]:
    """One who waits by now. What is done here has to wake it."""
    task = await watcher(store, run_id, seen=seen)
    yield task
    await asyncio.wait_for(task, UNWOKEN_SECONDS)


class WatchConformance(StoreSuite):
    """A change is noticed at once by all who wait in this process."""

    @in_a_loop
    async def test_who_has_seen_less_does_not_wait(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(events=events("a", "b"))
        (number,) = await run.post(command("a"))
        there = run.at("r@0", events=2, commands=number)
        for seen in (Mark(), run.at("r@0"), run.at("r@0", 2), run.at("r@0", 1, number), run.at("other", 2, number)):
            assert await store.watch("r", seen=seen) == there
        assert await store.watch("nowhere", seen=there) == Mark()
        await store.close()

    @in_a_loop
    async def test_a_commit_wakes_who_waits(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        async with watching(store, "r", seen=run.at("r@0")) as watch:
            await run.commit(events=events("a"))
        assert watch.result() == run.at("r@1", events=1)
        await store.close()

    @in_a_loop
    async def test_a_command_wakes_who_waits(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        async with watching(store, "r", seen=run.at("r@0")) as watch:
            (first,) = await run.post(command("a"))
        assert watch.result() == run.at("r@0", commands=first)
        async with watching(store, "r", seen=run.at("r@0", commands=first)) as watch:
            (second,) = await run.post(command("b"))
        assert watch.result() == run.at("r@0", commands=second)
        async with watching(store, "r", seen=run.at("r@0", commands=second)) as watch:
            await run.commit(consumed=("a", "b"))
        assert watch.result() == run.at("r@1")
        await store.close()

    @in_a_loop
    async def test_who_waits_for_commands_is_woken_by_nothing_else(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert await store.watch("r", seen=Mark(commands=7), commands_only=True) == run.at("r@0")
        watch = await watcher(store, "r", seen=Mark(), commands_only=True)
        await run.commit(events=events("a"))
        await run.rewind("r@0")
        await store.run("r")
        assert not watch.done()
        (number,) = await run.post(command("a"))
        assert await asyncio.wait_for(watch, UNWOKEN_SECONDS) == run.at("r@0", events=1, commands=number)
        watch = await watcher(store, "r", seen=Mark(commands=number), commands_only=True)
        await run.commit(consumed=("a",))
        assert await asyncio.wait_for(watch, UNWOKEN_SECONDS) == run.at("r@2", events=1)
        await store.close()

    @in_a_loop
    async def test_a_run_that_begins_wakes_who_waits(self, store: Store, clock: ManualClock) -> None:
        async with watching(store, "r", seen=Mark()) as watch:
            run = await RunDriver.start(store, clock, "r")
            await run.commit(events=events("a"))
        assert watch.result() == run.at("r@0", events=1)
        async with watching(store, "f", seen=Mark()) as watch:
            fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert watch.result() == fork.at("r@0")
        await store.close()

    @in_a_loop
    async def test_a_head_that_is_moved_wakes_who_waits(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(2):
            await run.commit(events=events("a"))
        async with watching(store, "r", seen=run.at("r@1", events=2)) as watch:
            await run.rewind("r@0")
        assert watch.result() == run.at("r@0", events=2)
        async with watching(store, "r", seen=run.at("r@0", events=2)) as watch:
            await store.delete("r@0")
        assert watch.result() == run.at("r@1", events=2)
        async with watching(store, "r", seen=run.at("r@1", events=2)) as watch:
            await store.delete("r@1")
        assert watch.result() == Mark()
        await store.close()

    @in_a_loop
    async def test_a_run_that_is_forgotten_wakes_who_waits(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        await run.commit(settled=True)
        await run.release()
        clock.advance(timedelta(days=8))
        async with watching(store, "r", seen=Mark("r@0")) as watch:
            await (await RunDriver.start(store, clock, "s")).commit()
        assert watch.result() == Mark()
        await store.close()

    @in_a_loop
    async def test_a_run_that_is_given_free_wakes_who_waits(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        async with watching(store, "r", seen=run.at("r@0")) as watch:
            await run.release()
        assert watch.result() == Mark("r@0")
        await store.close()

    @in_a_loop
    async def test_all_who_wait_for_a_run_are_woken_and_no_others(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, name) for name in "rs"]
        for run in runs:
            await run.commit()
        async with contextlib.AsyncExitStack() as stack:
            of_other = await stack.enter_async_context(watching(store, "s", seen=runs[1].at("s@0")))
            watches = [await stack.enter_async_context(watching(store, "r", seen=runs[0].at("r@0"))) for _ in range(5)]
            await runs[0].commit()
            assert await asyncio.gather(*watches) == [runs[0].at("r@1")] * 5
            await store.run("s")
            assert not of_other.done()
            await runs[1].commit()
        await store.close()

    @in_a_loop
    async def test_who_waits_in_another_event_loop_is_woken_too(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        elsewhere = [asyncio.to_thread(asyncio.run, store.watch("r", seen=run.at("r@0"))) for _ in range(3)]
        async with watching(store, "r", seen=run.at("r@0")) as watch:
            others = asyncio.gather(*elsewhere)
            await asyncio.sleep(0)
            await run.commit()
            assert await asyncio.wait_for(others, UNWOKEN_SECONDS) == [run.at("r@1")] * 3
        assert watch.result() == run.at("r@1")
        await store.close()

    @in_a_loop
    async def test_who_stops_waiting_leaves_nothing_behind(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        watch = await watcher(store, "r", seen=run.at("r@0"))
        watch.cancel()
        await asyncio.wait([watch])
        assert watch.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await run.commit()
        await store.close()

    @in_a_loop
    async def test_closing_the_store_leaves_those_who_wait(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        async with watching(store, "r", seen=run.at("r@0")) as watch:
            await store.close()
            await run.commit()
        assert watch.result() == run.at("r@1")
        await store.close()
