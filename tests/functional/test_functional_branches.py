"""Steps, questions and sleeps in parallel tasks are known by their arguments, whichever task was the faster one."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from perdure import Agent, InMemoryCheckpointStorage, RunContext, StepMismatchError, step, workflow
from perdure.testing import ScriptedChatClient
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
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
    made: list[str] = []
    seen: list[list[str]] = []
    agents = slow_and_fast(went_on := asyncio.Event())

    @step
    async def ticket(holder: str) -> int:
        made.append(holder)
        went_on.set()
        return len(made) - 1

    async def branch(agent: Agent[Any]) -> str:
        text = (await agent.run("go")).text
        return f"{text} {await ticket(text)}"

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
    assert result.get_outputs() == [["slow: answer to publish the slow one?", "fast: answer to publish the fast one?"]]


async def test_turns_with_equal_messages_are_interchangeable_and_not_repeated(storage: Storage) -> None:
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
    (found,) = result.get_outputs()
    assert sorted(found) == ["first", "second"]
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
    async def ticket(name: str) -> int:
        late.set()
        made.append(name)
        return len(made)

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        async def branch(name: str) -> str:
            async with asyncio.TaskGroup() as group:
                for number in range(2):
                    group.create_task(work(f"{name}{number}"))
            await asyncio.gather(*(asyncio.wait_for(helped(f"{name}{number}"), None) for number in range(2)))
            return f"{name}: {await ticket(name)}, {await ctx.request_info(f'publish {name}?', str)}"

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
    async def ticket(name: str) -> int:
        made.append(name)
        return len(made)

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        waits, gate = next(last), asyncio.Event()

        async def branch(name: str) -> str:
            if name == waits:
                await gate.wait()
            number = await ticket(name)
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


async def test_the_task_factory_of_the_loop_is_left_alone() -> None:
    loop, inside = asyncio.get_running_loop(), list[Any]()

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=loop, **options)

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
    finally:
        loop.set_task_factory(None)
    assert result.get_outputs() == [[2, 4]]
    assert inside == [factory]


@pytest.mark.parametrize("is_first_in_task", [True, False])
async def test_steps_and_questions_are_found_in_another_task_than_before(
    storage: Storage, *, is_first_in_task: bool
) -> None:
    charged: list[int] = []
    in_task = [is_first_in_task]

    @step
    async def charge(euros: int) -> str:
        charged.append(euros)
        return f"paid {euros}"

    @workflow
    async def till(_: str, ctx: RunContext) -> list[str]:
        async def pay() -> str:
            return f"{await charge(10)}, {await ctx.request_info('a receipt?', str)}"

        # `asyncio.wait_for` starts a task in some versions of Python and none in others.
        return [await (asyncio.create_task(pay()) if in_task[0] else pay())]

    first = await till.run("go", run_id="r", checkpoint_storage=storage)
    (asked,) = first.get_request_info_events()
    in_task[0] = not is_first_in_task
    result = await till.twin().run(run_id="r", responses={asked.request_id: "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["paid 10, yes"]]
    assert charged == [10]


async def test_of_two_equal_calls_one_takes_the_record_and_one_runs(storage: Storage) -> None:
    made: list[int] = []
    is_recorded = asyncio.Event()

    @step
    async def ticket() -> int:
        made.append(len(made))
        number = made[-1]
        if number == 1:
            await is_recorded.wait()
            raise OSError("down")
        return number

    async def branch() -> int:
        found = await ticket()
        is_recorded.set()
        return found

    @workflow
    async def office(_: str) -> list[int]:
        return sorted(await asyncio.gather(branch(), branch()))

    with pytest.raises(OSError, match="down"):
        await office.run("go", run_id="r", checkpoint_storage=storage)
    result = await office.twin().run(run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [[0, 2]]
    assert made == [0, 1, 2]


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
async def test_a_step_that_captures_values_needs_a_key_in_a_subtask(storage: Storage, names: list[str]) -> None:
    made: list[str] = []

    @workflow
    async def office(_: str) -> list[str]:
        async def branch(name: str, key: Any = None) -> str:
            async def greet() -> str:
                made.append(name)
                return f"hello {name}"

            return await step(key=key)(greet)()

        with pytest.raises(StepMismatchError, match="give it its own key"):
            await asyncio.gather(*map(branch, names))
        assert made == []
        return list(await asyncio.gather(*(branch(name, functools.partial(str, name)) for name in names)))

    result = await office.run("go", run_id="r", checkpoint_storage=storage)
    assert result.get_outputs() == [[f"hello {name}" for name in names]]
    assert made == names


async def test_a_step_that_captures_values_needs_no_key_in_the_order_of_the_code(storage: Storage) -> None:
    made: list[str] = []

    @workflow
    async def office(_: str, ctx: RunContext) -> list[str]:
        found: list[str] = []

        async def greeted(name: str) -> None:
            @step
            async def greet() -> str:
                made.append(name)
                return f"hello {name}"

            found.append(await greet())

        for name in ("a", "b"):
            await greeted(name)
        return [*found, await ctx.request_info("well?", str)]

    await office.run("go", run_id="r", checkpoint_storage=storage)
    result = await office.twin().run(run_id="r", responses={"auto::0": "yes"}, checkpoint_storage=storage)
    assert result.get_outputs() == [["hello a", "hello b", "yes"]]
    assert made == ["a", "b"]
