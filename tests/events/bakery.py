"""A workflow that tells a lot, and may die once. Run as a script: a kind of storage, a directory, who dies.

An order goes to three bakers side by side, the loaves are gathered, packed and labelled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import (
    CheckpointInfo,
    Executor,
    FileCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    handler,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

    from perdure import CheckpointStorage

RUN_ID = "order"
BAKERS = 3


@dataclass
class Loaf:
    number: int
    baker: str


class Fate:
    """Kills this process when its victim is at work, in the first life only."""

    def __init__(self, directory: Path | None = None, victim: str = "") -> None:
        self._mark = None if directory is None else directory / "died"
        self._victim = victim

    def meet(self, executor_id: str) -> None:
        if self._mark is not None and executor_id == self._victim and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Counter(Executor):
    def __init__(self, fate: Fate) -> None:
        super().__init__("counter")
        self._fate = fate

    @handler
    async def order(self, loaves: int, ctx: WorkflowContext[int]) -> None:
        self._fate.meet(self.id)
        await ctx.add_event(WorkflowEvent("order", {"loaves": loaves}))
        await ctx.send_message(loaves)


class Baker(Executor):
    def __init__(self, name: str, fate: Fate) -> None:
        super().__init__(name)
        self._fate = fate

    @handler
    async def bake(self, loaves: int, ctx: WorkflowContext[Loaf, Loaf]) -> None:
        # The others may have finished by now, or not.
        await asyncio.sleep(0)
        self._fate.meet(self.id)
        for number in range(loaves):
            await ctx.add_event(WorkflowEvent("baked", Loaf(number, self.id), executor_id=self.id))
        await ctx.add_event(WorkflowEvent("smell", self.id), transient=True)
        await ctx.yield_output(Loaf(loaves, self.id))
        await ctx.send_message(Loaf(loaves, self.id))


class Packer(Executor):
    def __init__(self, fate: Fate) -> None:
        super().__init__("packer")
        self._fate = fate

    @handler
    async def pack(self, loaves: list[Loaf], ctx: WorkflowContext[str, str]) -> None:
        self._fate.meet(self.id)
        await ctx.send_message("nobody takes this", target_id="nobody")
        await ctx.send_message(f"{len(loaves)} loaves")


class Label(Executor):
    """Inside a sub-workflow: two supersteps."""

    def __init__(self, fate: Fate) -> None:
        super().__init__("label")
        self._fate = fate

    @handler
    async def print(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        if text.endswith("!"):
            self._fate.meet(self.id)
            await ctx.yield_output(text)
        else:
            await ctx.send_message(f"{text}!")


def bakery(storage: CheckpointStorage | None = None, fate: Fate | None = None, **options: Any) -> Workflow:
    """The whole of it."""
    fate = fate or Fate()
    counter, packer, label = Counter(fate), Packer(fate), Label(fate)
    bakers = [Baker(f"baker-{number}", fate) for number in range(BAKERS)]
    inner = WorkflowBuilder(name="labels", start_executor=label).add_edge(label, label).build()
    labels = WorkflowExecutor(inner, "labels", allow_direct_output=True)
    builder = WorkflowBuilder(name="bakery", start_executor=counter, checkpoint_storage=storage, **options)
    builder = builder.add_fan_out_edges(counter, bakers).add_fan_in_edges(bakers, packer)
    return builder.add_edge(packer, labels).build()


async def facts(events: AsyncIterable[WorkflowEvent[Any]]) -> list[tuple[Any, ...]]:
    """All that events say, but for the time."""
    return [
        (event.seq, event.type, event.executor_id, event.iteration, event.path, repr(_timeless(event.data)))
        async for event in events
    ]


def _timeless(data: Any) -> Any:
    return replace(data, timestamp="") if isinstance(data, CheckpointInfo) else data


def opened(kind: str, directory: Path) -> FileCheckpointStorage | SqliteCheckpointStorage:
    if kind == "file":
        return FileCheckpointStorage(directory / "runs", allowed_checkpoint_types=[Loaf])
    return SqliteCheckpointStorage(directory / "runs.db", allowed_checkpoint_types=[Loaf])


async def live(kind: str, directory: Path, victim: str) -> None:
    """Start the run or go on with it."""
    async with opened(kind, directory) as storage:
        await bakery(storage, Fate(directory, victim)).run(2, run_id=RUN_ID)


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
