"""Programs that wait, in processes that die. Run as a script: a kind of storage, a directory, a name, and hours.

Time stands still in each life, so many hours after the first one began. Every piece of work leaves a line in the file
`effects`, outside of any store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.waiting.scenes import HOUR, RUN_ID
from tests.workflow.nodes import Context, ending, node

from perdure import FileCheckpointStorage, SqliteCheckpointStorage, Workflow, WorkflowBuilder, WorkflowExecutor
from perdure.testing.clock import ManualClock


class Life:
    """One life of a program: its storage, its clock, and what it does to the world."""

    def __init__(self, kind: str, directory: Path, hours: float) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.clock.advance(timedelta(hours=hours))
        self.is_first = hours == 0
        self.storage = (
            FileCheckpointStorage(directory / "runs")
            if kind == "file"
            else SqliteCheckpointStorage(directory / "runs.db")
        )

    def work(self, name: str) -> str:
        """Leave a line."""
        with (self.directory / "effects").open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
        return name.upper()

    @staticmethod
    def die() -> None:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)

    async def die_asleep(self) -> None:
        """Kill this process when the run sleeps."""
        while not self.clock.sleepers:  # noqa: ASYNC110 - a clock that stands still tells nobody
            await asyncio.sleep(0)
        self.die()

    async def die_when_recorded(self, records: int) -> None:
        """In the first life: die when there are so many records in the journal."""
        while self.is_first:
            if len(await self.storage.store.journal(RUN_ID)) >= records:
                self.die()
            await asyncio.sleep(0)

    def built(self, start: Any) -> WorkflowBuilder:
        """A workflow in the making."""
        return WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=self.storage, clock=self.clock)


def sleeping(life: Life) -> Workflow:
    """Two steps and a sleep between them."""

    async def do(_: Any, ctx: Context) -> None:
        first = await ctx.step("work", life.work, "first")
        await ctx.sleep(HOUR)
        await ctx.yield_output([first, await ctx.step("work", life.work, "second")])

    return life.built(node("node", do)).build()


def sleeping_inside(life: Life) -> Workflow:
    """The same in a sub-workflow."""
    return life.built(WorkflowExecutor(sleeping(life), "sub", allow_direct_output=True)).build()


def delayed(life: Life) -> Workflow:
    """A message for later."""

    async def do(_: Any, ctx: Context) -> None:
        await ctx.send_message(life.work("sent"), delay=HOUR)

    start, end = node("node", do), ending("end")
    return life.built(start).add_edge(start, end).build()


def beside(life: Life) -> Workflow:
    """One sleeps. Of three that go on meanwhile one dies, in the first life, when the others have finished."""

    async def pass_on(message: Any, ctx: Context) -> None:
        await ctx.send_message(message)

    async def sleep(_: Any, ctx: Context) -> None:
        await ctx.sleep(HOUR)
        await ctx.yield_output(life.work("slept"))

    async def worker(_: Any, ctx: Context) -> None:
        await ctx.yield_output(life.work("worked"))

    async def dying(_: Any, ctx: Context) -> None:
        await life.die_when_recorded(2)
        await ctx.yield_output(life.work("survived"))

    start, sleeper, spread = node("start", pass_on), node("sleeper", sleep), node("spread", pass_on)
    workers = [node("a", worker), node("b", dying), node("c", worker)]
    return life.built(start).add_fan_out_edges(start, [sleeper, spread]).add_fan_out_edges(spread, workers).build()


def stuck(life: Life) -> Workflow:
    """Works, and in the first life waits for ever beside a handler that has ended; inside a sub-workflow, too."""

    async def pass_on(message: Any, ctx: Context) -> None:
        await ctx.send_message(message)

    async def worker(_: Any, ctx: Context) -> None:
        await ctx.yield_output(life.work("worked"))

    async def wait(_: Any, ctx: Context) -> None:
        step = await ctx.step("work", life.work, "step")
        if life.is_first:
            (life.directory / "waiting").touch()
            await asyncio.get_running_loop().create_future()
        await ctx.yield_output(step)

    inner = WorkflowExecutor(life.built(node("wait", wait)).build(), "sub", allow_direct_output=True)
    start = node("start", pass_on)
    return life.built(start).add_fan_out_edges(start, [node("worker", worker), inner]).build()


def paying(life: Life) -> Workflow:
    """A payment in the middle of which the first life dies: nobody knows whether it was made."""

    def pay() -> str:
        if life.is_first:
            life.die()
        return life.work("paid")

    async def do(_: Any, ctx: Context) -> None:
        first = await ctx.step("work", life.work, "first")
        await ctx.yield_output([first, await ctx.step("pay", pay, if_interrupted="ask")])

    return life.built(node("node", do)).build()


PROGRAMS = {
    "sleeping": sleeping,
    "sleeping_inside": sleeping_inside,
    "delayed": delayed,
    "beside": beside,
    "stuck": stuck,
    "paying": paying,
}


async def live(kind: str, directory: Path, name: str, hours: float) -> tuple[str, list[Any]]:
    """Start the run or go on with it; how it stands then, and its outputs. The first life dies when it sleeps."""
    life = Life(kind, directory, hours)
    workflow = PROGRAMS[name](life)
    killer = asyncio.ensure_future(life.die_asleep()) if life.is_first and name != "stuck" else None
    result = await workflow.run("go", run_id=RUN_ID, wait_for_timers=life.is_first)
    if killer is not None:
        killer.cancel()
    return result.get_final_state().value, result.get_outputs()


if __name__ == "__main__":
    told = asyncio.run(live(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
    sys.stdout.write(repr(told))
