"""Several instances on the same executors, and several runs of one definition: they never meet."""

import asyncio
from typing import Any

import pytest
from tests.workflow.nodes import Context, Gate, MaybeStorage, live_and_checkpointed, node, passing

from perdure import Executor, InMemoryCheckpointStorage, RunBusyError, WorkflowBuilder, WorkflowContext, handler


class Counter(Executor):
    """Counts its messages in an attribute that its hooks save."""

    def __init__(self, id: str = "counter") -> None:  # noqa: A002 - as the base class has it
        super().__init__(id)
        self.n = 0

    @handler
    async def go(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        self.n += 1
        ctx.set_state("n", ctx.get_state("n", 0) + 1)
        await ctx.yield_output(f"{message}{self.n}/{ctx.get_state('n')}")

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"n": self.n}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


async def test_two_checkpointed_runs_on_one_executor_have_a_state_each() -> None:
    builder = WorkflowBuilder(start_executor=Counter(), checkpoint_storage=InMemoryCheckpointStorage())
    one, two = builder.build(), builder.build()
    assert (await one.run("a")).get_outputs() == ["a1/1"]
    assert (await two.run("b")).get_outputs() == ["b1/1"]
    assert (await one.run("c")).get_outputs() == ["c2/2"]
    assert (await two.run("d")).get_outputs() == ["d2/2"]


async def test_without_checkpoints_executors_keep_their_attributes_but_runs_have_their_own_state() -> None:
    builder = WorkflowBuilder(start_executor=Counter())
    one, two = builder.build(), builder.build()
    assert (await one.run("a")).get_outputs() == ["a1/1"]
    assert (await two.run("b")).get_outputs() == ["b2/1"]


@live_and_checkpointed
async def test_two_instances_can_not_use_one_executor_at_once(storage: MaybeStorage) -> None:
    gate = Gate("gate")
    builder = WorkflowBuilder(start_executor=gate.executor, checkpoint_storage=storage())
    one, two = builder.build(), builder.build()
    running = asyncio.ensure_future(one.run(1))
    await gate.begun.wait()
    with pytest.raises(RunBusyError):
        await two.run(2)
    gate.opened.set()
    assert (await running).get_outputs() == [1]
    assert (await two.run(2)).get_outputs() == [2]


@live_and_checkpointed
async def test_instances_with_executors_of_their_own_run_at_once(storage: MaybeStorage) -> None:
    barrier = asyncio.Barrier(3)

    async def meet(message: Any, ctx: Context) -> None:
        await barrier.wait()
        ctx.set_state("k", message)
        await ctx.send_message(message)

    async def tell(_: Any, ctx: Context) -> None:
        await ctx.yield_output(ctx.get_state("k"))

    shared = storage()

    async def one(n: int) -> list[Any]:
        a, b = node("a", meet), node("b", tell)
        workflow = WorkflowBuilder(start_executor=a, checkpoint_storage=shared).add_edge(a, b).build()
        return (await workflow.run(n)).get_outputs()

    assert await asyncio.gather(*(one(n) for n in range(3))) == [[0], [1], [2]]


async def test_an_executor_may_stand_in_two_different_graphs() -> None:
    counter, first, second = Counter(), passing("first"), passing("second")
    one = WorkflowBuilder(start_executor=first).add_edge(first, counter).build()
    two = WorkflowBuilder(start_executor=second).add_edge(second, counter).build()
    assert (await one.run("a")).get_outputs() == ["a1/1"]
    assert (await two.run("b")).get_outputs() == ["b2/1"]
