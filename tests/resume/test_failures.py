"""After a failure nothing is left behind, and the run goes on from its last commit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from shapes import Breaking, Tally, asking, breaking, commits, counting, types_of
from typing_extensions import override

from perdure import (
    CheckpointWriteError,
    EncodeError,
    Executor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowRunState,
    executor,
    handler,
)
from perdure.storage import MemoryStore

if TYPE_CHECKING:
    from conftest import Storage
    from perdure import Workflow
    from perdure.records import Commit, Lease


async def failing(workflow: Workflow, message: Any) -> list[str]:
    """The events that a failing call tells, by type."""
    stream = workflow.run(message, stream=True)
    with pytest.raises(ArithmeticError, match="broke at"):
        await stream.get_final_response()
    return types_of(stream.updates)


async def test_a_failure_is_told_and_writes_no_checkpoint(storage: Storage) -> None:
    workflow = breaking(storage, node=Breaking(at=2))
    told = await failing(workflow, 1)
    assert told[-4:] == ["executor_invoked", "executor_failed", "failed", "status"]
    assert workflow.status is WorkflowRunState.FAILED
    assert [c.iteration_count for c in await storage.list_checkpoints()] == [0, 1]


async def test_an_executor_is_put_back_to_what_was_committed(storage: Storage) -> None:
    node = Breaking(at=2)
    workflow = breaking(storage, node=node)
    await failing(workflow, 1)
    assert node.seen == [1]


async def test_an_executor_that_failed_in_its_first_superstep_is_put_back_to_what_it_began_with(
    storage: Storage,
) -> None:
    node = Breaking(at=1)
    node.seen = [0]
    workflow = breaking(storage, node=node)
    await failing(workflow, 1)
    assert node.seen == [0]


@pytest.mark.parametrize("way", ["run_id", "checkpoint_id"])
async def test_the_same_instance_goes_on_after_a_failure(storage: Storage, way: str) -> None:
    node = Breaking(at=2)
    workflow = breaking(storage, node=node)
    await failing(workflow, 1)
    node.at = None
    head = await storage.get_latest(workflow_name="breaking")
    assert head is not None
    run_id = workflow.run_id
    assert run_id is not None
    if way == "run_id":
        result = await workflow.run(run_id=run_id)
    else:
        result = await workflow.run(checkpoint_id=head.checkpoint_id)
    assert result.get_outputs() == [[1, 2, 3]]
    assert workflow.run_id == run_id
    assert workflow.status is WorkflowRunState.IDLE
    assert [c.iteration_count for c in await storage.list_checkpoints(run_id=run_id)] == [0, 1, 2, 3]


async def test_a_fresh_message_is_taken_once_the_failed_turn_is_over(storage: Storage) -> None:
    node = Breaking(at=2)
    workflow = breaking(storage, node=node)
    await failing(workflow, 1)
    node.at = None
    assert workflow.run_id is not None
    await workflow.run(run_id=workflow.run_id)
    assert (await workflow.run(3)).get_outputs() == [[1, 2, 3, 3]]


async def test_failing_again_and_again_leaves_the_run_where_it_was(storage: Storage) -> None:
    node = Breaking(at=2)
    workflow = breaking(storage, node=node)
    await failing(workflow, 1)
    assert workflow.run_id is not None
    for _ in range(3):
        with pytest.raises(ArithmeticError):
            await workflow.run(run_id=workflow.run_id)
        assert node.seen == [1]
    assert len(await storage.list_checkpoint_ids()) == 2


class Pair(Executor):
    """Sends a number to two others."""

    @handler
    async def send(self, number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)


class Patient(Executor):
    """Writes, then waits for ever, and says when it was cancelled."""

    def __init__(self) -> None:
        super().__init__("patient")
        self.seen: list[int] = []
        self.cancelled = False

    @handler
    async def wait(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        ctx.set_state("left behind", number)
        self.seen.append(number)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"seen": self.seen}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


async def test_the_siblings_of_a_failure_are_cancelled_and_put_back(storage: Storage) -> None:
    pair, broken, patient = Pair("pair"), Breaking(at=1), Patient()
    builder = WorkflowBuilder(start_executor=pair, name="breaking", checkpoint_storage=storage)
    workflow = builder.add_fan_out_edges(pair, [broken, patient]).build()
    await failing(workflow, 1)
    assert patient.cancelled
    assert patient.seen == []
    head = await storage.get_latest(workflow_name="breaking")
    assert head is not None
    assert "left behind" not in head.state


class FullStore(MemoryStore):
    """Refuses commits while it is full."""

    is_full = False

    @override
    async def commit(self, lease: Lease, commit: Commit) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return await super().commit(lease, commit)


class FullStorage(InMemoryCheckpointStorage):
    """A storage that can be full."""

    def __init__(self) -> None:
        super().__init__()
        self.full = FullStore()
        self.store = self.full


async def test_a_checkpoint_that_cannot_be_written_stops_the_run_with_the_reason() -> None:
    storage = FullStorage()

    class Filling(Tally):
        @override
        async def on_checkpoint_save(self) -> dict[str, Any]:
            storage.full.is_full = len(self.seen) == 2
            return await super().on_checkpoint_save()

    tally = Filling()
    workflow = counting(storage, tally=tally)
    with pytest.raises(CheckpointWriteError, match="No space left on device") as caught:
        await workflow.run(1)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.run_id == workflow.run_id
    assert f"run(run_id={workflow.run_id!r})" in str(caught.value)
    assert workflow.status is WorkflowRunState.FAILED
    assert tally.seen == [1]
    storage.full.is_full = False
    assert workflow.run_id is not None
    other = counting(storage)
    assert (await other.run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 3]]


async def test_an_entry_that_cannot_be_written_begins_no_run() -> None:
    storage = FullStorage()
    storage.full.is_full = True
    workflow = counting(storage)
    with pytest.raises(CheckpointWriteError):
        await workflow.run(1, run_id="order-17")
    storage.full.is_full = False
    assert await storage.list_checkpoint_ids() == []
    result = await counting(storage).run(2, run_id="order-17")
    assert result.get_outputs() == [[2, 3]]


async def test_an_answer_that_cannot_be_written_stays_unanswered() -> None:
    storage = FullStorage()
    workflow = asking(storage)
    await workflow.run(["hue"])
    storage.full.is_full = True
    with pytest.raises(CheckpointWriteError):
        await workflow.run(responses={"about-hue": "red"})
    storage.full.is_full = False
    assert workflow.run_id is not None
    assert (await workflow.run(responses={"about-hue": "blue"})).get_outputs() == ["hue: blue"]


async def test_a_workflow_that_is_told_to_warn_goes_on_without_a_checkpoint() -> None:
    storage = FullStorage()
    tally = Tally()
    builder = WorkflowBuilder(
        start_executor=tally, name="counting", checkpoint_storage=storage, on_checkpoint_error="warn"
    )
    workflow = builder.add_edge(tally, tally).build()
    stream = workflow.run(1, stream=True)
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if event.type == "superstep_started":
            storage.full.is_full = event.iteration == 2
    assert [event.data for event in events if event.type == "output"] == [[1, 2, 3]]
    (warning,) = [event.data for event in events if event.type == "warning"]
    assert "no checkpoint of superstep 2" in warning
    assert "No space left on device" in warning
    told = commits(events)
    assert [info.iteration_count for info in told] == [0, 1, 3]
    assert told[-1].previous_checkpoint_id == told[-2].checkpoint_id


async def test_a_workflow_that_is_told_to_warn_goes_on_without_an_entry_checkpoint() -> None:
    storage = FullStorage()
    tally = Tally()
    builder = WorkflowBuilder(
        start_executor=tally, name="counting", checkpoint_storage=storage, on_checkpoint_error="warn"
    )
    workflow = builder.add_edge(tally, tally).build()
    storage.full.is_full = True
    result = await workflow.run(1)
    assert result.get_outputs() == [[1, 2, 3]]
    assert types_of(result).count("warning") == 4
    storage.full.is_full = False
    assert (await workflow.run(3)).get_outputs() == [[1, 2, 3, 3]]
    assert len(await storage.list_checkpoint_ids()) == 2


async def test_a_run_that_got_its_first_checkpoint_late_records_what_finishes_from_then_on() -> None:
    storage, done, is_mended = FullStorage(), list[str](), False

    @executor(id="begin")
    async def begin(number: int, ctx: WorkflowContext[int]) -> None:
        storage.full.is_full = False
        await ctx.send_message(number)

    @executor(id="worker")
    async def worker(_: int, __: WorkflowContext[Any]) -> None:
        done.append("worker")

    @executor(id="broken")
    async def broken(_: int, __: WorkflowContext[Any]) -> None:
        if not is_mended:
            raise ArithmeticError("broke at it")
        done.append("mended")

    builder = WorkflowBuilder(start_executor=begin, checkpoint_storage=storage, on_checkpoint_error="warn")
    workflow = builder.add_fan_out_edges(begin, [worker, broken]).build()
    storage.full.is_full = True
    await failing(workflow, 1)
    is_mended = True
    assert workflow.run_id is not None
    await workflow.run(run_id=workflow.run_id)
    assert done == ["worker", "mended"]


class Unkept:
    """No data type: it can't be stored."""


