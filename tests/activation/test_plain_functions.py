"""A plain function runs in a thread, which nobody can stop: what it has done by then is done."""

from __future__ import annotations

import asyncio
import threading
from typing import Never

import pytest

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor


class Doing:
    """Waits in its thread until it may go on, and counts its calls."""

    def __init__(self, *, fails: bool = False) -> None:
        self.calls = 0
        self.fails = fails
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.calls += 1
        self.has_begun.set()
        self.may_end.wait(60)
        if self.fails and self.calls == 1:
            raise ConnectionError("not this time")


async def interrupted(doing: Doing) -> list[object]:
    """The outputs of a run that was left in the middle of the function, and went on in another life."""
    storage = InMemoryCheckpointStorage()

    @executor
    def work(message: str) -> None:
        del message
        doing()

    @executor
    async def told(message: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(message)

    @executor
    async def split(message: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(message)

    workflow = WorkflowBuilder(start_executor=split, checkpoint_storage=storage)
    workflow = workflow.add_fan_out_edges(split, [work, told]).build()
    life = asyncio.ensure_future(workflow.run("hi", run_id="r"))
    await asyncio.to_thread(doing.has_begun.wait)
    life.cancel()
    asyncio.get_running_loop().call_soon(doing.may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await life
    return (await workflow.run(run_id="r")).get_outputs()


async def test_what_a_plain_function_has_done_while_it_was_cancelled_is_not_done_again() -> None:
    doing = Doing()
    assert await interrupted(doing) == ["hi"]
    assert doing.calls == 1


async def test_what_it_has_not_managed_is_done_again() -> None:
    doing = Doing(fails=True)
    assert await interrupted(doing) == ["hi"]
    assert doing.calls == 2
