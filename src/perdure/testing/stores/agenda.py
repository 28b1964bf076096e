"""Watchers and agendas: processes that wait for a change of a run, and runs that can continue."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import pytest

from perdure.records import Archive, Due, HaltKind, HeadStatus, KeepFor, Mark
from perdure.testing.stores.base import (
    SOON,
    UNWOKEN_SECONDS,
    HostStoreSuite,
    RunDriver,
    StoreSuite,
    command,
    events,
    halted,
    keeps,
    watcher,
    watching,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure.storage import HostStore, Store, Subscription
    from perdure.testing.clock import ManualClock

_WAKING: Mapping[str, Callable[[RunDriver], Awaitable[object]]] = {
    "commit": lambda run: run.commit(events=events("a")),
    "post": lambda run: run.post(command("b")),
    "consume": lambda run: run.commit(consumed=("a",)),
    "rewind": lambda run: run.rewind("r@0"),
    "release": lambda run: run.release(),
    "halt": lambda run: run.release(halt=halted()),
    "delete": lambda run: run.store.delete("r@1"),
}
"""Changes of a run that wake its watchers."""


class WatchConformance(StoreSuite):
    """All watchers in this process notice a change at once."""

    async def test_watcher_that_has_missed_a_change_does_not_wait(self, store: Store, fresh: RunDriver) -> None:
        await fresh.commit(events=events("a", "b"))
        (number,) = await fresh.post(command("a"))
        there = fresh.at("r@0", events=2, commands=number)
        for seen in (
            Mark(),
            fresh.at("r@0"),
            fresh.at("r@0", 2),
            fresh.at("r@0", 1, number),
            fresh.at("other", 2, number),
        ):
            assert await store.watch("r", seen=seen) == there
        assert await store.watch("nowhere", seen=there) == Mark()

    @pytest.mark.parametrize("change", _WAKING)
    async def test_change_of_a_run_wakes_its_watchers(self, store: Store, run: RunDriver, change: str) -> None:
        await run.commit()
        await run.post(command("a"))
        before = await run.mark()
        async with watching(store, "r", seen=before) as watch:
            await _WAKING[change](run)
        assert watch.result() == await run.mark() != before
        assert watch.result().is_halted is (change == "halt")

    async def test_watcher_of_commands_is_woken_by_nothing_else(self, store: Store, run: RunDriver) -> None:
        assert await store.watch("r", seen=Mark(commands=7), commands_only=True) == run.at("r@0")
        watch = await watcher(store, "r", seen=Mark(), commands_only=True)
        await run.commit(events=events("a"))
        await run.rewind("r@0")
        await store.run("r")
        assert not watch.done()
        (number,) = await run.post(command("a"))
        assert await asyncio.wait_for(watch, UNWOKEN_SECONDS) == run.at("r@0", events=1, commands=number)
        watch = await watcher(store, "r", seen=Mark(commands=number), commands_only=True)
        await run.commit(consumed=("a",))
        assert await asyncio.wait_for(watch, UNWOKEN_SECONDS) == run.at("r@2", events=1)

    async def test_run_that_begins_wakes_its_watchers(self, store: Store, clock: ManualClock) -> None:
        async with watching(store, "r", seen=Mark()) as watch:
            run = await RunDriver.start(store, clock, "r")
            await run.commit(events=events("a"))
        assert watch.result() == run.at("r@0", events=1)
        async with watching(store, "f", seen=Mark()) as watch:
            fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert watch.result() == fork.at("r@0")

    @keeps(finished_runs=KeepFor(timedelta(days=7)))
    async def test_run_that_is_forgotten_wakes_its_watchers(
        self, store: Store, clock: ManualClock, fresh: RunDriver
    ) -> None:
        await fresh.commit(settled=True, status="idle")
        await fresh.release()
        clock.advance(timedelta(days=8))
        async with watching(store, "r", seen=Mark("r@0")) as watch:
            await RunDriver.start(store, clock, "s", commits=1)
        assert watch.result() == Mark()

    async def test_watchers_of_other_runs_are_not_woken(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, name, commits=1) for name in "rs"]
        async with contextlib.AsyncExitStack() as stack:
            of_other = await stack.enter_async_context(watching(store, "s", seen=runs[1].at("s@0")))
            watches = [await stack.enter_async_context(watching(store, "r", seen=runs[0].at("r@0"))) for _ in range(5)]
            await runs[0].commit()
            assert await asyncio.gather(*watches) == [runs[0].at("r@1")] * 5
            await store.run("s")
            assert not of_other.done()
            await runs[1].commit()

    async def test_watchers_in_other_event_loops_are_woken(self, store: Store, run: RunDriver) -> None:
        elsewhere = [asyncio.to_thread(asyncio.run, store.watch("r", seen=run.at("r@0"))) for _ in range(3)]
        async with watching(store, "r", seen=run.at("r@0")) as watch:
            others = asyncio.gather(*elsewhere)
            await asyncio.sleep(0)
            await run.commit()
            assert await asyncio.wait_for(others, UNWOKEN_SECONDS) == [run.at("r@1")] * 3
        assert watch.result() == run.at("r@1")

    async def test_cancelled_watcher_leaves_nothing_behind(self, store: Store, run: RunDriver) -> None:
        watch = await watcher(store, "r", seen=run.at("r@0"))
        watch.cancel()
        await asyncio.wait([watch])
        assert watch.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await run.commit()

    async def test_watcher_survives_the_closing_of_the_store(self, store: Store, run: RunDriver) -> None:
        async with watching(store, "r", seen=run.at("r@0")) as watch:
            await store.close()
            await run.commit()
        assert watch.result() == run.at("r@1")


_BEFORE, _NOW, _AFTER = (f"2024-05-01T10:00:0{second}+00:00" for second in range(3))

Step: TypeAlias = "Callable[[RunDriver], Awaitable[object]]"


def _at(status: HeadStatus, wake_at: str | None = None) -> Step:
    return lambda run: run.commit(status=status, wake_at=wake_at, consumed=("a",))


def _post(name: str) -> Step:
    return lambda run: run.post(command(name))


def _halt(kind: HaltKind | None = None) -> Step:
    return lambda run: run.release(halt=kind and halted(kind))


def _rewind(run: RunDriver) -> Awaitable[object]:
    return run.rewind(f"{run.run_id}@0")


def _delete(run: RunDriver) -> Awaitable[object]:
    return run.store.delete(f"{run.run_id}@0")


def _fork(run: RunDriver) -> Awaitable[object]:
    return RunDriver.start(run.store, run.clock, "f", workflow_name=run.workflow_name, parent=f"{run.run_id}@0")


_LEASE: Step = lambda run: run.reacquire()  # noqa: E731
_FREE = _halt()

_SITUATIONS: Mapping[str, tuple[Sequence[Step], str | None, str | None]] = {
    "without work": ([_at("idle"), _FREE], None, None),
    "with work": ([_at("running"), _FREE], "", None),
    "waiting": ([_at("waiting"), _FREE], None, None),
    "sleeping": ([_at("sleeping"), _FREE], None, None),
    "with a deadline": ([_at("waiting", _NOW), _FREE], _NOW, _NOW),
    "with a timer": ([_at("sleeping", _AFTER), _FREE], _AFTER, _AFTER),
    "waiting, with a command": ([_at("waiting"), _FREE, _post("a")], "", None),
    "sleeping, with a command": ([_at("sleeping", _AFTER), _FREE, _post("a")], "", _AFTER),
    "idle, with a command": ([_at("idle"), _FREE, _post("a")], "", None),
    "with one more command": ([_at("running"), _post("a"), _post("b"), _at("idle"), _FREE], "", None),
    "whose command was consumed": ([_at("running"), _post("a"), _at("idle"), _FREE], None, None),
    "cancelled": ([_at("cancelled", _BEFORE), _FREE, _post("a")], None, None),
    "cancelled, and continued": ([_at("cancelled", _BEFORE), _at("waiting"), _post("b"), _FREE], "", None),
    "failed": ([_at("running", _NOW), _post("a"), _halt("failed")], None, None),
    "parked": ([_at("running", _NOW), _post("a"), _halt("parked")], None, None),
    "exported": ([_at("running", _NOW), _post("a"), _halt("exported")], None, None),
    "failed, and leased again": ([_at("running"), _halt("failed"), _LEASE, _FREE], "", None),
    "with an owner": ([_at("sleeping", _BEFORE), _post("a")], None, _BEFORE),
    "with an owner that advanced it": ([_at("running"), _FREE, _LEASE, _at("running")], None, None),
    "with a later timer": ([_at("sleeping", _NOW), _at("sleeping", _AFTER), _FREE], _AFTER, _AFTER),
    "rewound": ([_at("sleeping", _NOW), _at("idle"), _rewind, _FREE], _NOW, _NOW),
    "that never began": ([_FREE], None, None),
    "deleted": ([_at("running", _NOW), _FREE, _post("a"), _delete], None, None),
    "forked, and leased": ([_at("idle"), _FREE, _fork], None, None),
}
"""By situation of a run: the steps to it, the time from which the run is due, and its next wake-up."""


async def _idle_run(
    store: HostStore, clock: ManualClock, name: str, *steps: Step, workflow_name: str = "flow"
) -> RunDriver:
    """Make a run without an owner that has waited longer than the runs made after it. By default it has work."""
    run = await RunDriver.start(store, clock, name, workflow_name=workflow_name)
    for step in steps or (_at("running"),):
        await step(run)
    await run.release()
    clock.advance(timedelta(seconds=1))
    return run


async def _due(store: HostStore, *, at: str = _NOW, of: Sequence[str] = ("flow",), limit: int = 100) -> Sequence[str]:
    return [each.record.run_id for each in await store.due(at=at, workflow_names=of, limit=limit)]


async def _notified(subscription: Subscription) -> None:
    await asyncio.wait_for(subscription.wait(), UNWOKEN_SECONDS)


class AgendaConformance(HostStoreSuite):
    """A run is due if it can continue and nobody holds its lease."""

    async def test_agenda_has_runs_that_can_continue(self, store: HostStore, clock: ManualClock) -> None:
        for name, (steps, _, _) in _SITUATIONS.items():
            run = await RunDriver.start(store, clock, name, workflow_name=name)
            for step in steps:
                await step(run)
        for _ in range(2):
            for name, (_, due_from, next_wake) in _SITUATIONS.items():
                expected = [[name] if due_from is not None and at >= due_from else [] for at in (_BEFORE, _NOW, _AFTER)]
                assert [await _due(store, at=at, of=[name]) for at in (_BEFORE, _NOW, _AFTER)] == expected, name
                assert await store.next_wake(after="", workflow_names=[name]) == next_wake, name
            await store.close()

    async def test_due_run_comes_with_its_record_and_newest_command(self, store: HostStore, run: RunDriver) -> None:
        numbers = await run.post(command("a"), command("b"))
        await run.release()
        assert await store.due(at=_NOW, workflow_names=["flow"], limit=9) == [Due(await run.record(), numbers[-1])]

    async def test_only_runs_of_the_named_workflows_are_due(self, store: HostStore, clock: ManualClock) -> None:
        for number, workflow_name in enumerate(("one", "two", "three", "two")):
            await _idle_run(store, clock, f"r{number}", workflow_name=workflow_name)
        assert await _due(store, of=["two"]) == ["r1", "r3"]
        assert await _due(store, of=("three", "one")) == ["r0", "r2"]
        assert await _due(store, of=["four"]) == await _due(store, of=[]) == []

    async def test_runs_that_waited_longest_come_first(self, store: HostStore, clock: ManualClock) -> None:
        runs = {name: await _idle_run(store, clock, name) for name in "zmak"}
        await _idle_run(store, clock, "timer", _at("sleeping", _BEFORE))
        message = await _idle_run(store, clock, "message", _at("idle"))
        await runs["m"].reacquire()
        await runs["m"].commit()
        await runs["m"].release()
        await message.post(command("a"))
        assert await _due(store) == ["z", "a", "k", "timer", "message", "m"]
        await (await message.another("f", parent="z@0")).release()
        # A fork that has committed nothing has waited longer than any run.
        assert await _due(store) == ["f", "z", "a", "k", "timer", "message", "m"]

    async def test_no_more_runs_are_due_than_the_limit(self, store: HostStore, clock: ManualClock) -> None:
        runs = [await _idle_run(store, clock, f"r{number}") for number in range(6)]
        for run in runs[:4]:
            await run.reacquire()
        await runs[3].release(halt=halted())
        assert [await _due(store, limit=limit) for limit in (1, 2, 3)] == [["r4"], ["r4", "r5"], ["r4", "r5"]]

    async def test_removed_run_is_not_on_the_agenda(self, store: HostStore, clock: ManualClock) -> None:
        await _idle_run(store, clock, "r", _at("running", _AFTER), _post("a"))
        await store.remove("r")
        assert await _due(store) == []
        assert await store.next_wake(after="", workflow_names=["flow"]) is None

    async def test_next_wake_is_that_of_the_first_timer(self, store: HostStore, clock: ManualClock) -> None:
        for number, wake_at in enumerate((_AFTER, None, _NOW, _BEFORE)):
            await _idle_run(store, clock, f"r{number}", _at("sleeping", wake_at))
        await _idle_run(store, clock, "other", _at("waiting", _BEFORE), workflow_name="other")
        wakes = [await store.next_wake(after=after, workflow_names=["flow"]) for after in ("", _BEFORE, _NOW, _AFTER)]
        assert wakes == [_BEFORE, _NOW, _AFTER, None]
        assert await store.next_wake(after="", workflow_names=["other"]) == _BEFORE
        assert await store.next_wake(after=_BEFORE, workflow_names=["flow", "other"]) == _NOW
        assert await store.next_wake(after="", workflow_names=[]) is None

    async def test_restored_run_is_on_the_agenda(self, store: HostStore, archive: Archive) -> None:
        async with store.subscribe() as subscription:
            subscription.clear()
            await store.restore(archive)
            await asyncio.wait_for(subscription.wait(), UNWOKEN_SECONDS)
        (due,) = await store.due(at="", workflow_names=["flöw"], limit=9)
        assert due.record == archive.record
        assert due.commands == (await store.inbox("r"))[-1].number
        assert await store.next_wake(after="", workflow_names=["flöw"]) == SOON

    async def test_new_work_notifies_all_subscribers(self, store: HostStore, clock: ManualClock) -> None:
        run = await _idle_run(store, clock, "r", _at("idle"))
        async with store.subscribe() as one, store.subscribe() as other:
            for change in (lambda: run.post(command("a")), run.release):
                for subscription in (one, other):
                    subscription.clear()
                notified = asyncio.gather(_notified(one), _notified(other))
                await asyncio.sleep(0)
                await change()
                await notified
                await run.reacquire()

    async def test_work_that_comes_before_the_wait_is_not_missed(self, store: HostStore, clock: ManualClock) -> None:
        run = await _idle_run(store, clock, "r", _at("idle"))
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

    async def test_cancelled_subscriber_leaves_nothing_behind(self, store: HostStore, clock: ManualClock) -> None:
        run = await _idle_run(store, clock, "r", _at("idle"))
        async with store.subscribe() as subscription:
            hears = asyncio.create_task(_notified(subscription))
            await asyncio.sleep(0)
            hears.cancel()
            await asyncio.wait([hears])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await run.post(command("a"))
        assert await _due(store) == ["r"]
