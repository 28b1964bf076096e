"""`Workflow.cancel_pending_requests`, and the checkpoint at which a run waits for answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.workflow.nodes import Context, MaybeStorage, live_and_checkpointed, node

from perdure import (
    AlreadyAnsweredError,
    Executor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowRunState,
    handler,
    response_handler,
)
from perdure.errors import RequestError

if TYPE_CHECKING:
    from perdure import Workflow


class Asker(Executor):
    """Asks two questions, `q1` and `q2`."""

    @handler
    async def ask(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        for number in (1, 2):
            await ctx.request_info(f"{message} {number}", str, request_id=f"q{number}")

    @response_handler
    async def on(self, request: str, response: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{request}: {response}")


def asking(storage: Any = None) -> Workflow:
    return WorkflowBuilder(name="w", start_executor=Asker("asker"), checkpoint_storage=storage).build()


@live_and_checkpointed
async def test_a_cancelled_request_is_closed_and_its_executor_is_not_told(storage: MaybeStorage) -> None:
    workflow = asking(storage())
    await workflow.run("go")
    result = await workflow.cancel_pending_requests(["q1", "unknown"])
    assert result.get_outputs() == []
    assert [event.request_id for event in result.get_request_info_events()] == ["q2"]
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    with pytest.raises(AlreadyAnsweredError, match="cancelled"):
        await workflow.run(responses={"q1": "late"})
    assert (await workflow.run(responses={"q2": "yes"})).get_outputs() == ["go 2: yes"]


async def test_all_requests_can_be_cancelled_at_a_checkpoint_and_the_log_says_so() -> None:
    storage = InMemoryCheckpointStorage()
    first = asking(storage)
    await first.run("go", run_id="r")
    last = first.get_last_checkpoint_id()
    assert last is not None
    result = await asking(storage).cancel_pending_requests({"q1", "q2"}, checkpoint_id=last)
    assert result.get_final_state() is WorkflowRunState.IDLE
    assert await storage.requests() == []
    closed = [event async for event in storage.events("r") if event.type == "answered"]
    assert [(event.request_id, event.data["answer"]) for event in closed] == [("q1", "cancelled"), ("q2", "cancelled")]
    again = await asking(storage).run(run_id="r")
    assert again.get_final_state() is WorkflowRunState.IDLE


@pytest.mark.parametrize("ids", [[""], [3], "q1"])
async def test_request_ids_are_strings_that_are_not_empty(ids: Any) -> None:
    workflow = asking()
    await workflow.run("go")
    with pytest.raises(ValueError, match="request ids must be"):
        await workflow.cancel_pending_requests(ids)


async def test_an_answer_that_waits_in_the_inbox_comes_before_a_cancellation() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    await workflow.run("go", run_id="r")
    await storage.respond("r", {"q1": "first"})
    result = await workflow.cancel_pending_requests(["q1", "q2"])
    assert (result.get_outputs(), result.get_final_state()) == (["go 1: first"], WorkflowRunState.IDLE)


@live_and_checkpointed
async def test_a_question_that_a_handler_waits_for_can_not_be_cancelled(storage: MaybeStorage) -> None:
    async def ask(_: Any, ctx: Context) -> None:
        await ctx.yield_output(await ctx.ask("sure?", str, request_id="q"))

    workflow = WorkflowBuilder(start_executor=node("a", ask), checkpoint_storage=storage()).build()
    await workflow.run("go")
    with pytest.raises(RequestError, match="can't be cancelled, because the handler that asked waits"):
        await workflow.cancel_pending_requests(["q"])
    assert workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    assert (await workflow.run(responses={"q": "yes"})).get_outputs() == ["yes"]


@live_and_checkpointed
async def test_a_request_of_a_sub_workflow_is_closed_there_too(storage: MaybeStorage) -> None:
    inner = WorkflowExecutor(asking(), "inner", propagate_request=True, allow_direct_output=True)
    middle = WorkflowBuilder(start_executor=inner).build()
    outer = WorkflowExecutor(middle, "outer", propagate_request=True, allow_direct_output=True)
    workflow = WorkflowBuilder(start_executor=outer, checkpoint_storage=storage()).build()
    await workflow.run("go")
    await workflow.cancel_pending_requests(["q1"])
    assert (await workflow.run(responses={"q2": "yes"})).get_outputs() == ["go 2: yes"]
    # A new turn may use the id again, so nothing inside holds on to the request.
    result = await workflow.run("again")
    assert [event.request_id for event in result.get_request_info_events()] == ["q1", "q2"]


async def test_the_last_checkpoint_is_the_one_that_was_written_or_restored_last() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    assert workflow.get_last_checkpoint_id() is None
    result = await workflow.run("go")
    written = [event.data.checkpoint_id for event in result if event.type == "checkpoint"]
    assert workflow.get_last_checkpoint_id() == written[-1]
    other = asking(storage)
    await other.run(checkpoint_id=written[-1])
    assert other.get_last_checkpoint_id() == written[-1]
    without = asking()
    await without.run("go")
    assert without.get_last_checkpoint_id() is None


async def test_the_checkpoint_of_a_pause_holds_all_requests() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    assert await workflow.resolve_pause_checkpoint_id(["q1"]) is None
    await workflow.run("go")
    pause = workflow.get_last_checkpoint_id()
    assert await workflow.resolve_pause_checkpoint_id(["q1", "q2"]) == pause
    assert await workflow.resolve_pause_checkpoint_id([]) is None
    assert await workflow.resolve_pause_checkpoint_id(["q1", "other"]) is None
    assert await workflow.resolve_pause_checkpoint_id(["q1"], baseline_checkpoint_id=pause) is None
    await workflow.run(responses={"q1": "yes"})
    assert await workflow.resolve_pause_checkpoint_id(["q1"]) is None
    assert await workflow.resolve_pause_checkpoint_id(["q1"], known_checkpoint_id=pause) == pause
    assert await workflow.resolve_pause_checkpoint_id(["q2"]) == workflow.get_last_checkpoint_id()
    elsewhere = InMemoryCheckpointStorage()
    assert await workflow.resolve_pause_checkpoint_id(["q2"], checkpoint_storage=elsewhere) is None


async def test_the_checkpoint_of_a_pause_is_found_in_the_storage_of_the_call() -> None:
    workflow = asking()
    await workflow.run("go", checkpoint_storage=InMemoryCheckpointStorage())
    assert await workflow.resolve_pause_checkpoint_id(["q1"]) == workflow.get_last_checkpoint_id() is not None
