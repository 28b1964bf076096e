"""Programs that die inside a step. Run as a script, with a kind of storage, a directory and a name.

Every piece of work leaves a line in the file `effects`, outside of any store.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, TypeAlias

from perdure import (
    FileCheckpointStorage,
    FunctionExecutor,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
)
from perdure.checkpoint import StepDecision
from perdure.engine import NOT_DONE

RUN_ID = "dying"
Context: TypeAlias = WorkflowContext[Any, Any]


class Place:
    """Where a life of the program keeps its run and its effects."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.directory = directory
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

    def die_once(self) -> None:
        """In the first life: kill this process."""
        mark = self.directory / "died"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def die_before(self, name: str) -> str:
        """Work that the first life does not get to do."""
        self.die_once()
        return self.work(name)

    def die_after(self, name: str) -> str:
        """Work that the first life does, and dies before it can say so."""
        result = self.work(name)
        self.die_once()
        return result

    def find_out(self, _: str) -> Any:
        """Whether the work was done: its line tells."""
        effects = self.directory / "effects"
        return "PAY" if effects.exists() and "pay" in effects.read_text(encoding="utf-8") else NOT_DONE

    async def die_when_recorded(self, name: str, *, records: int) -> str:
        """In the first life: die when so many other steps are in the journal."""
        if not (self.directory / "died").exists():
            # Nobody tells when a store has written what others wait for.
            while len(await self.storage.store.journal(RUN_ID)) < records:  # noqa: ASYNC110
                await asyncio.sleep(0)
        return self.die_before(name)


async def three(place: Place, ctx: Context) -> list[str]:
    """Three steps in a row; the process dies in the second."""
    return [
        await ctx.step("work", place.work, "one"),
        await ctx.step("work", place.die_before, "two"),
        await ctx.step("work", place.work, "three"),
    ]


async def gathered(place: Place, ctx: Context) -> list[str]:
    """Three steps at once; the process dies in the first when the others have ended."""

    async def last() -> str:
        return await place.die_when_recorded("a", records=2)

    steps = [ctx.step("work", last), *(ctx.step("work", place.work, name) for name in "bc")]
    return await asyncio.gather(*steps)


async def asking(place: Place, ctx: Context) -> list[str]:
    """A payment that was made when the process died, and nobody knows it."""
    first = await ctx.step("work", place.work, "first")
    return [first, await ctx.step("pay", place.die_after, "pay", if_interrupted="ask")]


async def finding_out(place: Place, ctx: Context) -> list[str]:
    """The same, where the other side can be asked."""
    return [await ctx.step("pay", place.die_after, "pay", if_interrupted=place.find_out)]


async def not_done(place: Place, ctx: Context) -> list[str]:
    """The same, but it was not made."""
    return [await ctx.step("pay", place.die_before, "pay", if_interrupted=place.find_out)]


PROGRAMS = {"three": three, "gathered": gathered, "asking": asking, "finding_out": finding_out, "not_done": not_done}


def built(place: Place, name: str) -> Workflow:
    """One executor that runs a program; with `sub:` before its name, inside a sub-workflow."""
    program = PROGRAMS[name.removeprefix("sub:")]

    async def process(_: str, ctx: Context) -> None:
        await ctx.yield_output(await program(place, ctx))

    node = FunctionExecutor(process, "node", input=str, output=Any, workflow_output=Any)
    if not name.startswith("sub:"):
        return WorkflowBuilder(name="w", start_executor=node).build()
    inner = WorkflowBuilder(name="inner", start_executor=node).build()
    return WorkflowBuilder(name="w", start_executor=WorkflowExecutor(inner, "sub", allow_direct_output=True)).build()


async def live(kind: str, directory: Path, name: str, decision: str | None) -> object:
    """Start the run or go on with it, and answer what it asks; its outputs, or what it asks."""
    place = Place(kind, directory)
    workflow = built(place, name)
    result = await workflow.run("go", run_id=RUN_ID, checkpoint_storage=place.storage)
    questions = [event for event in result if event.type == "request_info"]
    if not questions:
        return result.get_outputs()
    if decision is None:
        return [(event.data.name, event.data.executor_id) for event in questions]
    action, _, value = decision.partition(":")
    answers = {event.request_id: StepDecision(action, value or None) for event in questions}  # pyright: ignore[reportArgumentType] - the test says what
    return (await workflow.run(responses=answers, checkpoint_storage=place.storage)).get_outputs()


if __name__ == "__main__":
    given = sys.argv[4] if len(sys.argv) > 4 else None
    sys.stdout.write(repr(asyncio.run(live(sys.argv[1], Path(sys.argv[2]), sys.argv[3], given))))
