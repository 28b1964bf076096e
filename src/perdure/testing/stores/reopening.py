"""Reopening: a run that was exported comes back, and what is here must not be set back by it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import WorkflowCheckpointException
from perdure.storage import MemoryStore
from perdure.testing.stores.driver import RunDriver, command, events, halted
from perdure.testing.stores.stories import pictured, storied
from perdure.testing.stores.suite import HostStoreSuite, in_a_loop

if TYPE_CHECKING:
    from perdure.storage import HostStore
    from perdure.testing.clock import ManualClock

_LARGEST_NUMBER = 2**63 - 1


class ReopeningConformance(HostStoreSuite):
    """Whoever brings a run back brings all of it."""

    @pytest.mark.parametrize("has_gone_on", ["by a commit", "by an event"])
    @in_a_loop
    async def test_a_run_is_not_replaced_by_what_it_was_before(
        self, store: HostStore, clock: ManualClock, has_gone_on: str
    ) -> None:
        run = await storied(store, clock)
        archive = await store.archive("r")
        if has_gone_on == "by a commit":
            await run.commit()
        else:
            older = replace(archive.record, position=archive.record.position + 1, events=archive.record.events)
            await run.commit(events=events("5"))
            archive = replace(archive, record=older)
        await run.release(halt=halted("exported"))
        before, record = await pictured(store), await run.record()
        with pytest.raises(WorkflowCheckpointException, match="before the run went on"):
            await store.restore(archive)
        assert (await pictured(store), await run.record()) == (before, record)
        await store.restore(await store.archive("r"))
        assert await run.record() == replace(record, halt=None)

    @in_a_loop
    async def test_a_run_is_not_replaced_by_one_without_what_a_fork_rests_on(
        self, store: HostStore, clock: ManualClock
    ) -> None:
        run = await storied(store, clock)
        fork = await RunDriver.start(store, clock, "f", workflow_name="flöw", parent="r@0")
        await fork.release()
        await run.release(halt=halted("exported"))
        whole = await store.archive("r")
        partial = replace(whole, checkpoints=whole.checkpoints[1:])
        before = await pictured(store)
        with pytest.raises(WorkflowCheckpointException, match="'f', a fork of it"):
            await store.restore(partial)
        assert await pictured(store) == before
        await fork.reclaim()
        await fork.commit()
        await store.restore(partial)
        assert (await store.manifests(run_id="r"))[0].checkpoint_id == "r@1"

    @in_a_loop
    async def test_a_fork_keeps_what_it_rests_on_when_a_run_comes_back(
        self, store: HostStore, clock: ManualClock
    ) -> None:
        run = await storied(store, clock)
        fork = await RunDriver.start(store, clock, "f", workflow_name="flöw", parent="r@0")
        await run.release(halt=halted("exported"))
        await store.restore(await store.archive("r"))
        assert (await store.manifest("r@0")).checkpoint_id == "r@0"
        with pytest.raises(WorkflowCheckpointException, match="'f', a fork of it"):
            await store.remove("r")
        await fork.commit()
        assert await store.remove("r")

    @in_a_loop
    async def test_the_numbers_of_commands_are_given_anew(self, store: HostStore, clock: ManualClock) -> None:
        other = await RunDriver.start(store, clock, "other")
        await other.commit()
        (before,) = await other.post(command("before"))
        elsewhere = MemoryStore(clock=clock)
        await storied(elsewhere, clock)
        archive = await elsewhere.archive("r")
        inbox = tuple(replace(each, number=_LARGEST_NUMBER - 2 + n) for n, each in enumerate(archive.inbox))
        await store.restore(replace(archive, inbox=inbox))
        numbers = [each.number for each in await store.inbox("r")]
        assert [each.id for each in await store.inbox("r")] == [each.id for each in inbox]
        assert [before, *numbers] == sorted({before, *numbers})
        (after,) = await other.post(command("after"))
        assert max(numbers) < after < _LARGEST_NUMBER
