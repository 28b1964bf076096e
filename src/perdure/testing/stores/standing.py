"""Standing: what a run's head leaves to do, and which runs there are."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.records import HeadStatus, KeepFor, Retention
from perdure.testing.clock import ManualClock
from perdure.testing.stores.driver import RunDriver, command, events, new_run
from perdure.testing.stores.suite import StoreSuite, in_a_loop

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import Store

_SOON, _LATE = "2024-05-01T10:00:00+00:00", "2025-05-01T10:00:00+00:00"


class StandingConformance(StoreSuite):
    """A run's status is that of its head, wherever the head is moved."""

    @in_a_loop
    async def test_a_run_stands_as_its_head_says(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        standings: list[tuple[HeadStatus, str | None]] = [
            ("running", None),
            ("waiting", _SOON),
            ("sleeping", _LATE),
            ("idle", None),
            ("cancelled", None),
        ]
        for status, wake_at in standings:
            await run.commit(status=status, wake_at=wake_at)
            assert await self._standing(run) == (status, wake_at)
        await store.close()
        await run.release()
        assert await self._standing(run) == ("cancelled", None)

    @in_a_loop
    async def test_rewinding_brings_back_how_the_run_stood(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(status="sleeping", wake_at=_SOON)
        await run.commit(status="waiting", wake_at=_LATE)
        await run.commit(status="idle", settled=True)
        for number, (to, standing) in enumerate(
            {"r@1": ("waiting", _LATE), "r@0": ("sleeping", _SOON), "r@2": ("idle", None)}.items()
        ):
            await run.rewind(to, nonce=f"nonce {number}")
            assert await self._standing(run) == standing
            await store.close()
            assert await self._standing(run) == standing

    @in_a_loop
    async def test_deleting_the_head_brings_back_how_the_run_stood(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(status="sleeping", wake_at=_SOON)
        await run.commit(status="waiting", wake_at=_LATE)
        await run.commit(status="idle", settled=True)
        await store.delete("r@2")
        assert await self._standing(run) == ("waiting", _LATE)
        await store.delete("r@1")
        assert await self._standing(run) == ("sleeping", _SOON)

    @in_a_loop
    async def test_a_fork_is_running_until_its_first_commit(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        await source.commit(status="sleeping", wake_at=_SOON)
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert await self._standing(fork) == ("running", None)
        await fork.commit(status="sleeping", wake_at=_LATE)
        assert await self._standing(fork) == ("sleeping", _LATE)
        assert await self._standing(source) == ("sleeping", _SOON)

    async def _standing(self, run: RunDriver) -> tuple[HeadStatus, str | None]:
        record = await run.record()
        return record.status, record.wake_at

    @in_a_loop
    async def test_runs_are_listed_in_the_order_in_which_they_began(self, store: Store, clock: ManualClock) -> None:
        assert list(await store.runs()) == []
        names = ["m", "z", "a", "k"]
        runs = [await RunDriver.start(store, clock, name) for name in names]
        for run in runs:
            await run.commit()
        for run in reversed(runs):
            await run.commit()
            await run.release()
        await RunDriver.start(store, clock, "never began")
        await RunDriver.start(store, clock, "a fork", parent="k@0")
        assert [record.run_id for record in await store.runs()] == [*names, "a fork"]
        await store.close()
        assert list(await store.runs()) == [await store.run(name) for name in [*names, "a fork"]]

    @in_a_loop
    async def test_a_run_that_begins_again_comes_last(self, store: Store, clock: ManualClock) -> None:
        await RunDriver.start(store, clock, "r")
        for name in ("s", "t"):
            await (await RunDriver.start(store, clock, name)).commit()
        await store.delete("s@0")
        for name in ("r", "s"):
            await (await RunDriver.start(store, clock, name)).commit()
        assert [record.run_id for record in await store.runs()] == ["t", "r", "s"]

    @in_a_loop
    async def test_runs_are_listed_by_workflow_and_by_status(self, store: Store, clock: ManualClock) -> None:
        standings: dict[str, tuple[str, HeadStatus]] = {
            "a": ("one", "waiting"),
            "b": ("two", "waiting"),
            "c": ("one", "idle"),
            "d": ("one", "waiting"),
        }
        for name, (workflow_name, status) in standings.items():
            run = await RunDriver.start(store, clock, name, workflow_name=workflow_name)
            await run.commit(status="running")
            await run.commit(status=status)
        listed = {
            (workflow_name, status): "".join(
                record.run_id for record in await store.runs(workflow_name=workflow_name, status=status)
            )
            for workflow_name in (None, "one", "none")
            for status in (None, "waiting", "running")
        }
        assert list(listed.values()) == ["abcd", "abd", "", "acd", "ad", "", "", "", ""]

    @in_a_loop
    async def test_runs_that_are_gone_are_not_listed(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        old = await RunDriver.start(store, clock, "old")
        await old.commit(settled=True, status="idle")
        await old.release()
        await (await RunDriver.start(store, clock, "deleted")).commit()
        await store.delete("deleted@0")
        clock.advance(timedelta(days=8))
        await (await RunDriver.start(store, clock, "young")).commit()
        assert [record.run_id for record in await store.runs()] == ["young"]
        await store.close()

    @in_a_loop
    async def test_what_was_handed_out_stays_as_it_is(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(events=events("a"))
        await run.post(command("a"))
        before = [list(await store.runs()), list(await store.inbox("r")), list(await store.events("r"))]
        runs, inbox, told = await store.runs(), await store.inbox("r"), await store.events("r")
        for handed_out in (runs, inbox, told):
            if isinstance(handed_out, list):
                handed_out.clear()
        await store.claim("r", create=new_run("r"))
        after = [list(await store.runs()), list(await store.inbox("r")), list(await store.events("r"))]
        assert after[1:] == before[1:]
        assert [record.run_id for record in await store.runs()] == ["r"]
