"""A workflow with an agent that dies in the middle of a tool. Run as a script: directory, name of the tool, decision.

Every call of the model and of a tool leaves a line in the file `effects`, outside of any store.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import FunctionExecutor, SqliteCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext
from perdure.agents import Agent, FunctionInvocationContext, FunctionTool, tool
from perdure.checkpoint import StepDecision
from perdure.engine import NOT_DONE
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perdure.agents import Message

RUN_ID = "dying"


class Place:
    """Where a life of the program leaves its effects."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def note(self, line: str) -> None:
        """Leave a line."""
        with (self.directory / "effects").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def die_once(self) -> None:
        """In the first life: end this process, as a crash does."""
        mark = self.directory / "died"
        if not mark.exists():
            mark.touch()
            os._exit(9)

    def find_out(self, key: str) -> Any:
        """Whether the payment was made: its line tells."""
        effects = (self.directory / "effects").read_text(encoding="utf-8")
        return "found to be paid" if f"pay {key}" in effects else NOT_DONE

    def tools(self) -> dict[str, FunctionTool]:
        """Payments that the first life makes and dies of, by what becomes of them."""

        def pay(ctx: FunctionInvocationContext) -> str:
            """Pay."""
            self.note(f"pay {ctx.idempotency_key}")
            self.die_once()
            return "paid"

        async def pay_later(ctx: FunctionInvocationContext) -> str:
            """Pay."""
            self.die_once()
            self.note(f"pay {ctx.idempotency_key}")
            return "paid"

        return {
            "tell": tool(pay, name="pay"),
            "rerun": tool(pay, name="pay", if_interrupted="rerun"),
            "ask": tool(pay, name="pay", if_interrupted="ask"),
            "find": tool(pay, name="pay", if_interrupted=self.find_out),
            "not_done": tool(pay_later, name="pay", if_interrupted=self.find_out),
        }

    def look(self) -> str:
        """Look."""
        self.note("look")
        return "all is well"

    def say(self, messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        """First look, then pay, then tell the results."""
        results = [each for message in messages for each in message.contents if each.type == "function_result"]
        self.note(f"model {len(results)}")
        match results:
            case []:
                return ToolCall("look")
            case [_]:
                return ToolCall("pay")
            case _:
                return "; ".join([str(each.result) for each in results])


def built(place: Place, name: str) -> Workflow:
    """One executor with an agent."""
    client = ScriptedChatClient(place.say)
    agent = Agent(client, name="clerk", tools=[tool(place.look), place.tools()[name]])

    async def process(text: str, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output((await agent.run(text)).messages[-1].text)

    node = FunctionExecutor(process, "node", input=str, output=Any, workflow_output=Any)
    return WorkflowBuilder(name="w", start_executor=node).build()


async def live(directory: Path, name: str, decision: str | None) -> object:
    """Start the run or go on with it, and answer what it asks; its outputs, or what it asks."""
    storage = SqliteCheckpointStorage(directory / "runs.db")
    workflow = built(Place(directory), name)
    result = await workflow.run("go", run_id=RUN_ID, checkpoint_storage=storage)
    questions = [event for event in result if event.type == "request_info"]
    if not questions:
        return result.get_outputs()
    if decision is None:
        return [event.data.name for event in questions]
    answers = {event.request_id: StepDecision("done", decision) for event in questions}
    return (await workflow.run(responses=answers, checkpoint_storage=storage)).get_outputs()


if __name__ == "__main__":
    _, where, which, *decided = sys.argv
    sys.stdout.write(repr(asyncio.run(live(Path(where), which, decided[0] if decided else None))))