class Keeper(Executor):
    """Puts something into the state that can't be stored."""

    @handler
    async def keep(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        if number == 1:
            ctx.set_state("handle", {"inner": [Unkept()]})
            await ctx.send_message(2)
        else:
            ctx.state.delete("handle")
            await ctx.yield_output(number)


def keeping(storage: Storage, **options: Any) -> Workflow:
    keeper = Keeper("keeper")
    builder = WorkflowBuilder(start_executor=keeper, name="keeping", checkpoint_storage=storage, **options)
    return builder.add_edge(keeper, keeper).build()


async def test_a_value_that_cannot_be_stored_is_refused_when_it_is_saved_with_its_path(storage: Storage) -> None:
    with pytest.raises(EncodeError, match=r"state\['handle'\]\['inner'\]\[0\]") as caught:
        await keeping(storage).run(1)
    assert isinstance(caught.value, WorkflowCheckpointException)
    assert caught.value.remedy
    assert len(await storage.list_checkpoint_ids()) == 1


async def test_a_value_that_cannot_be_stored_is_carried_by_a_workflow_that_is_told_to_warn(storage: Storage) -> None:
    result = await keeping(storage, on_checkpoint_error="warn").run(1)
    assert result.get_outputs() == [2]
    (warning,) = [event.data for event in result if event.type == "warning"]
    assert "state['handle']['inner'][0]" in warning
    assert [c.iteration_count for c in await storage.list_checkpoints()] == [0, 2]


async def test_a_message_that_cannot_be_stored_is_carried_by_a_workflow_that_is_told_to_warn(storage: Storage) -> None:
    class Taker(Executor):
        @handler
        async def take(self, thing: Unkept, ctx: WorkflowContext[int, str]) -> None:
            await ctx.yield_output(type(thing).__name__)

    def build(**options: Any) -> Workflow:
        return WorkflowBuilder(start_executor=Taker("t"), name="t", checkpoint_storage=storage, **options).build()

    with pytest.raises(EncodeError, match="message"):
        await build().run(Unkept())
    result = await build(on_checkpoint_error="warn").run(Unkept())
    assert result.get_outputs() == ["Unkept"]


class Hooked(Tally):
    """Breaks in its hook at one number."""

    at: int | None = 2

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        if self.at is not None and self.at in self.seen[-1:]:
            raise LookupError("no state today")
        return await super().on_checkpoint_save()


async def test_a_hook_that_raises_stops_the_run_by_name(storage: Storage) -> None:
    tally = Hooked()
    workflow = counting(storage, tally=tally)
    with pytest.raises(WorkflowCheckpointException, match=r"state of executor 'tally'.*LookupError: no state today"):
        await workflow.run(1)
    assert tally.seen == [1]
    tally.at = None
    assert workflow.run_id is not None
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == [[1, 2, 3]]


async def test_a_hook_that_raises_is_a_warning_where_the_workflow_says_so(storage: Storage) -> None:
    tally = Hooked()
    builder = WorkflowBuilder(
        start_executor=tally, name="counting", checkpoint_storage=storage, on_checkpoint_error="warn"
    )
    workflow = builder.add_edge(tally, tally).build()
    result = await workflow.run(1)
    assert result.get_outputs() == [[1, 2, 3]]
    assert [info.iteration_count for info in commits(result)] == [0, 1, 3]


async def test_a_cancelled_call_leaves_the_run_at_its_last_commit(storage: Storage) -> None:
    pair, patient = Pair("pair"), Patient()
    builder = WorkflowBuilder(start_executor=pair, name="waiting", checkpoint_storage=storage)
    workflow = builder.add_edge(pair, patient).build()
    entered = asyncio.Event()

    async def read() -> None:
        async for event in workflow.run(1, stream=True):
            if event.type == "executor_invoked" and event.executor_id == "patient":
                entered.set()

    reading = asyncio.create_task(read())
    await entered.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert patient.cancelled
    assert patient.seen == []
    assert workflow.status is WorkflowRunState.CANCELLED
    assert [c.iteration_count for c in await storage.list_checkpoints()] == [0, 1]
