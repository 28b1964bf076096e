"""A functional workflow that dies once inside of a call, after a step in it was done. A script."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, cast

from perdure import Agent, RunContext, SqliteCheckpointStorage, StepDecision, get_run_context, step, tool, workflow
from perdure.testing import ScriptedChatClient, ToolCall

DIRECTORY, POLICY = Path(sys.argv[1]), cast("Any", sys.argv[2])


def die_once() -> None:
    """Die, unless that has happened."""
    died = DIRECTORY / "died"
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@step
async def keep(text: str, ctx: RunContext) -> str:
    """Add to what is remembered."""
    ctx.set_state("all", [*ctx.get_state("all", []), text])
    return text


async def find(_: str) -> str:
    """Find out that a call was made, and remember it."""
    context = get_run_context()
    assert context is not None
    context.set_state("all", [*context.get_state("all", []), "found"])
    return "found"


@step(if_interrupted="ask" if POLICY == "step" else "rerun")
async def keep_both(texts: list[str]) -> list[str]:
    """A step with steps in it, which comes to the second in its second life if at all."""
    kept = [await keep(texts[0])]
    die_once()
    return [*kept, await keep(texts[1])]


@tool(approval_mode="never_require", if_interrupted=cast("Any", {"step": "rerun", "find": find}.get(POLICY, POLICY)))
async def remember(texts: list[str]) -> list[str]:
    """Remember texts."""
    kept = [await keep(texts[0])]
    die_once()
    return [*kept, await keep(texts[1])]


agent = Agent(ScriptedChatClient([[ToolCall("remember", texts=["a", "b"])], "done"]), name="keeper", tools=[remember])


@workflow
async def memory(_: str, ctx: RunContext) -> dict[str, Any]:
    """What was remembered when the call had returned, and at the end."""
    await (keep_both(["a", "b"]) if POLICY == "step" else agent.run("go"))
    seen = ctx.get_state("all")
    await keep("last")
    await ctx.request_info("well?", str, request_id="well")
    return {"seen": seen, "all": ctx.get_state("all")}


async def main() -> None:
    """Begin the run or go on with it, answer what it asks, and print what it returns."""
    async with SqliteCheckpointStorage(DIRECTORY / "runs.db") as storage:
        result = await memory.run("go", run_id="r", checkpoint_storage=storage)
        while asked := result.get_request_info_events():
            answers = {each.request_id: "yes" if each.request_id == "well" else StepDecision("done") for each in asked}
            result = await memory.run(run_id="r", responses=answers, checkpoint_storage=storage)
    sys.stdout.write(json.dumps(result.get_outputs()))


if __name__ == "__main__":
    asyncio.run(main())
