"""Steps that were interrupted inside sub-workflows: people are asked, however the sub-workflow's own requests go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import RUN_ID, ended, nested

from perdure import InterruptedStep, StepDecision, WorkflowRunState
from perdure.errors import StepUnsettledError
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage
    from tests.workflow.nodes import Context

CLOCK = ManualClock()


class Payment:
    """A step that does not come back in its first life."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.calls = 0

    async def __call__(self, _: Any, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("pay", self._pay, if_interrupted="ask"))

    async def _pay(self) -> str:
        self.calls += 1
        if not self.begun.is_set():
            self.begun.set()
            await asyncio.get_running_loop().create_future()
        return "paid again"

    async def cut_off(self, storage: Storage, *, levels: int) -> None:
        """The first life."""
        running = asyncio.ensure_future(nested(self, CLOCK, storage, levels=levels).run("go", run_id=RUN_ID))
        await self.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(
    ("decision", "outputs", "calls"),
    [(StepDecision("done", "by hand"), ["by hand"], 1), (StepDecision("rerun"), ["paid again"], 2)],
)
async def test_what_a_step_inside_asks_is_a_request_of_the_run_and_its_answer_finds_the_way_in(
    storage: Storage, levels: int, decision: StepDecision, outputs: list[str], calls: int
) -> None:
    payment = Payment()
    await payment.cut_off(storage, levels=levels)
    result = await nested(payment, CLOCK, storage, levels=levels).run(run_id=RUN_ID)
    assert ended(result) is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    (question,) = result.get_request_info_events()
    assert isinstance(question.data, InterruptedStep)
    assert (question.data.name, question.data.executor_id) == ("pay", "node")
    (listed,) = await storage.requests(RUN_ID)
    assert listed.request_id == question.request_id
    await storage.respond(RUN_ID, {listed.request_id: decision})
    result = await nested(payment, CLOCK, storage, levels=levels).run(run_id=RUN_ID)
    assert (ended(result), result.get_outputs(), payment.calls) == (WorkflowRunState.IDLE, outputs, calls)


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_question_that_nobody_inside_waits_for_any_more_is_closed(storage: Storage, levels: int) -> None:
    begun, stuck = list[str](), asyncio.Event()

    async def pay(name: str) -> None:
        begun.append(name)
        if len(begun) == 2:
            stuck.set()
        await asyncio.get_running_loop().create_future()

    async def do(_: Any, ctx: Context) -> None:
        try:
            await asyncio.gather(*(ctx.step(name, pay, name, if_interrupted="ask") for name in ("one", "two")))
        except StepUnsettledError:
            await ctx.yield_output("given up")

    running = asyncio.ensure_future(nested(do, CLOCK, storage, levels=levels).run("go", run_id=RUN_ID))
    await stuck.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await nested(do, CLOCK, storage, levels=levels).run(run_id=RUN_ID)
    questions = {question.data.name: question.request_id for question in await storage.requests(RUN_ID)}
    assert sorted(questions) == ["one", "two"]
    await storage.respond(RUN_ID, {questions["one"]: StepDecision("fail")})
    result = await nested(do, CLOCK, storage, levels=levels).run(run_id=RUN_ID)
    assert (ended(result), result.get_outputs()) == (WorkflowRunState.IDLE, ["given up"])
    assert list(await storage.requests(RUN_ID)) == []
