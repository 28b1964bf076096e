"""Cancelling: whoever is gone in the middle of something leaves no run behind that nobody can have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from perdure.testing.stores.driver import RunDriver, halted, new_run
from perdure.testing.stores.suite import StoreSuite, in_a_loop

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.storage import Store
    from perdure.testing.clock import ManualClock

_INSTANTS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)
"""After how many turns of the event loop one is cancelled: some come before, some in the middle, some too late."""


async def _cancelled(doing: Coroutine[object, object, object], *, after: int) -> bool:
    """Whether something was cancelled after so many turns, and did not end before."""
    task = asyncio.create_task(doing)
    for _ in range(after):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


class CancelConformance(StoreSuite):
    """What is cancelled is done whole or not at all, and in either case it is over."""

    @pytest.mark.parametrize("instant", _INSTANTS)
    @in_a_loop
    async def test_a_claim_that_is_cancelled_leaves_the_run_as_it_was(
        self, store: Store, clock: ManualClock, instant: int
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release(halt=halted("failed"))
        if await _cancelled(store.claim("r"), after=instant):
            record = await run.record()
            assert (record.owner, record.halt) == (None, halted("failed"))
        await run.reclaim()
        await run.commit()
        await store.close()

    @pytest.mark.parametrize("instant", _INSTANTS)
    @in_a_loop
    async def test_a_run_whose_first_claim_is_cancelled_never_began(
        self, store: Store, clock: ManualClock, instant: int
    ) -> None:
        await _cancelled(store.claim("r", create=new_run("r")), after=instant)
        assert await store.run("r") is None
        await (await RunDriver.start(store, clock, "r")).commit()
        await store.close()

    @pytest.mark.parametrize("instant", _INSTANTS)
    @in_a_loop
    async def test_a_release_that_is_cancelled_is_a_release(
        self, store: Store, clock: ManualClock, instant: int
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        if await _cancelled(run.release(halt=halted("parked")), after=max(1, instant)):
            mark = await run.mark()
            while not mark.is_halted:
                mark = await store.watch("r", seen=mark)
        record = await run.record()
        assert (record.owner, record.halt) == (None, halted("parked"))
        await store.close()

    @pytest.mark.parametrize("instant", _INSTANTS)
    @in_a_loop
    async def test_a_run_whose_commit_is_cancelled_can_be_given_free(
        self, store: Store, clock: ManualClock, instant: int
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await _cancelled(run.commit(), after=instant)
        await run.release()
        record = await run.record()
        assert record.owner is None
        run.head, run.position = record.head, record.position
        await run.reclaim()
        await run.commit()
        await store.close()
