"""Tasks that a function has side by side find their own results, whichever of them was the faster one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perdure import Agent, InMemoryCheckpointStorage, RunContext, step, workflow
from perdure.runtime import reading
from perdure.testing import ScriptedChatClient
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    import pytest

    from perdure.storages.base import StoreStorage as Storage


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
