"""Retention: what a store forgets by itself, and what it keeps regardless."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.records import KeepFor, KeepLast, LatestOnly, Retention
from perdure.testing.clock import ManualClock
from perdure.testing.stores.driver import RunDriver, command, finished, raw_part, text_part
from perdure.testing.stores.suite import StoreSuite, contents_of, go_by_themselves, in_a_loop, latest_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.storage import Store


class RetentionConformance(StoreSuite):
    """A store forgets what its retention lets go, but no head and nothing that a fork rests on."""

    async def _history(
        self, directory: Path, retention: Retention, steps: int, *, every: timedelta = timedelta(0)
    ) -> tuple[RunDriver, Sequence[str]]:
        clock = ManualClock()
        run = await RunDriver.start(self.open_store(directory, retention=retention, clock=clock), clock, "r")
        for step in range(steps):
            await run.commit({"a": text_part(f"v{step}")})
            clock.advance(every)
        return run, list(await run.store.ids())

    @in_a_loop
    async def test_latest_only_keeps_the_newest(self, tmp_path: Path) -> None:
        run, ids = await self._history(tmp_path, Retention(checkpoints=LatestOnly()), 5)
        assert ids == ["r@4"]
        assert await contents_of(run.store, "r@4") == {"a": b'"v4"'}
        assert await latest_id(run.store, "flow") == "r@4"
        await run.store.close()

    @in_a_loop
    async def test_keep_last_keeps_so_many(self, tmp_path: Path) -> None:
        run, ids = await self._history(tmp_path, Retention(checkpoints=KeepLast(3)), 7)
        assert ids == ["r@4", "r@5", "r@6"]
        await run.store.close()

    @in_a_loop
    async def test_keep_last_counts_what_there_is(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=KeepLast(3)), 3)
        await run.store.delete("r@1")
        await run.commit()
        assert list(await run.store.ids()) == ["r@0", "r@2", "r@3"]
        await run.store.close()

    @in_a_loop
    async def test_keep_for_keeps_what_is_young(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=KeepFor(timedelta(hours=2)))
        run, ids = await self._history(tmp_path, retention, 6, every=timedelta(hours=1))
        assert ids == ["r@3", "r@4", "r@5"]
        await run.store.close()

    @in_a_loop
    async def test_the_head_is_kept_however_old_it_is(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=KeepFor(timedelta(0)), finished_runs=KeepFor(timedelta(days=30)))
        run, ids = await self._history(tmp_path, retention, 4, every=timedelta(days=1))
        assert ids == ["r@3"]
        assert isinstance(run.clock, ManualClock)
        run.clock.advance(timedelta(days=365))
        other = await RunDriver.start(run.store, run.clock, "s")
        await other.commit()
        await other.commit()
        assert (await run.record()).head == "r@3"
        assert "r@3" in await run.store.ids()
        await run.store.close()

    @in_a_loop
    async def test_what_a_fork_rests_on_is_kept_until_it_has_its_own(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=LatestOnly()), 2)
        fork = await RunDriver.start(run.store, run.clock, "f", parent="r@1")
        await fork.release()
        await run.commit()
        await run.commit()
        assert list(await run.store.ids()) == ["r@1", "r@3"]
        await run.store.collect()
        assert await contents_of(run.store, "r@1") == {"a": b'"v1"'}
        fork.claim = await run.store.claim("f")
        await fork.commit()
        await run.commit()
        assert list(await run.store.ids()) == ["f@0", "r@4"]
        await run.store.close()

    @in_a_loop
    async def test_after_rewinding_only_the_new_line_is_kept(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=KeepLast(4)), 4)
        await run.rewind("r@1")
        assert list(await run.store.ids()) == ["r@0", "r@1", "r@2", "r@3"]
        await run.commit()
        assert list(await run.store.ids()) == ["r@1", "r@2", "r@3", "r@4"]
        await run.store.close()

    @in_a_loop
    async def test_finished_runs_go_when_they_are_old(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished = await RunDriver.start(store, clock, "finished")
        await finished.commit()
        await finished.commit(settled=True)
        await finished.release()
        unfinished = await RunDriver.start(store, clock, "unfinished")
        await unfinished.commit()
        await unfinished.release()
        held = await RunDriver.start(store, clock, "held")
        await held.commit(settled=True)
        clock.advance(timedelta(days=8))
        young = await RunDriver.start(store, clock, "young")
        await young.commit(settled=True)
        await young.release()
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert await store.run("finished") is None
        assert list(await store.ids()) == ["unfinished@0", "held@0", "young@0", "busy@0"]
        again = await RunDriver.start(store, clock, "finished")
        await again.commit()
        assert (await again.record()).position == 0
        await store.close()

    @in_a_loop
    async def test_a_finished_run_that_a_fork_rests_on_is_kept(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished = await RunDriver.start(store, clock, "finished")
        await finished.commit()
        await finished.commit(settled=True)
        await finished.release()
        fork = await RunDriver.start(store, clock, "fork", parent="finished@0")
        clock.advance(timedelta(days=8))
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert list(await store.ids()) == ["finished@0", "finished@1", "busy@0"]
        await fork.commit()
        await busy.commit()
        assert list(await store.ids()) == ["busy@0", "fork@0", "busy@1"]
        await store.close()

    @in_a_loop
    async def test_a_finished_run_for_which_a_command_waits_is_kept(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        run = await RunDriver.start(store, clock, "finished")
        await run.commit(settled=True)
        await run.post(command("wake up"))
        await run.release()
        clock.advance(timedelta(days=8))
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert list(await store.ids()) == ["finished@0", "busy@0"]
        run.claim = await store.claim("finished")
        await run.commit(settled=True, consumed=("wake up",))
        await run.release()
        clock.advance(timedelta(days=8))
        await busy.commit()
        assert await store.run("finished") is None
        await store.close()

    @in_a_loop
    async def test_parts_of_what_was_forgotten_go_by_themselves(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(checkpoints=LatestOnly()), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        parts = [raw_part(f"{step} ".encode() * 2000) for step in range(300)]
        for part in parts:
            await run.commit({"a": part})
        assert await go_by_themselves(run, parts[:-1], a=parts[-1])
        assert await store.parts([parts[-1].hash])
        await store.close()

    @in_a_loop
    async def test_the_journal_of_a_finished_run_goes_with_it(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished_run = await RunDriver.start(store, clock, "r")
        await finished_run.commit(settled=True)
        await finished_run.note(finished("a", "", raw_part(b"next turn" * 3000)))
        await finished_run.release()
        clock.advance(timedelta(days=8))
        await (await RunDriver.start(store, clock, "s")).commit()
        assert await store.run("r") is None
        assert await finished_run.noted() == []
        assert await store.collect() == 1
        await store.close()

    @in_a_loop
    async def test_parts_of_journals_go_by_themselves(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        parts = [raw_part(f"{step} ".encode() * 2000) for step in range(300)]
        for number, part in enumerate(parts):
            await run.note(finished("a", "", part), durable=False)
            if number % 5 == 4:
                await run.commit()
        assert await go_by_themselves(run, parts)
