"""A function that waits: as an agent in a graph as well as alone, and what it told is told once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perdure import (
    AgentExecutor,
    InMemoryCheckpointStorage,
    Retry,
    RunContext,
    StepDecision,
    WorkflowBuilder,
    WorkflowEvent,
    WorkflowRunState,
    step,
    workflow,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from perdure import FunctionalWorkflow, Workflow
    from perdure.clock import Clock
    from perdure.storage import StoreStorage as Storage


def office(function: FunctionalWorkflow, clock: Clock | None = None) -> Workflow:
    """A graph in which a function is an agent."""
    return WorkflowBuilder(name="office", start_executor=AgentExecutor(function.as_agent()), clock=clock).build()


def text_of(result: Any) -> str:
    """What the agent said at last."""
    return result.get_outputs()[-1].text


async def test_a_function_that_is_an_agent_sleeps_in_its_graph() -> None:
    clock, storage, made = ManualClock(), InMemoryCheckpointStorage(), list[str]()

    @step
    async def prepare(text: str) -> str:
        made.append(text)
        return text

    @workflow
    async def naps(_: Any, ctx: RunContext) -> str:
        async def nap(name: str, hours: int) -> str:
            await prepare(name)
            await ctx.sleep(timedelta(hours=hours))
            return name

        return ", ".join(await asyncio.gather(nap("short", 1), nap("long", 10)))

    first = await office(naps, clock).run("go", run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert first.get_final_state() is WorkflowRunState.SLEEPING
    clock.advance(timedelta(hours=2))
    second = await office(naps, clock).run(run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert second.get_final_state() is WorkflowRunState.SLEEPING
    clock.advance(timedelta(hours=10))
    result = await office(naps, clock).run(run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert text_of(result) == "short, long"
    assert sorted(made) == ["long", "short"]


async def test_a_step_of_it_that_is_tried_again_much_later_lets_the_graph_rest() -> None:
    clock, storage, tried = ManualClock(), InMemoryCheckpointStorage(), list[int]()

    @step(retry=Retry(attempts=2, backoff=3600))
    async def unsteady() -> str:
        tried.append(len(tried))
        if len(tried) == 1:
            raise ConnectionError("not yet")
        return "there"

    @workflow
    async def stubborn(_: Any) -> str:
        return await unsteady()

    first = await office(stubborn, clock).run("go", run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert first.get_final_state() is WorkflowRunState.SLEEPING
    clock.advance(timedelta(hours=3))
    result = await office(stubborn, clock).run(run_id="r", checkpoint_storage=storage, wait_for_timers=False)
    assert text_of(result) == "there"
    assert tried == [0, 1]


async def test_somebody_is_asked_what_became_of_a_step_of_it_that_was_interrupted(storage: Storage) -> None:
    begun = asyncio.Event()

    @step(if_interrupted="ask")
    async def charge() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    @workflow
    async def till(_: Any) -> str:
        return await charge()

    life = asyncio.ensure_future(_run(office(till), storage))
    await begun.wait()
    life.cancel()
    await asyncio.wait([life])
    second = await office(till).run(run_id="r", checkpoint_storage=storage)
    (asked,) = second.get_request_info_events()
    answers = {asked.request_id: StepDecision("done", "charged")}
    assert text_of(await office(till).run(run_id="r", responses=answers, checkpoint_storage=storage)) == "charged"


async def _run(graph: Workflow, storage: Storage) -> Any:
    return await graph.run("go", run_id="r", checkpoint_storage=storage)


async def test_events_that_were_told_before_a_wait_are_committed_once(storage: Storage) -> None:
    @workflow
    async def teller(_: str, ctx: RunContext) -> None:
        for _each in range(2):
            await ctx.add_event(WorkflowEvent("mine", "before"))
        await ctx.request_info("first?", str)
        await ctx.add_event(WorkflowEvent("mine", "between"))
        await ctx.request_info("second?", str)
        await ctx.add_event(WorkflowEvent("mine", "before"))

    await teller.run("go", run_id="r", checkpoint_storage=storage)
    for request_id in ("auto::0", "auto::1"):
        await teller.twin().run(run_id="r", responses={request_id: "yes"}, checkpoint_storage=storage)
    run = await teller.twin().start(run_id="r", checkpoint_storage=storage)
    told = [event.data async for event in run.events(from_seq=1) if event.type == "mine"]
    assert told == ["before", "before", "between", "before"]
