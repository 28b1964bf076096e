"""A run with steps, retries, a wait, model and tool calls and a sub-workflow, which may die once.

Run as a script: a kind of storage, a directory, the place where the process dies.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.events.bakery import RUN_ID, Fate, opened

from perdure import (
    Agent,
    AgentExecutor,
    AgentExecutorResponse,
    Executor,
    Failure,
    Retry,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    executor,
    handler,
    tool,
)
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

    from perdure import CheckpointStorage

PLACES = [
    *("price", "priced", "left", "outer", "inner", "nested", "flaky-1", "flaky-2", "mended", "slept", "pack"),
    *("weigh", "told", "try-1", "try-2", "label", "labelled"),
]
"""Where the process may die, in the order in which a run comes to them."""


class Marks:
    """Marks that all processes of a run share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, name: str) -> bool:
        return (self._directory / f"mark-{name}").exists()

    def set(self, name: str) -> None:
        (self._directory / f"mark-{name}").touch()

    def fail_once(self, name: str, fate: Fate, error: Exception) -> None:
        fate.meet(f"{name}-2" if self.has(name) else f"{name}-1")
        if not self.has(name):
            self.set(name)
            raise error


class Clerk(Executor):
    def __init__(self, fate: Fate, marks: Marks) -> None:
        super().__init__("clerk")
        self._fate, self._marks = fate, marks

    @handler
    async def work(self, order: str, ctx: WorkflowContext[str]) -> None:
        meet = self._fate.meet
        await ctx.step("price", meet, "price")
        meet("priced")

        async def side(name: str) -> None:
            # The call that comes first ends last.
            while name == "left" and not self._marks.has("right"):  # noqa: ASYNC110 - the mark may be of another process
                await asyncio.sleep(0)
            meet(name)
            self._marks.set(name)

        async def outer() -> str:
            meet("outer")
            await ctx.step("inner", meet, "inner")
            meet("nested")
            return "both"

        await asyncio.gather(*(ctx.step(name, side, name, key=name) for name in ("left", "right")))
        await ctx.step("outer", outer, key="outer")
        await ctx.step("flaky", self._flaky, retry=Retry(backoff=0))
        meet("mended")
        await ctx.sleep(0.01)
        meet("slept")
        await ctx.step("pack", meet, "pack")
        await ctx.send_message(order)

    def _flaky(self) -> None:
        self._marks.fail_once("flaky", self._fate, ConnectionError("closed"))


def shop(storage: CheckpointStorage, directory: Path, fate: Fate, **options: Any) -> Workflow:
    marks = Marks(directory)

    @tool(if_interrupted="rerun")
    def weigh(grams: int) -> str:
        fate.meet("weigh")
        return f"{grams} g"

    def reply(*_: Any) -> Any:
        fate.meet("told")
        return "It weighs 5 g."

    client = ScriptedChatClient([ToolCall("weigh", grams=5), reply], name="small-model")
    agent = AgentExecutor(Agent(client, "Weigh it.", name="scales", tools=[weigh]), id="scales")

    @executor(id="trying", retry=Retry(backoff=0))
    async def trying(message: AgentExecutorResponse, ctx: WorkflowContext[str]) -> None:
        await ctx.step("note", str.upper, "noted")
        marks.fail_once("try", fate, TimeoutError("too late"))
        await ctx.send_message(message.agent_response.text)

    @executor(id="labeller")
    async def label(message: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.step("label", fate.meet, "label")
        fate.meet("labelled")
        await ctx.yield_output(message)

    labels = WorkflowExecutor(WorkflowBuilder(name="labels", start_executor=label).build(), "labels")
    clerk = Clerk(fate, marks)
    builder = WorkflowBuilder(name="shop", start_executor=clerk, checkpoint_storage=storage, **options)
    return builder.add_chain([clerk, agent, trying, labels]).build()


CALLS = frozenset({"step_completed", "model_call_completed", "tool_call_completed", "attempt_failed"})


async def calls(events: AsyncIterable[WorkflowEvent[Any]]) -> list[str]:
    """Describe the events about calls, and where supersteps ended."""
    return [_line(each) async for each in events if each.innermost.type in {*CALLS, "superstep_completed"}]


def _line(event: WorkflowEvent[Any]) -> str:
    found = event.innermost
    data = replace(found.data, at="") if isinstance(found.data, Failure) else found.data
    return " ".join(map(str, (*event.path, found.type, found.executor_id, found.iteration, data)))


async def live(kind: str, directory: Path, victim: str) -> None:
    """Start the run or go on with it."""
    async with opened(kind, directory) as storage:
        await shop(storage, directory, Fate(directory, victim)).run("an owl", run_id=RUN_ID)


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
