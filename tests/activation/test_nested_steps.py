"""Steps inside of steps: each is known by the step that it is in, however often that one is entered."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.activation.solo import Context, lone

from perdure import InMemoryCheckpointStorage, Retry
from perdure.engine import step_key
from perdure.testing.clock import ManualClock

HOUR = timedelta(hours=1)


class Draws:
    """Gives another number each time."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[str] = []

    def draw(self) -> int:
        self.count += 1
        self.keys.append(step_key())
        return self.count


async def test_steps_inside_of_a_step_that_is_not_entered_again_do_not_shift_those_that_follow() -> None:
    draws, seen = Draws(), list[tuple[int, int]]()

    async def do(_: str, ctx: Context) -> None:
        async def outer() -> int:
            return await ctx.step("draw", draws.draw)

        seen.append((await ctx.step("outer", outer), await ctx.step("draw", draws.draw)))
        await ctx.sleep(HOUR)

    await lone(do, storage=InMemoryCheckpointStorage(), clock=ManualClock(skips=True)).run("go")
    assert seen == [(1, 2), (1, 2)]
    assert draws.count == 2


@pytest.mark.parametrize("key", [None, "one"])
async def test_what_finished_inside_of_a_step_that_is_tried_again_is_not_done_again(key: str | None) -> None:
    draws, entries = Draws(), list[int]()

    async def do(_: str, ctx: Context) -> None:
        async def outer() -> int:
            entries.append(1)
            drawn = await ctx.step("draw", draws.draw, key=key)
            if len(entries) == 1:
                raise OSError("after the draw")
            return drawn

        await ctx.yield_output(await ctx.step("outer", outer, retry=Retry(2, backoff=0)))

    result = await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert result.get_outputs() == [1]
    assert len(entries) == 2


async def test_the_same_call_in_two_steps_is_two_pieces_of_work() -> None:
    draws = Draws()

    async def do(_: str, ctx: Context) -> None:
        async def outer() -> int:
            return await ctx.step("draw", draws.draw, key="one")

        both = await asyncio.gather(*(ctx.step("outer", outer) for _ in range(2)))
        await ctx.yield_output(sorted(both))

    result = await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert result.get_outputs() == [[1, 2]]
    assert len(set(draws.keys)) == 2


async def test_a_plain_function_can_call_steps_from_its_thread() -> None:
    draws, loop = Draws(), asyncio.get_running_loop()
    seen: list[list[int]] = []

    async def do(_: str, ctx: Context) -> None:
        def outer() -> int:
            return asyncio.run_coroutine_threadsafe(ctx.step("draw", draws.draw), loop).result()

        seen.append([await ctx.step("outer", outer), await ctx.step("draw", draws.draw)])
        await ctx.sleep(HOUR)

    await lone(do, storage=InMemoryCheckpointStorage(), clock=ManualClock(skips=True)).run("go")
    assert seen == [[1, 2], [1, 2]]


async def test_a_run_inside_of_a_step_has_steps_and_waits_of_its_own() -> None:
    clock, draws = ManualClock(skips=True), Draws()

    async def inner(_: str, ctx: Context) -> None:
        drawn = await ctx.step("draw", draws.draw)
        await ctx.sleep(HOUR)
        await ctx.yield_output(drawn)

    async def do(_: str, ctx: Context) -> None:
        async def run() -> Any:
            workflow = lone(inner, storage=InMemoryCheckpointStorage(), clock=clock)
            return (await workflow.run("go")).get_outputs()

        await ctx.yield_output(await ctx.step("run", run))

    result = await lone(do, storage=InMemoryCheckpointStorage(), clock=clock).run("go")
    assert result.get_outputs() == [[1]]
    assert draws.count == 1


async def test_what_a_step_inside_of_another_has_spent_is_counted_once() -> None:
    calls: list[int] = []

    async def do(_: str, ctx: Context) -> None:
        async def inner() -> None:
            ctx.spend(coins=2)

        async def outer() -> None:
            await ctx.step("inner", inner)
            calls.append(1)
            if len(calls) == 1:
                raise OSError("once")

        await ctx.step("outer", outer, key="one", retry=Retry(2, backoff=0))
        await ctx.step("outer", outer, key="one")
        ctx.spend(coins=1)

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    await workflow.run("go", budget={"coins": 3})
    assert len(calls) == 2
