"""Handlers that wait for longer than a process lives: they are left, and entered again when it is time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.activation.solo import Context, lone

from perdure import Executor, InMemoryCheckpointStorage, Retry, Workflow, WorkflowBuilder, WorkflowContext, handler
from perdure.testing.clock import ManualClock

HOUR = timedelta(hours=1)


async def test_a_handler_that_sleeps_is_entered_again_and_its_steps_are_not_done_again() -> None:
    clock, entries, done = ManualClock(skips=True), list[datetime](), list[str]()

    def work(name: str) -> str:
        done.append(name)
        return name

    async def do(_: str, ctx: Context) -> None:
        entries.append(clock.now())
        await ctx.yield_output("before")
        first = await ctx.step("work", work, "first")
        await ctx.sleep(HOUR)
        second = await ctx.step("work", work, "second")
        await ctx.sleep(HOUR.total_seconds())
        await ctx.yield_output([first, second])

    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert done == ["first", "second"]
    assert len(entries) == 3
    assert entries[2] - entries[0] >= 2 * HOUR
    suspended = [event.data for event in result if event.type == "executor_suspended"]
    assert suspended == [(entries[0] + HOUR).isoformat(), (entries[1] + HOUR).isoformat()]


async def test_what_was_sent_written_and_yielded_before_the_wait_counts_once() -> None:
    clock, storage = ManualClock(skips=True), InMemoryCheckpointStorage()

    async def do(_: str, ctx: Context) -> None:
        assert ctx.get_state("seen") is None
        ctx.set_state("seen", 1)
        ctx.spend(tokens=3)
        await ctx.yield_output("once")
        await ctx.sleep(HOUR)

    workflow = lone(do, storage=storage, clock=clock)
    await workflow.run("go")
    again = await workflow.run(run_id=workflow.run_id)
    assert again.get_outputs() == ["once"]


async def test_a_request_that_was_opened_before_the_wait_is_opened_when_the_handler_ends() -> None:
    clock, storage = ManualClock(skips=True), InMemoryCheckpointStorage()

    async def do(_: str, ctx: Context) -> None:
        await ctx.request_info("may I?", str, request_id="once")
        await ctx.sleep(HOUR)

    workflow = lone(do, storage=storage, clock=clock)
    await workflow.run("go")
    again = await workflow.run(run_id=workflow.run_id)
    assert [event.request_id for event in again if event.type == "request_info"] == ["once"]


async def test_without_a_storage_the_handler_waits_in_place() -> None:
    clock, entries = ManualClock(skips=True), list[int]()

    async def do(_: str, ctx: Context) -> None:
        entries.append(1)
        await ctx.sleep(clock.now() + HOUR)

    before = clock.now()
    await lone(do, clock=clock).run("go")
    assert entries == [1]
    assert clock.now() - before == HOUR


async def test_steps_in_flight_are_recorded_before_the_handler_is_left() -> None:
    clock, done = ManualClock(skips=True), list[str]()
    gate = asyncio.Event()

    async def slow() -> str:
        gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        done.append("slow")
        return "slow"

    async def chain(ctx: Context) -> str:
        await ctx.step("slow", slow, key="first")
        return await ctx.step("slow", slow, key="second")

    async def do(_: str, ctx: Context) -> None:
        both = await asyncio.gather(chain(ctx), ctx.sleep(HOUR))
        await ctx.yield_output(both)

    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert result.get_outputs() == [["slow", None]]
    assert done == ["slow", "slow"]
    assert [event.type for event in result].count("executor_suspended") == 1


async def test_of_several_waits_the_earliest_wakes_the_handler() -> None:
    clock, entries = ManualClock(skips=True), list[datetime]()

    async def do(_: str, ctx: Context) -> None:
        entries.append(clock.now())
        async with asyncio.TaskGroup() as group:
            for hours in (3, 1, 2):
                group.create_task(ctx.sleep(hours * HOUR))

    before = clock.now()
    await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert [entry - before for entry in entries] == [hours * HOUR for hours in range(4)]


async def test_a_wait_that_lost_a_race_does_not_suspend_the_handler() -> None:
    clock = ManualClock(skips=True)

    async def quick() -> str:
        await asyncio.sleep(0)
        return "quick"

    async def do(_: str, ctx: Context) -> None:
        wait = asyncio.ensure_future(ctx.sleep(HOUR))
        await ctx.step("quick", quick)
        wait.cancel()
        await asyncio.wait((wait,))
        await ctx.yield_output("won")

    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert result.get_outputs() == ["won"]
    assert "executor_suspended" not in [event.type for event in result]


async def test_a_handler_that_swallows_the_cancellation_is_told_what_it_did() -> None:
    async def do(_: str, ctx: Context) -> None:
        try:
            await ctx.sleep(HOUR)
        except asyncio.CancelledError:
            await ctx.yield_output("going on")

    workflow = lone(do, storage=InMemoryCheckpointStorage(), clock=ManualClock(skips=True))
    with pytest.raises(RuntimeError, match="went on after it was cancelled"):
        await workflow.run("go")


async def test_a_cancellation_from_elsewhere_at_the_same_time_wins() -> None:
    clock, storage = ManualClock(), InMemoryCheckpointStorage()

    async def do(_: str, ctx: Context) -> None:
        try:
            await ctx.sleep(HOUR)
        finally:
            running.cancel()
            await asyncio.sleep(0)

    running = asyncio.ensure_future(lone(do, storage=storage, clock=clock).run("go"))
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_moment_without_a_time_zone_is_refused() -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.sleep(datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point

    with pytest.raises(ValueError, match="needs a time zone"):
        await lone(do).run("go")


async def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    async def do(_: str, ctx: Context) -> None:
        await ctx.sleep(datetime(2000, 1, 1, tzinfo=UTC))
        await ctx.yield_output("at once")

    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=ManualClock()).run("go")
    assert result.get_outputs() == ["at once"]


async def test_a_step_can_not_sleep() -> None:
    async def do(_: str, ctx: Context) -> None:
        async def inside() -> None:
            await ctx.sleep(HOUR)

        await ctx.step("inside", inside)

    with pytest.raises(RuntimeError, match="a step can't be suspended"):
        await lone(do, storage=InMemoryCheckpointStorage(), clock=ManualClock(skips=True)).run("go")


class Napping(Executor):
    """Naps over the first message and counts both."""

    def __init__(self) -> None:
        super().__init__(id="napping")
        self.heard: list[int] = []
        self.is_through = asyncio.Event()

    @handler
    async def hear(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
        if number == 0:
            for each in (1, 2):
                await ctx.send_message(each)
            return
        self.heard.append(number)
        if number == 1:
            await ctx.sleep(HOUR)
        await ctx.yield_output(list(self.heard))
        self.is_through.set()

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"heard": self.heard}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"]


async def test_nothing_of_a_handler_that_was_left_shows_in_its_executor_and_the_next_message_goes_on() -> None:
    napping, storage = Napping(), InMemoryCheckpointStorage()
    workflow = (
        WorkflowBuilder(name="w", start_executor=napping, checkpoint_storage=storage, clock=ManualClock(skips=True))
        .add_edge(napping, napping)
        .build()
    )
    result = await workflow.run(0)
    assert next(event.data for event in result if event.type == "output") == [2]
    assert result.get_outputs()[-1] == [2, 1]
    assert napping.heard == [2, 1]


async def test_what_followed_a_handler_that_was_left_keeps_its_state_if_a_later_life_goes_on_with_both() -> None:
    clock, storage, failures = ManualClock(), InMemoryCheckpointStorage(), [1]

    class Failing(Executor):
        def __init__(self, napping: Napping) -> None:
            super().__init__(id="failing")
            self.napping = napping

        @handler
        async def hear(self, number: int, ctx: WorkflowContext[Any, Any]) -> None:
            del ctx
            await self.napping.is_through.wait()
            if number == 2 and failures:
                while not await storage.store.journal("r"):  # noqa: ASYNC110 - nobody tells when it is written
                    await asyncio.sleep(0)
                failures.pop()
                raise OSError("once")

    def built() -> tuple[Napping, Workflow]:
        napping = Napping()
        failing = Failing(napping)
        builder = WorkflowBuilder(name="w", start_executor=napping, checkpoint_storage=storage, clock=clock)
        return napping, builder.add_edge(napping, napping).add_edge(napping, failing).build()

    with pytest.raises(OSError, match="once"):
        await built()[1].run(0, run_id="r")
    clock.advance(HOUR)
    napping, workflow = built()
    result = await workflow.run(run_id="r")
    assert "napping" in [event.executor_id for event in result if event.type == "executor_bypassed"]
    assert napping.heard == [2, 1]
    resumed, workflow = built()
    await workflow.run(run_id="r")
    assert resumed.heard == napping.heard


async def test_the_time_that_a_handler_is_left_for_is_not_time_that_it_takes() -> None:
    clock, storage = ManualClock(), InMemoryCheckpointStorage()

    async def do(_: str, ctx: Context) -> None:
        await ctx.sleep(HOUR)
        await ctx.yield_output("in time")

    stream = lone(do, storage=storage, clock=clock, timeout=10).run("go", stream=True)
    outputs: list[Any] = []
    async for event in stream:
        if event.type == "executor_suspended":
            clock.advance(HOUR)
        if event.type == "output":
            outputs.append(event.data)
    assert outputs == ["in time"]


async def test_a_long_backoff_is_waited_for_outside_of_memory() -> None:
    clock, calls = ManualClock(skips=True), list[datetime]()

    async def do(_: str, ctx: Context) -> None:
        calls.append(clock.now())
        if len(calls) < 3:
            raise OSError("not yet")
        await ctx.yield_output("now")

    workflow = lone(
        do, storage=InMemoryCheckpointStorage(), clock=clock, retry=Retry(3, backoff=HOUR, factor=1, longest=HOUR)
    )
    result = await workflow.run("go")
    assert result.get_outputs() == ["now"]
    assert [event.type for event in result].count("executor_suspended") == 2
    assert calls[1] - calls[0] >= HOUR


async def test_a_long_backoff_of_a_step_lets_the_handler_be_left() -> None:
    clock, calls, entries = ManualClock(skips=True), list[int](), list[int]()

    def work() -> int:
        calls.append(1)
        if len(calls) < 2:
            raise OSError("not yet")
        return len(calls)

    async def do(_: str, ctx: Context) -> None:
        entries.append(1)
        retry = Retry(3, backoff=HOUR, longest=HOUR)
        await ctx.yield_output(await ctx.step("work", work, retry=retry, if_interrupted="ask"))

    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert result.get_outputs() == [2]
    assert len(entries) == 2


async def test_a_message_can_be_sent_for_later() -> None:
    clock = ManualClock(skips=True)
    arrived: list[datetime] = []

    class Echo(Executor):
        @handler
        async def hear(self, number: int, ctx: WorkflowContext[int]) -> None:
            arrived.append(clock.now())
            if number:
                await ctx.send_message(number - 1, delay=HOUR)

    echo = Echo(id="echo")
    storage = InMemoryCheckpointStorage()
    workflow = (
        WorkflowBuilder(name="w", start_executor=echo, checkpoint_storage=storage, clock=clock)
        .add_edge(echo, echo)
        .build()
    )
    await workflow.run(1)
    assert arrived[1] - arrived[0] >= HOUR


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
async def test_what_is_spent_is_finite_and_not_negative(amount: float) -> None:
    async def do(_: str, ctx: Context) -> None:
        ctx.spend(tokens=amount)

    with pytest.raises(ValueError, match="finite and not negative"):
        await lone(do).run("go")


async def test_a_short_backoff_of_a_step_is_not_put_off_by_a_long_wait_beside_it() -> None:
    clock, calls = ManualClock(skips=True), list[datetime]()

    def work() -> None:
        calls.append(clock.now())
        if len(calls) == 1:
            raise OSError("once")

    async def do(_: str, ctx: Context) -> None:
        await asyncio.gather(ctx.step("work", work, retry=Retry(2, backoff=1)), ctx.sleep(HOUR))

    await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert calls[1] - calls[0] < HOUR
