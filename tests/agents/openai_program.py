"""A workflow that asks a model over the wire, and dies once when the model has answered. Run as a script.

Its arguments: the address of the server, and a directory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from perdure import FunctionExecutor, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext
from perdure.agents import Agent, tool
from perdure.openai import OpenAIChatClient


async def live(url: str, directory: Path) -> object:
    """Start the run or go on with it; its outputs."""

    @tool
    def note(line: str) -> str:
        """Write a line down."""
        with (directory / "notes").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        return "written"

    agent = Agent(OpenAIChatClient("model-x", base_url=url, api_key="k"), name="clerk", tools=[note])

    async def ask(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        whole = await agent.run(message)
        streamed = await agent.run(message, stream=True).get_final_response()
        if not (directory / "died").exists():
            (directory / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        await ctx.yield_output([whole.text, streamed.text])

    node = FunctionExecutor(ask, "node", input=str, output=Any, workflow_output=Any)
    workflow = WorkflowBuilder(name="asking", start_executor=node).build()
    async with SqliteCheckpointStorage(directory / "runs.db") as storage:
        return (await workflow.run("Note it", run_id="asking", checkpoint_storage=storage)).get_outputs()


if __name__ == "__main__":
    sys.stdout.write(repr(asyncio.run(live(sys.argv[1], Path(sys.argv[2])))))
