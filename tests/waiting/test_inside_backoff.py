"""A sub-workflow that waits for its next attempt: who comes next finds it as the turn before has left it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import HOUR, RUN_ID, until_asleep
from tests.workflow.nodes import Context, node

from perdure import Retry, Workflow, WorkflowBuilder, WorkflowExecutor
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage


class Shop:
    """Notes each message in the state of the sub-workflow, and fails once at what follows the first."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.broken = True

    async def note(self, message: str, ctx: Context) -> None:
        """Note it."""
        self.noted.append(message)
        ctx.set_state("noted", [*ctx.get_state("noted", []), message])
        await ctx.send_message(message)

    async def tell(self, message: str, ctx: Context) -> None:
        """Fail once; then tell what was noted."""
        if self.broken:
            self.broken = False
            raise ValueError("broken")
        await ctx.yield_output(f"{message}: {' '.join(ctx.get_state('noted'))}")

    def built(self, clock: ManualClock, storage: Storage) -> Workflow:
        """Three messages for the shop, the last when the second attempt at the first is due."""

        async def send(_: Any, ctx: Context) -> None:
            await ctx.send_message("a")
            await ctx.send_message("b")
            await ctx.send_message("c", delay=HOUR)

        start, note, tell = node("start", send), node("note", self.note), node("tell", self.tell)
        inner = WorkflowBuilder(name="inner", start_executor=note, clock=clock).add_edge(note, tell).build()
        retry = Retry(attempts=2, backoff=HOUR, longest=HOUR)
        sub = WorkflowExecutor(inner, "sub", allow_direct_output=True, retry=retry)
        builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=clock)
        return builder.add_edge(start, sub).build()


async def test_messages_that_come_during_a_long_backoff_are_turns_after_it(storage: Storage) -> None:
    shop = Shop()
    result = await shop.built(ManualClock(skips=True), storage).run("go")
    assert result.get_outputs() == ["a: a", "b: a b", "c: a b c"]
    assert shop.noted == ["a", "b", "c"]


async def test_a_life_that_ends_during_a_long_backoff_leaves_all_that_was_done(storage: Storage) -> None:
    shop, clock = Shop(), ManualClock()
    first = asyncio.ensure_future(shop.built(clock, storage).run("go", run_id=RUN_ID))
    await until_asleep(clock, first)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    clock.advance(HOUR / 2)
    second = asyncio.ensure_future(shop.built(clock, storage).run(run_id=RUN_ID))
    await until_asleep(clock, second)
    clock.advance(HOUR / 2 - timedelta(seconds=1))
    assert shop.noted == ["a"]
    clock.advance(timedelta(seconds=1))
    assert (await second).get_outputs() == ["a: a", "b: a b", "c: a b c"]
    assert shop.noted == ["a", "b", "c"]
