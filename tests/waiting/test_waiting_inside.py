"""Requests of sub-workflows that have a deadline: the default stands, whoever was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.waiting.scenes import HOUR, RUN_ID, ended, record_of
from tests.workflow.nodes import keeping

from perdure import (
    Executor,
    SubWorkflowRequestMessage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowRunState,
    handler,
    response_handler,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage

    from perdure import Workflow


class Hurried(Executor):
    """Asks, and takes silence for an answer after an hour."""

    def __init__(self) -> None:
        super().__init__(id="hurried")

    @handler
    async def ask(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(message, str, request_id="question", deadline=HOUR, default="silence")

    @response_handler
    async def told(self, _: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(answer)


def built(clock: ManualClock, storage: Storage, *, levels: int, is_passed_on: bool) -> Workflow:
    workflow = WorkflowBuilder(name="w", start_executor=Hurried(), clock=clock).build()
    for level in reversed(range(levels)):
        sub = WorkflowExecutor(
            workflow, "sub", allow_direct_output=True, propagate_request=is_passed_on or level < levels - 1
        )
        builder = WorkflowBuilder(name="w", start_executor=sub, clock=clock)
        if not is_passed_on and level == levels - 1:
            builder = builder.add_edge(sub, keeping("deaf", [], takes=SubWorkflowRequestMessage))
        workflow = builder.build()
    workflow.checkpoint_storage = storage
    return workflow


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("is_passed_on", [True, False])
async def test_the_default_of_a_request_inside_stands_when_its_time_has_passed(
    storage: Storage, levels: int, *, is_passed_on: bool
) -> None:
    clock = ManualClock()
    await built(clock, storage, levels=levels, is_passed_on=is_passed_on).run("well?", run_id=RUN_ID)
    assert (await record_of(storage)).wake_at == (clock.now() + HOUR).isoformat()
    clock.advance(HOUR)
    result = await built(clock, storage, levels=levels, is_passed_on=is_passed_on).run(run_id=RUN_ID)
    assert (ended(result), result.get_outputs()) == (WorkflowRunState.IDLE, ["silence"])
    record = await record_of(storage)
    assert (record.status, record.wake_at) == ("idle", None)


@pytest.mark.parametrize("levels", [1, 2])
async def test_an_answer_that_came_in_time_is_the_one_that_stands(storage: Storage, levels: int) -> None:
    clock = ManualClock()
    await built(clock, storage, levels=levels, is_passed_on=True).run("well?", run_id=RUN_ID)
    await storage.respond(RUN_ID, {"question": "yes"})
    clock.advance(HOUR)
    result = await built(clock, storage, levels=levels, is_passed_on=True).run(run_id=RUN_ID)
    assert result.get_outputs() == ["yes"]
