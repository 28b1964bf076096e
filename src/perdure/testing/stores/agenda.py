"""Agendas: runs that can continue, and notifications about them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from perdure.errors import RunExportedError
from perdure.records import Due, Halt, HeadStatus, KeepFor, Mark, Retention
from perdure.testing.clock import ManualClock
from perdure.testing.stores.base import (
    SOON,
    UNWOKEN_SECONDS,
    HostStoreSuite,
    RunDriver,
    StoreSuite,
    command,
    events,
    finished,
    halted,
    in_a_loop,
    new_run,
    read_contents,
    text_blob,
)
from perdure.testing.stores.event_log import watcher
from perdure.testing.stores.transfer import archive_from_elsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perdure.records import HaltKind, HeadStatus
    from perdure.storage import HostStore, Store, Subscription

_BEFORE, _NOW, _AFTER = (f"2024-05-01T10:00:0{second}+00:00" for second in range(3))
_RESTING: tuple[HeadStatus, ...] = ("waiting", "sleeping", "idle", "cancelled")


async def _resting(
    store: HostStore,
    clock: ManualClock,
    name: str,
    *,
    workflow_name: str = "flow",
    status: HeadStatus = "running",
    wake_at: str | None = None,
) -> RunDriver:
    """Make an idle run that has waited longer than the runs made after it."""
    run = await RunDriver.start(store, clock, name, workflow_name=workflow_name)
    await run.commit(status=status, wake_at=wake_at)
    await run.release()
    clock.advance(timedelta(seconds=1))
    return run


async def _due(store: HostStore, *, at: str = _NOW, of: Sequence[str] = ("flow",), limit: int = 100) -> Sequence[str]:
    return [each.record.run_id for each in await store.due(at=at, workflow_names=of, limit=limit)]


async def _notified(subscription: Subscription) -> None:
    await asyncio.wait_for(subscription.wait(), UNWOKEN_SECONDS)


class AgendaConformance(HostStoreSuite):
    """A run is due if it can continue and nobody holds its lease."""

    @in_a_loop
    async def test_a_run_whose_head_leaves_work_is_due(self, store: HostStore, clock: ManualClock) -> None:
        assert await _due(store) == []
        for status in ("running", *_RESTING):
            await _resting(store, clock, status, status=status)
        assert await _due(store) == ["running"]
        await store.close()
        assert await _due(store) == ["running"]

    @in_a_loop
    async def test_a_run_is_due_when_its_timer_is(self, store: HostStore, clock: ManualClock) -> None:
        await _resting(store, clock, "deadline", status="waiting", wake_at=_NOW)
        await _resting(store, clock, "timer", status="sleeping", wake_at=_AFTER)
        assert await _due(store, at=_BEFORE) == []
        assert await _due(store, at=_NOW) == ["deadline"]
        assert await _due(store, at=_AFTER) == ["deadline", "timer"]

    @pytest.mark.parametrize("status", ["waiting", "sleeping", "idle"])
    @in_a_loop
    async def test_a_run_is_due_while_a_command_waits(
        self, store: HostStore, clock: ManualClock, status: HeadStatus
    ) -> None:
        run = await _resting(store, clock, "r", status=status)
        numbers = await run.post(command("a"), command("b"))
        assert await store.due(at=_NOW, workflow_names=["flow"], limit=9) == [Due(await run.record(), numbers[-1])]
        await run.reacquire()
        await run.commit(status=status, consumed=("a",))
        await run.release()
        assert await _due(store) == ["r"]
        await run.reacquire()
        await run.commit(status=status, consumed=("b",))
        await run.release()
        assert await _due(store) == []

    @in_a_loop
    async def test_a_cancelled_run_is_not_due_whatever_comes(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="cancelled", wake_at=_BEFORE)
        await run.post(command("a"))
        assert await _due(store) == []
        await run.reacquire()
        await run.commit(status="waiting")
        await run.release()
        assert await _due(store) == ["r"]

    @in_a_loop
    async def test_what_is_due_is_told_with_its_record(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", workflow_name="flöw", status="sleeping", wake_at=_BEFORE)
        assert await store.due(at=_NOW, workflow_names=["flöw"], limit=1) == [Due(await run.record(), 0)]

    @pytest.mark.parametrize("kind", ["failed", "parked", "exported"])
    @in_a_loop
    async def test_a_halted_run_is_not_due(self, store: HostStore, clock: ManualClock, kind: HaltKind) -> None:
        runs = [await _resting(store, clock, name) for name in "ab"]
        await runs[0].post(command("a"))
        for run in runs:
            await run.reacquire()
            await run.release(halt=halted(kind))
        assert await _due(store) == []
        if kind != "exported":
            await runs[1].reacquire()
            await runs[1].release()
            assert await _due(store) == ["b"]

    @in_a_loop
    async def test_what_this_process_advances_is_not_due(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="sleeping", wake_at=_BEFORE)
        await run.post(command("a"))
        assert await _due(store) == ["r"]
        await run.reacquire()
        assert await _due(store) == []
        await run.note(finished("a"))
        await run.commit()
        assert await _due(store) == []
        await run.release()
        assert await _due(store) == ["r"]

    @in_a_loop
    async def test_only_runs_of_the_named_workflows_are_due(self, store: HostStore, clock: ManualClock) -> None:
        for number, workflow_name in enumerate(("one", "two", "three", "two")):
            await _resting(store, clock, f"r{number}", workflow_name=workflow_name)
        assert await _due(store, of=["two"]) == ["r1", "r3"]
        assert await _due(store, of=("three", "one")) == ["r0", "r2"]
        assert await _due(store, of=["four"]) == []
        assert await _due(store, of=[]) == []

    @in_a_loop
    async def test_those_that_waited_longest_come_first(self, store: HostStore, clock: ManualClock) -> None:
        runs = {name: await _resting(store, clock, name) for name in "zmak"}
        await _resting(store, clock, "timer", status="sleeping", wake_at=_BEFORE)
        message = await _resting(store, clock, "message", status="idle")
        await runs["m"].reacquire()
        await runs["m"].commit()
        await runs["m"].release()
        await message.post(command("a"))
        assert await _due(store) == ["z", "a", "k", "timer", "message", "m"]

    @in_a_loop
    async def test_no_more_are_told_than_were_asked_for(self, store: HostStore, clock: ManualClock) -> None:
        runs = [await _resting(store, clock, f"r{number}") for number in range(6)]
        for run in runs[:3]:
            await run.reacquire()
        await runs[3].reacquire()
        await runs[3].release(halt=halted())
        assert [await _due(store, limit=limit) for limit in (1, 2, 3)] == [["r4"], ["r4", "r5"], ["r4", "r5"]]

    @in_a_loop
    async def test_a_fork_is_due_before_its_first_commit(self, store: HostStore, clock: ManualClock) -> None:
        await _resting(store, clock, "old")
        await _resting(store, clock, "r", status="idle")
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert await _due(store) == ["old"]
        await fork.release()
        assert await _due(store) == ["f", "old"]

    @in_a_loop
    async def test_a_run_that_never_began_is_not_due(self, store: HostStore) -> None:
        lease = await store.acquire("r", create=new_run("r"))
        assert await _due(store) == []
        await store.release(lease)
        assert await _due(store) == []

    @in_a_loop
    async def test_a_run_that_is_gone_is_not_due(self, store: HostStore, clock: ManualClock) -> None:
        for name in ("deleted", "removed"):
            run = await _resting(store, clock, name, wake_at=_AFTER)
            await run.post(command("a"))
        await store.delete("deleted@0")
        await store.remove("removed")
        assert await _due(store) == []
        assert await store.next_wake(after=_NOW, workflow_names=["flow"]) is None

    @in_a_loop
    async def test_the_next_wake_is_that_of_the_first_timer(self, store: HostStore, clock: ManualClock) -> None:
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) is None
        for number, wake_at in enumerate((_AFTER, None, _NOW, _BEFORE)):
            await _resting(store, clock, f"r{number}", status="sleeping", wake_at=wake_at)
        await _resting(store, clock, "other", workflow_name="other", status="waiting", wake_at=_BEFORE)
        wakes = [await store.next_wake(after=after, workflow_names=["flow"]) for after in ("", _BEFORE, _NOW, _AFTER)]
        assert wakes == [_BEFORE, _NOW, _AFTER, None]
        assert await store.next_wake(after="", workflow_names=["other"]) == _BEFORE
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow", "other"]) == _NOW
        assert await store.next_wake(after="", workflow_names=[]) is None

    @in_a_loop
    async def test_the_next_wake_is_that_of_the_head(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="sleeping", wake_at=_NOW)
        await run.reacquire()
        await run.commit(status="sleeping", wake_at=_AFTER)
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) == _AFTER
        await run.rewind("r@0")
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) == _NOW
        await run.release(halt=halted())
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) is None

    @in_a_loop
    async def test_the_timer_of_a_cancelled_run_wakes_nobody(self, store: HostStore, clock: ManualClock) -> None:
        await _resting(store, clock, "cancelled", status="cancelled", wake_at=_NOW)
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) is None
        await _resting(store, clock, "sleeping", status="sleeping", wake_at=_AFTER)
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow"]) == _AFTER

    @in_a_loop
    async def test_a_restored_run_is_on_the_agenda(self, store: HostStore, clock: ManualClock) -> None:
        archive = await archive_from_elsewhere(clock)
        async with store.subscribe() as subscription:
            subscription.clear()
            await store.restore(archive)
            await asyncio.wait_for(subscription.wait(), UNWOKEN_SECONDS)
        (due,) = await store.due(at="", workflow_names=["flöw"], limit=9)
        assert due.record == archive.record
        assert due.commands == (await store.inbox("r"))[-1].number
        assert await store.next_wake(after="", workflow_names=["flöw"]) == SOON
        await store.close()

    @in_a_loop
    async def test_who_looks_for_work_hears_of_it(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="idle")
        async with store.subscribe() as subscription:
            subscription.clear()
            hears = asyncio.create_task(_notified(subscription))
            await asyncio.sleep(0)
            await run.post(command("a"))
            await hears
            await run.reacquire()
            subscription.clear()
            hears = asyncio.create_task(_notified(subscription))
            await asyncio.sleep(0)
            await run.release()
            await hears
        await store.close()

    @in_a_loop
    async def test_what_comes_before_one_waits_is_not_missed(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="idle")
        async with store.subscribe() as subscription:
            for number in range(3):
                subscription.clear()
                assert await _due(store) == (["r"] if number else [])
                await run.post(command(f"{number}"))
                await _notified(subscription)
            await run.reacquire()
            subscription.clear()
            await run.release(halt=halted())
            await _notified(subscription)
        await store.close()

    @in_a_loop
    async def test_all_who_look_for_work_hear_of_it(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="idle")
        async with store.subscribe() as one, store.subscribe() as other:
            for subscription in (one, other):
                subscription.clear()
            await run.post(command("a"))
            for subscription in (one, other):
                await _notified(subscription)
        await store.close()

    @in_a_loop
    async def test_who_stops_looking_for_work_leaves_nothing_behind(self, store: HostStore, clock: ManualClock) -> None:
        run = await _resting(store, clock, "r", status="idle")
        async with store.subscribe() as subscription:
            hears = asyncio.create_task(_notified(subscription))
            await asyncio.sleep(0)
            hears.cancel()
            await asyncio.wait([hears])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await run.post(command("a"))
        assert await _due(store) == ["r"]
        await store.close()


_SOON = "2024-05-01T10:00:00+00:00"
_REASONS = ("", "it failed", "ünï\u2028日本 'quoted' \"twice\"", "file \udcff", "nul\0 and\nlines", "long " * 2000)


class HaltConformance(StoreSuite):
    """A halted run keeps its state and waits for someone who takes its lease."""

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
            await run.reacquire()

    @in_a_loop
    async def test_the_next_lease_ends_a_halt(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit(status="waiting")
        for token in (None, 1000, None):
            await run.release(halt=halted())
            await run.reacquire(token=token)
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
        await run.reacquire()
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
        await store.acquire("a")
        assert [record.run_id for record in await store.runs(status="waiting")] == ["a", "b"]

    @in_a_loop
    async def test_only_who_holds_the_run_can_halt_it(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        late = run.lease
        assert late is not None
        await run.reacquire()
        await store.release(late, halt=halted())
        assert (await run.record()).halt is None
        await run.release()
        assert run.lease is not None
        await store.release(run.lease, halt=halted())
        assert (await run.record()).halt is None

    @in_a_loop
    async def test_a_run_that_never_began_is_not_halted(self, store: Store) -> None:
        lease = await store.acquire("r", create=new_run("r"))
        await store.release(lease, halt=halted())
        assert await store.run("r") is None
        assert list(await store.runs()) == []

    @in_a_loop
    async def test_a_fork_can_be_halted_before_its_first_commit(self, store: Store, clock: ManualClock) -> None:
        await (await RunDriver.start(store, clock, "r")).commit(status="idle")
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.release(halt=halted())
        record = await fork.record()
        assert (record.standing, record.status, record.head) == ("failed", "running", "r@0")
        await fork.reacquire()
        await fork.commit()
        assert (await fork.record()).standing == "running"

    @in_a_loop
    async def test_what_a_halted_run_has_is_kept(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": text_blob("v")}, events=events("told"))
        await run.note(finished("a", "1", text_blob("of the journal")))
        await run.post(command("before", "1"))
        await run.release(halt=halted())
        await run.post(command("after", "2", text_blob("of the inbox")))
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
            await store.acquire("r")
        assert (caught.value.run_id, caught.value.at) == ("r", halted().at)
        with pytest.raises(RunExportedError):
            await store.acquire("r", takeover=True)
        with pytest.raises(RunExportedError):
            await store.acquire("r", token=2**60)
        with pytest.raises(RunExportedError):
            await store.acquire("r", create=new_run("r"))
        with pytest.raises(RunExportedError):
            await store.post("r", command("a", "lost", text_blob("lost")))
        assert await run.record() == before
        assert await run.inbox() == []
        await store.collect()
        assert await store.blobs([text_blob("lost").hash]) == {}

    @in_a_loop
    async def test_an_exported_run_can_be_read(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": text_blob("v")}, events=events("told"))
        await run.note(finished("a", "1"))
        await run.post(command("b", "2"))
        await run.release(halt=halted("exported"))
        assert await read_contents(store, "r@0") == {"a": b'"v"'}
        assert [*await run.noted(), *await run.inbox(), *await run.events()] == ["a=1", "b=2", "1=told"]
        assert [record.run_id for record in await store.runs(status="exported")] == ["r"]
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.commit()
        assert (await fork.record()).head == "f@0"


_LATE = "2025-05-01T10:00:00+00:00"


class StandingConformance(StoreSuite):
    """A run has the status of its head, also after a rewind."""

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
        await store.acquire("r", create=new_run("r"))
        after = [list(await store.runs()), list(await store.inbox("r")), list(await store.events("r"))]
        assert after[1:] == before[1:]
        assert [record.run_id for record in await store.runs()] == ["r"]
