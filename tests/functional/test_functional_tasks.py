"""Tasks that a function starts: their steps, how they end with the function, and cancellations that they swallow."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, Executor, RunContext, WorkflowBuilder, WorkflowContext, handler, step, workflow
from perdure.testing import ScriptedChatClient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence

    from perdure.storage import StoreStorage as Storage

TURNS = 30


async def some_turns() -> None:
    """Let others run, and what is left of them end."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def _as_completed(branches: Sequence[Coroutine[Any, Any, str]]) -> list[str]:
    return sorted([await each for each in asyncio.as_completed(branches)])


async def _in_own_contexts(branches: Sequence[Coroutine[Any, Any, str]]) -> list[str]:
    tasks = [asyncio.create_task(each, context=copy_context()) for each in branches]
    return sorted(await asyncio.gather(*tasks))


@pytest.mark.parametrize("all_of", [_as_completed, _in_own_contexts])
async def test_steps_in_tasks_are_known_by_their_arguments(
    storage: Storage, all_of: Callable[[Sequence[Coroutine[Any, Any, str]]], Awaitable[list[str]]]
) -> None:
    made: list[str] = []
    first_in = iter([[3, 2, 1, 0], [0, 1, 2, 3]])

    @step
    async def ticket(number: int) -> int:
        made.append(f"ticket {number}")
        return len(made)

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        order = next(first_in)
        gates = [asyncio.Event() for _ in order]
        gates[order[0]].set()

        async def branch(number: int) -> str:
            await gates[number].wait()
            found = await ticket(number)
            for follower in order[order.index(number) + 1 :][:1]:
                gates[follower].set()
            return f"{number}: {found}"

        found = await all_of([branch(number) for number in range(4)])
        return [*found, await ctx.request_info("go on?", str)]

    await office.run("go", run_id="r", checkpoint_storage=storage)
    result = await office.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["0: 4", "1: 3", "2: 2", "3: 1", "yes"]]
    assert len(made) == 4


async def _waited(tasks: list[asyncio.Task[str]]) -> list[str]:
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def _one_after_the_other(tasks: list[asyncio.Task[str]]) -> list[str]:
    return [await task for task in reversed(tasks)][::-1]


async def _shielded(tasks: list[asyncio.Task[str]]) -> list[str]:
    return list(await asyncio.gather(*map(asyncio.shield, tasks)))


@pytest.mark.parametrize("all_of", [_waited, _one_after_the_other, _shielded])
async def test_tasks_of_a_function_that_is_left_do_not_go_on_without_it(
    storage: Storage, all_of: Callable[[list[asyncio.Task[str]]], Awaitable[list[str]]]
) -> None:
    paid: list[str] = []
    asked: list[str] = []
    has_been_left = asyncio.Event()

    @step
    async def pay(name: str) -> str:
        paid.append(name)
        return f"paid {name}"

    async def reply(*_: Any) -> str:
        asked.append("model")
        return "thanks"

    agent = Agent(ScriptedChatClient(reply), "x", name="A")

    @workflow
    async def till(_: str, ctx: RunContext) -> list[str]:
        async def branch(name: str) -> str:
            await has_been_left.wait()
            return f"{await pay(name)}, {(await agent.run(name)).text}"

        async def ask() -> str:
            return await ctx.request_info("go on?", str)

        return await all_of([asyncio.create_task(branch("a")), asyncio.create_task(ask())])

    await till.run("go", run_id="r", checkpoint_storage=storage)
    has_been_left.set()
    await some_turns()
    assert paid == asked == []
    result = await till.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid a, thanks", "yes"]]
    assert (paid, asked) == (["a"], ["model"])


async def test_tasks_of_a_function_that_has_failed_do_not_go_on_without_it(storage: Storage) -> None:
    paid: list[str] = []
    down, has_failed = [True], asyncio.Event()

    @step
    async def fetch() -> str:
        if down[0]:
            raise ConnectionError("down")
        return "fetched"

    @step
    async def pay() -> str:
        paid.append("pay")
        return "paid"

    @workflow
    async def till(_: str) -> list[str]:
        async def branch() -> str:
            await has_failed.wait()
            return await pay()

        return list(await asyncio.gather(fetch(), branch()))

    with pytest.raises(ConnectionError, match="down"):
        await till.run("go", run_id="r", checkpoint_storage=storage)
    has_failed.set()
    await some_turns()
    assert paid == []
    down[0] = False
    result = await till.twin().run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [["fetched", "paid"]]
    assert paid == ["pay"]


async def test_a_task_that_outlives_a_function_can_do_no_step_of_it(storage: Storage) -> None:
    paid: list[str] = []
    tasks: list[asyncio.Task[Any]] = []
    has_returned = asyncio.Event()

    @step
    async def pay() -> None:
        paid.append("pay")

    agent = Agent(ScriptedChatClient(["never"]), "x", name="A")

    @workflow
    async def other(_: str) -> None:
        await pay()

    @workflow
    async def till(_: str) -> str:
        async def later(work: Callable[[], Awaitable[Any]]) -> None:
            await has_returned.wait()
            await work()

        works = (pay, lambda: agent.run("go"), lambda: other.run("go"), lambda: other.as_agent().run("go"))
        tasks.extend(asyncio.create_task(later(work)) for work in works)
        return "done"

    result = await till.run("go", checkpoint_storage=storage)
    assert result.get_outputs() == ["done"]
    has_returned.set()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, RuntimeError)
        assert "await every task inside the function" in str(error)
    assert paid == []


