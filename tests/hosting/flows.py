"""Small workflows for hosts, and the means to wait for what happens to their runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

from tests.workflow.nodes import node

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler
from perdure.records import Mark

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.workflow.nodes import Context, Doing

    from perdure import Host, RunInfo
    from perdure.records import RunStatus

NOWHERE = Mark(head="", events=-1, commands=-1)
"""The mark of no run: whoever has seen it is told at once how far a run is."""


def row(name: str, *doings: Doing, **options: Any) -> Callable[[], Workflow]:
    """A factory of workflows whose executors `n0`, `n1` and so on do these things, one after the other."""

    def build() -> Workflow:
        nodes = [node(f"n{number}", do) for number, do in enumerate(doings)]
        builder = WorkflowBuilder(name=name, start_executor=nodes[0], **options)
        return builder.add_chain(nodes).build() if len(nodes) > 1 else builder.build()

    return build


async def shout(message: Any, ctx: Context) -> None:
    """Give the message back, louder."""
    await ctx.yield_output(f"{message}!")


async def pass_on(message: Any, ctx: Context) -> None:
    """Send the message on."""
    await ctx.send_message(message)


async def fail(message: Any, ctx: Context) -> None:
    """Raise."""
    del ctx
    raise LookupError(f"no {message}")


class Gate:
    """Lets handlers wait inside, until it is opened, and says how many are."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.came: list[Any] = []
        self._opened = asyncio.Event()
        self._changed = asyncio.Event()

    async def __call__(self, message: Any, ctx: Context) -> None:
        self.came.append(message)
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._changed.set()
        try:
            await self._opened.wait()
        finally:
            self.inside -= 1
        await ctx.send_message(message)
        await ctx.yield_output(message)

    def open(self) -> None:
        """Let all go on, now and later."""
        self._opened.set()

    async def holds(self, count: int) -> None:
        """Wait until so many are inside."""
        while self.inside < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 30)


class Clerk(Executor):
    """Asks what it is told to, and tells the answer. It remembers how many it was told."""

    def __init__(self) -> None:
        super().__init__("clerk")
        self.told = 0

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.request_info(text, str, request_id=f"about {text}")

    @response_handler
    async def answered(self, text: str, answer: str, ctx: WorkflowContext[Never, str]) -> None:
        self.told += 1
        await ctx.yield_output(f"{text}: {answer} ({self.told})")

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"told": self.told}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.told = state["told"]


def office() -> Workflow:
    """A workflow that asks."""
    return WorkflowBuilder(name="office", start_executor=Clerk()).build()


async def until(host: Host, run_id: str, status: RunStatus) -> RunInfo:
    """Wait until a run stands there, and nobody has it."""
    store = host.storage.store
    async with asyncio.timeout(30):
        while True:
            mark = await store.watch(run_id, seen=NOWHERE)
            info = await host.info(run_id)
            if info.status == status and info.owner is None:
                return info
            await store.watch(run_id, seen=mark)
