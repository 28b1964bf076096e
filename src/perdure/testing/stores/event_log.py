"""Event logs: events of commits have numbers without a gap, and never change."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import WorkflowCheckpointException
from perdure.records import EventBatch, KeepFor, KeepLast, LatestOnly, Mark, NewEvents, Retention
from perdure.testing.clock import ManualClock
from perdure.testing.stores.base import (
    UNWOKEN_SECONDS,
    RunDriver,
    StoreSuite,
    command,
    events,
    in_a_loop,
    raw_blob,
    text_blob,
    wait_for_collection,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from perdure.storage import Store


class EventConformance(StoreSuite):
    """A commit numbers its events, and the numbers never change."""

    @in_a_loop
    async def test_events_come_back_as_they_were_told(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        refs = (text_blob("x").hash, text_blob("y").hash)
        contents = [b"", b'{"a":[1,2.50]}', b"\xff\x00\n", "ünï\u2028\r\n日本".encode(), b"large " * 30_000]
        expected: list[EventBatch] = []
        first = 1
        for number, data in enumerate(contents):
            await run.commit(events=NewEvents(number + 1, data, refs[:number]))
            expected.append(EventBatch("r", f"r@{number}", first, number + 1, data, refs[:number]))
            first += number + 1
        assert list(await store.events("r")) == expected
        assert (await run.record()).events == expected[-1].last == 15
        await store.close()
        assert list(await store.events("r")) == expected

    @in_a_loop
    async def test_an_unknown_run_and_a_silent_one_have_told_nothing(self, store: Store, clock: ManualClock) -> None:
        assert list(await store.events("nowhere")) == []
        run = await RunDriver.start(store, clock, "r")
        assert list(await store.events("r")) == []
        await run.commit()
        await run.commit(events=events())
        assert list(await store.events("r")) == []
        assert (await run.record()).events == 0
        await run.commit(events=events("first"))
        assert await run.events() == ["1=first"]

    @in_a_loop
    async def test_numbers_have_no_gap_whatever_becomes_of_the_run(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(events=events("a", "b"))
        await run.commit()
        await run.commit(events=events("c"))
        await run.rewind("r@0")
        assert (await run.record()).events == 3
        await run.commit(events=events("d", "e"))
        run.lease = await store.acquire("r", takeover=True)
        await store.close()
        await run.commit(events=events("f"))
        await run.release()
        await store.delete("r@2")
        await store.delete("r@4")
        run.lease, run.head, run.position = await store.acquire("r"), "r@3", 4
        await run.commit(events=events("g"))
        assert await run.events() == ["1=a", "2=b", "3=c", "4=d", "5=e", "6=f", "7=g"]
        assert [batch.checkpoint_id for batch in await store.events("r")] == ["r@0", "r@2", "r@3", "r@4", "r@5"]
        assert (await run.record()).events == 7

    @in_a_loop
    async def test_events_are_read_from_any_number_on(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for size in (1, 3, 2, 1):
            await run.commit(events=events(*("abc"[:size])))
        firsts = {
            after: [batch.first for batch in await store.events("r", after=after)] for after in (0, 1, 2, 3, 4, 6, 7, 9)
        }
        assert firsts == {0: [1, 2, 5, 7], 1: [2, 5, 7], 2: [2, 5, 7], 3: [2, 5, 7], 4: [5, 7], 6: [7], 7: [], 9: []}

    @in_a_loop
    async def test_no_more_batches_are_read_than_asked_for(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for number in range(7):
            await run.commit(events=events(f"{number}", "and more"))
        read: list[str] = []
        while batches := await store.events("r", after=len(read), limit=3):
            assert len(batches) <= 3
            read += [text for batch in batches for text in batch.data.decode().split("\n")]
        assert read == [text for number in range(7) for text in (f"{number}", "and more")]
        assert [len(await store.events("r", limit=limit)) for limit in (0, 1, 6, 7, 8)] == [0, 1, 6, 7, 7]

    @in_a_loop
    async def test_runs_have_numbers_of_their_own(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        await source.commit(events=events("a", "b"))
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert await fork.events() == []
        assert (await fork.record()).events == 0
        await fork.commit(events=events("of the fork"))
        await source.commit(events=events("c"))
        assert await fork.events() == ["1=of the fork"]
        assert await source.events() == ["1=a", "2=b", "3=c"]

    @in_a_loop
    async def test_a_run_that_is_gone_takes_its_events_with_it(self, store: Store, clock: ManualClock) -> None:
        blob = raw_blob(b"part" * 3000)
        for _ in range(2):
            run = await RunDriver.start(store, clock, "r")
            assert await run.events() == []
            await run.commit(events=events("a", blobs=(blob,)))
            assert await run.events() == ["1=a"]
            await store.delete("r@0")
            assert await run.events() == []
        assert await store.collect() == 1

    @in_a_loop
    async def test_events_outlive_the_checkpoints_that_told_them(self, tmp_path: Path) -> None:
        run, told = await self._told(tmp_path, Retention(checkpoints=LatestOnly()), 150)
        assert list(await run.store.ids()) == ["r@149"]
        assert told == [f"{number + 1}={number}" for number in range(150)]
        assert await run.events(after=147) == ["148=147", "149=148", "150=149"]
        blobs = [raw_blob(f"{number} ".encode() * 2000) for number in (0, 77, 149)]
        await run.store.collect()
        assert await run.store.blobs(blob.hash for blob in blobs) == {blob.hash: blob.data for blob in blobs}
        await run.store.close()

    @in_a_loop
    async def test_the_blobs_of_events_stay_with_all_that_they_refer_to(self, store: Store, clock: ManualClock) -> None:
        leaf, small = raw_blob(b"leaf" * 3000), text_blob("small")
        tree = raw_blob(b"tree" * 3000, leaf)
        run = await RunDriver.start(store, clock, "r")
        await run.commit(events=NewEvents(1, b"a", (tree.hash, small.hash), (leaf, tree, small)))
        await run.commit(events=NewEvents(1, b"b", (leaf.hash,)))
        await run.commit()
        for checkpoint_id in ("r@0", "r@1"):
            await store.delete(checkpoint_id)
        assert await store.collect() == 0
        await store.close()
        assert await store.blobs([tree.hash, small.hash]) == {blob.hash: blob.data for blob in (tree, leaf, small)}
        assert await run.events() == ["1=a", "2=b"]

    async def _told(
        self, directory: Path, retention: Retention, steps: int, *, every: timedelta = timedelta(0)
    ) -> tuple[RunDriver, Sequence[str]]:
        clock = ManualClock()
        run = await RunDriver.start(self.open_store(directory, retention=retention, clock=clock), clock, "r")
        for step in range(steps):
            blob = raw_blob(f"{step} ".encode() * 2000)
            await run.commit({"a": text_blob(f"v{step}")}, events=events(f"{step}", blobs=(blob,)))
            clock.advance(every)
        return run, await run.events()

    @in_a_loop
    async def test_the_events_of_the_last_commits_are_kept(self, tmp_path: Path) -> None:
        run, told = await self._told(tmp_path, Retention(events=KeepLast(3)), 7)
        assert told == ["5=4", "6=5", "7=6"]
        assert await run.events(after=2) == told
        await run.commit()
        assert await run.events() == told
        assert len(await run.store.ids()) == 8
        assert (await run.record()).events == 7
        assert await run.store.collect() == 4
        await run.store.close()
        assert await run.events() == told
        await run.store.close()

    @in_a_loop
    async def test_young_events_are_kept(self, tmp_path: Path) -> None:
        retention = Retention(events=KeepFor(timedelta(hours=2)))
        run, told = await self._told(tmp_path, retention, 6, every=timedelta(hours=1))
        assert told == ["4=3", "5=4", "6=5"]
        assert isinstance(run.clock, ManualClock)
        run.clock.advance(timedelta(days=1))
        await run.commit()
        assert await run.events() == []
        await run.commit(events=events("goes on"))
        assert await run.events() == ["7=goes on"]
        assert await run.store.collect() == 6
        await run.store.close()

    @in_a_loop
    async def test_events_go_by_their_own_retention(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=KeepLast(2), events=KeepLast(4))
        run, told = await self._told(tmp_path, retention, 6)
        assert told == ["3=2", "4=3", "5=4", "6=5"]
        assert list(await run.store.ids()) == ["r@4", "r@5"]
        await run.rewind("r@4")
        await run.commit(events=events("anew"))
        assert await run.events() == ["4=3", "5=4", "6=5", "7=anew"]
        await run.store.close()

    @in_a_loop
    async def test_the_events_of_a_finished_run_go_with_it(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        await run.commit(settled=True, status="idle", events=events("a", blobs=(raw_blob(b"part" * 3000),)))
        await run.release()
        clock.advance(timedelta(days=8))
        await (await RunDriver.start(store, clock, "s")).commit()
        assert await run.events() == []
        assert await store.collect() == 1
        await store.close()

    @in_a_loop
    async def test_blobs_of_forgotten_events_go_by_themselves(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=LatestOnly(), events=KeepLast(1))
        run, _ = await self._told(tmp_path, retention, 300)
        assert await wait_for_collection(run, [raw_blob(f"{step} ".encode() * 2000) for step in range(300)])
        await run.store.close()

    @in_a_loop
    async def test_a_commit_that_is_refused_gives_no_number(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(events=events("a"))
        with pytest.raises(WorkflowCheckpointException):
            await run.write(run.next_commit(checkpoint_id="r@0", events=events("lost")))
        await run.commit(events=events("b"))
        assert await run.events() == ["1=a", "2=b"]


async def watcher(store: Store, run_id: str, *, seen: Mark, commands_only: bool = False) -> asyncio.Task[Mark]:
    """Start a task that watches a run, and return it when it is waiting."""
    task = asyncio.create_task(store.watch(run_id, seen=seen, commands_only=commands_only))
    # The store answers in order, so the watcher is waiting after this call.
    await asyncio.sleep(0)
    await store.run(run_id)
    assert not task.done()
    return task


@contextlib.asynccontextmanager
async def watching(store: Store, run_id: str, *, seen: Mark) -> AsyncGenerator[asyncio.Task[Mark]]:
    """Watch a run. The block must wake the watcher."""
    task = await watcher(store, run_id, seen=seen)
    yield task
    await asyncio.wait_for(task, UNWOKEN_SECONDS)


class WatchConformance(StoreSuite):
    """All watchers in this process notice a change at once."""

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
