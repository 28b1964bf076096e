"""A workflow whose agent asks a model of another provider and calls tools of an MCP server. Run as a script.

Its arguments: the addresses of the two, and a directory.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from tests.agents.anthropic_server import MODEL

from perdure import FunctionExecutor, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext
from perdure.agents import Agent
from perdure.mcp import MCPStreamableHTTPTool
from perdure.models import ModelClient


async def live(model_url: str, mcp_url: str, directory: Path) -> object:
    """Start the run or go on with it; its outputs."""
    model = AnthropicModel(MODEL, provider=AnthropicProvider(api_key="a-key-for-tests", base_url=model_url))
    server = MCPStreamableHTTPTool("library", mcp_url, headers={"x-who": str(os.getpid())})
    agent = Agent(ModelClient[Any](model), name="clerk", tools=[server])

    async def ask(message: str, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output((await agent.run(message)).text)

    node = FunctionExecutor(ask, "node", input=str, output=Any, workflow_output=Any)
    workflow = WorkflowBuilder(name="asking", start_executor=node).build()
    async with agent, SqliteCheckpointStorage(directory / "runs.db") as storage:
        return (await workflow.run("Do it", run_id="asking", checkpoint_storage=storage)).get_outputs()


if __name__ == "__main__":
    sys.stdout.write(repr(asyncio.run(live(sys.argv[1], sys.argv[2], Path(sys.argv[3])))))
