"""Lives: a store is opened, closed, opened again, and is a place of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.records import Retention
from perdure.testing.stores.driver import RunDriver
from perdure.testing.stores.suite import StoreSuite, in_a_loop

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import Store
    from perdure.testing.clock import ManualClock


class LifeConformance(StoreSuite):
    """A store is bound to its place, not to an event loop or to being open."""

    def test_a_store_outlives_the_event_loops_that_use_it(self, store: Store, clock: ManualClock) -> None:
        run = asyncio.run(RunDriver.start(store, clock, "r"))
        for position in range(3):
            assert asyncio.run(run.commit()) == f"r@{position}"
        asyncio.run(store.close())

    @in_a_loop
    async def test_a_closed_store_opens_again_when_it_is_used(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.close()
        assert list(await store.ids()) == ["r@0"]
        await run.commit()
        await store.close()
        await store.close()
        assert (await run.record()).head == "r@1"
        await store.close()

    @in_a_loop
    async def test_two_stores_are_two_places(self, tmp_path: Path, clock: ManualClock) -> None:
        stores = [self.open_store(tmp_path / name, retention=Retention(), clock=clock) for name in ("one", "two")]
        assert stores[0].place != stores[1].place
        await (await RunDriver.start(stores[0], clock, "r")).commit()
        assert list(await stores[1].ids()) == []
        for store in stores:
            await store.close()
