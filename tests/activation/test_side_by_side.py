"""What a handler asks and waits for in tasks of its own is known by the task, whichever is the faster one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.activation.solo import Context, lone

from perdure import InMemoryCheckpointStorage
from perdure.testing.clock import ManualClock


async def test_each_of_two_questions_side_by_side_gets_its_own_answer_though_the_second_is_asked_first() -> None:
    async def do(_: str, ctx: Context) -> None:
        async def asked(what: str, rounds: int) -> tuple[str, str]:
            async def prepare() -> None:
                for _ in range(rounds):
                    await asyncio.sleep(0)

            await ctx.step("prepare", prepare, key=what)
            return what, await ctx.ask(f"delete {what}?", str)

        await ctx.yield_output(dict(await asyncio.gather(asked("database", 20), asked("temp", 0))))

    storage = InMemoryCheckpointStorage()
    result = await lone(do, storage=storage).run("go", run_id="r")
    answers = {"delete temp?": "yes", "delete database?": "no"}
    while asked := result.get_request_info_events():
        given = {asked[0].request_id: answers[asked[0].data]}
        # Each answer is taken by a life of its own.
        result = await lone(do, storage=storage).run(run_id="r", responses=given)
    assert result.get_outputs() == [{"database": "no", "temp": "yes"}]
    assert not [event for event in result if event.type == "warning"]


async def test_an_answer_never_counts_for_the_question_of_a_task_that_has_overtaken() -> None:
    first_to_ask = iter(["temp", "database", "database", "database"])

    async def do(_: str, ctx: Context) -> None:
        first, gate = next(first_to_ask), asyncio.Event()

        async def asked(what: str) -> tuple[str, str]:
            if what != first:
                await gate.wait()
            answer = ctx.ask(f"delete {what}?", str)
            gate.set()
            return what, await answer

        await ctx.yield_output(dict(await asyncio.gather(asked("database"), asked("temp"))))

    storage = InMemoryCheckpointStorage()
    result = await lone(do, storage=storage).run("go", run_id="r")
    answers = {"delete temp?": "yes", "delete database?": "no"}
    while asked := result.get_request_info_events():
        given = {asked[0].request_id: answers[asked[0].data]}
        result = await lone(do, storage=storage).run(run_id="r", responses=given)
    assert result.get_outputs() == [{"database": "no", "temp": "yes"}]


async def test_a_question_in_a_task_that_is_another_now_is_asked_anew() -> None:
    names = iter(["temp", "database", "database"])

    async def do(_: str, ctx: Context) -> None:
        async def asked() -> str:
            what = next(names)
            return f"{what}: {await ctx.ask(f'delete {what}?', str)}"

        await ctx.yield_output(await asyncio.gather(asked()))

    storage = InMemoryCheckpointStorage()
    first = await lone(do, storage=storage).run("go", run_id="r")
    (temp,) = first.get_request_info_events()
    second = await lone(do, storage=storage).run(run_id="r", responses={temp.request_id: "yes"})
    (database,) = second.get_request_info_events()
    assert database.data == "delete database?"
    result = await lone(do, storage=storage).run(run_id="r", responses={database.request_id: "no"})
    assert result.get_outputs() == [["database: no"]]


async def test_each_of_two_sleeps_side_by_side_lasts_as_long_as_it_was_to() -> None:
    clock, woken = ManualClock(), list[Any]()

    async def do(_: str, ctx: Context) -> None:
        async def nap(name: str, rounds: int, hours: int) -> None:
            async def prepare() -> None:
                for _ in range(rounds):
                    await asyncio.sleep(0)

            await ctx.step("prepare", prepare, key=name)
            await ctx.sleep(timedelta(hours=hours))
            woken.append(name)

        await asyncio.gather(nap("short", 20, 1), nap("long", 0, 100))
        await ctx.yield_output("both are awake")

    storage = InMemoryCheckpointStorage(clock=clock)
    await lone(do, storage=storage, clock=clock).run("go", run_id="r", wait_for_timers=False)
    clock.advance(timedelta(hours=2))
    await lone(do, storage=storage, clock=clock).run(run_id="r", wait_for_timers=False)
    assert woken == ["short"]
    clock.advance(timedelta(hours=100))
    result = await lone(do, storage=storage, clock=clock).run(run_id="r", wait_for_timers=False)
    assert result.get_outputs() == ["both are awake"]
