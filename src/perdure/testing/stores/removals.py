"""Removals: a run goes, and leaves nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import RunNotFoundError, WorkflowCheckpointException
from perdure.records import Mark
from perdure.testing.stores.driver import RunDriver, command, events, finished, halted, new_run, raw_part, text_part
from perdure.testing.stores.stories import HEAD, NOTHING, pictured, storied
from perdure.testing.stores.suite import REFUSED, UNWOKEN_SECONDS, HostStoreSuite, contents_of, in_a_loop, latest_id
from perdure.testing.stores.watches import watcher

if TYPE_CHECKING:
    from perdure.records import HaltKind
    from perdure.storage import HostStore
    from perdure.testing.clock import ManualClock


class RemovalConformance(HostStoreSuite):
    """A run that is removed leaves nothing, and takes along nothing of others."""

    @in_a_loop
    async def test_a_removed_run_leaves_nothing(self, store: HostStore, clock: ManualClock) -> None:
        assert await store.remove("r") is False
        run = await storied(store, clock)
        await run.release()
        parts = (await store.archive("r")).parts
        assert await store.remove("r") is True
        assert await store.remove("r") is False
        assert await pictured(store) == NOTHING
        assert (list(await store.runs()), list(await store.ids())) == ([], [])
        assert await store.latest(workflow_name="flöw") is None
        assert await run.mark() == Mark()
        with pytest.raises(WorkflowCheckpointException):
            await store.manifest(HEAD)
        with pytest.raises(RunNotFoundError):
            await run.post(command("late"))
        assert await store.collect() > 0
        assert await store.parts(part.hash for part in parts) == {}
        await store.close()
        assert list(await store.runs()) == []

    @in_a_loop
    async def test_others_keep_what_they_share_with_a_removed_run(self, store: HostStore, clock: ManualClock) -> None:
        other = await storied(store, clock, "other")
        run = await storied(store, clock)
        own = raw_part(b"of this one only" * 900)
        await run.commit({"own": own})
        before = await pictured(store, "other")
        assert await store.remove("r")
        assert await store.collect() == 1
        assert await store.parts([own.hash]) == {}
        assert await pictured(store, "other") == before
        assert await latest_id(store, "flöw") == "other@4"
        await other.commit()

    @in_a_loop
    async def test_a_run_of_this_process_can_be_removed_under_its_hands(
        self, store: HostStore, clock: ManualClock
    ) -> None:
        late = await storied(store, clock)
        assert await store.remove("r")
        await self._assert_void(late)
        again = await RunDriver.start(store, clock, "r")
        await again.commit()
        await self._assert_void(late)
        record = await again.record()
        assert (record.head, record.position, record.events) == ("r@0", 0, 0)

    async def _assert_void(self, late: RunDriver) -> None:
        with pytest.raises(REFUSED):
            await late.commit({"a": text_part("late")})
        with pytest.raises(REFUSED):
            await late.note(finished("late", "late"))
        await late.release(halt=halted())
        assert await late.noted() == []

    @pytest.mark.parametrize("kind", ["failed", "parked", "exported"])
    @in_a_loop
    async def test_a_halted_run_can_be_removed(self, store: HostStore, clock: ManualClock, kind: HaltKind) -> None:
        run = await storied(store, clock)
        await run.release(halt=halted(kind))
        assert await store.remove("r")
        assert await store.run("r") is None
        again = await RunDriver.start(store, clock, "r")
        await again.commit()
        assert (await again.record()).halt is None

    @in_a_loop
    async def test_a_run_that_never_began_is_not_there_to_be_removed(
        self, store: HostStore, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        assert await store.remove("r") is False
        await run.commit()
        assert (await run.record()).head == "r@0"

    @in_a_loop
    async def test_a_run_that_a_fork_rests_on_is_not_removed(self, store: HostStore, clock: ManualClock) -> None:
        run = await storied(store, clock)
        await run.release()
        fork = await RunDriver.start(store, clock, "f", parent="r by name")
        await fork.release()
        before = await pictured(store)
        with pytest.raises(WorkflowCheckpointException, match="'f'"):
            await store.remove("r")
        with pytest.raises(WorkflowCheckpointException, match="'f'"):
            await store.remove("r", takeover=True)
        assert await pictured(store) == before
        shared = raw_part(b"c of us" * 900)
        await fork.reclaim()
        await fork.write(replace(fork.next_commit({"c": shared}), parts=()))
        assert await store.remove("r")
        await store.collect()
        assert await contents_of(store, "f@0") == {"c": shared.data}
        assert (await fork.record()).parent_checkpoint_id == "r by name"

    @in_a_loop
    async def test_a_fork_can_be_removed_before_its_first_commit(self, store: HostStore, clock: ManualClock) -> None:
        run = await storied(store, clock)
        fork = await RunDriver.start(store, clock, "f", parent=HEAD)
        await fork.note(finished("a", "", raw_part(b"of the fork" * 900)))
        before = await pictured(store)
        assert await store.remove("f")
        assert (await store.run("f"), await fork.noted()) == (None, [])
        assert await store.collect() == 1
        assert await pictured(store) == before
        await run.release()
        assert await store.remove("r")

    @in_a_loop
    async def test_a_run_that_is_removed_wakes_who_waits(self, store: HostStore, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        watch = await watcher(store, "r", seen=run.at("r@0"))
        assert await store.remove("r")
        assert await asyncio.wait_for(watch, UNWOKEN_SECONDS) == Mark()
        await store.close()

    @in_a_loop
    async def test_a_run_that_begins_again_has_nothing_of_the_removed_one(
        self, store: HostStore, clock: ManualClock
    ) -> None:
        run = await storied(store, clock)
        await run.release()
        await store.remove("r")
        again = RunDriver(store, clock, "r", "flow")
        again.claim = await store.claim("r", create=replace(new_run("r"), nonce="another"))
        await again.commit(events=events("first"))
        record = await again.record()
        assert (record.nonce, record.workflow_name, record.position) == ("another", "flow", 0)
        assert [*await again.events(), *await again.inbox(), *await again.noted()] == ["1=first"]
        (number,) = await again.post(command("z"))
        assert number > 0
        assert list(await store.ids()) == ["r@0"]
