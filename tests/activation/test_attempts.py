"""Executor policies: how often a handler is tried, how long it may take, and who is told when it fails."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import Context, MendableError, lone

from perdure import (
    Executor,
    FailedMessage,
    FunctionExecutor,
    InMemoryCheckpointStorage,
    Retry,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from perdure.errors import EncodeError, ExecutorTimeoutError
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from perdure import WorkflowRunResult


def types_of(result: WorkflowRunResult) -> list[str]:
    return [event.type for event in result if event.type.startswith(("executor_", "warning"))]


class Unsteady(Executor):
    """Fails a number of times, in the middle of changing its state and its message."""

    def __init__(self, failures: int, **policy: Any) -> None:
        super().__init__(id="unsteady", **policy)
        self.failures = failures
        self.seen: list[list[int]] = []

    @handler
    async def work(self, numbers: list[int], ctx: WorkflowContext[Any, list[list[int]]]) -> None:
        self.seen.append(list(numbers))
        numbers.append(0)
        await ctx.yield_output(self.seen)
        if self.failures:
            self.failures -= 1
            raise OSError("unsteady")

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


async def test_each_attempt_has_its_own_copy_of_the_message_and_the_executor_as_it_was() -> None:
    clock = ManualClock(skips=True)
    executor = Unsteady(2, retry=Retry(3, backoff=1))
    storage = InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(name="w", start_executor=executor, checkpoint_storage=storage, clock=clock).build()
    result = await workflow.run([1, 2])
    assert executor.seen == [[1, 2]]
    assert workflow.run_id is not None
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == [[[1, 2]]]
    assert types_of(result) == [
        *("executor_invoked", "executor_failed", "warning") * 2,
        *("executor_invoked", "executor_completed"),
    ]
    warning = next(event.data for event in result if event.type == "warning")
    assert "attempt 1 of 3 failed: OSError: unsteady; the next starts in 1 seconds" in warning


async def test_an_error_that_the_policy_does_not_cover_is_not_tried_again() -> None:
    calls: list[int] = []

    async def do(_: str, ctx: Context) -> None:
        del ctx
        calls.append(1)
        raise KeyError("other")

    with pytest.raises(KeyError):
        await lone(do, retry=Retry(5, backoff=0, on=OSError)).run("go")
    assert len(calls) == 1


async def test_our_own_refusals_are_neither_tried_again_nor_handed_on() -> None:
    calls: list[int] = []

    async def do(_: str, ctx: Context) -> None:
        calls.append(1)
        await ctx.yield_output(asyncio.Lock())

    async def hear(message: FailedMessage, ctx: Context) -> None:
        del message, ctx

    hearing = FunctionExecutor(hear, "hearing", input=FailedMessage, output=Any, workflow_output=Any)
    workflow = lone(do, storage=InMemoryCheckpointStorage(), retry=Retry(3, backoff=0), on_error=hearing)
    with pytest.raises(EncodeError):
        await workflow.run("go")
    assert len(calls) == 1


async def test_attempts_are_counted_over_a_restart_and_anew_when_all_have_failed() -> None:
    clock, calls = ManualClock(), list[int]()
    storage = InMemoryCheckpointStorage()

    async def do(_: str, ctx: Context) -> None:
        del ctx
        calls.append(1)
        raise MendableError

    workflow = lone(do, storage=storage, clock=clock, retry=Retry(3, backoff=2, factor=1))
    first = asyncio.ensure_future(workflow.run("go", run_id="r"))
    while not clock.sleepers:  # noqa: ASYNC110 - nobody tells that somebody waits for the clock
        await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(calls) == 1
    clock.skips = True
    with pytest.raises(MendableError):
        await lone(do, storage=storage, clock=clock, retry=Retry(3, backoff=2, factor=1)).run(run_id="r")
    assert len(calls) == 3
    with pytest.raises(MendableError):
        await lone(do, storage=storage, clock=clock, retry=Retry(3, backoff=2, factor=1)).run(run_id="r")
    assert len(calls) == 6


async def test_an_attempt_that_takes_too_long_is_cancelled_awaited_and_tried_again() -> None:
    clock, calls, cleaned = ManualClock(), list[int](), list[int]()

    async def do(_: str, ctx: Context) -> None:
        calls.append(1)
        if len(calls) == 1:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cleaned.append(len(calls))
        await ctx.yield_output(len(calls))

    workflow = lone(do, clock=clock, timeout=10, retry=Retry(2, backoff=0))
    running = asyncio.ensure_future(workflow.run("go"))
    while not clock.sleepers:  # noqa: ASYNC110 - nobody tells that somebody waits for the clock
        await asyncio.sleep(0)
    clock.advance(timedelta(seconds=10))
    result = await running
    assert result.get_outputs() == [2]
    assert cleaned == [1]
    failed = next(event for event in result if event.type == "executor_failed")
    assert failed.details is not None
    assert failed.details.error_type == ExecutorTimeoutError.__name__


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage], ids=["live", "checkpointed"])
async def test_when_all_attempts_have_failed_the_message_goes_to_who_is_told_and_nothing_else_is_left(
    storage: Any,
) -> None:
    async def do(message: list[int], ctx: Context) -> None:
        message.append(9)
        ctx.set_state("left", "behind")
        await ctx.yield_output("never")
        await ctx.send_message("never")
        await ctx.request_info("never?", str, request_id="never")
        raise OSError("down")

    async def hear(failed: FailedMessage, ctx: Context) -> None:
        await ctx.yield_output((failed.message[:2], failed.executor_id, failed.error.message, failed.attempts))
        await ctx.yield_output(ctx.get_state("left"))

    hearing = FunctionExecutor(hear, "hearing", input=FailedMessage, output=Any, workflow_output=Any)
    workflow = lone(do, storage=storage and storage(), retry=Retry(2, backoff=0), on_error=hearing)
    result = await workflow.run([1, 2])
    told = [event.data for event in result if event.type == "output" and event.executor_id == "hearing"]
    assert told == [([1, 2], "node", "down", 2), None]
    if storage is not None:
        again = await workflow.run(run_id=workflow.run_id)
        assert again.get_outputs() == told
        assert [event for event in again if event.type == "request_info"] == []


async def test_a_handler_that_waits_for_what_it_has_cancelled_itself_has_failed_and_is_tried_again() -> None:
    calls: list[int] = []

    async def do(_: str, ctx: Context) -> None:
        calls.append(1)
        own = asyncio.ensure_future(asyncio.sleep(0))
        if len(calls) == 1:
            own.cancel()
        await own
        await ctx.yield_output("done")

    result = await lone(do, storage=InMemoryCheckpointStorage(), retry=Retry(2, backoff=0)).run("go")
    assert result.get_outputs() == ["done"]
