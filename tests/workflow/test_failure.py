"""A failed superstep leaves no effects and no running task behind."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.nodes import (
    Context,
    Gate,
    MaybeStorage,
    ending,
    failing,
    live_and_checkpointed,
    node,
    other_tasks,
    passing,
    read,
    told,
)

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    RunBusyError,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowConvergenceException,
    WorkflowRunState,
    handler,
)


class OddError(Exception):
    """An error of a user's own, with a constructor of its own."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@live_and_checkpointed
async def test_the_error_of_an_executor_comes_out_unchanged(storage: MaybeStorage) -> None:
    error = OddError(code=3)
    workflow = WorkflowBuilder(start_executor=failing("a", error), checkpoint_storage=storage()).build()
    with pytest.raises(OddError) as caught:
        await workflow.run(1)
    assert caught.value is error


async def test_details_of_a_failure_can_be_hidden_from_events_and_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_SENSITIVE_DATA", "false")
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        failing_node = failing("a", ValueError("the password is hunter2"))
        stream = WorkflowBuilder(start_executor=failing_node, checkpoint_storage=storage).build().run(1, stream=True)
        with pytest.raises(ValueError, match="hunter2"):
            await stream.get_final_response()
    details = [event.details for event in stream.updates if event.details is not None]
    assert [(each.message, each.traceback) for each in details] == [("ValueError", None)] * 2
    stored = (tmp_path / "runs.db").read_bytes()
    assert b"ValueError" in stored
    assert b"hunter2" not in stored


@live_and_checkpointed
async def test_siblings_of_a_failing_executor_are_cancelled_and_awaited(storage: MaybeStorage) -> None:
    gate, start = Gate("gate"), passing("start")

    async def fail(_: Any, __: Context) -> None:
        await gate.begun.wait()
        raise ValueError("no")

    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage())
        .add_fan_out_edges(start, [gate.executor, node("fail", fail)])
        .build()
    )
    with pytest.raises(ValueError, match="no"):
        await workflow.run(1)
    assert gate.was_cancelled
    assert gate.has_cleaned_up
    assert other_tasks() == set()


async def test_a_cancelled_sibling_is_told_neither_as_failed_nor_as_completed() -> None:
    gate, start = Gate("gate"), passing("start")

    async def fail(_: Any, __: Context) -> None:
        await gate.begun.wait()
        raise ValueError("no")

    workflow = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [gate.executor, node("f", fail)]).build()
    events, _ = await read(workflow.run(1, stream=True))
    assert [word for word in told(events) if "gate" in word] == ["executor_invoked(gate)"]


@live_and_checkpointed
async def test_of_several_failures_the_first_in_the_plan_is_raised(storage: MaybeStorage) -> None:
    start, one, two = passing("start"), failing("one", ValueError("one")), failing("two", KeyError("two"))
    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage()).add_fan_out_edges(start, [one, two]).build()
    )
    with pytest.raises(ValueError, match="one"):
        await workflow.run(1)


async def test_failures_that_are_not_raised_do_not_come_back_as_noise(caplog: pytest.LogCaptureFixture) -> None:
    start, one, two = passing("start"), failing("one", ValueError("one")), failing("two", KeyError("two"))
    workflow = WorkflowBuilder(start_executor=start).add_fan_out_edges(start, [one, two]).build()
    with pytest.raises(ValueError, match="one"):
        await workflow.run(1)
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@live_and_checkpointed
async def test_nothing_of_a_failed_superstep_is_kept(storage: MaybeStorage) -> None:
    attempts: list[int] = []

    async def write(_: Any, ctx: Context) -> None:
        ctx.set_state("written", ctx.get_state("written", 0) + 1)
        await ctx.send_message("from write")

    async def fail_once(_: Any, ctx: Context) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("no")
        await ctx.send_message("from fail_once")

    async def look(message: Any, ctx: Context) -> None:
        await ctx.yield_output((message, ctx.get_state("written")))

    start, writer, failer, end = passing("start"), node("w", write), node("f", fail_once), node("end", look)
    workflow = (
        WorkflowBuilder(start_executor=start, checkpoint_storage=storage())
        .add_fan_out_edges(start, [writer, failer])
        .add_edge(writer, end)
        .add_edge(failer, end)
        .build()
    )
    with pytest.raises(ValueError, match="no"):
        await workflow.run(1)
    result = await workflow.run(run_id=workflow.run_id)
    assert result.get_outputs() == [("from write", 1), ("from fail_once", 1)]


