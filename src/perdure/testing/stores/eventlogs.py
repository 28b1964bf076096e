"""Events: what commits tell has numbers without a gap, and stays as it was told."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import WorkflowCheckpointException
from perdure.records import EventBatch, KeepFor, KeepLast, LatestOnly, NewEvents, Retention
from perdure.testing.clock import ManualClock
from perdure.testing.stores.driver import RunDriver, events, raw_part, text_part
from perdure.testing.stores.suite import StoreSuite, go_by_themselves, in_a_loop

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.storage import Store


class EventConformance(StoreSuite):
    """The number of an event is given by the commit that tells it, and never changes."""

    @in_a_loop
    async def test_events_come_back_as_they_were_told(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        refs = (text_part("x").hash, text_part("y").hash)
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
        run.claim = await store.claim("r", takeover=True)
        await store.close()
        await run.commit(events=events("f"))
        await run.release()
        await store.delete("r@2")
        await store.delete("r@4")
        run.claim, run.head, run.position = await store.claim("r"), "r@3", 4
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
        part = raw_part(b"part" * 3000)
        for _ in range(2):
            run = await RunDriver.start(store, clock, "r")
            assert await run.events() == []
            await run.commit(events=events("a", parts=(part,)))
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
        parts = [raw_part(f"{number} ".encode() * 2000) for number in (0, 77, 149)]
        await run.store.collect()
        assert await run.store.parts(part.hash for part in parts) == {part.hash: part.data for part in parts}
        await run.store.close()

    @in_a_loop
    async def test_the_parts_of_events_stay_with_all_that_they_refer_to(self, store: Store, clock: ManualClock) -> None:
        leaf, small = raw_part(b"leaf" * 3000), text_part("small")
        tree = raw_part(b"tree" * 3000, leaf)
        run = await RunDriver.start(store, clock, "r")
        await run.commit(events=NewEvents(1, b"a", (tree.hash, small.hash), (leaf, tree, small)))
        await run.commit(events=NewEvents(1, b"b", (leaf.hash,)))
        await run.commit()
        for checkpoint_id in ("r@0", "r@1"):
            await store.delete(checkpoint_id)
        assert await store.collect() == 0
        await store.close()
        assert await store.parts([tree.hash, small.hash]) == {part.hash: part.data for part in (tree, leaf, small)}
        assert await run.events() == ["1=a", "2=b"]

    async def _told(
        self, directory: Path, retention: Retention, steps: int, *, every: timedelta = timedelta(0)
    ) -> tuple[RunDriver, Sequence[str]]:
        clock = ManualClock()
        run = await RunDriver.start(self.open_store(directory, retention=retention, clock=clock), clock, "r")
        for step in range(steps):
            part = raw_part(f"{step} ".encode() * 2000)
            await run.commit({"a": text_part(f"v{step}")}, events=events(f"{step}", parts=(part,)))
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
        await run.commit(settled=True, status="idle", events=events("a", parts=(raw_part(b"part" * 3000),)))
        await run.release()
        clock.advance(timedelta(days=8))
        await (await RunDriver.start(store, clock, "s")).commit()
        assert await run.events() == []
        assert await store.collect() == 1
        await store.close()

    @in_a_loop
    async def test_parts_of_forgotten_events_go_by_themselves(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=LatestOnly(), events=KeepLast(1))
        run, _ = await self._told(tmp_path, retention, 300)
        assert await go_by_themselves(run, [raw_part(f"{step} ".encode() * 2000) for step in range(300)])
        await run.store.close()

    @in_a_loop
    async def test_a_commit_that_is_refused_gives_no_number(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(events=events("a"))
        with pytest.raises(WorkflowCheckpointException):
            await run.write(run.next_commit(checkpoint_id="r@0", events=events("lost")))
        await run.commit(events=events("b"))
        assert await run.events() == ["1=a", "2=b"]
