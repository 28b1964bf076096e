"""Halts: runs with which nobody goes on unasked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import RunExportedError
from perdure.records import Halt, Mark
from perdure.testing.stores.driver import RunDriver, command, events, finished, halted, new_run, text_part
from perdure.testing.stores.suite import UNWOKEN_SECONDS, StoreSuite, contents_of, in_a_loop
from perdure.testing.stores.watches import watcher

if TYPE_CHECKING:
    from perdure.records import HaltKind
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock

_SOON = "2024-05-01T10:00:00+00:00"
_REASONS = ("", "it failed", "ünï\u2028日本 'quoted' \"twice\"", "file \udcff", "nul\0 and\nlines", "long " * 2000)


class HaltConformance(StoreSuite):
    """A halted run stands where it stood, and waits for someone who claims it."""

    @pytest.mark.parametrize("kind", ["failed", "parked", "exported"])
    @in_a_loop
    async def test_a_run_that_is_released_with_a_halt_stands_as_it_says(
        self, store: Store, clock: ManualClock, kind: HaltKind
    ) -> None:
        halt = halted(kind)
        run = await RunDriver.start(store, clock, "r")
        await run.commit(status="sleeping", wake_at=_SOON)
        before = await run.record()
        assert (before.halt, before.standing) == (None, "sleeping")
        await run.release(halt=halt)
        record = await run.record()
        assert record == replace(before, owner=None, halt=halt)
        assert (record.standing, record.status, record.wake_at) == (kind, "sleeping", _SOON)
        await store.close()
        assert await run.record() == record

    @in_a_loop
    async def test_a_halt_comes_back_as_it_was_given(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        data = [b"", b"{}", b"\xff\x00\n", b"large " * 30_000]
        halts = [Halt("failed", f"{_SOON} {number}", reason) for number, reason in enumerate(_REASONS)]
        halts += [Halt("parked", _SOON, "reason", each) for each in data]
        for halt in halts:
            await run.release(halt=halt)
            await store.close()
            assert (await run.record()).halt == halt
            await run.reclaim()

    @in_a_loop
    async def test_the_next_claim_ends_a_halt(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(status="waiting")
        for token in (None, 1000, None):
            await run.release(halt=halted())
            await run.reclaim(token=token)
            record = await run.record()
            assert (record.halt, record.standing) == (None, "waiting")
            await store.close()
            assert await run.record() == record
        await run.commit(status="idle")
        assert (await run.record()).standing == "idle"
        await run.release()
        assert (await run.record()).standing == "idle"

    @in_a_loop
    async def test_a_run_can_be_halted_again(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release(halt=halted("failed"))
        await run.reclaim()
        await run.commit()
        await run.release(halt=halted("parked", "again"))
        record = await run.record()
        assert (record.halt, record.head) == (halted("parked", "again"), "r@1")

    @in_a_loop
    async def test_runs_are_listed_by_where_they_stand(self, store: Store, clock: ManualClock) -> None:
        for name, halt in {"a": halted(), "b": None, "c": halted("parked"), "d": halted(), "e": None}.items():
            run = await RunDriver.start(store, clock, name, workflow_name="two" if name == "d" else "one")
            await run.commit(status="idle" if name == "e" else "waiting")
            await run.release(halt=halt)
        listed = {
            status: "".join(record.run_id for record in await store.runs(status=status))
            for status in ("failed", "waiting", "idle", "parked", "exported")
        }
        assert listed == {"failed": "ad", "waiting": "b", "idle": "e", "parked": "c", "exported": ""}
        assert [record.run_id for record in await store.runs(workflow_name="one", status="failed")] == ["a"]
        assert [record.run_id for record in await store.runs()] == list("abcde")
        await store.claim("a")
        assert [record.run_id for record in await store.runs(status="waiting")] == ["a", "b"]

    @in_a_loop
    async def test_only_who_holds_the_run_can_halt_it(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        late = run.claim
        assert late is not None
        await run.reclaim()
        await store.release(late, halt=halted())
        assert (await run.record()).halt is None
        await run.release()
        assert run.claim is not None
        await store.release(run.claim, halt=halted())
        assert (await run.record()).halt is None

    @in_a_loop
    async def test_a_run_that_never_began_is_not_halted(self, store: Store) -> None:
        claim = await store.claim("r", create=new_run("r"))
        await store.release(claim, halt=halted())
        assert await store.run("r") is None
        assert list(await store.runs()) == []

    @in_a_loop
    async def test_a_fork_can_be_halted_before_its_first_commit(self, store: Store, clock: ManualClock) -> None:
        await (await RunDriver.start(store, clock, "r")).commit(status="idle")
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.release(halt=halted())
        record = await fork.record()
        assert (record.standing, record.status, record.head) == ("failed", "running", "r@0")
        await fork.reclaim()
        await fork.commit()
        assert (await fork.record()).standing == "running"

    @in_a_loop
    async def test_what_a_halted_run_has_is_kept(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": text_part("v")}, events=events("told"))
        await run.note(finished("a", "1", text_part("of the journal")))
        await run.post(command("before", "1"))
        await run.release(halt=halted())
        await run.post(command("after", "2", text_part("of the inbox")))
        assert await store.collect() == 0
        assert await run.noted() == ["a=1"]
        assert await run.inbox() == ["before=1", "after=2"]
        assert await run.events() == ["1=told"]
        assert (await run.record()).halt == halted()

    @in_a_loop
    async def test_a_run_stays_halted_when_its_head_is_deleted(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(status="waiting")
        await run.commit(status="running")
        await run.release(halt=halted())
        await store.delete("r@1")
        record = await run.record()
        assert (record.head, record.status, record.halt) == ("r@0", "waiting", halted())

    @in_a_loop
    async def test_a_run_that_is_halted_wakes_who_waits(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        watch = await watcher(store, "r", seen=run.at("r@0"))
        await run.release(halt=halted())
        assert await asyncio.wait_for(watch, UNWOKEN_SECONDS) == Mark("r@0", is_halted=True)
        await store.close()

    @in_a_loop
    async def test_an_exported_run_is_closed(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release(halt=halted("exported"))
        before = await run.record()
        with pytest.raises(RunExportedError) as caught:
            await store.claim("r")
        assert (caught.value.run_id, caught.value.at) == ("r", halted().at)
        with pytest.raises(RunExportedError):
            await store.claim("r", takeover=True)
        with pytest.raises(RunExportedError):
            await store.claim("r", token=2**60)
        with pytest.raises(RunExportedError):
            await store.claim("r", create=new_run("r"))
        with pytest.raises(RunExportedError):
            await store.post("r", command("a", "lost", text_part("lost")))
        assert await run.record() == before
        assert await run.inbox() == []
        await store.collect()
        assert await store.parts([text_part("lost").hash]) == {}

    @in_a_loop
    async def test_an_exported_run_can_be_read(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": text_part("v")}, events=events("told"))
        await run.note(finished("a", "1"))
        await run.post(command("b", "2"))
        await run.release(halt=halted("exported"))
        assert await contents_of(store, "r@0") == {"a": b'"v"'}
        assert [*await run.noted(), *await run.inbox(), *await run.events()] == ["a=1", "b=2", "1=told"]
        assert [record.run_id for record in await store.runs(status="exported")] == ["r"]
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.commit()
        assert (await fork.record()).head == "f@0"