@pytest.mark.parametrize("turns", range(14))
async def test_a_function_is_left_though_something_in_it_swallows_the_cancellation(turns: int) -> None:
    """As `asyncio.wait_for` does in Python 3.11, if what it waits for ends in the same turn of the loop."""

    async def io() -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return "read"

    @workflow
    async def reader(_: str, ctx: RunContext) -> list[str]:
        async def ask() -> str:
            return await ctx.request_info("go on?", str)

        task = asyncio.create_task(ask())
        return [await asyncio.wait_for(io(), 600), await task]

    await reader.run("go")
    assert (await reader.run(responses={"auto::0": "yes"})).get_outputs() == [["read", "yes"]]


async def test_tasks_of_functions_inside_of_others_wait_side_by_side(storage: Storage) -> None:
    paid: list[str] = []

    @step
    async def pay(name: str) -> str:
        paid.append(name)
        return f"paid {name}"

    @workflow
    async def clerk(name: str, ctx: RunContext) -> list[str]:
        async def ask() -> str:
            return await ctx.request_info(f"{name}?", str)

        async def work() -> str:
            await asyncio.sleep(0)
            return await pay(name)

        return list(await asyncio.gather(ask(), work()))

    @workflow
    async def office(_: str) -> list[Any]:
        async def branch(name: str) -> Any:
            return (await clerk.run(name)).get_outputs()[0]

        return list(await asyncio.gather(branch("a"), branch("b")))

    result = await office.run("go", run_id="r", checkpoint_storage=storage)
    while asked := result.get_request_info_events():
        answers = {asked[0].request_id: f"yes to {asked[0].data}"}
        result = await office.twin().run(run_id="r", responses=answers, checkpoint_storage=storage)
    assert result.get_outputs() == [[["yes to a?", "paid a"], ["yes to b?", "paid b"]]]
    assert sorted(paid) == ["a", "b"]


class Busy(Executor):
    """A plain handler of another workflow that begins tasks, each when it likes."""

    @handler
    async def go(self, turns: int, ctx: WorkflowContext[str, str]) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.gather(self.work(), self.work())
        await ctx.yield_output("busy")

    async def work(self) -> None:
        await asyncio.sleep(0)


async def test_tasks_of_a_workflow_that_a_function_runs_are_none_of_its_own(storage: Storage) -> None:
    asked: list[str] = []
    turns = iter([0, TURNS])

    async def reply(*_: Any) -> str:
        asked.append("model")
        return f"answer {len(asked)}"

    agent = Agent(ScriptedChatClient(reply), "x", name="A")

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        inner = WorkflowBuilder(start_executor=Busy("busy"), name="inner").build()
        waiting = next(turns)

        async def busy() -> str:
            return (await inner.run(waiting)).get_outputs()[0]

        async def later() -> str:
            for _ in range(TURNS // 2):
                await asyncio.sleep(0)
            first, second = await asyncio.gather(agent.run("go"), agent.run("go"))
            return f"{first.text}, {second.text}"

        found = list(await asyncio.gather(busy(), later()))
        return [*found, await ctx.request_info("go on?", str)]

    await office.run("go", run_id="r", checkpoint_storage=storage)
    result = await office.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["busy", "answer 1, answer 2", "yes"]]
    assert len(asked) == 2


class Sleeper(Executor):
    """A plain handler that catches what comes out of a task group, and waits."""

    @handler
    async def go(self, _: str, ctx: WorkflowContext[str, str]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.fail())
        except* OSError:
            pass
        await ctx.yield_output(await ctx.ask("go on?", str))

    async def fail(self) -> None:
        await asyncio.sleep(0)
        raise OSError("down")


async def test_a_function_that_has_caught_what_came_out_of_a_task_group_can_be_left(storage: Storage) -> None:
    @step
    async def fetch() -> None:
        raise OSError("down")

    @workflow
    async def reader(_: str, ctx: RunContext) -> str:
        async def branch() -> None:
            await asyncio.sleep(0)
            await fetch()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch())
        except* OSError:
            pass
        return await ctx.request_info("go on?", str)

    await reader.run("go", run_id="r", checkpoint_storage=storage)
    result = await reader.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == ["yes"]


async def test_a_handler_that_has_caught_what_came_out_of_a_task_group_can_be_left(storage: Storage) -> None:
    def built() -> Any:
        return WorkflowBuilder(start_executor=Sleeper("sleeper"), name="g", checkpoint_storage=storage).build()

    (asked,) = (await built().run("go", run_id="r")).get_request_info_events()
    assert (await built().run(run_id="r", responses={asked.request_id: "yes"})).get_outputs() == ["yes"]


@pytest.fixture(autouse=True)
async def factory() -> AsyncGenerator[None]:
    """No function changes the event loop."""
    yield
    assert asyncio.get_running_loop().get_task_factory() is None
