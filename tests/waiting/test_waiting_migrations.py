"""A changed graph before a run that waits: renamed executors are found again, what is gone is named."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import HOUR, RUN_ID, Work, ended, until
from tests.workflow.nodes import Context, ending, keeping, node

from perdure import (
    CompatibilityReport,
    IncompatibleGraphError,
    Migration,
    WorkflowBuilder,
    WorkflowExecutor,
    WorkflowRunState,
)
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage

    from perdure import Executor, Workflow

IDLE = WorkflowRunState.IDLE


class Scene:
    """A start that sends to two executors: one works, sleeps and works again, the other gets its message later."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.clock = ManualClock()
        self.work = Work()
        self.heard: list[Any] = []

    def built(self, sleeper: str | None, late: str | None, **options: Any) -> Workflow:
        """The workflow, with these names of the two, or without them."""

        async def send(_: Any, ctx: Context) -> None:
            await ctx.send_message("now", sleeper)
            await ctx.send_message("later", late, delay=HOUR)

        async def sleep(_: Any, ctx: Context) -> None:
            first = await ctx.step("work", self.work, "first")
            await ctx.sleep(HOUR)
            await ctx.yield_output([first, await ctx.step("work", self.work, "second")])

        start = node("start", send)
        ends: list[Executor] = [ending("end")]
        ends += [node(sleeper, sleep)] if sleeper else []
        ends += [keeping(late, self.heard)] if late else []
        builder = WorkflowBuilder(
            name="w", start_executor=start, checkpoint_storage=self.storage, clock=self.clock, **options
        )
        for end in ends:
            builder = builder.add_edge(start, end)
        return builder.build()

    async def asleep(self) -> None:
        """Run until both wait."""
        result = await self.built("sleeper", "late").run("go", run_id=RUN_ID, wait_for_timers=False)
        assert ended(result) is WorkflowRunState.SLEEPING
        self.clock.advance(HOUR)


async def test_what_waits_goes_on_under_new_names(storage: Storage) -> None:
    scene = Scene(storage)
    await scene.asleep()
    renamed = Migration(to=2, rename={"sleeper": "dozer", "late": "sleeper"})
    result = await scene.built("dozer", "sleeper", version=2, migrations=[renamed]).run(run_id=RUN_ID)
    assert (ended(result), result.get_outputs()) == (IDLE, [["FIRST", "SECOND"]])
    assert (scene.work.done, scene.heard) == (["first", "second"], ["later"])


async def test_an_executor_that_is_gone_is_named_with_what_waits_for_it(storage: Storage) -> None:
    scene = Scene(storage)
    await scene.asleep()
    with pytest.raises(IncompatibleGraphError) as caught:
        await scene.built(None, None).run(run_id=RUN_ID)
    report = caught.value.report
    assert isinstance(report, CompatibilityReport)
    affected = {item.what for item in report.affected}
    assert affected == {"a suspended activation of executor 'sleeper'", "a delayed message of executor 'start'"}


async def test_what_a_cancelled_superstep_has_recorded_is_found_under_new_names(storage: Storage) -> None:
    clock, work, is_waiting = ManualClock(), Work(), list[bool]()

    def built(name: str, **options: Any) -> Workflow:
        async def do(_: Any, ctx: Context) -> None:
            first = await ctx.step("work", work, "first")
            if not is_waiting:
                is_waiting.append(True)
                await asyncio.get_running_loop().create_future()
            await ctx.yield_output(first)

        return WorkflowBuilder(
            name="w", start_executor=node(name, do), checkpoint_storage=storage, clock=clock, **options
        ).build()

    running = asyncio.ensure_future(built("old").run("go", run_id=RUN_ID))
    await until(lambda: bool(is_waiting), running)
    await storage.cancel(RUN_ID)
    assert ended(await running) is WorkflowRunState.CANCELLED
    result = await built("new", version=2, migrations=[Migration(to=2, rename={"old": "new"})]).run(run_id=RUN_ID)
    assert (result.get_outputs(), work.done) == (["FIRST"], ["first"])


async def test_what_sleeps_inside_a_sub_workflow_goes_on_under_new_names(storage: Storage) -> None:
    clock, work = ManualClock(), Work()

    def built(sub: str, name: str, *, is_renamed: bool = False) -> Workflow:
        async def do(_: Any, ctx: Context) -> None:
            await ctx.step("work", work, "first")
            await ctx.sleep(HOUR)
            await ctx.yield_output("slept")

        def options(old: str, new: str) -> dict[str, Any]:
            return {"version": 2, "migrations": [Migration(to=2, rename={old: new})]} if is_renamed else {}

        start = node(name, do)
        inner = WorkflowBuilder(name="inner", start_executor=start, clock=clock, **options("node", name)).build()
        outer = WorkflowExecutor(inner, sub, allow_direct_output=True)
        return WorkflowBuilder(
            name="w", start_executor=outer, checkpoint_storage=storage, clock=clock, **options("sub", sub)
        ).build()

    await built("sub", "node").run("go", run_id=RUN_ID, wait_for_timers=False)
    clock.advance(HOUR)
    renamed = built("other", "changed", is_renamed=True)
    assert (await renamed.run(run_id=RUN_ID)).get_outputs() == ["slept"]
    assert work.done == ["first"]