class Tally(Executor):
    """Counts its messages in an attribute, fails at the second."""

    def __init__(self, id: str = "tally") -> None:  # noqa: A002 - as the base class has it
        super().__init__(id)
        self.seen: list[int] = []
        self.must_fail = True

    @handler
    async def go(self, message: int, ctx: WorkflowContext[int, list[int]]) -> None:
        self.seen.append(message)
        if message == 2 and self.must_fail:
            raise ValueError("two")
        await ctx.yield_output(list(self.seen))

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


async def test_an_executor_is_put_back_to_what_its_hooks_saved_before_the_failing_superstep() -> None:
    tally = Tally()
    workflow = WorkflowBuilder(start_executor=tally, checkpoint_storage=InMemoryCheckpointStorage()).build()
    await workflow.run(1)
    with pytest.raises(ValueError, match="two"):
        await workflow.run(2)
    assert tally.seen == [1]
    tally.must_fail = False
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == [[1, 2]]


async def test_without_a_storage_no_hook_is_called() -> None:
    class Hooked(Tally):
        def on_checkpoint_save(self) -> dict[str, Any]:
            raise AssertionError("nobody stores anything")

        def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
            raise AssertionError(f"nobody has stored {state}")

    workflow = WorkflowBuilder(start_executor=Hooked()).build()
    await workflow.run(1)
    with pytest.raises(ValueError, match="two"):
        await workflow.run(2)


async def test_an_error_of_ours_that_a_handler_raises_fails_the_run_like_any_other() -> None:
    workflow = WorkflowBuilder(start_executor=failing("a", RunBusyError("other", owner="somebody"))).build()
    events, error = await read(workflow.run(1, stream=True))
    assert isinstance(error, RunBusyError)
    assert told(events)[-3:] == ["executor_failed(a)", "failed", "FAILED"]
    assert workflow.status is WorkflowRunState.FAILED


def endless(limit: int, **options: Any) -> WorkflowBuilder:
    a = passing("a")
    return WorkflowBuilder(limit, start_executor=a, **options).add_edge(a, a)


@live_and_checkpointed
async def test_a_run_with_messages_left_after_max_iterations_does_not_converge(storage: MaybeStorage) -> None:
    workflow = endless(3, checkpoint_storage=storage()).build()
    events, error = await read(workflow.run(1, stream=True))
    assert isinstance(error, WorkflowConvergenceException)
    assert "3 supersteps" in str(error)
    words = [word for word in told(events) if word != "checkpoint"]
    assert words[-3:] == ["superstep_completed#3", "failed", "FAILED"]


async def test_a_run_that_ends_in_its_last_allowed_superstep_is_fine() -> None:
    a, b, c = passing("a"), passing("b"), ending("c")
    workflow = WorkflowBuilder(3, start_executor=a).add_chain([a, b, c]).build()
    assert (await workflow.run(1)).get_outputs() == [1]


async def test_the_limit_counts_from_the_last_input() -> None:
    a, b, c = passing("a"), passing("b"), ending("c")
    workflow = WorkflowBuilder(3, start_executor=a).add_chain([a, b, c]).build()
    for turn in range(4):
        assert (await workflow.run(turn)).get_outputs() == [turn]


async def test_a_failed_step_among_many_lets_the_run_go_on_where_it_stood() -> None:
    state = {"broken": True}

    async def work(n: int, ctx: Context) -> None:
        if n == 3 and state["broken"]:
            raise OSError("network")
        if n == 5:
            await ctx.yield_output(n)
        else:
            await ctx.send_message(n + 1)

    a = node("a", work)
    workflow = WorkflowBuilder(start_executor=a).add_edge(a, a).build()
    with pytest.raises(OSError, match="network"):
        await workflow.run(0)
    state["broken"] = False
    result = await workflow.run(run_id=workflow.run_id)
    assert result.get_outputs() == [5]
    assert [event.data for event in result if event.type == "executor_invoked"] == [3, 4, 5]


async def test_an_executor_that_raises_a_cancellation_that_nobody_asked_for_fails() -> None:
    async def give_up(_: Any, __: Context) -> None:
        raise asyncio.CancelledError

    workflow = WorkflowBuilder(start_executor=node("a", give_up)).build()
    with pytest.raises(RuntimeError, match="cancel"):
        await workflow.run(1)
    assert workflow.status is WorkflowRunState.FAILED
    assert other_tasks() == set()
