"""A workflow whose agent dies in or behind a tool that is more than a function. Run as a script: directory, kind.

Each effect leaves a line in the file `effects`, outside of any store.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import SqliteCheckpointStorage, WorkflowBuilder
from perdure.agents import Agent, AgentResponse, BaseAgent, FunctionInvocationContext, Message, tool
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Life:
    """One life of the program."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        self.kind = kind

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

    def pay(self) -> str:
        """Pay."""
        self.note("paid")
        self.die_once()
        return "paid"

    def special(self) -> str:
        """Do what is special."""
        self.note("special")
        return "special"

    def add(self, ctx: FunctionInvocationContext) -> str:
        """Add the special tool."""
        ctx.add_tools([tool(self.special)])
        return "added"

    def expert(self) -> Any:
        """What the agent calls, by kind."""
        match self.kind:
            case "stranger":
                return Stranger(self).as_tool()
            case "asking":
                replies = [ToolCall("pay"), "settled"]
                pay = tool(self.pay, if_interrupted="ask")
                return Agent(ScriptedChatClient(replies), name="expert", tools=pay).as_tool()
            case _:
                return tool(self.add, name="expert")

    def say(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        """Call the expert, then what it has added, then tell the results and the tools that there are."""
        results = [str(each.result) for said in messages for each in said.contents if each.type == "function_result"]
        if not results:
            return ToolCall("expert", task="x")
        names = [each.name for each in options["tools"]]
        if "special" not in names:
            return results[0]
        if len(results) == 1:
            self.die_once()
            return ToolCall("special")
        return f"{results[1]} of {names}"

    async def run(self) -> list[str]:
        """Start the run, or go on with it; its outputs."""
        hidden = [tool(self.special)] if self.kind == "known" else []
        client = ScriptedChatClient(self.say, function_invocation_configuration={"additional_tools": hidden})
        chief = Agent(client, name="chief", tools=[self.expert()])
        storage = SqliteCheckpointStorage(self.directory / "runs.db")
        workflow = WorkflowBuilder(name="w", start_executor=chief, checkpoint_storage=storage).build()
        return [output.text for output in (await workflow.run("go", run_id="r")).get_outputs()]


class Stranger(BaseAgent):
    """An agent that records nothing."""

    def __init__(self, life: Life) -> None:
        super().__init__(name="expert")
        self.life = life

    async def run(self, messages: Any = None, **_: Any) -> AgentResponse[Any]:
        """Pay."""
        del messages
        return AgentResponse(messages=[Message("assistant", [self.life.pay()])])


if __name__ == "__main__":
    _, where, which = sys.argv
    sys.stdout.write(repr(asyncio.run(Life(Path(where), which).run())))
