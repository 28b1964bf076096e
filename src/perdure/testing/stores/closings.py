"""Closing: a run is halted without a claim, so that there is no moment in which others could go on with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import RunBusyError, RunExportedError, RunNotFoundError, WorkflowCheckpointException
from perdure.testing.stores.driver import RunDriver, command, halted, new_run
from perdure.testing.stores.stories import pictured, storied
from perdure.testing.stores.suite import REFUSED, HostStoreSuite, in_a_loop
from perdure.testing.stores.watches import watching

if TYPE_CHECKING:
    from perdure.records import Halt
    from perdure.storage import HostStore
    from perdure.testing.clock import ManualClock

CLOSED = halted("exported", "it was exported")


class ClosingConformance(HostStoreSuite):
    """A run is closed as it was seen, or not at all."""

    @pytest.mark.parametrize("before", [None, halted("failed"), halted("parked")])
    @in_a_loop
    async def test_a_closed_run_is_what_it_was_but_for_its_halt(
        self, store: HostStore, clock: ManualClock, before: Halt | None
    ) -> None:
        run = await storied(store, clock)
        await run.release(halt=before)
        record, picture = await run.record(), await pictured(store)
        assert await store.close_run("r", halt=CLOSED, instead_of=before) is True
        await store.close()
        assert await run.record() == replace(record, halt=CLOSED)
        assert await pictured(store) == picture
        with pytest.raises(RunExportedError):
            await store.claim("r")
        with pytest.raises(RunExportedError):
            await run.post(command("late"))
        with pytest.raises(RunExportedError):
            await store.close_run("r", halt=CLOSED, instead_of=CLOSED)

    @in_a_loop
    async def test_a_run_that_is_halted_otherwise_than_was_seen_is_left_as_it_is(
        self, store: HostStore, clock: ManualClock
    ) -> None:
        run = await storied(store, clock)
        await run.release(halt=halted("failed"))
        for seen in (None, halted("parked"), halted("failed", "another reason")):
            assert await store.close_run("r", halt=CLOSED, instead_of=seen) is False
            assert (await run.record()).halt == halted("failed")

    @in_a_loop
    async def test_what_this_process_advances_is_closed_only_by_a_takeover(
        self, store: HostStore, clock: ManualClock
    ) -> None:
        run = await storied(store, clock)
        before = await run.record()
        with pytest.raises(RunBusyError, match="'r'"):
            await store.close_run("r", halt=CLOSED)
        assert await run.record() == before
        assert await store.close_run("r", halt=CLOSED, takeover=True) is True
        with pytest.raises(REFUSED):
            await run.commit()
        await run.release()
        record = await run.record()
        assert (record.owner, record.attempts, record.standing) == (None, 0, "exported")

    @in_a_loop
    async def test_what_is_not_there_is_not_closed(self, store: HostStore, clock: ManualClock) -> None:
        with pytest.raises(RunNotFoundError):
            await store.close_run("nothing", halt=CLOSED)
        await (await RunDriver.start(store, clock, "r")).commit()
        fork = await store.claim("fork", create=new_run("fork", parent="r@0"))
        await store.release(fork)
        with pytest.raises(WorkflowCheckpointException, match="'fork' is a fork"):
            await store.close_run("fork", halt=CLOSED)
        assert (await store.claim("fork")).halt is None

    @in_a_loop
    async def test_of_many_who_close_a_run_one_does(self, store: HostStore, clock: ManualClock) -> None:
        run = await storied(store, clock)
        await run.release(halt=halted("failed"))
        halts = [halted("exported", f"by {number}") for number in range(8)]
        results = await asyncio.gather(
            *(store.close_run("r", halt=each, instead_of=halted("failed")) for each in halts), return_exceptions=True
        )
        (closer,) = [each for each, result in zip(halts, results, strict=True) if result is True]
        assert [type(result) for result in results].count(RunExportedError) == len(halts) - 1
        assert (await run.record()).halt == closer

    @in_a_loop
    async def test_who_watches_a_run_hears_that_it_is_closed(self, store: HostStore, clock: ManualClock) -> None:
        run = await storied(store, clock)
        await run.release()
        async with watching(store, "r", seen=await run.mark()) as waiting:
            await store.close_run("r", halt=CLOSED)
        assert waiting.result().is_halted

    @in_a_loop
    async def test_a_run_is_restored_with_the_halt_of_its_record(self, store: HostStore, clock: ManualClock) -> None:
        run = await storied(store, clock)
        await run.release()
        archive = await store.archive("r")
        await store.close_run("r", halt=CLOSED)
        await store.restore(replace(archive, record=replace(archive.record, halt=halted("parked"))))
        await store.close()
        assert await store.run("r") == replace(archive.record, halt=halted("parked"))
        assert (await store.claim("r")).halt == halted("parked")
