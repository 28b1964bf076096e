"""Programs that die inside a superstep. Run as a script, with a kind of storage, a directory and a name.

Every call of a handler leaves a line in the file `effects`, outside of any store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from perdure import (
    Executor,
    FileCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)

RUN_ID = "fan"
BRANCHES = 10
RECORDS_OF_THREE_STEPS = 4
"""One record of events for each step, and the sub-workflow's latest state."""


class Place:
    """Location of a process's run and effects."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.directory = directory
        self.storage = (
            FileCheckpointStorage(directory / "runs")
            if kind == "file"
            else SqliteCheckpointStorage(directory / "runs.db")
        )

    def note(self, effect: str) -> None:
        """Leave a line."""
        with (self.directory / "effects").open("a", encoding="utf-8") as file:
            file.write(f"{effect}\n")

    async def die_once(self, *, records: int) -> None:
        """In the first life: wait until so many records are in the journal, and kill this process."""
        mark = self.directory / "died"
        if mark.exists():
            return
        # Nobody tells when a store has written what nobody waits for.
        while len(await self.storage.store.journal(RUN_ID)) < records:  # noqa: ASYNC110
            await asyncio.sleep(0)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Branch(Executor):
    """One of ten: notes that it ran, counts its calls, and the last one dies while the others have finished."""

    def __init__(self, number: int, place: Place) -> None:
        super().__init__(id=f"branch-{number}")
        self._number = number
        self._place = place
        self._calls = 0

    @handler
    async def work(self, start: int, ctx: WorkflowContext[int, str]) -> None:
        if self._number == BRANCHES - 1:
            await self._place.die_once(records=BRANCHES - 1)
        self._place.note(self.id)
        self._calls += 1
        ctx.set_state(self.id, self._calls)
        await ctx.yield_output(f"{self.id} made {start + self._number}")
        await ctx.send_message(start + self._number)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"calls": self._calls}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._calls = state["calls"]


@executor(id="start")
async def start(number: int, ctx: WorkflowContext[int]) -> None:
    await ctx.send_message(number)


@executor(id="sum")
async def total(numbers: list[int], ctx: WorkflowContext[Any, str]) -> None:
    calls = [ctx.get_state(f"branch-{number}") for number in range(BRANCHES)]
    await ctx.yield_output(f"sum {sum(numbers)}, calls {calls}")


def fan(place: Place) -> Workflow:
    """One to ten and back."""
    branches = [Branch(number, place) for number in range(BRANCHES)]
    builder = WorkflowBuilder(name="fan", start_executor=start).add_fan_out_edges(start, branches)
    return builder.add_fan_in_edges(branches, total).build()


class Stair(Executor):
    """Inside a sub-workflow: five steps, one in each superstep; the fourth dies."""

    def __init__(self, place: Place) -> None:
        super().__init__(id="stair")
        self._place = place
        self._climbed: list[int] = []

    @handler
    async def climb(self, step: int, ctx: WorkflowContext[int, str]) -> None:
        if step == 3:
            await self._place.die_once(records=RECORDS_OF_THREE_STEPS)
        self._place.note(f"step {step}")
        self._climbed.append(step)
        await ctx.yield_output(f"climbed {self._climbed}")
        if step < 4:
            await ctx.send_message(step + 1)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"climbed": self._climbed}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._climbed = state["climbed"]


def stairs(place: Place) -> Workflow:
    """A sub-workflow of several supersteps inside one superstep."""
    stair = Stair(place)
    inner = WorkflowBuilder(name="inner", start_executor=stair).add_edge(stair, stair).build()
    return WorkflowBuilder(name="fan", start_executor=WorkflowExecutor(inner, "sub", allow_direct_output=True)).build()


async def live(kind: str, directory: Path, name: str) -> list[Any]:
    """Start the run or go on with it; its outputs."""
    place = Place(kind, directory)
    workflow = fan(place) if name == "fan" else stairs(place)
    result = await workflow.run(0, run_id=RUN_ID, checkpoint_storage=place.storage)
    return result.get_outputs()


if __name__ == "__main__":
    sys.stdout.write(repr(asyncio.run(live(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))))
