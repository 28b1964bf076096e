"""Runs that wait for time on a host: nothing of them is in memory until it has come."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Never

from tests.hosting.flows import Gate, office, row, shout, until
from tests.hosting.places import opened

from perdure import (
    EmbeddedScheduler,
    Executor,
    Host,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowRunState,
    handler,
    response_handler,
)
from perdure.storage import HostStore
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosting.places import Storage
    from tests.workflow.nodes import Context

HOUR = timedelta(hours=1)


async def sleep(message: Any, ctx: Context) -> None:
    await ctx.sleep(HOUR)
    await ctx.yield_output(f"{message} slept")


def sleepers(storage: Storage) -> Host:
    host = Host(storage)
    host.register(row("w", sleep))
    return host


async def until_sleeping(clock: ManualClock) -> None:
    """Wait until the host sleeps until the next timer."""
    async with asyncio.timeout(30):
        while not clock.sleepers:  # noqa: ASYNC110 - a clock that stands still tells nobody
            await asyncio.sleep(0)


async def test_a_sleeping_run_is_woken_by_its_timer(timed: Storage, clock: ManualClock) -> None:
    async with sleepers(timed) as host:
        run = await host.start("w", "hi")
        await until(host, run.run_id, "sleeping")
        await until_sleeping(clock)
        clock.advance(HOUR)
        assert (await run.result()).get_outputs() == ["hi slept"]


async def test_a_sleeping_run_is_not_woken_early(timed: Storage, clock: ManualClock) -> None:
    async with sleepers(timed) as host:
        run = await host.start("w", "hi")
        await until(host, run.run_id, "sleeping")
        clock.advance(HOUR - timedelta(seconds=1))
        assert await host.recover() == []
        assert (await run.info()).status == "sleeping"
        clock.advance(timedelta(seconds=1))
        await host.recover()
        assert (await run.result()).get_outputs() == ["hi slept"]


async def test_a_run_that_fell_asleep_elsewhere_is_woken_by_a_serving_host(timed: Storage, clock: ManualClock) -> None:
    async with sleepers(timed) as host:
        run = await host.start("w", "hi")
        await until(host, run.run_id, "sleeping")
    clock.advance(2 * HOUR)
    async with sleepers(timed):
        assert (await run.result()).get_outputs() == ["hi slept"]


async def test_skipped_time_wakes_runs_one_after_the_other(kind: str, tmp_path: Path) -> None:
    clock = ManualClock(skips=True)
    async with opened(kind, tmp_path, clock=clock) as storage, sleepers(storage) as host:
        runs = [await host.start("w", f"run {number}") for number in range(3)]
        outputs = [(await run.result()).get_outputs() for run in runs]
    assert outputs == [[f"run {number} slept"] for number in range(3)]


class Patient(Executor):
    """Asks, and has an answer of its own when nobody gives one in time."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.request_info(text, str, request_id="q", deadline=HOUR, default="nobody")

    @response_handler
    async def told(self, text: str, answer: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{text}: {answer}")


def patience() -> Workflow:
    return WorkflowBuilder(name="patience", start_executor=Patient("patient")).build()


async def test_a_request_that_expires_gets_its_default_answer(timed: Storage, clock: ManualClock) -> None:
    host = Host(timed)
    host.register(patience)
    async with host:
        run = await host.start("patience", "who")
        await run.result()
        await until_sleeping(clock)
        clock.advance(HOUR)
        await until(host, run.run_id, "idle")
        assert (await run.result()).get_outputs() == ["who: nobody"]


async def test_a_run_is_cancelled_after_its_deadline(timed: Storage, clock: ManualClock) -> None:
    async with sleepers(timed) as host:
        run = await host.start("w", "hi", deadline=timedelta(minutes=30))
        await until(host, run.run_id, "sleeping")
        await until_sleeping(clock)
        clock.advance(timedelta(minutes=30))
        assert (await run.result()).get_final_state() is WorkflowRunState.CANCELLED


async def test_no_more_than_max_runs_are_advanced_at_once(storage: Storage) -> None:
    gate = Gate()
    host = Host(storage, max_runs=3)
    host.register(row("w", gate))
    async with host:
        runs = [await host.start("w", number) for number in range(8)]
        await gate.holds(3)
        assert len([info for info in await host.runs() if info.owner is not None]) == 3
        gate.open()
        for run in runs:
            await run.result()
    assert (gate.most, sorted(gate.came)) == (3, list(range(8)))


async def test_the_run_that_waited_longest_is_advanced_first(storage: Storage) -> None:
    gate = Gate()
    gate.open()
    host = Host(storage, max_runs=1)
    host.register(row("w", gate))
    runs = [await host.start("w", number) for number in range(5)]
    async with host:
        for run in runs:
            await run.result()
    assert gate.came == list(range(5))


async def test_a_host_keeps_no_idle_runs_in_memory(timed: Storage, clock: ManualClock) -> None:
    assert isinstance(timed.store, HostStore)
    scheduler = EmbeddedScheduler(timed.store, clock, max_runs=10)
    host = Host(timed, scheduler=scheduler)
    host.register(row("w", sleep))
    host.register(row("quick", shout))
    async with host:
        for number in range(50):
            await host.start("w" if number % 2 else "quick", number, run_id=f"r{number}")
        for number in range(50):
            await until(host, f"r{number}", "sleeping" if number % 2 else "idle")
        await until_sleeping(clock)
        assert (scheduler.holds, host.running) == (0, 0)


async def test_the_executors_of_an_idle_run_are_released(storage: Storage) -> None:
    built: list[weakref.ref[Any]] = []

    def build() -> Workflow:
        workflow = office()
        built.append(weakref.ref(workflow))
        built.extend(weakref.ref(executor) for executor in workflow.get_executors_list())
        return workflow

    host = Host(storage)
    host.register(build)
    async with host:
        runs = [await host.start("office", str(number)) for number in range(10)]
        for run in runs:
            await run.result()
            await until(host, run.run_id, "waiting")
        await until_nobody_runs(host)
        gc.collect()
        assert [each for each in built if each() is not None] == []


async def until_nobody_runs(host: Host) -> None:
    """Wait until what has given its run free has ended, too."""
    async with asyncio.timeout(30):
        while host.running:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)
