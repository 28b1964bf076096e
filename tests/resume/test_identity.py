"""Run identity: a new run, the instance's own, or one by id; and the lease on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

import pytest
from shapes import Breaking, Tally, asking, breaking, counting, types_of

from perdure import (
    Executor,
    RunBusyError,
    RunExistsError,
    RunUnfinishedError,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowException,
    WorkflowRunState,
    executor,
    handler,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Storage
    from perdure import Workflow


async def test_a_message_with_an_unknown_run_id_starts_that_run(storage: Storage) -> None:
    workflow = counting(storage)
    result = await workflow.run(1, run_id="order-17")
    assert result.get_outputs() == [[1, 2, 3]]
    assert workflow.run_id == "order-17"
    assert {checkpoint.run_id for checkpoint in await storage.list_checkpoints()} == {"order-17"}


async def test_the_same_first_message_attaches_to_the_run(storage: Storage) -> None:
    await counting(storage).run(1, run_id="order-17")
    ids = await storage.list_checkpoint_ids()
    tally = Tally()
    again = await counting(storage, tally=tally).run(1, run_id="order-17")
    assert again.get_outputs() == [[1, 2, 3]]
    assert "executor_invoked" not in types_of(again)
    assert await storage.list_checkpoint_ids() == ids


async def test_a_first_message_is_the_same_in_whatever_order_its_keys_are(storage: Storage) -> None:
    def ordering() -> Workflow:
        @executor(id="order")
        async def order(lines: dict[str, Any], ctx: WorkflowContext[Never, int]) -> None:
            await ctx.yield_output(len(lines))

        return WorkflowBuilder(start_executor=order, name="ordering", checkpoint_storage=storage).build()

    await ordering().run({"pen": 1, "ink": {"red": 1, "blue": 2}}, run_id="order-17")
    again = await ordering().run({"ink": {"blue": 2, "red": 1}, "pen": 1}, run_id="order-17")
    assert again.get_outputs() == [2]
    assert "executor_invoked" not in types_of(again)
    with pytest.raises(RunExistsError):
        await ordering().run({"pen": 1, "ink": {"red": 2, "blue": 1}}, run_id="order-17")


async def test_a_run_that_is_given_a_storage_later_is_known_there_by_its_first_message(storage: Storage) -> None:
    workflow = counting(None)
    await workflow.run(2, run_id="order-17")
    await workflow.run(3, checkpoint_storage=storage)
    assert workflow.run_id == "order-17"
    again = await counting(storage).run(2, run_id="order-17")
    assert again.get_outputs() == [[2, 3, 3]]
    assert "executor_invoked" not in types_of(again)
    with pytest.raises(RunExistsError):
        await counting(storage).run(3, run_id="order-17")


async def test_a_run_keeps_the_workflow_name_that_it_began_under(storage: Storage) -> None:
    def named(name: str, node: Breaking) -> Workflow:
        return WorkflowBuilder(start_executor=node, name=name, checkpoint_storage=storage).add_edge(node, node).build()

    with pytest.raises(ArithmeticError):
        await named("before", Breaking(at=2)).run(1, run_id="order-17")
    await named("after", Breaking(at=0)).run(run_id="order-17")
    assert {checkpoint.workflow_name for checkpoint in await storage.list_checkpoints()} == {"before"}


async def test_attaching_to_an_unfinished_run_goes_on_with_it(storage: Storage) -> None:
    node = Breaking(at=2)
    with pytest.raises(ArithmeticError):
        await breaking(storage, node=node).run(1, run_id="order-17")
    other = Breaking(at=0)
    result = await breaking(storage, node=other).run(1, run_id="order-17")
    assert result.get_outputs() == [[1, 2, 3]]
    assert other.seen == [1, 2, 3]


async def test_another_first_message_for_a_known_run_is_refused(storage: Storage) -> None:
    await counting(storage).run(1, run_id="order-17")
    ids = await storage.list_checkpoint_ids()
    workflow = counting(storage)
    with pytest.raises(RunExistsError, match="'order-17'"):
        await workflow.run(2, run_id="order-17")
    assert await storage.list_checkpoint_ids() == ids
    assert workflow.status is WorkflowRunState.IDLE
    assert workflow.run_id is None


async def test_the_first_message_counts_though_the_run_took_others_since(storage: Storage) -> None:
    first = counting(storage)
    await first.run(1, run_id="order-17")
    await first.run(3)
    assert (await counting(storage).run(1, run_id="order-17")).get_outputs() == [[1, 2, 3, 3]]
    with pytest.raises(RunExistsError):
        await counting(storage).run(3, run_id="order-17")


async def test_run_ids_in_memory_follow_the_same_rules() -> None:
    workflow = counting(None)
    await workflow.run(1, run_id="order-17")
    with pytest.raises(RunExistsError):
        await workflow.run(2, run_id="order-17")


async def test_a_fork_is_not_attached_to_by_message(storage: Storage) -> None:
    await counting(storage).run(1)
    older = (await storage.list_checkpoint_ids())[1]
    fork = counting(storage)
    await fork.run(checkpoint_id=older)
    assert fork.run_id is not None
    with pytest.raises(RunExistsError):
        await counting(storage).run(1, run_id=fork.run_id)


async def test_two_runs_of_one_definition_never_meet(storage: Storage) -> None:
    tally = Tally(limit=4)
    one, two = counting(storage, tally=tally), counting(storage, tally=tally)
    await one.run(1)
    await two.run(3)
    assert (await one.run(4)).get_outputs() == [[1, 2, 3, 4, 4]]
    assert (await two.run(4)).get_outputs() == [[3, 4, 4]]
    assert (await one.run(4)).get_outputs() == [[1, 2, 3, 4, 4, 4]]


async def test_starting_a_turn_after_a_failure_names_both_ways_to_go_on(storage: Storage) -> None:
    node = Breaking(at=2)
    workflow = breaking(storage, node=node)
    with pytest.raises(ArithmeticError):
        await workflow.run(1)
    head = await storage.get_latest(workflow_name="breaking")
    assert head is not None
    with pytest.raises(RuntimeError) as caught:
        await workflow.start(1).result()
    assert isinstance(caught.value, RunUnfinishedError)
    assert f"run(run_id={workflow.run_id!r})" in str(caught.value)
    assert f"run(checkpoint_id={head.checkpoint_id!r})" in str(caught.value)


async def test_starting_a_turn_after_a_failure_in_memory_names_the_run() -> None:
    node = Breaking(at=2)
    workflow = breaking(None, node=node)
    with pytest.raises(ArithmeticError):
        await workflow.run(1)
    with pytest.raises(RuntimeError, match="run_id="):
        await workflow.start(1).result()
    node.at = None
    assert workflow.run_id is not None
    await workflow.run(run_id=workflow.run_id)
    assert workflow.status is WorkflowRunState.IDLE


class Slow(Executor):
    """Waits until it is let go."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()

    @handler
    async def wait(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        self.entered.set()
        await self.let_go.wait()
        await ctx.yield_output(text)


def slow(storage: Storage, node: Slow) -> Workflow:
    return WorkflowBuilder(start_executor=node, name="slow", checkpoint_storage=storage).build()


async def test_a_run_that_another_task_reads_is_busy(storage: Storage) -> None:
    node = Slow()
    first = slow(storage, node)
    reading = asyncio.ensure_future(first.run("x", run_id="shared"))
    await node.entered.wait()
    second = slow(storage, Slow())
    with pytest.raises(RunBusyError, match="'shared'"):
        await second.run(run_id="shared")
    assert second.status is WorkflowRunState.IDLE
    node.let_go.set()
    assert (await reading).get_outputs() == ["x"]
    assert (await second.run(run_id="shared")).get_outputs() == ["x"]


async def test_a_run_that_another_task_reads_is_not_put_back(storage: Storage) -> None:
    quick, node = Slow(), Slow()
    quick.let_go.set()
    node.let_go.set()
    handle = slow(storage, quick).start("x", run_id="shared")
    await handle.result()
    (entry, _) = await handle.checkpoints()
    other = slow(storage, node)
    await other.run(run_id="shared")
    node.let_go.clear()
    reading = asyncio.ensure_future(other.run("y"))
    await node.entered.wait()
    with pytest.raises(RunBusyError, match="'shared'"):
        await handle.restore(entry.checkpoint_id)
    node.let_go.set()
    assert (await reading).get_outputs() == ["y"]
    await handle.restore(entry.checkpoint_id)
    assert [event.data async for event in handle.events() if event.type == "output"] == ["x"]


async def test_executors_that_another_task_uses_are_busy(storage: Storage) -> None:
    node = Slow()
    reading = asyncio.ensure_future(slow(storage, node).run("x"))
    await node.entered.wait()
    with pytest.raises(RunBusyError):
        await slow(storage, node).run("y")
    node.let_go.set()
    assert (await reading).get_outputs() == ["x"]


async def test_an_instance_that_is_running_refuses_at_once(storage: Storage) -> None:
    node = Slow()
    workflow = slow(storage, node)
    reading = asyncio.ensure_future(workflow.run("x"))
    await node.entered.wait()
    with pytest.raises(WorkflowException, match="already running"):
        workflow.run("y")  # pyright: ignore[reportUnusedCoroutine, reportUnusedExpression]
    node.let_go.set()
    await reading


async def test_ten_tasks_that_answer_at_once_are_heard_once(storage: Storage) -> None:
    first = asking(storage)
    await first.run(["hue"])
    run_id = first.run_id
    assert run_id is not None

    async def answer(number: int) -> Any:
        return await asking(storage).run(run_id=run_id, responses={"about-hue": f"{number}"})

    outcomes = await asyncio.gather(*map(answer, range(10)), return_exceptions=True)
    accepted = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert len(accepted) == 1
    counts = [checkpoint.iteration_count for checkpoint in await storage.list_checkpoints(run_id=run_id)]
    assert counts == [0, 1, 1, 2]


async def test_a_storage_serves_one_event_loop_after_another(open_on_disk: Callable[..., Storage]) -> None:
    def both() -> tuple[Any, Any]:
        storage = open_on_disk()
        workflow = asking(storage)
        first = asyncio.run(_result(workflow.run(["hue"])))
        second = asyncio.run(_result(workflow.run(responses={"about-hue": "red"})))
        asyncio.run(storage.close())
        return first, second

    first, second = await asyncio.to_thread(both)
    assert types_of(first).count("request_info") == 1
    assert second.get_outputs() == ["hue: red"]


async def _result(run: Any) -> Any:
    return await run
