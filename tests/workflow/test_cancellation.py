"""Cancelled runs and abandoned streams leave nothing running."""

import asyncio
import gc
from typing import Any

import pytest
from tests.workflow.nodes import Context, Gate, MaybeStorage, live_and_checkpointed, node, other_tasks, passing

from perdure import InMemoryCheckpointStorage, RunBusyError, Workflow, WorkflowBuilder, WorkflowRunState


async def settled() -> None:
    """Let finalisers have their turns."""
    for _ in range(20):
        await asyncio.sleep(0)


def gated(gate: Gate, storage: Any = None) -> Workflow:
    start = passing("start")
    return WorkflowBuilder(start_executor=start, checkpoint_storage=storage).add_edge(start, gate.executor).build()


@live_and_checkpointed
async def test_cancelling_the_task_cancels_the_executors_and_waits_for_them(storage: MaybeStorage) -> None:
    gate = Gate("gate")
    workflow = gated(gate, storage())
    running = asyncio.ensure_future(workflow.run(1))
    await gate.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert gate.has_cleaned_up
    assert other_tasks() == set()
    assert workflow.status is WorkflowRunState.CANCELLED


async def test_a_run_that_is_cancelled_again_while_it_stops_still_waits_for_its_executors() -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def reluctant(_: Any, __: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            ended.set()

    running = asyncio.ensure_future(WorkflowBuilder(start_executor=node("a", reluctant)).build().run(1))
    await begun.wait()
    for _ in range(3):
        running.cancel()
        await settled()
    assert not running.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


@live_and_checkpointed
async def test_a_cancelled_run_goes_on_by_its_id(storage: MaybeStorage) -> None:
    gate = Gate("gate")
    workflow = gated(gate, storage())
    running = asyncio.ensure_future(workflow.run(1))
    await gate.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.opened.set()
    result = await workflow.run(run_id=workflow.run_id)
    assert result.get_outputs() == [1]
    assert [event.iteration for event in result if event.type == "superstep_completed"] == [2]
    assert workflow.status is WorkflowRunState.IDLE


@live_and_checkpointed
async def test_a_fresh_message_abandons_the_superstep_that_was_cancelled(storage: MaybeStorage) -> None:
    gate = Gate("gate")
    workflow = gated(gate, storage())
    running = asyncio.ensure_future(workflow.run(1))
    await gate.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.opened.set()
    result = await workflow.run(2)
    assert result.get_outputs() == [2]
    assert [event.data.message for event in result if event.type == "undelivered"] == [1]


async def test_a_timeout_around_a_run_cancels_it_cleanly() -> None:
    gate = Gate("gate")
    workflow = gated(gate)

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            asyncio.get_running_loop().call_soon(limit.reschedule, 0)
            await workflow.run(1)

    with pytest.raises(TimeoutError):
        await limited()
    assert other_tasks() == set()
    assert workflow.status is WorkflowRunState.CANCELLED


@live_and_checkpointed
async def test_closing_a_stream_stops_its_superstep(storage: MaybeStorage) -> None:
    gate = Gate("gate")
    workflow = gated(gate, storage())
    stream = workflow.run(1, stream=True)
    async for event in stream:
        if event.type == "executor_invoked" and event.executor_id == "gate":
            break
    await settled()
    await stream.aclose()
    assert gate.has_cleaned_up
    assert other_tasks() == set()
    assert workflow.status is WorkflowRunState.CANCELLED


async def test_leaving_the_block_of_a_stream_cancels_the_run() -> None:
    gate = Gate("gate")
    workflow = gated(gate)
    async with workflow.run(1, stream=True) as stream:
        while (await anext(stream)).executor_id != "gate":
            pass
    assert other_tasks() == set()
    assert workflow.status is WorkflowRunState.CANCELLED


@live_and_checkpointed
async def test_dropping_a_stream_stops_its_superstep(storage: MaybeStorage) -> None:
    gate = Gate("gate")
    workflow = gated(gate, storage())
    stream = workflow.run(1, stream=True)
    while (await anext(stream)).executor_id != "gate":
        pass
    await settled()
    del stream
    gc.collect()
    await settled()
    assert gate.has_cleaned_up
    assert other_tasks() == set()
    assert workflow.status is WorkflowRunState.CANCELLED


async def test_what_an_abandoned_stream_did_not_commit_does_not_leak_into_the_next_call() -> None:
    gate = Gate("gate")
    workflow = gated(gate)
    stream = workflow.run(1, stream=True)
    while (await anext(stream)).executor_id != "gate":
        pass
    await stream.aclose()
    gate.opened.set()
    result = await workflow.run(run_id=workflow.run_id)
    assert [event.data for event in result if event.type == "executor_invoked"] == [1]
    assert result.get_outputs() == [1]


@live_and_checkpointed
async def test_an_abandoned_stream_on_shared_executors_is_stopped_and_replaced(storage: MaybeStorage) -> None:
    gate, start = Gate("gate"), passing("start")
    builder = WorkflowBuilder(start_executor=start, checkpoint_storage=storage()).add_edge(start, gate.executor)
    abandoned = builder.build().run(1, stream=True)
    while (await anext(abandoned)).executor_id != "gate":
        pass
    await gate.begun.wait()
    follower = builder.build().run(2, stream=True)
    while (await anext(follower)).type != "superstep_completed":
        pass
    assert gate.has_cleaned_up
    gate.opened.set()
    assert (await follower.get_final_response()).get_outputs() == [2]
    assert [event async for event in abandoned] == []
    assert other_tasks() == set()


async def test_a_stream_that_another_task_reads_makes_its_executors_busy() -> None:
    gate, start = Gate("gate"), passing("start")
    builder = WorkflowBuilder(start_executor=start).add_edge(start, gate.executor)
    running = asyncio.ensure_future(builder.build().run(1))
    await gate.begun.wait()
    with pytest.raises(RunBusyError, match="another task of this process"):
        await builder.build().run(2)
    gate.opened.set()
    assert (await running).get_outputs() == [1]
    assert (await builder.build().run(2)).get_outputs() == [2]


def test_a_loop_that_ends_with_an_abandoned_stream_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    cleaned: list[bool] = []

    async def abandon() -> None:
        gate = Gate("gate")
        stream = gated(gate, InMemoryCheckpointStorage()).run(1, stream=True)
        while (await anext(stream)).executor_id != "gate":
            pass
        await settled()
        del stream
        await settled()
        cleaned.append(gate.has_cleaned_up)

    asyncio.run(abandon())
    assert cleaned == [True]
    assert [record for record in caplog.records if record.name == "asyncio"] == []
