"""When a waiting handler is suspended: at once in its own task, after a grace period while subtasks wait."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import Context, lone

from perdure import InMemoryCheckpointStorage, RunContext, SystemClock, step, workflow
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from perdure.clock import Clock

HOUR = timedelta(hours=1)


class CountingClock(ManualClock):
    """Counts the grace periods that were waited for."""

    def __init__(self) -> None:
        super().__init__(skips=True)
        self.graces = 0

    async def wait_grace(self) -> None:
        self.graces += 1
        await super().wait_grace()


class OneTimeline(ManualClock):
    """Grace periods and sleeps are on one timeline, which moves to the next sleeper's time while all others wait."""

    async def wait_grace(self) -> None:
        await self.sleep(0.2)

    async def move(self) -> None:
        while True:
            for _ in range(50):
                await asyncio.sleep(0)
            if self._sleepers:
                self.advance(min(due for due, _ in self._sleepers) - self.now())


async def offer(what: str) -> str:
    """Do recorded work."""
    return f"offer of {what}"


@pytest.mark.parametrize("clock", [SystemClock(grace_seconds=2), ManualClock()], ids=["real", "manual"])
async def test_work_beside_a_question_goes_on_until_the_question_can_be_answered(clock: Clock) -> None:
    """The question can only be answered when `work` has done its last step."""
    published: list[str] = []
    storage = InMemoryCheckpointStorage(clock=clock)

    def publish(what: str) -> str:
        published.append(what)
        return what

    async def do(_: str, ctx: Context) -> None:
        async def work() -> str:
            for number in range(3):
                blob = f"part {number}"
                await ctx.step("offer", offer, blob)
                for _ in range(20):  # an ordinary wait, for something that is not recorded
                    await asyncio.sleep(0)
                if isinstance(clock, SystemClock):
                    await asyncio.to_thread(str)
            return await ctx.step("publish", publish, "the offer", key="the offer")

        await ctx.yield_output(await asyncio.gather(ctx.ask("do you take the offer?", str), work()))

    first = await lone(do, storage=storage, clock=clock).run("go", run_id="r")
    (asked,) = first.get_request_info_events()
    assert published == ["the offer"]
    result = await lone(do, storage=storage, clock=clock).run(run_id="r", responses={asked.request_id: "yes"})
    assert result.get_outputs() == [["yes", "the offer"]]
    assert published == ["the offer"]


async def test_ordinary_waits_between_recorded_steps_are_no_reason_to_suspend_a_re_entered_handler() -> None:
    """All steps of the first entry are recorded, and the second one has to pass them with the same waits."""
    clock, storage = OneTimeline(), InMemoryCheckpointStorage()
    moving = asyncio.ensure_future(clock.move())
    seen: list[str] = []

    async def do(_: str, ctx: Context) -> None:
        async def work() -> str:
            for number in range(6):
                blob = f"part {number}"
                seen.append(await ctx.step("offer", offer, blob))
                await clock.sleep(0.05)
            return await ctx.step("offer", offer, "last")

        async def ask() -> list[str]:
            return [await ctx.ask(question, str) for question in ("first?", "second?")]

        await ctx.yield_output(await asyncio.gather(ask(), work()))

    result = await lone(do, storage=storage, clock=clock).run("go", run_id="r")
    for _ in range(2):
        (asked,) = result.get_request_info_events()
        answers = {asked.request_id: f"answer to {asked.data}"}
        result = await lone(do, storage=storage, clock=clock).run(run_id="r", responses=answers)
    moving.cancel()
    assert result.get_outputs() == [[["answer to first?", "answer to second?"], "offer of last"]]
    assert len(seen) == 18


async def test_a_wait_in_the_handlers_own_task_suspends_it_at_once() -> None:
    clock = CountingClock()

    async def do(_: str, ctx: Context) -> None:
        await ctx.step("offer", offer, "it")
        await ctx.sleep(HOUR)
        await ctx.yield_output("awake")

    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert result.get_outputs() == ["awake"]
    assert clock.graces == 0


async def test_a_wait_in_a_function_that_is_awaited_in_line_suspends_it_at_once() -> None:
    clock = CountingClock()

    @workflow(clock=clock)
    async def inner(_: str, ctx: RunContext) -> str:
        await ctx.sleep(HOUR)
        return "awake"

    @workflow(clock=clock)
    async def outer(_: str) -> list[str]:
        return (await inner.run("go")).get_outputs()

    result = await outer.run("go", checkpoint_storage=InMemoryCheckpointStorage())
    assert result.get_outputs() == [["awake"]]
    assert clock.graces == 0


async def test_a_wait_in_a_subtask_suspends_the_handler_after_a_grace_period() -> None:
    clock = CountingClock()

    async def do(_: str, ctx: Context) -> None:
        await asyncio.gather(ctx.sleep(HOUR))
        await ctx.yield_output("awake")

    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert result.get_outputs() == ["awake"]
    assert clock.graces == 1


async def test_a_subtask_that_does_recorded_work_is_not_cut_off_by_a_wait_in_the_own_task() -> None:
    clock, storage = ManualClock(skips=True), InMemoryCheckpointStorage()
    ended: list[Any] = []

    async def do(_: str, ctx: Context) -> None:
        async def work() -> None:
            await ctx.step("offer", offer, "first")
            for _ in range(20):
                await asyncio.sleep(0)
            ended.append(await ctx.step("offer", offer, "second"))

        task = asyncio.create_task(work())
        await ctx.step("offer", offer, "own")
        await ctx.ask("well?", str)
        await task

    await lone(do, storage=storage, clock=clock).run("go", run_id="r")
    assert ended == ["offer of second"]


async def test_sleeps_of_one_length_in_subtasks_are_interchangeable() -> None:
    clock, storage = ManualClock(skips=True), InMemoryCheckpointStorage()
    woken: list[str] = []

    @step
    async def note(name: str) -> str:
        woken.append(name)
        return name

    @workflow(clock=clock)
    async def naps(_: str, ctx: RunContext) -> list[str]:
        async def nap(name: str, hours: int) -> str:
            await ctx.sleep(timedelta(hours=hours))
            return await note(name)

        return list(await asyncio.gather(nap("a", 2), nap("b", 1), nap("c", 2)))

    before = clock.now()
    result = await naps.run("go", run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [["a", "b", "c"]]
    assert sorted(woken) == ["a", "b", "c"]
    assert clock.now() - before == 2 * HOUR
