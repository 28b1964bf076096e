"""A run that sleeps rests in its store: what had ended is committed, what waits is entered again when it is time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import (
    HOUR,
    RUN_ID,
    Counting,
    Work,
    alone,
    committed,
    ended,
    nested,
    outputs,
    record_of,
    side_by_side,
    until,
    until_asleep,
)
from tests.workflow.nodes import Context, node

from perdure import InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowConvergenceException, WorkflowRunState
from perdure.errors import RunUnfinishedError
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from datetime import datetime

    from tests.waiting.scenes import Storage
    from tests.workflow.nodes import Doing

SLEEPING, IDLE = WorkflowRunState.SLEEPING, WorkflowRunState.IDLE


async def sleeper(_: Any, ctx: Context) -> None:
    await ctx.sleep(HOUR)
    await ctx.yield_output("slept")


async def test_what_ran_beside_a_sleeper_is_committed_and_goes_on(storage: Storage) -> None:
    clock, work = ManualClock(), Work()

    async def worker(_: Any, ctx: Context) -> None:
        await ctx.yield_output(work("worked"))

    workflow = side_by_side(clock, storage, sleeper, worker)
    first = await workflow.run("go", run_id=RUN_ID, wait_for_timers=False)
    assert (ended(first), first.get_outputs()) == (SLEEPING, ["WORKED"])
    assert outputs(await committed(storage)) == ["WORKED"]
    clock.advance(HOUR)
    again = await workflow.twin().run(run_id=RUN_ID)
    assert (ended(again), work.done) == (IDLE, ["worked"])
    assert outputs(await committed(storage)) == ["WORKED", "slept"]


async def test_the_record_of_a_run_says_that_it_sleeps_and_until_when(storage: Storage) -> None:
    clock = ManualClock()
    workflow = alone(sleeper, clock, storage)
    await workflow.run("go", run_id=RUN_ID, wait_for_timers=False)
    record = await record_of(storage)
    assert (record.status, record.wake_at, record.settled) == ("sleeping", (clock.now() + HOUR).isoformat(), False)
    clock.advance(HOUR)
    await workflow.run(run_id=RUN_ID)
    record = await record_of(storage)
    assert (record.status, record.wake_at, record.settled) == ("idle", None, True)


async def test_before_its_time_a_run_sleeps_on_and_nothing_is_written(storage: Storage) -> None:
    clock = ManualClock()
    workflow = alone(sleeper, clock, storage)
    await workflow.run("go", run_id=RUN_ID, wait_for_timers=False)
    before = await record_of(storage)
    clock.advance(HOUR / 2)
    again = await workflow.twin().run(run_id=RUN_ID, wait_for_timers=False)
    assert (ended(again), (await record_of(storage)).head) == (SLEEPING, before.head)


async def test_the_time_of_a_sleep_is_that_of_its_first_entry(storage: Storage) -> None:
    clock, entered = ManualClock(), list["datetime"]()

    async def twice(_: Any, ctx: Context) -> None:
        entered.append(clock.now())
        await ctx.sleep(HOUR)
        await ctx.sleep(HOUR)

    begun = clock.now()
    await alone(twice, clock, storage).run("go", run_id=RUN_ID, wait_for_timers=False)
    clock.advance(HOUR * 10)
    await alone(twice, clock, storage).run(run_id=RUN_ID, wait_for_timers=False)
    clock.advance(HOUR)
    await alone(twice, clock, storage).run(run_id=RUN_ID, wait_for_timers=False)
    assert [moment - begun for moment in entered] == [HOUR * 0, HOUR * 10, HOUR * 11]


@pytest.mark.parametrize("levels", [0, 1, 2])
async def test_a_handler_is_the_same_to_others_however_often_it_is_entered(storage: Storage, levels: int) -> None:
    clock, keys = ManualClock(skips=True), list[str]()

    async def do(_: Any, ctx: Context) -> None:
        keys.append(ctx.idempotency_key)
        await ctx.sleep(HOUR)
        await ctx.sleep(HOUR)
        await ctx.yield_output("done")

    result = await nested(do, clock, storage, levels=levels).run("go")
    assert (len(keys), len(set(keys)), result.get_outputs()) == (3, 1, ["done"])


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_sub_workflow_sleeps_while_its_parent_rests(storage: Storage, levels: int) -> None:
    clock, work = ManualClock(), Work()

    async def do(_: Any, ctx: Context) -> None:
        first = await ctx.step("work", work, "first")
        await ctx.sleep(HOUR)
        await ctx.yield_output([first, await ctx.step("work", work, "second")])

    first = await nested(do, clock, storage, levels=levels).run("go", run_id=RUN_ID, wait_for_timers=False)
    record = await record_of(storage)
    assert (ended(first), record.status, record.wake_at) == (SLEEPING, "sleeping", (clock.now() + HOUR).isoformat())
    clock.advance(HOUR)
    again = await nested(do, clock, storage, levels=levels).run(run_id=RUN_ID)
    assert (ended(again), again.get_outputs(), work.done) == (IDLE, [["FIRST", "SECOND"]], ["first", "second"])


async def test_a_sleeping_executor_with_hooks_has_not_heard_its_message_yet(storage: Storage) -> None:
    clock, counting = ManualClock(), Counting()
    workflow = WorkflowBuilder(name="w", start_executor=counting, checkpoint_storage=storage, clock=clock).build()
    await workflow.run("one", run_id=RUN_ID)
    run = workflow.start(run_id=RUN_ID)
    await run.result()
    await workflow.run("sleep", wait_for_timers=False)
    [*_, newest] = await run.checkpoints()
    assert counting.heard == ["one"]
    assert newest.state["_executor_state"]["counting"] == {"heard": ["one"]}
    clock.advance(HOUR)
    assert (await workflow.run(run_id=RUN_ID)).get_outputs() == [["one", "sleep"]]


async def test_a_sleeping_run_takes_no_new_turn(storage: Storage) -> None:
    workflow = alone(sleeper, ManualClock(), storage)
    await workflow.run("go", run_id=RUN_ID, wait_for_timers=False)
    with pytest.raises(RunUnfinishedError):
        await workflow.run("again")


async def test_a_fork_of_a_sleeping_run_sleeps_with_keys_of_its_own(storage: Storage) -> None:
    clock, keys, work = ManualClock(), list[str](), Work()

    async def do(_: Any, ctx: Context) -> None:
        keys.append(ctx.idempotency_key)
        await ctx.step("work", work, "before")
        await ctx.sleep(HOUR)
        await ctx.yield_output("slept")

    run = alone(do, clock, storage).start("go", run_id=RUN_ID, wait_for_timers=False)
    await run.result()
    fork = await run.fork()
    clock.advance(HOUR)
    assert (await fork.result()).get_outputs() == ["slept"]
    assert (await record_of(storage)).status == "sleeping"
    await alone(do, clock, storage).run(run_id=RUN_ID)
    assert work.done == ["before"]
    assert (keys[0] == keys[2], keys[0] == keys[1]) == (True, False)


async def test_a_run_put_back_to_where_it_slept_sleeps_and_wakes_again(storage: Storage) -> None:
    clock, work = ManualClock(), Work()

    async def do(_: Any, ctx: Context) -> None:
        await ctx.step("work", work, "before")
        await ctx.sleep(HOUR)
        await ctx.step("work", work, "after")

    run = alone(do, clock, storage).start("go", run_id=RUN_ID, wait_for_timers=False)
    await run.result()
    [*_, asleep] = await run.checkpoints()
    clock.advance(HOUR)
    await alone(do, clock, storage).run(run_id=RUN_ID)
    await run.restore(asleep.checkpoint_id)
    assert run.status is SLEEPING
    await run.result()
    assert (run.status, work.done) == (IDLE, ["before", "after", "after"])


async def test_a_message_to_an_executor_is_taken_in_while_the_run_sleeps(storage: Storage) -> None:
    clock, heard = ManualClock(), list[Any]()

    async def do(message: Any, ctx: Context) -> None:
        heard.append(message)
        if message == "go":
            await ctx.sleep(HOUR)

    running = asyncio.ensure_future(alone(do, clock, storage).run("go", run_id=RUN_ID))
    await until_asleep(clock, running)
    await storage.send(RUN_ID, "meanwhile", target="node")
    await until(lambda: "meanwhile" in heard, running)
    await until_asleep(clock, running)
    clock.advance(HOUR)
    assert (ended(await running), heard) == (IDLE, ["go", "meanwhile", "go"])


async def test_a_cancel_is_taken_in_while_the_run_sleeps(storage: Storage) -> None:
    clock = ManualClock()
    running = asyncio.ensure_future(alone(sleeper, clock, storage).run("go", run_id=RUN_ID))
    await until_asleep(clock, running)
    await storage.cancel(RUN_ID, reason="not today")
    assert ended(await running) is WorkflowRunState.CANCELLED
    record = await record_of(storage)
    assert (record.status, record.wake_at) == ("cancelled", None)


async def test_a_cancelled_sleeper_wakes_at_its_time_once_the_run_goes_on(storage: Storage) -> None:
    clock, work = ManualClock(), Work()

    async def do(_: Any, ctx: Context) -> None:
        await ctx.step("work", work, "before")
        await ctx.sleep(HOUR)
        await ctx.yield_output("slept")

    await alone(do, clock, storage).run("go", run_id=RUN_ID, wait_for_timers=False)
    due = (await record_of(storage)).wake_at
    await storage.cancel(RUN_ID)
    assert ended(await alone(do, clock, storage).run(run_id=RUN_ID)) is WorkflowRunState.CANCELLED
    assert ended(await alone(do, clock, storage).run(run_id=RUN_ID, wait_for_timers=False)) is SLEEPING
    assert (await record_of(storage)).wake_at == due
    clock.advance(HOUR)
    assert (await alone(do, clock, storage).run(run_id=RUN_ID)).get_outputs() == ["slept"]
    assert work.done == ["before"]


async def test_the_supersteps_since_the_last_input_count_from_the_wake() -> None:
    clock, rounds = ManualClock(skips=True), list[int]()

    async def do(message: Any, ctx: Context) -> None:
        rounds.append(message)
        await ctx.sleep(HOUR)
        if message < 10:
            await ctx.send_message(message + 1, "node")

    def limited(doing: Doing) -> Workflow:
        one = node("node", doing)
        builder = WorkflowBuilder(
            name="w", start_executor=one, max_iterations=3, checkpoint_storage=InMemoryCheckpointStorage(), clock=clock
        )
        return builder.add_edge(one, one).build()

    assert ended(await limited(do).run(0)) is IDLE
    assert max(rounds) == 10

    async def restless(message: Any, ctx: Context) -> None:
        await ctx.send_message(message + 1, "node")

    with pytest.raises(WorkflowConvergenceException):
        await limited(restless).run(0)
