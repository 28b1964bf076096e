"""Workflows that wait, and the means to look at them from outside."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.workflow.nodes import Context, node

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, WorkflowExecutor, WorkflowRunState, handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.workflow.nodes import Doing

    from perdure import (
        FileCheckpointStorage,
        InMemoryCheckpointStorage,
        SqliteCheckpointStorage,
        WorkflowEvent,
        WorkflowRunResult,
    )
    from perdure.records import RunRecord
    from perdure.testing.clock import ManualClock

    Storage: TypeAlias = InMemoryCheckpointStorage | FileCheckpointStorage | SqliteCheckpointStorage

HOUR = timedelta(hours=1)
RUN_ID = "r"


class Work:
    """Counts pieces of work by name."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __call__(self, name: str) -> str:
        self.done.append(name)
        return name.upper()


def alone(do: Doing, clock: ManualClock, storage: Storage | None = None) -> Workflow:
    """A workflow of one executor, named `node`."""
    start = node("node", do)
    return WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=clock).build()


def side_by_side(clock: ManualClock, storage: Storage | None, *doings: Doing) -> Workflow:
    """A start that sends its message to executors `n0`, `n1` and so on, which do these things at once."""

    async def pass_on(message: Any, ctx: Context) -> None:
        await ctx.send_message(message)

    start = node("start", pass_on)
    nodes = [node(f"n{number}", do) for number, do in enumerate(doings)]
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=clock)
    return builder.add_fan_out_edges(start, nodes).build()


def nested(do: Doing, clock: ManualClock, storage: Storage | None, *, levels: int) -> Workflow:
    """The same workflow of one executor, inside as many others, each named `sub`. Its outputs come out."""
    workflow = alone(do, clock)
    for _ in range(levels):
        sub = WorkflowExecutor(workflow, "sub", allow_direct_output=True)
        workflow = WorkflowBuilder(name="w", start_executor=sub, clock=clock).build()
    workflow.checkpoint_storage = storage
    return workflow


class Counting(Executor):
    """Counts its messages; over the one that says so it sleeps."""

    def __init__(self) -> None:
        super().__init__(id="counting")
        self.heard: list[str] = []

    @handler
    async def hear(self, message: str, ctx: WorkflowContext[str, list[str]]) -> None:
        self.heard.append(message)
        if message == "sleep":
            await ctx.sleep(HOUR)
        await ctx.yield_output(list(self.heard))

    def on_checkpoint_save(self) -> dict[str, Any]:
        return {"heard": self.heard}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"]


async def record_of(storage: Storage, run_id: str = RUN_ID) -> RunRecord:
    """The run as its store knows it."""
    record = await storage.store.run(run_id)
    assert record is not None
    return record


async def committed(storage: Storage, run_id: str = RUN_ID) -> list[WorkflowEvent[Any]]:
    """The committed events of a run."""
    return [event async for event in storage.events(run_id)]


def ended(result: WorkflowRunResult) -> WorkflowRunState:
    """The state in which a run was left."""
    return result.get_final_state()


def outputs(events: Iterable[WorkflowEvent[Any]]) -> list[Any]:
    """What was yielded."""
    return [event.data for event in events if event.type == "output"]


async def until(condition: Callable[[], bool], running: asyncio.Future[Any]) -> None:
    """Let a run go on until something holds. If it ends before, its error is raised."""
    while not condition():
        if running.done():
            raise AssertionError(f"it has ended before: {running.result()!r}")
        await asyncio.sleep(0)


async def until_asleep(clock: ManualClock, running: asyncio.Future[Any]) -> None:
    """Let a run go on until it waits for the clock."""
    await until(lambda: clock.sleepers > 0, running)
