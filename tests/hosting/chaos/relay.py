"""A workflow that is held at gates: a test decides how far which process comes with it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.hosting.chaos.orders import Life, Order, Worker
from tests.hosting.chaos.world import Fact

from perdure import Workflow, WorkflowBuilder, WorkflowContext, handler
from perdure.engine import step_key

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosting.chaos.world import World

NAME = "relay"
_LOOK_SECONDS = 0.02
_FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Gate:
    """Where a process is held in the middle of a step until it is opened for it."""

    world: World
    name: str

    def _path(self, pid: int) -> Path:
        return self.world.path.parent / f"{self.name} is open for {pid}"

    def open_for(self, pid: int, *, fails: bool = False) -> None:
        """Let a process through; or let its step fail there."""
        path = self._path(pid)
        path.with_suffix(".new").write_text(_FAILS if fails else "", "utf-8")
        path.with_suffix(".new").rename(path)

    def wait(self) -> None:
        path = self._path(os.getpid())
        while not path.exists():
            time.sleep(_LOOK_SECONDS)
        if path.read_text("utf-8") == _FAILS:
            raise ConnectionError("the line was cut")


class Starter(Worker):
    """Sends both."""

    @handler
    async def start(self, order: Order, ctx: WorkflowContext[Order]) -> None:
        await ctx.send_message(order)


class Runner(Worker):
    """A step, then two that are held after their effects."""

    @handler
    async def run(self, order: Order, ctx: WorkflowContext[Any, str]) -> None:
        first = await self._done(ctx, order, "first")
        second = await self._done(ctx, order, "second", self._held)
        third = await self._done(ctx, order, "third", self._held)
        await ctx.yield_output(f"{first}, {second}, {third}, told by {os.getpid()}")

    def _held(self, order: Order, name: str) -> str:
        self._life.note("effect", order, name, step_key())
        Gate(self._life.world, name).wait()
        return f"{name} {order.number}"


class Other(Worker):
    """Works beside it, and is done long before."""

    @handler
    async def work(self, order: Order, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(await self._done(ctx, order, "beside"))


def build(world: World) -> Workflow:
    """The whole graph, for one life."""
    life = Life(world)
    world.note(Fact("born", os.getpid(), life=life.number))
    starter, runner, other = Starter("starter", life), Runner("runner", life), Other("other", life)
    return WorkflowBuilder(name=NAME, start_executor=starter).add_fan_out_edges(starter, [runner, other]).build()
