"""`Workflow.run` in all its forms, and what each refuses."""

import asyncio
import gc
import inspect
from collections.abc import Awaitable
from typing import Any

import pytest
from tests.workflow.nodes import (
    Context,
    MaybeStorage,
    ending,
    live_and_checkpointed,
    node,
    other_tasks,
    passing,
    read,
    told,
)

from perdure import (
    BudgetExceededError,
    CheckpointNotFoundError,
    Executor,
    InMemoryCheckpointStorage,
    ResponseStream,
    RunExistsError,
    RunNotFoundError,
    RunUnfinishedError,
    UndeliveredMessage,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowConvergenceException,
    WorkflowException,
    WorkflowMessage,
    WorkflowRunResult,
    WorkflowRunState,
    handler,
)


def echo() -> Workflow:
    a, b = passing("a", takes=int), ending("b")
    return WorkflowBuilder(start_executor=a).add_edge(a, b).build()


class Flaky(Executor):
    """Fails the first time."""

    def __init__(self, id: str = "flaky") -> None:  # noqa: A002 - as the base class has it
        super().__init__(id)
        self.calls = 0

    @handler
    async def go(self, message: int, ctx: WorkflowContext[int, int]) -> None:
        self.calls += 1
        if self.calls == 1:
            raise ValueError("the first time")
        await ctx.yield_output(message)


def test_run_is_a_plain_function() -> None:
    assert not inspect.iscoroutinefunction(Workflow.run)


async def test_without_a_stream_the_result_is_awaited() -> None:
    result = echo().run(1)
    assert isinstance(result, Awaitable)
    assert isinstance(await result, WorkflowRunResult)


async def test_with_a_stream_the_events_are_read_and_then_the_result_can_be_had() -> None:
    stream = echo().run(1, stream=True)
    assert isinstance(stream, ResponseStream)
    events = [event async for event in stream]
    assert events[0].type == "started"
    result = await stream.get_final_response()
    assert isinstance(result, WorkflowRunResult)
    assert result.get_outputs() == [1]


async def test_the_result_of_a_stream_that_was_not_read_can_be_had_too() -> None:
    assert (await echo().run(1, stream=True).get_final_response()).get_outputs() == [1]


async def test_a_stream_may_be_awaited_before_it_is_read() -> None:
    stream = await echo().run(1, stream=True)
    assert told([event async for event in stream])[-1] == "IDLE"


async def test_both_forms_tell_the_same() -> None:
    streamed = told([event async for event in echo().run(1, stream=True)])
    awaited = told(await echo().run(1, include_status_events=True))
    assert streamed == ["started", *awaited]


