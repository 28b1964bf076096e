"""Tasks that a function has side by side find their own results, whichever of them was the faster one."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perdure import Agent, InMemoryCheckpointStorage, RunContext, step, workflow
from perdure.engine import reading
from perdure.testing import ScriptedChatClient
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    import pytest

    from perdure.storage import StoreStorage as Storage


def slow_and_fast(went_on: asyncio.Event) -> tuple[Agent[Any], Agent[Any]]:
    """Two agents: the first one answers when somebody has gone on with what the second one said."""

    async def slowly(*_: Any) -> str:
        await went_on.wait()
        return "slow"

    async def at_once(*_: Any) -> str:
        return "fast"

    return Agent(ScriptedChatClient(slowly), "x", name="A"), Agent(ScriptedChatClient(at_once), "x", name="B")


async def test_steps_behind_agents_are_not_swapped(storage: Storage) -> None:
    made: list[int] = []
    seen: list[list[str]] = []
    agents = slow_and_fast(went_on := asyncio.Event())

    @step
    async def ticket() -> int:
        made.append(len(made))
        went_on.set()
        return made[-1]

    async def branch(agent: Agent[Any]) -> str:
        return f"{(await agent.run('go')).text} {await ticket()}"

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        seen.append(await asyncio.gather(*map(branch, agents)))
        await ctx.request_info("go on?", bool)
        return seen[-1]

    await office.run("go", run_id="r", checkpoint_storage=storage)
    result = await office.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert result.get_outputs() == [["slow 1", "fast 0"]]
    assert seen == [["slow 1", "fast 0"]] * 2
    assert len(made) == 2


async def test_answers_behind_agents_are_not_swapped(storage: Storage) -> None:
    agents = slow_and_fast(went_on := asyncio.Event())

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        async def branch(agent: Agent[Any]) -> str:
            text = (await agent.run("go")).text
            went_on.set()
            return f"{text}: {await ctx.request_info(f'publish the {text} one?', str)}"

        return await asyncio.gather(*map(branch, agents))

    first = await office.run("go", run_id="r", checkpoint_storage=storage)
    answers = {event.request_id: f"answer to {event.data}" for event in first.get_request_info_events()}
    result = await office.twin().run(run_id="r", responses=answers, checkpoint_storage=storage)
    assert result.get_outputs() == [
        ["slow: answer to publish the slow one?", "fast: answer to publish the fast one?"],
    ]


async def test_turns_that_are_told_the_same_belong_to_their_branch(storage: Storage) -> None:
    answers = iter(["first", "second"])
    kept: list[str] = []
    late = asyncio.Event()

    async def reply(*_: Any) -> str:
        return next(answers)

    agent = Agent(ScriptedChatClient(reply), "x", name="A")

    @step
    async def prepare(number: int) -> None:
        if number == 0:
            await late.wait()

    @step
    async def keep(text: str) -> str:
        kept.append(text)
        late.set()
        return text

    async def branch(number: int) -> str:
        await prepare(number)
        return await keep((await agent.run("an idea, please")).text)

    @workflow
    async def ideas(_: str, ctx: RunContext) -> list[str]:
        found = list(await asyncio.gather(branch(0), branch(1)))
        await ctx.request_info("go on?", bool)
        return found

    await ideas.run("go", run_id="r", checkpoint_storage=storage)
    result = await ideas.twin().run(run_id="r", responses={"auto::0": True}, checkpoint_storage=storage)
    assert result.get_outputs() == [["second", "first"]]
    assert kept == ["first", "second"]


async def test_sleeps_side_by_side_keep_their_times() -> None:
    clock, storage = ManualClock(), InMemoryCheckpointStorage()
    late, woken = asyncio.Event(), list[str]()

    @step
    async def prepare(name: str) -> None:
        if name == "short":
            await late.wait()
        late.set()

    @workflow(clock=clock)
    async def naps(_: str, ctx: RunContext) -> list[str]:
        async def branch(name: str, hours: int) -> str:
            await prepare(name)
            await ctx.sleep(timedelta(hours=hours))
            woken.append(name)
            return name

        return list(await asyncio.gather(branch("short", 1), branch("long", 100)))

    await naps.run("go", run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    clock.advance(timedelta(hours=2))
    await naps.twin().run(run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert woken == ["short"]
    clock.advance(timedelta(hours=100))
    result = await naps.twin().run(run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert result.get_outputs() == [["short", "long"]]


async def test_branches_that_begin_others_first_are_not_swapped(storage: Storage) -> None:
    made: list[str] = []
    late = asyncio.Event()

    @step
    async def work(name: str) -> None:
        if name.startswith("A"):
            await late.wait()

    @step
    async def ticket() -> int:
        late.set()
        made.append("ticket")
        return len(made)

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        async def branch(name: str) -> str:
            async with asyncio.TaskGroup() as group:
                for number in range(2):
                    group.create_task(work(f"{name}{number}"))
            await asyncio.gather(*(asyncio.wait_for(helped(f"{name}{number}"), None) for number in range(2)))
            return f"{name}: {await ticket()}, {await ctx.request_info(f'publish {name}?', str)}"

        async def helped(name: str) -> None:
            await work(name)

        return list(await asyncio.gather(branch("A"), branch("B")))

    first = await office.run("go", run_id="r", checkpoint_storage=storage)
    (to_a,) = (event.request_id for event in first.get_request_info_events() if event.data == "publish A?")
    second = await office.twin().run(run_id="r", responses={to_a: "yes, A"}, checkpoint_storage=storage)
    (to_b,) = (event.request_id for event in second.get_request_info_events())
    result = await office.twin().run(run_id="r", responses={to_b: "yes, B"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["A: 2, yes, A", "B: 1, yes, B"]]
    assert len(made) == 2


async def test_branches_that_wait_for_something_else_first_are_not_swapped(storage: Storage) -> None:
    made: list[str] = []
    last = iter(["A", "B"])

    @step
    async def ticket() -> int:
        made.append("ticket")
        return len(made)

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        waits, gate = next(last), asyncio.Event()

        async def branch(name: str) -> str:
            if name == waits:
                await gate.wait()
            number = await ticket()
            gate.set()
            return f"{name}: {number}"

        found = list(await asyncio.gather(branch("A"), branch("B")))
        return [*found, await ctx.request_info("go on?", str)]

    await office.run("go", run_id="r", checkpoint_storage=storage)
    result = await office.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["A: 2", "B: 1", "yes"]]
    assert len(made) == 2


async def test_tasks_of_others_beside_the_branches_do_not_count(storage: Storage) -> None:
    charged: list[int] = []
    is_first = [True]

    @step
    async def charge(euros: int) -> str:
        charged.append(euros)
        return f"paid {euros}"

    async def connect() -> None:
        """As a client does it that has no connection yet."""

    @workflow
    async def till(_: str, ctx: RunContext) -> list[str]:
        async def pay(euros: int) -> str:
            return await charge(euros)

        if is_first.pop():
            await asyncio.create_task(connect())
        is_first.append(False)
        paid = list(await asyncio.gather(pay(1), pay(2)))
        return [*paid, await ctx.request_info("a receipt?", str)]

    await till.run("go", run_id="r", checkpoint_storage=storage)
    result = await till.twin().run(run_id="r", responses={"auto::0": "no"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid 1", "paid 2", "no"]]
    assert charged == [1, 2]


async def test_the_task_factory_of_a_loop_makes_the_tasks_and_is_there_afterwards() -> None:
    made: list[str] = []
    loop = asyncio.get_running_loop()
    inside: list[Any] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any) -> asyncio.Task[Any]:
        """As they were before a context could be given."""
        made.append(coro.__name__)
        return asyncio.Task(coro, loop=loop)

    @step
    async def double(number: int) -> int:
        return 2 * number

    async def branch(number: int) -> int:
        return await double(number)

    @workflow
    async def doubles(_: str) -> list[int]:
        inside.append(loop.get_task_factory())
        return list(await asyncio.gather(branch(1), branch(2)))

    loop.set_task_factory(factory)
    try:
        result = await doubles.run("go")
        assert loop.get_task_factory() is factory
    finally:
        loop.set_task_factory(None)
    assert result.get_outputs() == [[2, 4]]
    assert made.count("branch") == 2
    assert inside != [factory]


async def test_a_task_factory_that_came_meanwhile_stays() -> None:
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coro: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=loop)

    @step
    async def double(number: int) -> int:
        return 2 * number

    async def branch(number: int) -> int:
        return await double(number)

    @workflow
    async def doubles(_: str) -> list[int]:
        loop.set_task_factory(factory)
        return list(await asyncio.gather(branch(1), branch(2)))

    result = await doubles.run("go")
    assert loop.get_task_factory() is factory
    loop.set_task_factory(None)
    assert result.get_outputs() == [[2, 4]]


async def test_tasks_with_a_context_of_their_own_are_numbered_as_they_come(storage: Storage) -> None:
    charged: list[int] = []

    @step
    async def charge(euros: int) -> str:
        charged.append(euros)
        return f"paid {euros}"

    @workflow
    async def till(_: str, ctx: RunContext) -> list[str]:
        async def pay(euros: int) -> str:
            return await charge(euros)

        tasks = [asyncio.create_task(pay(each), context=copy_context()) for each in (1, 2)]
        return [*await asyncio.gather(*tasks), await ctx.request_info("a receipt?", str)]

    await till.run("go", run_id="r", checkpoint_storage=storage)
    result = await till.twin().run(run_id="r", responses={"auto::0": "no"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid 1", "paid 2", "no"]]
    assert charged == [1, 2]


async def test_another_python_finds_steps_and_questions_that_have_another_task_there(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[int] = []
    in_task = [True]

    @step
    async def charge(euros: int) -> str:
        charged.append(euros)
        return f"paid {euros}"

    @workflow
    async def till(_: str, ctx: RunContext) -> list[str]:
        async def pay() -> str:
            return f"{await charge(10)}, {await ctx.request_info('a receipt?', str)}"

        # As asyncio.wait_for does it, or does not, depending on the version.
        return [await (asyncio.create_task(pay()) if in_task[0] else pay())]

    first = await till.run("go", run_id="r", checkpoint_storage=storage)
    (asked,) = first.get_request_info_events()
    in_task[0] = False
    monkeypatch.setattr(reading, "PYTHON", "3.99")
    result = await till.twin().run(run_id="r", responses={asked.request_id: "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid 10, yes"]]
    assert charged == [10]
