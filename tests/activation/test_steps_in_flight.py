"""Steps that are in flight when their handler ends: nothing of them goes on unseen, and nothing that came is lost."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.activation.solo import Context, lone

from perdure import InMemoryCheckpointStorage, Retry
from perdure.errors import ExecutorTimeoutError
from perdure.testing.clock import ManualClock


class Payment:
    """A payment beside a call that fails once."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failures = 1

    async def fail(self) -> str:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise OSError("once")
        return "well"

    async def pay(self) -> str:
        self.log.append("begun")
        for _ in range(50):
            await asyncio.sleep(0)
        self.log.append("paid")
        return "paid"


async def both(payment: Payment, ctx: Context) -> None:
    await ctx.yield_output(list(await asyncio.gather(ctx.step("fail", payment.fail), ctx.step("pay", payment.pay))))


def others() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_a_step_beside_one_that_raised_is_finished_and_not_done_again_by_the_next_attempt() -> None:
    payment = Payment()

    async def do(_: str, ctx: Context) -> None:
        await both(payment, ctx)

    result = await lone(do, storage=InMemoryCheckpointStorage(), retry=Retry(2, backoff=0)).run("go")
    assert result.get_outputs() == [["well", "paid"]]
    assert payment.log == ["begun", "paid"]


async def test_a_step_beside_one_that_raised_is_recorded_before_the_run_has_failed() -> None:
    payment = Payment()

    async def do(_: str, ctx: Context) -> None:
        await both(payment, ctx)

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    with pytest.raises(OSError, match="once"):
        await workflow.run("go")
    assert payment.log == ["begun", "paid"]
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == [["well", "paid"]]
    assert payment.log == ["begun", "paid"]
    assert others() == set()


async def test_a_step_that_its_handler_did_not_wait_for_is_finished_before_the_activation_is() -> None:
    payment = Payment()
    tasks: list[asyncio.Future[Any]] = []

    async def do(_: str, ctx: Context) -> None:
        async def outer() -> str:
            await asyncio.sleep(0)
            ctx.spend(coins=1)
            return await ctx.step("pay", payment.pay)

        tasks.append(asyncio.ensure_future(ctx.step("outer", outer)))
        await asyncio.sleep(0)

    await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    assert payment.log == ["begun", "paid"]
    assert await tasks[0] == "paid"


async def test_no_further_step_is_begun_when_the_handler_has_ended() -> None:
    payment, chains = Payment(), list[asyncio.Future[Any]]()

    async def do(_: str, ctx: Context) -> None:
        async def chain() -> None:
            await ctx.step("pay", payment.pay, key="first")
            await ctx.step("pay", payment.pay, key="second")

        chains.append(asyncio.ensure_future(chain()))
        await ctx.step("fail", payment.fail)

    with pytest.raises(OSError, match="once"):
        await lone(do, storage=InMemoryCheckpointStorage()).run("go")
    with pytest.raises(RuntimeError, match="has returned"):
        await chains[0]
    assert payment.log == ["begun", "paid"]


async def test_a_step_that_waits_for_its_next_attempt_does_not_hold_up_a_handler_that_has_failed() -> None:
    async def fail() -> None:
        raise OSError("at once")

    async def do(_: str, ctx: Context) -> None:
        retry = Retry(2, backoff=timedelta(hours=1), longest=timedelta(hours=1))
        waiting = asyncio.ensure_future(ctx.step("waiting", fail, retry=retry))
        await ctx.step("pay", Payment().pay)
        await asyncio.sleep(0)
        assert not waiting.done()
        raise ValueError("meanwhile")

    with pytest.raises(ValueError, match="meanwhile"):
        await lone(do, storage=InMemoryCheckpointStorage(), clock=ManualClock()).run("go")
    await asyncio.sleep(0)
    assert others() == set()


async def test_a_stream_that_is_abandoned_leaves_no_step_running() -> None:
    begun, ended = asyncio.Event(), list[str]()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append("hang")

    async def do(_: str, ctx: Context) -> None:
        for name in "ab":
            asyncio.ensure_future(ctx.step(name, hang))  # noqa: RUF006 - nobody holding on to it is the point
        await asyncio.get_running_loop().create_future()

    running = asyncio.ensure_future(lone(do, storage=InMemoryCheckpointStorage()).run("go"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["hang", "hang"]


async def test_a_thread_is_waited_for_and_its_result_recorded_when_the_run_is_cancelled() -> None:
    loop, begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    calls: list[int] = []

    def pay() -> int:
        calls.append(1)
        loop.call_soon_threadsafe(begun.set)
        may_end.wait()
        return len(calls)

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("pay", pay))

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    running = asyncio.ensure_future(workflow.run("go", run_id="r"))
    await begun.wait()
    running.cancel()
    loop.call_soon(may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await workflow.run(run_id="r")).get_outputs() == [1]
    assert calls == [1]


async def test_a_function_that_gives_a_coroutine_from_its_thread_is_cancelled_as_any_other() -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def do(_: str, ctx: Context) -> None:
        await ctx.step("hang", lambda: hang())  # noqa: PLW0108 - it does not look async

    running = asyncio.ensure_future(lone(do, storage=InMemoryCheckpointStorage()).run("go"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert others() == set()


async def test_the_time_of_an_executor_ends_the_steps_that_its_failed_handler_left_in_flight() -> None:
    clock, ended = ManualClock(), list[str]()

    async def hang() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("hang")

    async def do(_: str, ctx: Context) -> None:
        await asyncio.gather(ctx.step("hang", hang), ctx.step("fail", Payment().fail))

    running = asyncio.ensure_future(lone(do, storage=InMemoryCheckpointStorage(), clock=clock, timeout=10).run("go"))
    while not clock.sleepers:  # noqa: ASYNC110 - nobody tells that somebody waits for the clock
        await asyncio.sleep(0)
    clock.advance(timedelta(seconds=10))
    with pytest.raises(ExecutorTimeoutError):
        await running
    assert ended == ["hang"]