CONTRADICTIONS: list[dict[str, Any]] = [
    {},
    {"message": None},
    {"message": 1, "responses": {"r": 1}},
    {"message": 1, "checkpoint_id": "c"},
    {"checkpoint_id": "c", "run_id": "r"},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("arguments", CONTRADICTIONS)
async def test_a_call_that_says_nothing_or_too_much_is_refused_at_once(arguments: dict[str, Any], stream: Any) -> None:
    workflow = echo()
    with pytest.raises(ValueError, match="give a"):
        workflow.run(stream=stream, **arguments)
    assert workflow.status is WorkflowRunState.IDLE


async def test_none_is_a_message_where_the_start_executor_takes_it() -> None:
    class Starter(Executor):
        @handler
        async def go(self, message: None, ctx: WorkflowContext[Any, str]) -> None:
            await ctx.yield_output(f"got {message}")

    workflow = WorkflowBuilder(start_executor=Starter("s")).build()
    assert (await workflow.run(None)).get_outputs() == ["got None"]
    with pytest.raises(ValueError, match="give a message"):
        workflow.run()


async def test_a_second_call_is_refused_at_once_while_the_first_is_read() -> None:
    workflow = echo()
    stream = workflow.run(1, stream=True)
    await anext(stream)
    with pytest.raises(WorkflowException, match="already running"):
        workflow.run(2)
    with pytest.raises(WorkflowException, match="already running"):
        workflow.run(2, stream=True)
    await stream.get_final_response()
    assert (await workflow.run(2)).get_outputs() == [2]


async def test_a_call_that_nobody_has_begun_to_read_is_active_until_it_is_dropped() -> None:
    workflow = echo()
    stream = workflow.run(1, stream=True)
    with pytest.raises(WorkflowException, match="already running"):
        workflow.run(2)
    del stream
    assert (await workflow.run(2)).get_outputs() == [2]


async def test_a_stream_that_was_closed_before_its_first_event_makes_room() -> None:
    workflow = echo()
    stream = workflow.run(1, stream=True)
    await stream.aclose()
    assert (await workflow.run(2)).get_outputs() == [2]


async def test_a_stream_that_was_closed_half_way_makes_room_for_going_on() -> None:
    workflow = echo()
    stream = workflow.run(1, stream=True)
    async for event in stream:
        if event.type == "superstep_completed":
            break
    await stream.aclose()
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == [1]


async def test_an_instance_whose_stream_was_dropped_half_way_is_free_and_stays_its_own() -> None:
    workflow = echo()
    stream = workflow.run(1, stream=True)
    while (await anext(stream)).type != "superstep_completed":
        pass
    del stream
    gc.collect()
    follower = workflow.run(run_id=workflow.run_id, stream=True)
    while (await anext(follower)).type != "executor_invoked":
        pass
    assert workflow.status is WorkflowRunState.IN_PROGRESS
    with pytest.raises(WorkflowException, match="already running"):
        workflow.run(3, stream=True)
    assert (await follower.get_final_response()).get_outputs() == [1]
    assert other_tasks() == set()


async def test_a_message_that_the_start_executor_can_not_handle_is_an_error_naming_its_type() -> None:
    workflow = echo()
    events, error = await read(workflow.run("text", stream=True))
    assert isinstance(error, RuntimeError)
    assert "'a'" in str(error)
    assert "str" in str(error)
    assert told(events) == ["started", "IN_PROGRESS", "failed", "FAILED"]
    assert workflow.status is WorkflowRunState.FAILED
    assert (await workflow.run(1)).get_outputs() == [1]


@live_and_checkpointed
async def test_a_message_that_can_not_be_handled_is_the_same_error_with_and_without_storage(
    storage: MaybeStorage,
) -> None:
    events, error = await read(echo().run("text", stream=True, checkpoint_storage=storage()))
    assert isinstance(error, RuntimeError)
    assert told(events) == ["started", "IN_PROGRESS", "failed", "FAILED"]


async def test_a_workflow_message_is_unwrapped() -> None:
    assert (await echo().run(WorkflowMessage(5, "somewhere"))).get_outputs() == [5]


@live_and_checkpointed
async def test_a_wrapped_message_names_the_same_run_as_the_bare_one(storage: MaybeStorage) -> None:
    store = storage()
    workflow = echo()
    await workflow.run(WorkflowMessage(5, "x"), run_id="r", checkpoint_storage=store)
    assert (await workflow.run(5, run_id="r", checkpoint_storage=store)).get_outputs() == [5]


async def test_a_checkpoint_without_a_storage_is_a_value_error() -> None:
    workflow = echo()
    events, error = await read(workflow.run(checkpoint_id="c", stream=True))
    assert isinstance(error, ValueError)
    assert "storage" in str(error)
    assert told(events)[-2:] == ["failed", "FAILED"]


async def test_an_unknown_checkpoint_is_a_checkpoint_exception() -> None:
    with pytest.raises(WorkflowCheckpointException, match="no checkpoint 'c'") as caught:
        await echo().run(checkpoint_id="c", checkpoint_storage=InMemoryCheckpointStorage())
    assert isinstance(caught.value, CheckpointNotFoundError)


async def test_responses_without_pending_requests_are_refused() -> None:
    with pytest.raises(RuntimeError, match="no request is pending"):
        await echo().run(responses={"r": 1})
    workflow = echo()
    await workflow.run(1)
    with pytest.raises(ValueError, match="no request is pending"):
        await workflow.run(responses={"r": 1})
    assert workflow.status is WorkflowRunState.IDLE


@live_and_checkpointed
async def test_an_unknown_run_is_refused(storage: MaybeStorage) -> None:
    with pytest.raises(RunNotFoundError, match="no run 'r'"):
        await echo().run(run_id="r", checkpoint_storage=storage())


async def test_an_unknown_run_is_not_said_to_be_missing_in_a_storage_that_there_is_not() -> None:
    with pytest.raises(RunNotFoundError, match=r"no storage to look it up; .* checkpoint_storage") as caught:
        await echo().run(run_id="r")
    assert "in this storage" not in str(caught.value)


@live_and_checkpointed
async def test_a_call_without_a_message_on_a_fresh_instance_is_told_what_to_give(storage: MaybeStorage) -> None:
    with pytest.raises(RunNotFoundError, match="no run to continue; give a message"):
        await echo().run(responses={}, checkpoint_storage=storage())


@live_and_checkpointed
async def test_after_a_failure_the_run_goes_on_by_its_id(storage: MaybeStorage) -> None:
    workflow = WorkflowBuilder(start_executor=Flaky(), checkpoint_storage=storage()).build()
    with pytest.raises(ValueError, match="the first time"):
        await workflow.run(1)
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == [1]
    assert (await workflow.run(2)).get_outputs() == [2]


def breaking(storage: Any, **options: Any) -> Workflow:
    """Two executors get each message; one of them breaks at a 1 after it has set some state."""

    async def set_and_break(message: int, ctx: Context) -> None:
        seen = ctx.get_state("seen", [])
        ctx.set_state("seen", [*seen, message])
        if message == 1:
            raise ArithmeticError("a 1")
        await ctx.yield_output(ctx.get_state("seen"))

    start, left, right = passing("start"), node("left", set_and_break), ending("right")
    builder = WorkflowBuilder(name="breaking", start_executor=start, checkpoint_storage=storage, **options)
    return builder.add_fan_out_edges(start, [left, right]).build()


@live_and_checkpointed
async def test_a_fresh_message_after_a_failure_abandons_the_superstep_and_events_name_its_messages(
    storage: MaybeStorage,
) -> None:
    store = storage()
    workflow = breaking(store)
    with pytest.raises(ArithmeticError):
        await workflow.run(1)
    run_id = workflow.run_id
    assert run_id is not None
    result = await workflow.run(2)
    assert (result.get_outputs(), workflow.run_id, workflow.status) == ([[2], 2], run_id, WorkflowRunState.IDLE)
    lost = [event for event in result if event.type == "undelivered"]
    reason = "superstep 2 did not end, and a new message abandons it"
    assert [event.data for event in lost] == [
        UndeliveredMessage(1, "start", target, reason) for target in ("left", "right")
    ]
    assert [event.type for event in result][:2] == ["undelivered", "undelivered"]
    if store is not None:
        committed = [event async for event in store.events(run_id)]
        assert [event.data for event in committed if event.type == "undelivered"] == [event.data for event in lost]
        again = await breaking(store).run(run_id=run_id)
        assert (again.get_outputs(), [event.type for event in again]) == ([[2], 2], ["output", "output"])


@live_and_checkpointed
async def test_a_fresh_message_is_refused_without_a_word_where_nothing_may_stay_undelivered(
    storage: MaybeStorage,
) -> None:
    workflow = breaking(storage(), undelivered="error")
    with pytest.raises(ArithmeticError):
        await workflow.run(1)
    run_id = workflow.run_id
    assert run_id is not None
    events, error = await read(workflow.run(2, stream=True))
    assert events == []
    assert isinstance(error, RunUnfinishedError)
    assert isinstance(error, RuntimeError)
    assert f"run_id={run_id!r}" in str(error)
    assert workflow.status is WorkflowRunState.FAILED


@live_and_checkpointed
async def test_a_fresh_message_does_not_abandon_what_no_failing_superstep_left(storage: MaybeStorage) -> None:
    a, b = passing("a"), passing("b")
    builder = WorkflowBuilder(start_executor=a, checkpoint_storage=storage(), max_iterations=3)
    workflow = builder.add_edge(a, b).add_edge(b, a).build()
    with pytest.raises(WorkflowConvergenceException):
        await workflow.run(1)
    with pytest.raises(RunUnfinishedError):
        await workflow.run(2)

    async def spend_too_much(_: Any, ctx: Context) -> None:
        ctx.spend(tokens=2)
        ctx.activation.require_budget()

    limited = WorkflowBuilder(start_executor=node("spender", spend_too_much), checkpoint_storage=storage()).build()
    with pytest.raises(BudgetExceededError):
        await limited.run(1, budget={"tokens": 1})
    with pytest.raises(RunUnfinishedError):
        await limited.run(2)


async def test_only_run_on_the_same_instance_abandons_a_superstep() -> None:
    storage = InMemoryCheckpointStorage()
    run = breaking(storage).start(1, run_id="r")
    with pytest.raises(ArithmeticError):
        await run.result()
    with pytest.raises(RunUnfinishedError):
        await run.send(2)
    with pytest.raises(RunExistsError):
        await breaking(storage).run(2, run_id="r")
    other = breaking(storage)
    with pytest.raises(ArithmeticError):
        await other.run(run_id="r")
    assert (await other.run(2)).get_outputs() == [[2], 2]


async def test_a_storage_given_to_the_call_is_used_for_this_call_only() -> None:
    built, given = InMemoryCheckpointStorage(), InMemoryCheckpointStorage()
    a, b = passing("a"), ending("b")
    workflow = WorkflowBuilder(start_executor=a, checkpoint_storage=built, name="w").add_edge(a, b).build()
    await workflow.run(1, checkpoint_storage=given)
    assert len(await given.list_checkpoints(workflow_name="w")) == 3
    assert await built.list_checkpoints(workflow_name="w") == []
    await workflow.run(2)
    assert len(await given.list_checkpoints(workflow_name="w")) == 3
    assert len(await built.list_checkpoints(workflow_name="w")) == 3


async def test_an_executor_knows_whether_it_is_streamed() -> None:
    async def tell(_: Any, ctx: Context) -> None:
        await ctx.yield_output(ctx.is_streaming())

    workflow = WorkflowBuilder(start_executor=node("a", tell)).build()
    assert (await workflow.run(1)).get_outputs() == [False]
    assert (await workflow.run(1, stream=True).get_final_response()).get_outputs() == [True]
    assert (await workflow.run(1)).get_outputs() == [False]


def test_one_workflow_can_be_run_in_several_event_loops() -> None:
    workflow = echo()

    async def once(n: int) -> list[Any]:
        return (await workflow.run(n)).get_outputs()

    assert [asyncio.run(once(n)) for n in (1, 2)] == [[1], [2]]


async def test_status_events_are_part_of_the_result_only_if_asked_for() -> None:
    plain = await echo().run(1)
    assert {event.type for event in plain} & {"started", "status"} == set()
    full = await echo().run(1, include_status_events=True)
    assert [event.state for event in full if event.type == "status"] == [
        WorkflowRunState.IN_PROGRESS,
        WorkflowRunState.IDLE,
    ]
    streamed = echo().run(1, stream=True, include_status_events=True)
    told_live = [event async for event in streamed]
    assert len(await streamed.get_final_response()) == len(told_live) - 1
